//! Answers: bodies of a media type, `Status` in the caller's encoding, Go's plain 404.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use super::{
    accept::{self, Accept},
    body::Body,
    forms::{self, Encoding},
    status::Status,
};

pub(crate) type Reply = Response<Body>;

/// Indented JSON as `json.MarshalIndent(v, "", "  ")` writes it, key order kept.
pub(crate) fn indented(compact: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(compact.len() * 2);
    let (mut depth, mut text, mut escaped) = (0_usize, false, false);
    let trimmed = compact.trim_ascii_end();
    let line = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.extend(std::iter::repeat_n(b' ', depth * 2));
    };
    for (at, byte) in trimmed.iter().copied().enumerate() {
        if text {
            out.push(byte);
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => text = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => {
                text = true;
                out.push(byte);
            }
            b'{' | b'[' => {
                out.push(byte);
                let closes = trimmed
                    .get(at + 1)
                    .is_some_and(|next| matches!(next, b'}' | b']'));
                if closes {
                    continue;
                }
                depth += 1;
                line(&mut out, depth);
            }
            b'}' | b']' => {
                let opened = at > 0 && matches!(trimmed[at - 1], b'{' | b'[');
                if !opened {
                    depth = depth.saturating_sub(1);
                    line(&mut out, depth);
                }
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                line(&mut out, depth);
            }
            b':' => out.extend(b": "),
            _ => out.push(byte),
        }
    }
    Bytes::from(out)
}

/// A `Status` in the encoding that the caller accepts.
pub(crate) fn status_reply(
    accept: &Accept,
    headers: &HeaderMap,
    query: &[(String, String)],
    status: &Status,
) -> Reply {
    let code =
        StatusCode::from_u16(status.code.max(200)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut json = serde_json::to_vec(status).unwrap_or_default();
    let (encoding, body) = match accept.plain() {
        // What cannot be negotiated is written raw, and raw is indented (responsewriters.WriteRawJSON).
        _ if code == StatusCode::NOT_ACCEPTABLE => (Encoding::Json, indented(&json)),
        None => (Encoding::Json, indented(&json)),
        Some(Encoding::Protobuf) => (Encoding::Protobuf, forms::status_proto(status)),
        Some(Encoding::Yaml) => {
            let value = serde_json::to_value(status).unwrap_or_default();
            (Encoding::Yaml, Bytes::from(forms::to_yaml(&value)))
        }
        Some(Encoding::Json) if accept::pretty(headers, query) => (Encoding::Json, indented(&json)),
        Some(Encoding::Json) => {
            json.push(b'\n');
            (Encoding::Json, Bytes::from(json))
        }
    };
    let mut reply = reply(code, encoding.media_type(), body);
    if code == StatusCode::FORBIDDEN {
        reply.headers_mut().insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
    }
    if let Some(seconds) = status
        .details
        .as_ref()
        .map(|details| details.retry_after_seconds)
        .filter(|left| *left > 0)
    {
        reply
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    reply
}

/// Compresses what is longer than 128 KiB for callers that accept gzip (k/k PR#77449).
pub(crate) fn compressed(headers: &HeaderMap, media_type: &'static str, body: Bytes) -> Reply {
    use std::io::Write as _;
    let accepts = headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .any(|value| {
            String::from_utf8_lossy(value.as_bytes())
                .split(',')
                .any(|name| name.trim() == "gzip")
        });
    if body.len() <= 128 * 1024 || !accepts {
        return reply(StatusCode::OK, media_type, body);
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let packed = encoder
        .write_all(&body)
        .and_then(|()| encoder.finish())
        .unwrap_or_default();
    let mut answer = reply(StatusCode::OK, media_type, Bytes::from(packed));
    answer
        .headers_mut()
        .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    answer
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    answer
}

/// An answer with a body of a media type.
pub(crate) fn reply(code: StatusCode, media_type: &'static str, body: Bytes) -> Reply {
    with_body(code, media_type, Body::bytes(body))
}

pub(crate) fn with_body(code: StatusCode, media_type: &'static str, body: Body) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = code;
    reply
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    reply
}

/// Plain text as Go's `http.Error` writes it.
pub(crate) fn text(code: StatusCode, body: impl Into<Bytes>) -> Reply {
    let mut reply = reply(code, "text/plain; charset=utf-8", body.into());
    reply.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    reply
}

/// Kind (a) of 404: nobody knows the path.
pub(crate) fn not_found() -> Reply {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// To requests that come while it stops (`k8s.io/apiserver/pkg/server/filters/with_retry_after.go`).
pub(crate) fn shutting_down() -> Reply {
    let mut reply = text(
        StatusCode::TOO_MANY_REQUESTS,
        "The apiserver is shutting down, please try again later.\n",
    );
    reply
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    reply
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    reply
}
