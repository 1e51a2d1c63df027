//! Just enough of the protobuf wire format to take gnostic's OpenAPI documents apart and put them together again, with
//! everything that is not asked for kept as it came, byte for byte.
//!
//! Field numbers: `github.com/google/gnostic-models`, `openapiv2/OpenAPIv2.proto` and `openapiv3/OpenAPIv3.proto`. No
//! message types: a document has some 80 of them, and only names, pieces and references matter here.

/// The bytes are no protobuf message.
#[derive(Debug, thiserror::Error)]
#[error("it is not valid protobuf")]
pub(in super::super) struct NotProtobuf;

/// One field: its number, the whole of it with its tag, and the payload if it is length-delimited.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) number: u64,
    pub(super) whole: &'a [u8],
    pub(super) payload: Option<&'a [u8]>,
}

/// Nesting of schemas is far below; recursion must end.
const MAX_DEPTH: usize = 100;
/// Beginning of gnostic's `NamedAny` of this name: field 1, length 31.
const GVK: &[u8] = b"\x0a\x1fx-kubernetes-group-version-kind";

/// The fields of a message, in their order.
pub(super) fn fields(mut bytes: &[u8]) -> Result<Vec<Field<'_>>, NotProtobuf> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let begin = bytes;
        let tag = varint(&mut bytes)?;
        let payload = match tag & 7 {
            0 => {
                varint(&mut bytes)?;
                None
            }
            1 => {
                take(&mut bytes, 8)?;
                None
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).map_err(|_error| NotProtobuf)?;
                Some(take(&mut bytes, length)?)
            }
            5 => {
                take(&mut bytes, 4)?;
                None
            }
            _ => return Err(NotProtobuf),
        };
        let number = tag >> 3;
        if number == 0 {
            return Err(NotProtobuf);
        }
        let whole = begin.get(..begin.len() - bytes.len()).ok_or(NotProtobuf)?;
        fields.push(Field {
            number,
            whole,
            payload,
        });
    }
    Ok(fields)
}

/// A pair of a name (field 1) and a value (field 2), as gnostic writes the entries of maps.
pub(super) fn named(entry: &[u8]) -> Result<(String, &[u8]), NotProtobuf> {
    let (mut name, mut value) = ("", &b""[..]);
    for field in fields(entry)? {
        match (field.number, field.payload) {
            (1, Some(payload)) => {
                name = std::str::from_utf8(payload).map_err(|_error| NotProtobuf)?;
            }
            (2, Some(payload)) => value = payload,
            _ => {}
        }
    }
    Ok((name.to_owned(), value))
}

/// Appends a length-delimited field.
pub(super) fn put(out: &mut Vec<u8>, number: u64, payload: &[u8]) {
    put_varint(out, number << 3 | 2);
    put_varint(out, payload.len() as u64);
    out.extend_from_slice(payload);
}

/// Every text in the message that is a reference, however deep.
pub(super) fn references(bytes: &[u8], found: &mut impl FnMut(&str)) {
    walk(bytes, MAX_DEPTH, found);
}

fn walk(bytes: &[u8], depth: usize, found: &mut impl FnMut(&str)) {
    let (false, Ok(fields)) = (depth == 0, fields(bytes)) else {
        return;
    };
    for payload in fields.iter().filter_map(|field| field.payload) {
        if let Some(reference) = reference(payload) {
            found(reference);
        } else if contains(payload, b"#/") {
            walk(payload, depth - 1, found);
        }
    }
}

/// The message with its references renamed and, if wanted, without what says which kind it is; `None` if it stays as it is.
pub(super) fn rewrite(
    bytes: &[u8],
    rename: &impl Fn(&str) -> Option<String>,
    strip: bool,
) -> Option<Vec<u8>> {
    rewrite_at(bytes, rename, strip, MAX_DEPTH)
}

fn rewrite_at(
    bytes: &[u8],
    rename: &impl Fn(&str) -> Option<String>,
    strip: bool,
    depth: usize,
) -> Option<Vec<u8>> {
    if depth == 0 {
        return None;
    }
    // A text that happens to hold "#/" is no message, and stays.
    let fields = fields(bytes).ok()?;
    let mut out = Vec::with_capacity(bytes.len() + 64);
    let mut changed = false;
    for field in fields {
        let Some(payload) = field.payload else {
            out.extend_from_slice(field.whole);
            continue;
        };
        if strip && payload.starts_with(GVK) {
            changed = true;
            continue;
        }
        let renamed = if let Some(reference) = reference(payload) {
            rename(reference).map(String::into_bytes)
        } else if contains(payload, b"#/") || strip && contains(payload, GVK) {
            rewrite_at(payload, rename, strip, depth - 1)
        } else {
            None
        };
        match renamed {
            Some(renamed) => {
                put(&mut out, field.number, &renamed);
                changed = true;
            }
            None => out.extend_from_slice(field.whole),
        }
    }
    changed.then_some(out)
}

fn reference(payload: &[u8]) -> Option<&str> {
    let text = payload
        .starts_with(b"#/")
        .then(|| std::str::from_utf8(payload).ok())
        .flatten()?;
    text.bytes()
        .all(|byte| byte.is_ascii_graphic())
        .then_some(text)
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    memchr::memmem::find(bytes, what).is_some()
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], NotProtobuf> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(NotProtobuf)?;
    *bytes = rest;
    Ok(taken)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, NotProtobuf> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(NotProtobuf)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(NotProtobuf)
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}
