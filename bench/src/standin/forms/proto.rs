//! The protobuf forms. Go's generated code writes every non-pointer field, empty strings too; so every field here is an `Option`
//! that is set (proto2 semantics), and the bytes equal the recorded ones.

use bytes::Bytes;
use prost::Message;

use super::{GroupVersion, LegacyGroup, LegacyResource};
use crate::standin::{
    model::{Group, Gvk},
    status::Status,
};

/// `runtime.Unknown`, the envelope behind the four magic bytes.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", optional, tag = "2")]
    raw: Option<Vec<u8>>,
    #[prost(string, optional, tag = "3")]
    content_encoding: Option<String>,
    #[prost(string, optional, tag = "4")]
    content_type: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct TypeMeta {
    #[prost(string, optional, tag = "1")]
    api_version: Option<String>,
    #[prost(string, optional, tag = "2")]
    kind: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct ListMeta {
    #[prost(string, optional, tag = "1")]
    self_link: Option<String>,
    #[prost(string, optional, tag = "2")]
    resource_version: Option<String>,
    #[prost(string, optional, tag = "3")]
    continuation: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Time {}

/// `ObjectMeta`: only what an empty one has.
#[derive(Clone, PartialEq, Eq, Message)]
struct ObjectMeta {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    generate_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    namespace: Option<String>,
    #[prost(string, optional, tag = "4")]
    self_link: Option<String>,
    #[prost(string, optional, tag = "5")]
    uid: Option<String>,
    #[prost(string, optional, tag = "6")]
    resource_version: Option<String>,
    #[prost(int64, optional, tag = "7")]
    generation: Option<i64>,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Time>,
}

#[derive(Clone, PartialEq, Message)]
struct GroupDiscoveryList {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(message, repeated, tag = "2")]
    items: Vec<GroupDiscovery>,
}

#[derive(Clone, PartialEq, Message)]
struct GroupDiscovery {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, repeated, tag = "2")]
    versions: Vec<VersionDiscovery>,
}

#[derive(Clone, PartialEq, Message)]
struct VersionDiscovery {
    #[prost(string, optional, tag = "1")]
    version: Option<String>,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<ResourceDiscovery>,
    #[prost(string, optional, tag = "3")]
    freshness: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceDiscovery {
    #[prost(string, optional, tag = "1")]
    resource: Option<String>,
    #[prost(message, optional, tag = "2")]
    response_kind: Option<GroupVersionKind>,
    #[prost(string, optional, tag = "3")]
    scope: Option<String>,
    #[prost(string, optional, tag = "4")]
    singular_resource: Option<String>,
    #[prost(string, repeated, tag = "5")]
    verbs: Vec<String>,
    #[prost(string, repeated, tag = "6")]
    short_names: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    categories: Vec<String>,
    #[prost(message, repeated, tag = "8")]
    subresources: Vec<SubresourceDiscovery>,
}

#[derive(Clone, PartialEq, Message)]
struct SubresourceDiscovery {
    #[prost(string, optional, tag = "1")]
    subresource: Option<String>,
    #[prost(message, optional, tag = "2")]
    response_kind: Option<GroupVersionKind>,
    #[prost(message, repeated, tag = "3")]
    accepted_types: Vec<GroupVersionKind>,
    #[prost(string, repeated, tag = "4")]
    verbs: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct GroupVersionKind {
    #[prost(string, optional, tag = "1")]
    group: Option<String>,
    #[prost(string, optional, tag = "2")]
    version: Option<String>,
    #[prost(string, optional, tag = "3")]
    kind: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ApiVersions {
    #[prost(string, repeated, tag = "1")]
    versions: Vec<String>,
    #[prost(message, repeated, tag = "2")]
    server_address_by_client_cidrs: Vec<ServerAddress>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct ServerAddress {
    #[prost(string, optional, tag = "1")]
    client_cidr: Option<String>,
    #[prost(string, optional, tag = "2")]
    server_address: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ApiGroupList {
    #[prost(message, repeated, tag = "1")]
    groups: Vec<ApiGroup>,
}

#[derive(Clone, PartialEq, Message)]
struct ApiGroup {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(message, repeated, tag = "2")]
    versions: Vec<GroupVersionForDiscovery>,
    #[prost(message, optional, tag = "3")]
    preferred_version: Option<GroupVersionForDiscovery>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct GroupVersionForDiscovery {
    #[prost(string, optional, tag = "1")]
    group_version: Option<String>,
    #[prost(string, optional, tag = "2")]
    version: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ApiResourceList {
    #[prost(string, optional, tag = "1")]
    group_version: Option<String>,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<ApiResource>,
}

#[derive(Clone, PartialEq, Message)]
struct ApiResource {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(bool, optional, tag = "2")]
    namespaced: Option<bool>,
    #[prost(string, optional, tag = "3")]
    kind: Option<String>,
    #[prost(message, optional, tag = "4")]
    verbs: Option<Verbs>,
    #[prost(string, repeated, tag = "5")]
    short_names: Vec<String>,
    #[prost(string, optional, tag = "6")]
    singular_name: Option<String>,
    #[prost(string, repeated, tag = "7")]
    categories: Vec<String>,
    #[prost(string, optional, tag = "8")]
    group: Option<String>,
    #[prost(string, optional, tag = "9")]
    version: Option<String>,
    #[prost(string, optional, tag = "10")]
    storage_version_hash: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Verbs {
    #[prost(string, repeated, tag = "1")]
    items: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusMessage {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(string, optional, tag = "2")]
    status: Option<String>,
    #[prost(string, optional, tag = "3")]
    message: Option<String>,
    #[prost(string, optional, tag = "4")]
    reason: Option<String>,
    #[prost(message, optional, tag = "5")]
    details: Option<StatusDetails>,
    #[prost(int32, optional, tag = "6")]
    code: Option<i32>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct StatusDetails {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    group: Option<String>,
    #[prost(string, optional, tag = "3")]
    kind: Option<String>,
    #[prost(int32, optional, tag = "5")]
    retry_after_seconds: Option<i32>,
    #[prost(string, optional, tag = "6")]
    uid: Option<String>,
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "every field is an Option that is set"
)]
fn text(value: &str) -> Option<String> {
    Some(value.to_owned())
}

fn envelope(api_version: &str, kind: &str, message: &impl Message) -> Bytes {
    let unknown = Unknown {
        type_meta: Some(TypeMeta {
            api_version: text(api_version),
            kind: text(kind),
        }),
        raw: Some(message.encode_to_vec()),
        content_encoding: text(""),
        content_type: text(""),
    };
    let mut out = b"k8s\0".to_vec();
    out.extend(unknown.encode_to_vec());
    Bytes::from(out)
}

fn empty_list_meta() -> ListMeta {
    ListMeta {
        self_link: text(""),
        resource_version: text(""),
        continuation: text(""),
    }
}

fn gvk(gvk: &Gvk) -> GroupVersionKind {
    GroupVersionKind {
        group: text(&gvk.group),
        version: text(&gvk.version),
        kind: text(&gvk.kind),
    }
}

pub(super) fn aggregated(groups: &[Group]) -> Bytes {
    let items = groups.iter().map(|group| GroupDiscovery {
        metadata: Some(ObjectMeta {
            name: text(group.name()),
            generate_name: text(""),
            namespace: text(""),
            self_link: text(""),
            uid: text(""),
            resource_version: text(""),
            generation: Some(0),
            creation_timestamp: Some(Time {}),
        }),
        versions: group
            .versions
            .iter()
            .map(|version| VersionDiscovery {
                version: text(&version.version),
                freshness: text(&version.freshness),
                resources: version
                    .resources
                    .iter()
                    .map(|resource| ResourceDiscovery {
                        resource: text(&resource.resource),
                        response_kind: resource.response_kind.as_ref().map(gvk),
                        scope: text(&resource.scope),
                        singular_resource: text(&resource.singular_resource),
                        verbs: resource.verbs.clone(),
                        short_names: resource.short_names.clone(),
                        categories: resource.categories.clone(),
                        subresources: resource
                            .subresources
                            .iter()
                            .map(|subresource| SubresourceDiscovery {
                                subresource: text(&subresource.subresource),
                                response_kind: subresource.response_kind.as_ref().map(gvk),
                                accepted_types: subresource
                                    .accepted_types
                                    .iter()
                                    .map(gvk)
                                    .collect(),
                                verbs: subresource.verbs.clone(),
                            })
                            .collect(),
                    })
                    .collect(),
            })
            .collect(),
    });
    let list = GroupDiscoveryList {
        metadata: Some(empty_list_meta()),
        items: items.collect(),
    };
    envelope("apidiscovery.k8s.io/v2", "APIGroupDiscoveryList", &list)
}

pub(super) fn api_versions(versions: &[&str], address: &str) -> Bytes {
    let message = ApiVersions {
        versions: versions
            .iter()
            .map(|version| (*version).to_owned())
            .collect(),
        server_address_by_client_cidrs: vec![ServerAddress {
            client_cidr: text("0.0.0.0/0"),
            server_address: text(address),
        }],
    };
    envelope("", "APIVersions", &message)
}

fn group_version(found: &GroupVersion) -> GroupVersionForDiscovery {
    GroupVersionForDiscovery {
        group_version: text(&found.group_version),
        version: text(&found.version),
    }
}

fn api_group(group: &LegacyGroup) -> ApiGroup {
    ApiGroup {
        name: text(&group.name),
        versions: group.versions.iter().map(group_version).collect(),
        preferred_version: Some(group_version(&group.preferred)),
    }
}

pub(super) fn group_list(groups: &[LegacyGroup]) -> Bytes {
    envelope(
        "v1",
        "APIGroupList",
        &ApiGroupList {
            groups: groups.iter().map(api_group).collect(),
        },
    )
}

pub(super) fn group(group: &LegacyGroup) -> Bytes {
    envelope("v1", "APIGroup", &api_group(group))
}

pub(super) fn resource_list(
    api_version: &str,
    group_version: &str,
    resources: &[LegacyResource],
) -> Bytes {
    let resources = resources.iter().map(|resource| ApiResource {
        name: text(&resource.name),
        namespaced: Some(resource.namespaced),
        kind: text(&resource.kind),
        verbs: Some(Verbs {
            items: resource.verbs.clone(),
        }),
        short_names: resource.short_names.clone(),
        singular_name: text(&resource.singular_name),
        categories: resource.categories.clone(),
        group: text(&resource.group),
        version: text(&resource.version),
        storage_version_hash: text(&resource.storage_version_hash),
    });
    let list = ApiResourceList {
        group_version: text(group_version),
        resources: resources.collect(),
    };
    envelope(api_version, "APIResourceList", &list)
}

/// A `Status` for callers that accept nothing but protobuf.
pub(crate) fn status(status: &Status) -> Bytes {
    let message = StatusMessage {
        metadata: Some(empty_list_meta()),
        status: text(status.status),
        message: text(&status.message),
        reason: text(&status.reason),
        details: status.details.as_ref().map(|details| StatusDetails {
            name: text(&details.name),
            group: text(&details.group),
            kind: text(&details.kind),
            retry_after_seconds: Some(details.retry_after_seconds),
            uid: text(&details.uid),
        }),
        code: Some(i32::from(status.code)),
    };
    envelope("v1", "Status", &message)
}
