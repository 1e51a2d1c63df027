//! Delete: one object or a collection. What finalizers hold is marked.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    super::{
        call::Call,
        clock,
        reply::Reply,
        status::Status,
        store::{StoreError, Stored},
    },
    Target, existing, object, protobuf,
    read::list_json,
    select::Selection,
    write::decode,
};

pub(super) async fn delete(call: &mut Call, target: &Target) -> Result<Reply, Status> {
    let bytes = call.body().await?;
    // Options in protobuf are taken for none.
    let options: Value = if bytes.is_empty() || bytes.starts_with(protobuf::MAGIC) {
        Value::Null
    } else {
        decode("application/json", &bytes)?
    };
    let stored = existing(call, target).await?;
    if let Some(uid) = options["preconditions"]["uid"].as_str()
        && stored.value["metadata"]["uid"] != uid
    {
        let what = format!(
            "UID in precondition: {uid}, UID in object meta: {}",
            stored.value["metadata"]["uid"].as_str().unwrap_or_default()
        );
        return Err(Status::precondition(target.about(), &what));
    }
    if let Some(revision) = options["preconditions"]["resourceVersion"].as_str()
        && revision != stored.revision.to_string()
    {
        let what = format!(
            "ResourceVersion in precondition: {revision}, ResourceVersion in object meta: {}",
            stored.revision
        );
        return Err(Status::precondition(target.about(), &what));
    }
    let left = remove(call, target, &stored).await?;
    if let Some(waiting) = left {
        object(call, StatusCode::OK, target.shown(&waiting))
    } else {
        let uid = stored.value["metadata"]["uid"].as_str().unwrap_or_default();
        let status = Status::success(target.about(), uid);
        object(
            call,
            StatusCode::OK,
            Bytes::from(serde_json::to_vec(&status).unwrap_or_default()),
        )
    }
}

/// Removes an object, or marks it if finalizers hold it (then it is returned).
pub(super) async fn remove(
    call: &Call,
    target: &Target,
    stored: &Stored,
) -> Result<Option<Arc<Stored>>, Status> {
    let held = stored.value["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|list| !list.is_empty());
    let done = if held {
        let mut object = stored.value.clone();
        if object["metadata"].get("deletionTimestamp").is_none() {
            object["metadata"]["deletionTimestamp"] = Value::String(clock::rfc3339());
            object["metadata"]["deletionGracePeriodSeconds"] = Value::from(0);
        }
        call.server
            .store
            .update(&stored.key, object, None)
            .await
            .map(Some)
    } else {
        call.server
            .store
            .delete(&stored.key, None, None)
            .await
            .map(|_| None)
    };
    done.map_err(|error| match error {
        StoreError::Missing => Status::missing(target.about()),
        other => other.into(),
    })
}

pub(super) async fn delete_collection(call: &mut Call, target: &Target) -> Result<Reply, Status> {
    drop(call.body().await?);
    let selection = Selection::of(call)?;
    let (all, revision) = call.server.store.list(&target.prefix()).await?;
    let found: Vec<Arc<Stored>> = all
        .into_iter()
        .filter(|stored| selection.matches(&stored.value))
        .collect();
    for stored in &found {
        match remove(call, target, stored).await {
            Err(status) if status.code != 404 => return Err(status),
            _ => {}
        }
    }
    let metadata = json!({"resourceVersion": revision.to_string()});
    object(call, StatusCode::OK, list_json(target, &found, &metadata))
}
