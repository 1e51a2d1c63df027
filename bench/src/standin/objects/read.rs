//! Get and list.

use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    super::{call::Call, reply::Reply, status::Status, store::Stored},
    Target, existing, object,
    select::Selection,
};

const TOKEN: base64::engine::GeneralPurpose = base64::engine::general_purpose::URL_SAFE_NO_PAD;

pub(super) async fn get(call: &Call, target: &Target) -> Result<Reply, Status> {
    let stored = existing(call, target).await?;
    if call.accept.table() {
        let table = table(target, &[stored], None);
        return Ok(object_as_json(call, &table));
    }
    if call.accept.partial_metadata() {
        return Ok(object_as_json(call, &partial(&stored, true)));
    }
    object(call, StatusCode::OK, target.shown(&stored))
}

pub(super) async fn list(call: &Call, target: &Target) -> Result<Reply, Status> {
    let selection = Selection::of(call)?;
    let (all, revision) = call.server.store.list(&target.prefix()).await?;
    let mut found: Vec<Arc<Stored>> = all
        .into_iter()
        .filter(|stored| selection.matches(&stored.value))
        .collect();
    if let Some(token) = call.parameter("continue").filter(|token| !token.is_empty()) {
        let start = TOKEN
            .decode(token)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok());
        let start = start.ok_or_else(|| Status::bad_request("continue key is not valid"))?;
        found.retain(|stored| stored.key > start);
    }
    let limit = call
        .parameter("limit")
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(0_usize);
    let (mut next, mut remaining) = (None, 0);
    if limit > 0 && found.len() > limit {
        remaining = found.len() - limit;
        found.truncate(limit);
        next = found.last().map(|last| TOKEN.encode(&last.key));
    }
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if let Some(next) = next {
        metadata["continue"] = Value::String(next);
        metadata["remainingItemCount"] = Value::from(remaining);
    }
    if call.accept.table() {
        let table = table(target, &found, Some(metadata));
        return Ok(object_as_json(call, &table));
    }
    if call.accept.partial_metadata() {
        let items: Vec<Value> = found.iter().map(|stored| partial(stored, false)).collect();
        let list = json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items,
        });
        return Ok(object_as_json(call, &list));
    }
    object(call, StatusCode::OK, list_json(target, &found, &metadata))
}

fn object_as_json(call: &Call, value: &Value) -> Reply {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    let body = call.json(Bytes::from(line));
    super::super::reply::reply(StatusCode::OK, "application/json", body)
}

/// The list, in the field order of Go's types; items of built-in kinds have no kind of their own.
pub(super) fn list_json(target: &Target, found: &[Arc<Stored>], metadata: &Value) -> Bytes {
    let mut out = Vec::with_capacity(
        256 + found
            .iter()
            .map(|stored| stored.json.len() + 1)
            .sum::<usize>(),
    );
    let head = format!(
        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
        target.resource.kind(),
        target.api_version()
    );
    out.extend(head.as_bytes());
    for (at, stored) in found.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        if target.custom {
            out.extend(target.shown(stored));
        } else {
            out.extend(item(stored));
        }
    }
    out.extend(b"]}");
    Bytes::from(out)
}

/// An object without kind and apiVersion; cheap when they come first, as the store writes them.
fn item(stored: &Stored) -> Bytes {
    let prefix = format!(
        "{{\"apiVersion\":{},\"kind\":{},",
        stored.value["apiVersion"], stored.value["kind"]
    );
    if stored.json.starts_with(prefix.as_bytes()) {
        let mut out = Vec::with_capacity(stored.json.len());
        out.push(b'{');
        out.extend_from_slice(&stored.json[prefix.len()..]);
        return Bytes::from(out);
    }
    let mut value = stored.value.clone();
    if let Some(map) = value.as_object_mut() {
        map.remove("apiVersion");
        map.remove("kind");
    }
    Bytes::from(value.to_string())
}

/// `PartialObjectMetadata`.
pub(super) fn partial(stored: &Stored, with_kind: bool) -> Value {
    let mut value = json!({"metadata": stored.value["metadata"]});
    if with_kind {
        value["kind"] = Value::from("PartialObjectMetadata");
        value["apiVersion"] = Value::from("meta.k8s.io/v1");
    }
    value
}

/// A `Table` with name and creation time, what the default printer of kube-apiserver gives.
fn table(target: &Target, found: &[Arc<Stored>], metadata: Option<Value>) -> Value {
    let metadata = metadata.unwrap_or_else(|| {
        let revision = found
            .first()
            .map(|stored| stored.revision.to_string())
            .unwrap_or_default();
        json!({"resourceVersion": revision})
    });
    let rows: Vec<Value> = found
        .iter()
        .map(|stored| {
            let shown = &stored.value["metadata"];
            json!({"cells": [shown["name"], shown["creationTimestamp"]], "object": partial(stored, true)})
        })
        .collect();
    let column = |name: &str, format: &str, description: &str| {
        let kind = if format == "date" { "date" } else { "string" };
        json!({"name": name, "type": kind, "format": format, "description": description, "priority": 0})
    };
    let about = format!("Name of the {}.", target.resource.kind());
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": [column("Name", "name", &about), column("Created At", "date", "When it was created.")],
        "rows": rows,
    })
}
