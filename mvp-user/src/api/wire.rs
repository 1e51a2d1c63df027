//! The representations of a Kubernetes object on the wire: JSON, YAML, CBOR and protobuf with its `k8s\0` envelope.
//!
//! Used for discovery documents, which are small and bounded; not for traffic that is only forwarded.

use std::io::Read as _;

use prost::Message;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

mod yaml;

/// Bound on a discovery document, decompressed: 5,000 CRDs are about 3 MiB.
pub const MAX_DOCUMENT: usize = 16 << 20;
/// Bound on the objects and arrays in a document: those of 5,000 CRDs are 100,000. An empty one takes 1 to 3 bytes on the wire
/// and hundreds in memory; serde takes an array for an object too.
const MAX_OBJECTS: usize = 500_000;
/// Magic of Kubernetes' protobuf envelope (`k8s.io/apimachinery/pkg/runtime/serializer/protobuf`).
const MAGIC: &[u8] = b"k8s\0";
/// Self-described CBOR, tag 55799 (RFC 8949, 3.4.6); kube-apiserver begins every CBOR object with it.
const CBOR_SELF_DESCRIBED: &[u8] = &[0xd9, 0xd9, 0xf7];

/// One of kube-apiserver's serialisations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Encoding {
    /// `application/json`, compact.
    Json,
    /// `application/json`, indented: what `pretty=1`, browsers and curl get.
    PrettyJson,
    /// `application/yaml`.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
    /// `application/cbor`.
    Cbor,
}

/// Why bytes of another server are not the document that they should be. Text of the server is shortened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// Neither JSON, YAML, CBOR nor protobuf.
    #[error("content type {0:?} is not one of kube-apiserver's")]
    ContentType(String),
    /// Some other object, e.g. of legacy discovery.
    #[error("it is a {0:?} of {1:?}")]
    Kind(String, String),
    /// Not parseable.
    #[error("it is not valid {0}: {1}")]
    Syntax(&'static str, String),
    /// More than the bound.
    #[error("it is larger than {0} bytes")]
    TooLarge(usize),
    /// More objects than the bound.
    #[error("it has more than {0} objects")]
    TooMany(usize),
    /// Compressed in another way than gzip.
    #[error("content encoding {0:?} is not known")]
    ContentEncoding(String),
}

/// `kind` and `apiVersion`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct TypeMeta {
    /// Kind of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Group and version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
}

/// `runtime.Unknown`, the envelope's message.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, required, tag = "1")]
    type_meta: UnknownType,
    #[prost(bytes = "vec", required, tag = "2")]
    raw: Vec<u8>,
    #[prost(string, required, tag = "3")]
    content_encoding: String,
    #[prost(string, required, tag = "4")]
    content_type: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct UnknownType {
    #[prost(string, required, tag = "1")]
    api_version: String,
    #[prost(string, required, tag = "2")]
    kind: String,
}

#[derive(Serialize)]
struct Tagged<'a, T> {
    #[serde(flatten)]
    head: Head<'a>,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    kind: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'a str,
}

impl Encoding {
    /// The encoding of a media type; its parameters do not matter.
    pub fn of(content_type: &str) -> Option<Self> {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        [Self::Json, Self::Yaml, Self::Protobuf, Self::Cbor]
            .into_iter()
            .find(|encoding| essence.eq_ignore_ascii_case(encoding.media_type()))
    }

    /// The media type without parameters.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Json | Self::PrettyJson => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
            Self::Cbor => "application/cbor",
        }
    }
}

/// At most 80 characters of another server's text, for messages.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

fn syntax(what: &'static str) -> impl Fn(String) -> WireError {
    move |error| WireError::Syntax(what, shorten(&error))
}

/// Bound on a document, by what a byte of it may take in memory; 5,000 CRDs are 1.5 MiB of protobuf.
const fn bound(encoding: Encoding) -> usize {
    match encoding {
        Encoding::Json | Encoding::PrettyJson => MAX_DOCUMENT,
        Encoding::Yaml | Encoding::Cbor => MAX_DOCUMENT / 4,
        Encoding::Protobuf => MAX_DOCUMENT / 8,
    }
}

/// Refuses what may take far more memory than it has bytes: an aggregated API server may have written it.
fn check(encoding: Encoding, body: &[u8]) -> Result<(), WireError> {
    let bound = bound(encoding);
    if body.len() > bound {
        return Err(WireError::TooLarge(bound));
    }
    match encoding {
        Encoding::Json | Encoding::PrettyJson => {
            bounded(memchr::memchr2_iter(b'{', b'[', body).count())
        }
        Encoding::Yaml => {
            // Aliases are copies of what they stand for; Kubernetes writes no anchors.
            if memchr::memchr(b'&', body).is_some() {
                return Err(syntax("YAML")("it has an anchor".to_owned()));
            }
            // In blocks each entry begins a line.
            bounded(memchr::memchr3_iter(b'{', b'[', b'\n', body).count())
        }
        Encoding::Cbor | Encoding::Protobuf => Ok(()),
    }
}

const fn bounded(objects: usize) -> Result<(), WireError> {
    if objects > MAX_OBJECTS {
        return Err(WireError::TooMany(MAX_OBJECTS));
    }
    Ok(())
}

/// Reads a document and says what it is.
pub(crate) fn decode<T: DeserializeOwned + Message + Default>(
    encoding: Encoding,
    body: &[u8],
) -> Result<(TypeMeta, T), WireError> {
    check(encoding, body)?;
    match encoding {
        Encoding::Json | Encoding::PrettyJson => {
            let fail = |error: serde_json::Error| syntax("JSON")(error.to_string());
            Ok((
                serde_json::from_slice(body).map_err(fail)?,
                serde_json::from_slice(body).map_err(fail)?,
            ))
        }
        Encoding::Yaml => {
            let fail = |error: serde_yaml_ng::Error| syntax("YAML")(error.to_string());
            Ok((
                serde_yaml_ng::from_slice(body).map_err(fail)?,
                serde_yaml_ng::from_slice(body).map_err(fail)?,
            ))
        }
        Encoding::Cbor => {
            let fail =
                |error: ciborium::de::Error<std::io::Error>| syntax("CBOR")(error.to_string());
            let value: ciborium::Value = ciborium::from_reader(body).map_err(fail)?;
            bounded(containers(&value))?;
            let value = untag(value);
            let fail = |error: ciborium::value::Error| syntax("CBOR")(error.to_string());
            Ok((
                value.deserialized().map_err(fail)?,
                value.deserialized().map_err(fail)?,
            ))
        }
        Encoding::Protobuf => {
            let fail = |error: prost::DecodeError| syntax("protobuf")(error.to_string());
            let message = body
                .strip_prefix(MAGIC)
                .ok_or_else(|| syntax("protobuf")("no k8s envelope".to_owned()))?;
            let unknown = Unknown::decode(message).map_err(fail)?;
            let head = TypeMeta {
                kind: unknown.type_meta.kind,
                api_version: unknown.type_meta.api_version,
            };
            Ok((head, T::decode(unknown.raw.as_slice()).map_err(fail)?))
        }
    }
}

/// How many arrays and maps it has, itself among them.
fn containers(value: &ciborium::Value) -> usize {
    use ciborium::Value;
    match value {
        Value::Tag(_, inner) => containers(inner),
        Value::Array(items) => 1 + items.iter().map(containers).sum::<usize>(),
        Value::Map(entries) => {
            let pairs = entries.iter();
            1 + pairs
                .map(|(key, value)| containers(key) + containers(value))
                .sum::<usize>()
        }
        _ => 0,
    }
}

/// kube-apiserver writes text as CBOR byte strings where it can (tag 55799 outermost); text and bytes mean the same here.
fn untag(value: ciborium::Value) -> ciborium::Value {
    use ciborium::Value;
    match value {
        Value::Tag(_, inner) => untag(*inner),
        Value::Bytes(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Value::Text(text),
            Err(error) => Value::Bytes(error.into_bytes()),
        },
        Value::Array(items) => Value::Array(items.into_iter().map(untag).collect()),
        Value::Map(entries) => Value::Map(
            entries
                .into_iter()
                .map(|(key, value)| (untag(key), untag(value)))
                .collect(),
        ),
        other => other,
    }
}

/// Writes a document as kube-apiserver writes it.
pub(crate) fn encode<T: Serialize + Message>(
    encoding: Encoding,
    api_version: &str,
    kind: &str,
    body: &T,
) -> Result<Vec<u8>, WireError> {
    let tagged = Tagged {
        head: Head { kind, api_version },
        body,
    };
    match encoding {
        Encoding::Json => {
            let mut bytes =
                serde_json::to_vec(&tagged).map_err(|error| syntax("JSON")(error.to_string()))?;
            bytes.push(b'\n');
            Ok(bytes)
        }
        // Go's indented form has no newline at its end.
        Encoding::PrettyJson => {
            serde_json::to_vec_pretty(&tagged).map_err(|error| syntax("JSON")(error.to_string()))
        }
        Encoding::Yaml => {
            // By way of a map: kube-apiserver's YAML has its keys sorted.
            let value =
                serde_json::to_value(&tagged).map_err(|error| syntax("YAML")(error.to_string()))?;
            Ok(yaml::write(&value).into_bytes())
        }
        Encoding::Cbor => {
            let mut bytes = CBOR_SELF_DESCRIBED.to_vec();
            ciborium::into_writer(&tagged, &mut bytes)
                .map_err(|error| syntax("CBOR")(error.to_string()))?;
            Ok(bytes)
        }
        Encoding::Protobuf => {
            let mut bytes = MAGIC.to_vec();
            let unknown = Unknown {
                type_meta: UnknownType {
                    api_version: api_version.to_owned(),
                    kind: kind.to_owned(),
                },
                raw: body.encode_to_vec(),
                content_encoding: String::new(),
                content_type: String::new(),
            };
            unknown
                .encode(&mut bytes)
                .map_err(|error| syntax("protobuf")(error.to_string()))?;
            Ok(bytes)
        }
    }
}

/// Undoes a Content-Encoding; never yields more than `limit` bytes, whatever the stream says.
pub fn decompress(
    content_encoding: Option<&str>,
    body: &[u8],
    limit: usize,
) -> Result<Vec<u8>, WireError> {
    match content_encoding.map(str::trim) {
        None | Some("" | "identity") if body.len() <= limit => Ok(body.to_vec()),
        None | Some("" | "identity") => Err(WireError::TooLarge(limit)),
        Some("gzip") => {
            let mut plain = Vec::new();
            flate2::read::MultiGzDecoder::new(body)
                .take(limit as u64 + 1)
                .read_to_end(&mut plain)
                .map_err(|error| syntax("gzip")(error.to_string()))?;
            if plain.len() > limit {
                Err(WireError::TooLarge(limit))
            } else {
                Ok(plain)
            }
        }
        Some(other) => Err(WireError::ContentEncoding(shorten(other))),
    }
}
