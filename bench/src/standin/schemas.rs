//! The OpenAPI documents of a catalogue: as recorded; without the paths of what is not served, with a small document for custom resources.
//! Documents that are changed get their own hash.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    fixtures,
    forms::upper_hex_sha512,
    model::{Catalogue, Version},
};

/// One document.
#[derive(Debug)]
pub(crate) struct Document {
    pub(super) json: Bytes,
    pub(super) hash: String,
    /// Recorded, and still true.
    pub(super) protobuf: Option<Bytes>,
}

/// All documents of a catalogue.
#[derive(Debug)]
pub(crate) struct OpenApi {
    pub(super) index: Bytes,
    pub(super) documents: BTreeMap<String, Document>,
    pub(super) v2: Document,
    /// When they were made, as `Last-Modified` says it.
    pub(super) made: String,
}

/// Last-Modified as Go writes it.
fn http_date() -> String {
    jiff::Timestamp::now()
        .strftime("%a, %d %b %Y %H:%M:%S GMT")
        .to_string()
}

impl OpenApi {
    /// The documents of a catalogue.
    pub(crate) fn new(catalogue: &Catalogue) -> anyhow::Result<Self> {
        let archive = fixtures::openapi()?;
        let release = &catalogue.release;
        let recorded_index: Value = serde_json::from_slice(&fixtures::file(
            archive,
            &format!("{release}/v3-index.json"),
        )?)?;
        let mut documents = BTreeMap::new();
        for (name, entry) in recorded_index["paths"].as_object().into_iter().flatten() {
            if gone(catalogue, name) {
                continue;
            }
            let file = format!("{release}/v3__{}", name.replace('/', "_"));
            let json = fixtures::file(archive, &format!("{file}.json"))?;
            let url = entry["serverRelativeURL"].as_str().unwrap_or_default();
            let hash = url
                .rsplit_once("hash=")
                .map(|(_, hash)| hash.to_owned())
                .unwrap_or_default();
            let document = match without_removed(&json, &catalogue.removed)? {
                Some(json) => Document {
                    hash: upper_hex_sha512(&json),
                    json,
                    protobuf: None,
                },
                None => Document {
                    json,
                    hash,
                    protobuf: archive.get(&format!("{file}.pb")).cloned(),
                },
            };
            documents.insert(name.clone(), document);
        }
        for group in &catalogue.groups {
            for version in &group.versions {
                let name = format!("apis/{}/{}", group.name(), version.version);
                if !documents.contains_key(&name)
                    && !catalogue
                        .removed
                        .contains(&name["apis/".len()..].to_owned())
                {
                    let json = Bytes::from(custom(group.name(), version).to_string());
                    documents.insert(
                        name,
                        Document {
                            hash: upper_hex_sha512(&json),
                            json,
                            protobuf: None,
                        },
                    );
                }
            }
        }
        let json = fixtures::file(archive, &format!("{release}/v2.json"))?;
        let v2 = match without_removed(&json, &catalogue.removed)? {
            Some(json) => Document {
                hash: upper_hex_sha512(&json),
                json,
                protobuf: None,
            },
            None => Document {
                hash: upper_hex_sha512(&json),
                json,
                protobuf: archive.get(&format!("{release}/v2.pb")).cloned(),
            },
        };
        let index = index(&documents);
        Ok(Self {
            index,
            documents,
            v2,
            made: http_date(),
        })
    }
}

/// Does the document belong to a group or group-version that is not served?
fn gone(catalogue: &Catalogue, name: &str) -> bool {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        ["apis", group] => catalogue.group(group).is_none(),
        ["apis", group, version] => catalogue.version(group, version).is_none(),
        _ => false,
    }
}

/// The index in the form that was recorded: one object, sorted, without blanks.
fn index(documents: &BTreeMap<String, Document>) -> Bytes {
    let entries: Vec<String> = documents
        .iter()
        .map(|(name, document)| {
            let url = format!("/openapi/v3/{name}?hash={}", document.hash);
            format!(
                "{}:{{\"serverRelativeURL\":{}}}",
                Value::from(name.as_str()),
                Value::from(url)
            )
        })
        .collect();
    Bytes::from(format!("{{\"paths\":{{{}}}}}", entries.join(",")))
}

/// The document without the paths of what was switched off; none: nothing of it was.
fn without_removed(json: &Bytes, removed: &[String]) -> anyhow::Result<Option<Bytes>> {
    if removed.is_empty() {
        return Ok(None);
    }
    let mut document: Value = serde_json::from_slice(json)?;
    let Some(paths) = document.get_mut("paths").and_then(Value::as_object_mut) else {
        return Ok(None);
    };
    let before = paths.len();
    paths.retain(|path, _| !removed.iter().any(|what| belongs(path, what)));
    if paths.len() == before {
        Ok(None)
    } else {
        Ok(Some(Bytes::from(document.to_string())))
    }
}

/// Is an API path about `batch/v1`, `batch/v1/jobs` or `v1/pods/resize`?
fn belongs(path: &str, what: &str) -> bool {
    let path: Vec<&str> = path.trim_matches('/').split('/').collect();
    let what: Vec<&str> = what.split('/').collect();
    let (prefix, what) = if super::model::is_version(what[0]) {
        (vec!["api", what[0]], &what[1..])
    } else {
        (
            vec!["apis", what[0], what.get(1).copied().unwrap_or_default()],
            what.get(2..).unwrap_or_default(),
        )
    };
    let Some(rest) = path.strip_prefix(prefix.as_slice()) else {
        return false;
    };
    let rest = rest.strip_prefix(["watch"].as_slice()).unwrap_or(rest);
    let rest = rest
        .strip_prefix(["namespaces", "{namespace}"].as_slice())
        .filter(|rest| !rest.is_empty())
        .unwrap_or(rest);
    match what {
        [] => true,
        [resource] => rest.first() == Some(resource),
        [resource, subresource, ..] => {
            rest.first() == Some(resource) && rest.get(2) == Some(subresource)
        }
    }
}

/// A document for a custom group-version: its kinds without fields, its paths without parameters.
fn custom(group: &str, version: &Version) -> Value {
    let mut schemas = serde_json::Map::new();
    let mut paths = serde_json::Map::new();
    let reversed: Vec<&str> = group.split('.').rev().collect();
    for resource in &version.resources {
        let gvk = json!([{"group": group, "kind": resource.kind(), "version": version.version}]);
        schemas.insert(
            format!(
                "{}.{}.{}",
                reversed.join("."),
                version.version,
                resource.kind()
            ),
            json!({
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "x-kubernetes-group-version-kind": gvk,
            }),
        );
        let place = if resource.namespaced() {
            "namespaces/{namespace}/"
        } else {
            ""
        };
        let path = format!(
            "/apis/{group}/{}/{place}{}",
            version.version, resource.resource
        );
        let operation = json!({"responses": {"200": {"description": "OK"}}, "x-kubernetes-group-version-kind": gvk[0]});
        paths.insert(path.clone(), json!({"get": operation, "post": operation}));
        paths.insert(
            format!("{path}/{{name}}"),
            json!({"get": operation, "put": operation, "delete": operation, "patch": operation}),
        );
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes CRD Swagger", "version": "v0.1.0"},
        "paths": paths, "components": {"schemas": schemas},
    })
}
