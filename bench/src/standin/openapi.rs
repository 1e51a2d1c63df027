//! OpenAPI v3 and v2 as recorded; without the paths of what a server does not serve, with a small document for custom resources. Documents
//! that are changed get their own hash. Not spoken: protobuf, but for the recorded documents.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use super::{
    fixtures,
    forms::upper_hex_sha512,
    model::{Catalogue, Version},
    reply::{Reply, not_found, reply},
    serve::Call,
    status::Status,
};

const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// One document.
#[derive(Debug)]
struct Document {
    json: Bytes,
    hash: String,
    /// Recorded, and still true.
    protobuf: Option<Bytes>,
}

/// All documents of a catalogue.
#[derive(Debug)]
pub(crate) struct OpenApi {
    index: Bytes,
    documents: BTreeMap<String, Document>,
    v2: Document,
    made: String,
}

/// Last-Modified as Go writes it.
fn http_date() -> String {
    jiff::Timestamp::now()
        .strftime("%a, %d %b %Y %H:%M:%S GMT")
        .to_string()
}

/// The answer, if the path is one of OpenAPI's.
pub(crate) fn answer(call: &Call) -> Option<Reply> {
    let path = call.info.path.as_str();
    let documents = call.server.documents.load_full();
    if path == "/openapi/v3" || path == "/openapi/v3/" {
        let openapi = documents.openapi()?;
        let mut answer = reply(
            StatusCode::OK,
            "text/plain; charset=utf-8",
            openapi.index.clone(),
        );
        dated(&mut answer, openapi);
        return Some(answer);
    }
    if let Some(name) = path.strip_prefix("/openapi/v3/") {
        let openapi = documents.openapi()?;
        return Some(
            openapi
                .documents
                .get(name)
                .map_or_else(not_found, |found| v3(call, openapi, name, found)),
        );
    }
    if path == "/openapi/v2" {
        let openapi = documents.openapi()?;
        let mut answer = body(call, &openapi.v2, V2_PROTOBUF);
        let headers = answer.headers_mut();
        headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        headers.append(header::VARY, HeaderValue::from_static("Accept"));
        tag(&mut answer, &openapi.v2);
        dated(&mut answer, openapi);
        return Some(answer);
    }
    None
}

fn dated(answer: &mut Reply, openapi: &OpenApi) {
    let headers = answer.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Ok(made) = HeaderValue::try_from(openapi.made.as_str()) {
        headers.insert(header::LAST_MODIFIED, made);
    }
}

fn tag(answer: &mut Reply, document: &Document) {
    if let Ok(etag) = HeaderValue::try_from(format!("\"{}\"", document.hash)) {
        answer.headers_mut().insert(header::ETAG, etag);
    }
}

fn body(call: &Call, document: &Document, protobuf: &'static str) -> Reply {
    let accept = call
        .headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("*/*");
    let unchanged = call
        .headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|value| value.as_bytes() == format!("\"{}\"", document.hash).as_bytes());
    if unchanged {
        let mut answer = reply(StatusCode::NOT_MODIFIED, "application/json", Bytes::new());
        answer.headers_mut().remove(header::CONTENT_TYPE);
        return answer;
    }
    for range in accept
        .split(',')
        .map(|clause| clause.split(';').next().unwrap_or_default().trim())
    {
        match range {
            "*/*" | "application/*" | "application/json" => {
                return reply(StatusCode::OK, "application/json", document.json.clone());
            }
            range if range.replace('@', ".") == protobuf => {
                if let Some(bytes) = &document.protobuf {
                    return reply(StatusCode::OK, protobuf, bytes.clone());
                }
            }
            _ => {}
        }
    }
    call.status(&Status::not_acceptable(false))
}

fn v3(call: &Call, openapi: &OpenApi, name: &str, document: &Document) -> Reply {
    let given = call.parameter("hash");
    if let Some(given) = given
        && given != document.hash
    {
        let mut answer = reply(
            StatusCode::MOVED_PERMANENTLY,
            "text/html; charset=utf-8",
            Bytes::new(),
        );
        let location = format!("/openapi/v3/{name}?hash={}", document.hash);
        if let Ok(location) = HeaderValue::try_from(location) {
            answer.headers_mut().insert(header::LOCATION, location);
        }
        return answer;
    }
    let mut answer = body(call, document, V3_PROTOBUF);
    answer
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("Accept"));
    if given.is_some() {
        answer.headers_mut().insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("public, immutable"),
        );
        let year = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * 365);
        if let Ok(expires) =
            HeaderValue::try_from(year.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string())
        {
            answer.headers_mut().insert(header::EXPIRES, expires);
        }
    }
    tag(&mut answer, document);
    dated(&mut answer, openapi);
    answer
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
