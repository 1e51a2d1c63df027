//! Create, update and patch.

use std::sync::Arc;

use bytes::Bytes;
use http::{StatusCode, header};
use serde_json::{Value, json};

use super::{
    super::{
        call::Call,
        clock,
        reply::Reply,
        status::{About, Status},
        store::{StoreError, Stored, key},
    },
    Target, existing, object,
    patch::{self, Kind},
    protobuf,
};

/// Concurrent changes under a patch are met by trying again, as kube-apiserver does (five times).
const PATCH_ATTEMPTS: usize = 5;

/// The body as an object: JSON, or YAML where the header says so.
pub(super) async fn body(call: &mut Call) -> Result<Value, Status> {
    let media_type = call
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("application/json");
    let media_type = media_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned();
    let bytes = call.body().await?;
    decode(&media_type, &bytes)
}

pub(super) fn decode(media_type: &str, bytes: &Bytes) -> Result<Value, Status> {
    let malformed = |error: String| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type JSON or YAML): {error}"
        ))
    };
    match media_type {
        "application/json"
        | "application/merge-patch+json"
        | "application/strategic-merge-patch+json"
        | "application/json-patch+json" => {
            serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))
        }
        "application/yaml" | "application/apply-patch+yaml" => {
            serde_yaml_ng::from_slice(bytes).map_err(|error| malformed(error.to_string()))
        }
        "application/vnd.kubernetes.protobuf" => match protobuf::decode(bytes) {
            Ok(Some(object)) => Ok(object),
            Ok(None) => Err(Status::unsupported_media_type()),
            Err(error) => Err(malformed(error.to_string())),
        },
        _ => Err(Status::unsupported_media_type()),
    }
}

fn metadata(object: &mut Value) -> Result<&mut serde_json::Map<String, Value>, Status> {
    let map = object
        .as_object_mut()
        .ok_or_else(|| Status::bad_request("the object is no JSON object"))?;
    let metadata = map.entry("metadata").or_insert_with(|| json!({}));
    metadata
        .as_object_mut()
        .ok_or_else(|| Status::bad_request("metadata is no JSON object"))
}

/// Checks kind and namespace and fills in what the path says.
fn settle(target: &Target, object: &mut Value) -> Result<(), Status> {
    let kind = target.resource.kind();
    let given = object
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or(kind)
        .to_owned();
    let api_version = target.api_version();
    let given_version = object
        .get("apiVersion")
        .and_then(Value::as_str)
        .unwrap_or(&api_version)
        .to_owned();
    if given != kind || given_version != api_version {
        return Err(Status::bad_request(format!(
            "{given} in version {given_version:?} cannot be handled as a {kind}: the object does not match the request's \
             {api_version}"
        )));
    }
    let namespace = target.namespace.clone();
    let metadata = metadata(object)?;
    if !namespace.is_empty() {
        let given = metadata
            .get("namespace")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !given.is_empty() && given != namespace {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        metadata.insert("namespace".to_owned(), Value::String(namespace));
    }
    object["kind"] = Value::String(kind.to_owned());
    object["apiVersion"] = Value::String(api_version);
    Ok(())
}

pub(super) async fn create(call: &mut Call, target: &Target) -> Result<Reply, Status> {
    let object_in = body(call).await?;
    let stored = create_object(call, target, object_in).await?;
    object(call, StatusCode::CREATED, target.shown(&stored))
}

async fn create_object(
    call: &Call,
    target: &Target,
    mut object: Value,
) -> Result<Arc<Stored>, Status> {
    settle(target, &mut object)?;
    let fields = metadata(&mut object)?;
    let mut name = fields
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if name.is_empty() {
        let prefix = fields
            .get("generateName")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if prefix.is_empty() {
            let about = target.named("");
            let message = format!(
                "{} \"\" is invalid: metadata.name: Required value: name or generateName is required",
                target.resource.kind()
            );
            return Err(Status::invalid(about, message));
        }
        name = format!("{prefix}{}", &clock::hex(&clock::random::<3>())[..5]);
    }
    if fields
        .get("resourceVersion")
        .and_then(Value::as_str)
        .is_some_and(|revision| !revision.is_empty())
    {
        return Err(Status::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    if !target.namespace.is_empty() {
        let namespace = key("", "namespaces", "", &target.namespace);
        if call.server.store.get(&namespace).await?.is_none() {
            return Err(Status::missing(About {
                group: "",
                resource: "namespaces",
                name: &target.namespace,
            }));
        }
    }
    fields.insert("name".to_owned(), Value::String(name.clone()));
    fields.insert("uid".to_owned(), Value::String(clock::uid()));
    fields.insert(
        "creationTimestamp".to_owned(),
        Value::String(clock::rfc3339()),
    );
    if object.get("spec").is_some() {
        object["metadata"]["generation"] = Value::from(1);
    }
    if target.group.is_empty() && target.resource.resource == "namespaces" {
        object["spec"]["finalizers"] = json!(["kubernetes"]);
        object["status"]["phase"] = Value::from("Active");
        object["metadata"]["labels"]["kubernetes.io/metadata.name"] = Value::String(name.clone());
    }
    if target.group == "apiextensions.k8s.io"
        && target.resource.resource == "customresourcedefinitions"
    {
        object["status"]["conditions"] = json!([
            {"type": "NamesAccepted", "status": "True", "lastTransitionTime": clock::rfc3339(), "reason": "NoConflicts", "message": "no conflicts found"},
            {"type": "Established", "status": "True", "lastTransitionTime": clock::rfc3339(), "reason": "InitialNamesAccepted", "message": "the initial names have been accepted"},
        ]);
        object["status"]["acceptedNames"] = object["spec"]["names"].clone();
    }
    let at = target.key(&target.namespace, &name);
    if call.parameter("dryRun") == Some("All") {
        return Ok(Arc::new(Stored {
            key: at,
            revision: 0,
            json: Bytes::from(object.to_string()),
            value: object,
        }));
    }
    call.server
        .store
        .create(&at, object)
        .await
        .map_err(|error| match error {
            StoreError::Exists => Status::exists(target.named(&name)),
            other => other.into(),
        })
}

/// Which part of an object a request may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All but status.
    Main,
    /// Only status.
    Status,
    /// Everything (subresources such as `resize`, `approval`, `finalize`).
    All,
}

pub(super) async fn update(call: &mut Call, target: &Target) -> Result<Reply, Status> {
    let object_in = body(call).await?;
    let part = if has_status(target) {
        Part::Main
    } else {
        Part::All
    };
    let creates = matches!(
        target.resource.resource.as_str(),
        "leases" | "endpoints" | "services"
    );
    match existing(call, target).await {
        Err(status) if status.code == 404 && creates => {
            let stored = create_object(call, target, object_in).await?;
            object(call, StatusCode::CREATED, target.shown(&stored))
        }
        _ => {
            let stored = replace(call, target, object_in, part).await?;
            object(call, StatusCode::OK, target.shown(&stored))
        }
    }
}

fn has_status(target: &Target) -> bool {
    target
        .resource
        .subresources
        .iter()
        .any(|subresource| subresource.subresource == "status")
}

/// Writes `object` over the stored one, as far as `part` goes, if the revision that it names is the present one.
pub(super) async fn replace(
    call: &Call,
    target: &Target,
    mut object: Value,
    part: Part,
) -> Result<Arc<Stored>, Status> {
    settle(target, &mut object)?;
    let given = object["metadata"]["name"].as_str().unwrap_or(&target.name);
    if given != target.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({})",
            target.name
        )));
    }
    let expected = object["metadata"]["resourceVersion"]
        .as_str()
        .filter(|revision| !revision.is_empty())
        .map(str::to_owned);
    let expected = match expected {
        Some(text) => Some(text.parse().map_err(|error| {
            Status::bad_request(format!("invalid resource version {text:?}: {error}"))
        })?),
        None => None,
    };
    let present = existing(call, target).await?;
    let given_uid = object["metadata"]["uid"].as_str().unwrap_or_default();
    let uid = present.value["metadata"]["uid"]
        .as_str()
        .unwrap_or_default();
    if !given_uid.is_empty() && given_uid != uid {
        let what = format!("UID in precondition: {given_uid}, UID in object meta: {uid}");
        return Err(Status::precondition(target.about(), &what));
    }
    if expected.is_some_and(|expected: u64| expected != present.revision) {
        return Err(Status::conflict(target.about()));
    }
    commit(call, target, &present, object, part).await
}

/// The last step of every change: what the server owns is kept, and an object that waited for its finalizers goes.
async fn commit(
    call: &Call,
    target: &Target,
    present: &Stored,
    object: Value,
    part: Part,
) -> Result<Arc<Stored>, Status> {
    let old = &present.value;
    let mut new = match part {
        Part::Status => {
            let mut kept = old.clone();
            kept["status"] = object["status"].clone();
            kept
        }
        Part::Main => {
            let mut kept = object;
            match old.get("status") {
                Some(status) => kept["status"] = status.clone(),
                None => drop(kept.as_object_mut().map(|map| map.remove("status"))),
            }
            kept
        }
        Part::All => object,
    };
    let fields = metadata(&mut new)?;
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "generation",
    ] {
        match old["metadata"].get(field) {
            Some(value) => drop(fields.insert(field.to_owned(), value.clone())),
            None => drop(fields.remove(field)),
        }
    }
    if new.get("spec") != old.get("spec") {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
        new["metadata"]["generation"] = Value::from(generation);
    }
    let at = target.key(&target.namespace, &target.name);
    let leaving = new["metadata"].get("deletionTimestamp").is_some();
    let held = new["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|list| !list.is_empty());
    if call.parameter("dryRun") == Some("All") {
        return Ok(Arc::new(Stored {
            key: at,
            revision: present.revision,
            json: Bytes::from(new.to_string()),
            value: new,
        }));
    }
    let written = if leaving && !held {
        call.server
            .store
            .delete(&at, Some(present.revision), Some(new))
            .await
    } else {
        call.server
            .store
            .update(&at, new, Some(present.revision))
            .await
    };
    written.map_err(|error| match error {
        StoreError::Conflict => Status::conflict(target.about()),
        StoreError::Missing => Status::missing(target.about()),
        other => other.into(),
    })
}

pub(super) async fn patch(call: &mut Call, target: &Target) -> Result<Reply, Status> {
    let part = if has_status(target) {
        Part::Main
    } else {
        Part::All
    };
    let (code, stored) = patch_part(call, target, part).await?;
    object(call, code, target.shown(&stored))
}

pub(super) async fn patch_part(
    call: &mut Call,
    target: &Target,
    part: Part,
) -> Result<(StatusCode, Arc<Stored>), Status> {
    let media_type = call
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media_type = media_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned();
    let kind = Kind::of(&media_type).ok_or_else(Status::unsupported_media_type)?;
    let bytes = call.body().await?;
    let change = decode(&media_type, &bytes)?;
    let mut attempts = PATCH_ATTEMPTS;
    loop {
        let present = match existing(call, target).await {
            Err(status) if status.code == 404 && kind == Kind::Apply => {
                let mut object = change;
                metadata(&mut object)?
                    .entry("name")
                    .or_insert_with(|| Value::String(target.name.clone()));
                return Ok((
                    StatusCode::CREATED,
                    create_object(call, target, object).await?,
                ));
            }
            found => found?,
        };
        let mut object = target.shown_value(&present);
        patch::apply(kind, &mut object, &change)
            .map_err(|why| Status::invalid(target.about(), why))?;
        let wanted = object["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        if !wanted.is_empty() && wanted != present.revision.to_string() {
            return Err(Status::conflict(target.about()));
        }
        settle(target, &mut object)?;
        match commit(call, target, &present, object, part).await {
            Err(status) if status.code == 409 && attempts > 1 => attempts -= 1,
            other => return Ok((StatusCode::OK, other?)),
        }
    }
}
