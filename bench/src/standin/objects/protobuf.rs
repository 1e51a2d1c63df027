//! Bodies in protobuf, which kubectl's typed commands send: the few kinds that people try by hand. Everything else is answered 415 with the
//! reason, since the stand-in has no schemas. Answers are JSON, which those callers accept too.

use std::collections::BTreeMap;

use prost::Message;
use serde_json::{Map, Value, json};

/// The four bytes in front of every protobuf body.
pub(super) const MAGIC: &[u8] = b"k8s\0";

#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct Meta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    generate_name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
    #[prost(string, repeated, tag = "14")]
    finalizers: Vec<String>,
}

/// `Namespace`, `ServiceAccount`: what they have beside metadata is the server's to fill in.
#[derive(Clone, PartialEq, Message)]
struct OnlyMeta {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Meta>,
}

#[derive(Clone, PartialEq, Message)]
struct ConfigMap {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Meta>,
    #[prost(btree_map = "string, string", tag = "2")]
    data: BTreeMap<String, String>,
}

/// `SelfSubjectAccessReview`, `SubjectAccessReview`, `LocalSubjectAccessReview`.
#[derive(Clone, PartialEq, Message)]
struct AccessReview {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Meta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<AccessSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct AccessSpec {
    #[prost(message, optional, tag = "1")]
    resource: Option<ResourceAttributes>,
    #[prost(message, optional, tag = "2")]
    path: Option<PathAttributes>,
    /// Of `SubjectAccessReview`.
    #[prost(string, tag = "3")]
    user: String,
    #[prost(string, repeated, tag = "4")]
    groups: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct ResourceAttributes {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    verb: String,
    #[prost(string, tag = "3")]
    group: String,
    #[prost(string, tag = "4")]
    version: String,
    #[prost(string, tag = "5")]
    resource: String,
    #[prost(string, tag = "6")]
    subresource: String,
    #[prost(string, tag = "7")]
    name: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct PathAttributes {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(string, tag = "2")]
    verb: String,
}

fn metadata(meta: Option<Meta>) -> Value {
    let meta = meta.unwrap_or_default();
    let mut out = Map::new();
    for (name, value) in [
        ("name", meta.name),
        ("generateName", meta.generate_name),
        ("namespace", meta.namespace),
        ("uid", meta.uid),
        ("resourceVersion", meta.resource_version),
    ] {
        if !value.is_empty() {
            out.insert(name.to_owned(), Value::from(value));
        }
    }
    if !meta.labels.is_empty() {
        out.insert("labels".to_owned(), json!(meta.labels));
    }
    if !meta.annotations.is_empty() {
        out.insert("annotations".to_owned(), json!(meta.annotations));
    }
    if !meta.finalizers.is_empty() {
        out.insert("finalizers".to_owned(), json!(meta.finalizers));
    }
    Value::Object(out)
}

fn access(review: AccessReview) -> Value {
    let spec = review.spec.unwrap_or_default();
    let mut out = json!({"user": spec.user, "groups": spec.groups});
    if let Some(found) = spec.resource {
        out["resourceAttributes"] = json!({
            "namespace": found.namespace, "verb": found.verb, "group": found.group, "version": found.version,
            "resource": found.resource, "subresource": found.subresource, "name": found.name,
        });
    }
    if let Some(found) = spec.path {
        out["nonResourceAttributes"] = json!({"path": found.path, "verb": found.verb});
    }
    json!({"metadata": metadata(review.metadata), "spec": out})
}

/// The object; none: a kind without a schema here; an error: not protobuf.
pub(super) fn decode(body: &[u8]) -> Result<Option<Value>, prost::DecodeError> {
    let unknown = Unknown::decode(body.strip_prefix(MAGIC).unwrap_or(body))?;
    let meta = unknown.type_meta.unwrap_or_default();
    let raw = unknown.raw.as_slice();
    let mut object = match meta.kind.as_str() {
        "SelfSubjectReview" | "SelfSubjectRulesReview" | "TokenRequest" => json!({}),
        "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            access(AccessReview::decode(raw)?)
        }
        "Namespace" | "ServiceAccount" => {
            json!({"metadata": metadata(OnlyMeta::decode(raw)?.metadata)})
        }
        "ConfigMap" => {
            let map = ConfigMap::decode(raw)?;
            json!({"metadata": metadata(map.metadata), "data": map.data})
        }
        _ => return Ok(None),
    };
    object["kind"] = Value::from(meta.kind);
    object["apiVersion"] = Value::from(meta.api_version);
    Ok(Some(object))
}
