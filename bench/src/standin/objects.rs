//! Resource requests: what is served at all, then create, get, list, watch, update, patch and delete on the shared store.
//! Deviations from kube-apiserver: no validation beyond names, strategic merge patch is treated as merge patch, objects are only
//! JSON or YAML, every update makes a new revision.

mod delete;
mod patch;
mod protobuf;
mod read;
mod reviews;
mod select;
mod subresource;
mod watch;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

use super::{
    call::Call,
    forms::{Encoding, to_yaml},
    model::{Resource, Subresource},
    reply::{Reply, compressed, not_found, reply},
    status::{About, Status},
    store::{self, StoreError, Stored},
};

/// What a request is about, once it is known to be served.
#[derive(Debug, Clone)]
struct Target {
    group: String,
    version: String,
    resource: Resource,
    subresource: Option<Subresource>,
    namespace: String,
    name: String,
    custom: bool,
}

impl Target {
    fn about(&self) -> About<'_> {
        About {
            group: &self.group,
            resource: &self.resource.resource,
            name: &self.name,
        }
    }

    fn named<'a>(&'a self, name: &'a str) -> About<'a> {
        About {
            name,
            ..self.about()
        }
    }

    fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Which group the objects are stored under: events are the same in two groups.
    fn storage_group(&self) -> &str {
        if self.group == "events.k8s.io" {
            ""
        } else {
            &self.group
        }
    }

    fn key(&self, namespace: &str, name: &str) -> String {
        store::key(
            self.storage_group(),
            &self.resource.resource,
            namespace,
            name,
        )
    }

    /// The prefix of all keys of a namespace, or of all namespaces.
    fn prefix(&self) -> String {
        if self.namespace.is_empty() {
            format!("{}/{}/", self.storage_group(), self.resource.resource)
        } else {
            format!(
                "{}/{}/{}/",
                self.storage_group(),
                self.resource.resource,
                self.namespace
            )
        }
    }

    /// The object as this group-version shows it.
    fn shown(&self, stored: &Stored) -> Bytes {
        let api_version = self.api_version();
        if stored.value["apiVersion"] == api_version.as_str()
            && stored.value["kind"] == self.resource.kind()
        {
            return stored.json.clone();
        }
        let mut value = stored.value.clone();
        value["apiVersion"] = Value::String(api_version);
        value["kind"] = Value::String(self.resource.kind().to_owned());
        Bytes::from(value.to_string())
    }

    fn shown_value(&self, stored: &Stored) -> Value {
        let mut value = stored.value.clone();
        value["apiVersion"] = Value::String(self.api_version());
        value["kind"] = Value::String(self.resource.kind().to_owned());
        value
    }
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Compacted => Self::expired(),
            other => Self::internal(other.to_string()),
        }
    }
}

/// The answer to a resource request.
pub(crate) async fn answer(call: &mut Call) -> Result<Reply, Status> {
    let Some(target) = find(call)? else {
        return Ok(not_found());
    };
    if !call.accept.rest_routes() {
        return Err(Status::not_acceptable(true));
    }
    let verbs = target
        .subresource
        .as_ref()
        .map_or(&target.resource.verbs, |subresource| &subresource.verbs);
    let verb = call.info.verb.clone();
    // Connect subresources list `create` and `get` although their path takes every method.
    let served = verbs.contains(&verb)
        || (verb == "watch" && verbs.iter().any(|known| known == "list" && verb == "list"));
    if !served {
        return Err(Status::method_not_allowed());
    }
    // The name is in the path, or the path has another set of methods.
    let named = call
        .info
        .path
        .trim_end_matches('/')
        .ends_with(&format!("/{}", target.name))
        && !target.name.is_empty();
    let fits = match verb.as_str() {
        "get" | "update" | "patch" | "delete" => named || target.subresource.is_some(),
        "create" => target.name.is_empty() || target.subresource.is_some(),
        _ => true,
    };
    if !fits {
        return Err(Status::method_not_allowed());
    }
    if let Some(subresource) = target.subresource.clone() {
        return subresource::answer(call, &target, &subresource).await;
    }
    if reviews::is_review(&target) {
        return reviews::answer(call, &target).await;
    }
    match verb.as_str() {
        "get" => read::get(call, &target).await,
        "list" => read::list(call, &target).await,
        "watch" => watch::watch(call, &target).await,
        "create" => write::create(call, &target).await,
        "update" => write::update(call, &target).await,
        "patch" => write::patch(call, &target).await,
        "delete" => delete::delete(call, &target).await,
        "deletecollection" => delete::delete_collection(call, &target).await,
        _ => Err(Status::method_not_allowed()),
    }
}

/// The target; none: the group is unknown (404 of kind (a)); an error: 404 of kind (b).
fn find(call: &Call) -> Result<Option<Target>, Status> {
    let info = &call.info;
    let documents = call.server.documents.load();
    let catalogue = &documents.catalogue;
    if catalogue.group(&info.group).is_none() {
        return Ok(None);
    }
    let resource = catalogue
        .resource(&info.group, &info.version, &info.resource)
        .ok_or_else(Status::unknown_resource)?;
    let subresource = if info.subresource.is_empty() {
        None
    } else {
        let found = resource
            .subresources
            .iter()
            .find(|found| found.subresource == info.subresource);
        Some(found.ok_or_else(Status::unknown_resource)?.clone())
    };
    // The scope in the path must be the resource's; only lists and watches cross namespaces.
    let namespaced = !info.namespace.is_empty();
    let namespaces = info.group.is_empty() && info.resource == "namespaces";
    let across = matches!(info.verb.as_str(), "list" | "watch" | "deletecollection")
        && resource.namespaced();
    if !namespaces && namespaced != resource.namespaced() && (namespaced || !across) {
        return Err(Status::unknown_resource());
    }
    Ok(Some(Target {
        group: info.group.clone(),
        version: info.version.clone(),
        resource: resource.clone(),
        subresource,
        namespace: if namespaces {
            String::new()
        } else {
            info.namespace.clone()
        },
        name: info.name.clone(),
        custom: !catalogue
            .built_in
            .contains(&(info.group.clone(), info.version.clone())),
    }))
}

/// An object in the caller's encoding.
#[expect(
    clippy::needless_pass_by_value,
    reason = "callers make the bytes for this"
)]
fn object(call: &Call, code: StatusCode, json: Bytes) -> Result<Reply, Status> {
    match call.accept.object() {
        Some(Encoding::Json) => {
            let mut line = Vec::with_capacity(json.len() + 1);
            line.extend_from_slice(&json);
            line.push(b'\n');
            let body = call.json(Bytes::from(line));
            if code != StatusCode::OK {
                return Ok(reply(code, Encoding::Json.media_type(), body));
            }
            Ok(compressed(&call.headers, Encoding::Json.media_type(), body))
        }
        Some(Encoding::Yaml) => {
            let value: Value = serde_json::from_slice(&json).unwrap_or_default();
            Ok(reply(
                code,
                Encoding::Yaml.media_type(),
                Bytes::from(to_yaml(&value)),
            ))
        }
        // The stand-in has no protobuf schemas of objects; callers that accept nothing else are told so.
        _ => Err(Status::not_acceptable(false)),
    }
}

/// The object, or the genuine 404.
async fn existing(call: &Call, target: &Target) -> Result<Arc<Stored>, Status> {
    let key = target.key(&target.namespace, &target.name);
    call.server
        .store
        .get(&key)
        .await?
        .ok_or_else(|| Status::missing(target.about()))
}
