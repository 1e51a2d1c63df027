//! Answers to discovery requests: `/api`, `/apis` and what is directly under them. Which form is decided by the Accept header; the
//! legacy group list comes from the APIService objects that all servers share, as in kube-aggregator.

use http::{HeaderValue, Method, StatusCode, header};
use serde_json::Value;

use super::{
    call::Call,
    documents::Which,
    forms::{self, Encoding, GroupVersion, LegacyGroup},
    reply::{Reply, not_found, reply},
    server::Phase,
    status::Status,
};

/// The answer, if the path is one of discovery's.
pub(crate) async fn answer(call: &Call) -> Option<Reply> {
    let path = call.info.path.clone();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let slash = path.ends_with('/');
    match parts.as_slice() {
        ["api"] => Some(core(call)),
        ["apis"] => Some(groups(call, slash).await),
        ["api", version] => Some(resources(call, "", version)),
        ["apis", group] => Some(one_group(call, group).await),
        ["apis", group, version] => Some(resources(call, group, version)),
        _ => None,
    }
}

fn reads(call: &Call) -> bool {
    call.method == Method::GET
}

fn core(call: &Call) -> Reply {
    if !reads(call) {
        return call.status(&Status::method_not_allowed());
    }
    if let Some(encoding) = call.accept.aggregated() {
        return aggregated(call, Which::Core, encoding);
    }
    if !call.accept.rest_routes() {
        return call.status(&Status::not_acceptable(true));
    }
    let Some(encoding) = call.accept.plain() else {
        return call.status(&Status::not_acceptable(false));
    };
    let documents = call.server.documents.load();
    let address = call.server.advertise.to_string();
    document(
        call,
        encoding,
        forms::api_versions(&documents.catalogue.core, &address, encoding),
    )
}

async fn groups(call: &Call, slash: bool) -> Reply {
    if !slash && let Some(encoding) = call.accept.aggregated() {
        let which = if call.server.phase() <= Phase::Incomplete {
            Which::FirstGroups
        } else {
            Which::Groups
        };
        return aggregated(call, which, encoding);
    }
    let Some(encoding) = call.accept.plain() else {
        return call.status(&Status::not_acceptable(false));
    };
    let groups = legacy_groups(call).await;
    document(call, encoding, forms::group_list(&groups, encoding))
}

async fn one_group(call: &Call, name: &str) -> Reply {
    let groups = legacy_groups(call).await;
    let documents = call.server.documents.load_full();
    let own = documents
        .catalogue
        .group(name)
        .filter(|found| !found.name().is_empty())
        .map(|found| {
            let versions: Vec<GroupVersion> = found
                .versions
                .iter()
                .map(|version| group_version(name, &version.version))
                .collect();
            LegacyGroup {
                name: name.to_owned(),
                preferred: versions[0].clone(),
                versions,
            }
        });
    let Some(found) = groups.into_iter().find(|group| group.name == name).or(own) else {
        return not_found();
    };
    let Some(encoding) = call.accept.plain() else {
        return call.status(&Status::not_acceptable(false));
    };
    document(call, encoding, forms::group(&found, encoding))
}

fn resources(call: &Call, group: &str, version: &str) -> Reply {
    let documents = call.server.documents.load_full();
    let catalogue = &documents.catalogue;
    if catalogue.group(group).is_none() {
        return not_found();
    }
    let Some(found) = catalogue.version(group, version) else {
        return call.status(&Status::unknown_resource());
    };
    if !reads(call) {
        return call.status(&Status::method_not_allowed());
    }
    if !call.accept.rest_routes() {
        return call.status(&Status::not_acceptable(true));
    }
    let Some(encoding) = call.accept.plain() else {
        return call.status(&Status::not_acceptable(false));
    };
    document(
        call,
        encoding,
        forms::resource_list(catalogue, group, found, encoding),
    )
}

fn aggregated(call: &Call, which: Which, encoding: Encoding) -> Reply {
    let documents = call.server.documents.load_full();
    let (body, etag) = documents.aggregated(which, encoding);
    let unchanged = call
        .headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|value| value.as_bytes() == etag.as_bytes());
    let media_type = match encoding {
        Encoding::Json => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        Encoding::Yaml => "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        Encoding::Protobuf => {
            "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        }
    };
    let mut reply = if unchanged {
        let mut reply = reply(StatusCode::NOT_MODIFIED, media_type, bytes::Bytes::new());
        reply.headers_mut().remove(header::CONTENT_TYPE);
        reply
    } else {
        reply(
            StatusCode::OK,
            media_type,
            if encoding == Encoding::Json {
                call.json(body)
            } else {
                body
            },
        )
    };
    let headers = reply.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    if let Ok(etag) = HeaderValue::try_from(etag) {
        headers.insert(header::ETAG, etag);
    }
    reply
}

fn document(call: &Call, encoding: Encoding, body: bytes::Bytes) -> Reply {
    let body = if encoding == Encoding::Json {
        call.json(body)
    } else {
        body
    };
    reply(StatusCode::OK, encoding.media_type(), body)
}

fn group_version(group: &str, version: &str) -> GroupVersion {
    GroupVersion {
        group_version: format!("{group}/{version}"),
        version: version.to_owned(),
    }
}

/// kube-aggregator's `apisHandler`: the groups of all available APIServices, whoever serves them.
async fn legacy_groups(call: &Call) -> Vec<LegacyGroup> {
    let Ok((services, _)) = call
        .server
        .store
        .list("apiregistration.k8s.io/apiservices/")
        .await
    else {
        return Vec::new();
    };
    let mut found: Vec<(i64, i64, String, String)> = services
        .iter()
        .filter(|service| available(&service.value))
        .map(|service| {
            let spec = &service.value["spec"];
            let text = |name: &str| spec[name].as_str().unwrap_or_default().to_owned();
            let number = |name: &str| spec[name].as_i64().unwrap_or_default();
            (
                number("groupPriorityMinimum"),
                number("versionPriority"),
                text("group"),
                text("version"),
            )
        })
        .filter(|(_, _, group, _)| !group.is_empty())
        .collect();
    // A group's place is that of its highest priority; then its name; within it the versions' priorities.
    found.sort_by(|left, right| {
        (right.0, &left.2, right.1, &right.3).cmp(&(left.0, &right.2, left.1, &left.3))
    });
    let mut groups: Vec<LegacyGroup> = Vec::new();
    for (_, _, group, version) in found {
        let version = group_version(&group, &version);
        match groups.iter_mut().find(|known| known.name == group) {
            Some(known) => known.versions.push(version),
            None => groups.push(LegacyGroup {
                name: group,
                preferred: version.clone(),
                versions: vec![version],
            }),
        }
    }
    groups
}

fn available(service: &Value) -> bool {
    let conditions = service["status"]["conditions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    conditions
        .iter()
        .any(|condition| condition["type"] == "Available" && condition["status"] == "True")
}
