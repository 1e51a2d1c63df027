//! Legacy discovery (`metav1.APIVersions`, `APIGroupList`, `APIGroup`, `APIResourceList`) as serde and prost types.
//!
//! Field numbers: `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`. What a legacy list says about a version is
//! turned into aggregated form by [`ResourceList::into_version`], and back by [`resources_of`].

use std::collections::HashMap;

use prost::Message;
use serde::{Deserialize, Serialize};

use crate::api::{
    discovery::{GroupVersionKind, Resource, Subresource, Version, clean_resources, null_as_empty},
    wire::{self, Encoding, WireError},
};

#[cfg(test)]
mod tests;

/// `APIVersions`: the answer of `/api`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
pub struct Versions {
    /// Versions of the core group.
    #[serde(default, deserialize_with = "null_as_empty")]
    #[prost(string, repeated, tag = "1")]
    pub versions: Vec<String>,
    /// Where the server is reached.
    #[serde(
        rename = "serverAddressByClientCIDRs",
        default,
        deserialize_with = "null_as_empty"
    )]
    #[prost(message, repeated, tag = "2")]
    pub server_addresses: Vec<ServerAddress>,
}

/// `ServerAddressByClientCIDR`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
pub struct ServerAddress {
    /// Clients of this range ...
    #[serde(rename = "clientCIDR", default)]
    #[prost(string, required, tag = "1")]
    pub client_cidr: String,
    /// ... reach the server here.
    #[serde(rename = "serverAddress", default)]
    #[prost(string, required, tag = "2")]
    pub server_address: String,
}

/// `APIGroupList`: the answer of `/apis`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
pub struct GroupList {
    /// Groups, by priority.
    #[serde(default, deserialize_with = "null_as_empty")]
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<Group>,
}

/// `APIGroup`: the answer of `/apis/GROUP`, and an entry of the list.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// Name.
    #[serde(default)]
    #[prost(string, required, tag = "1")]
    pub name: String,
    /// Versions, the preferred one first.
    #[serde(default, deserialize_with = "null_as_empty")]
    #[prost(message, repeated, tag = "2")]
    pub versions: Vec<GroupVersion>,
    /// The version to use without other reason.
    #[serde(default)]
    #[prost(message, required, tag = "3")]
    pub preferred_version: GroupVersion,
    /// Where the server is reached.
    #[serde(
        rename = "serverAddressByClientCIDRs",
        default,
        deserialize_with = "null_as_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[prost(message, repeated, tag = "4")]
    pub server_addresses: Vec<ServerAddress>,
}

/// `GroupVersionForDiscovery`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
#[serde(rename_all = "camelCase")]
pub struct GroupVersion {
    /// `group/version`.
    #[serde(default)]
    #[prost(string, required, tag = "1")]
    pub group_version: String,
    /// `version`.
    #[serde(default)]
    #[prost(string, required, tag = "2")]
    pub version: String,
}

/// `APIResourceList`: the answer of `/apis/GROUP/VERSION` and `/api/v1`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
#[serde(rename_all = "camelCase")]
pub struct ResourceList {
    /// `group/version`, or `v1`.
    #[serde(default)]
    #[prost(string, required, tag = "1")]
    pub group_version: String,
    /// Resources and subresources by name.
    #[serde(default, deserialize_with = "null_as_empty")]
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<ListedResource>,
}

/// `APIResource`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
#[serde(rename_all = "camelCase")]
pub struct ListedResource {
    /// `pods`, or `pods/status`.
    #[serde(default)]
    #[prost(string, required, tag = "1")]
    pub name: String,
    /// Singular name; empty for subresources.
    #[serde(default)]
    #[prost(string, required, tag = "6")]
    pub singular_name: String,
    /// Whether it lives in namespaces.
    #[serde(default)]
    #[prost(bool, required, tag = "2")]
    pub namespaced: bool,
    /// Group of the kind, if it is another than the list's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[prost(string, required, tag = "8")]
    pub group: String,
    /// Version of the kind, if it is another than the list's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[prost(string, required, tag = "9")]
    pub version: String,
    /// Kind that it answers with.
    #[serde(default)]
    #[prost(string, required, tag = "3")]
    pub kind: String,
    /// Verbs, sorted.
    #[serde(default)]
    #[prost(message, optional, tag = "4")]
    pub verbs: Option<VerbList>,
    /// Short names.
    #[serde(
        default,
        deserialize_with = "null_as_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[prost(string, repeated, tag = "5")]
    pub short_names: Vec<String>,
    /// Categories such as `all`.
    #[serde(
        default,
        deserialize_with = "null_as_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[prost(string, repeated, tag = "7")]
    pub categories: Vec<String>,
    /// Hash of the storage version; aggregated discovery has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[prost(string, required, tag = "10")]
    pub storage_version_hash: String,
}

/// `metav1.Verbs`: a list that protobuf can tell from none.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
#[serde(transparent)]
pub struct VerbList {
    /// The verbs.
    #[prost(string, repeated, tag = "1")]
    pub items: Vec<String>,
}

/// Reads over a document for its type alone.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Message)]
struct Nothing {}

/// A document of legacy discovery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Legacy {
    /// `/api`
    Versions(Versions),
    /// `/apis`
    Groups(GroupList),
    /// `/apis/GROUP`
    Group(Group),
    /// `/apis/GROUP/VERSION`, `/api/v1`
    Resources(ResourceList),
}

/// What kube-apiserver writes as `apiVersion`: none for `APIVersions` and, in JSON, for the list of `/api/v1`
/// (they were there before versions were); kept as it came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LegacyDocument {
    /// `apiVersion` as the server wrote it.
    pub api_version: String,
    /// The document.
    pub legacy: Legacy,
}

impl LegacyDocument {
    /// Reads a server's answer by its Content-Type; the document says itself which one it is.
    pub fn parse(encoding: Encoding, body: &[u8]) -> Result<Self, WireError> {
        let (head, Nothing {}) = wire::decode(encoding, body)?;
        let legacy = match head.kind.as_str() {
            "APIVersions" => Legacy::Versions(wire::decode(encoding, body)?.1),
            "APIGroupList" => Legacy::Groups(wire::decode(encoding, body)?.1),
            "APIGroup" => Legacy::Group(wire::decode(encoding, body)?.1),
            "APIResourceList" => Legacy::Resources(wire::decode(encoding, body)?.1),
            _ => {
                return Err(WireError::Kind(
                    wire::shorten(&head.kind),
                    wire::shorten(&head.api_version),
                ));
            }
        };
        Ok(Self {
            api_version: head.api_version,
            legacy,
        })
    }

    /// Writes the document as kube-apiserver writes it.
    pub fn write(&self, encoding: Encoding) -> Result<Vec<u8>, WireError> {
        let version = &self.api_version;
        match &self.legacy {
            Legacy::Versions(body) => wire::encode(encoding, version, "APIVersions", body),
            Legacy::Groups(body) => wire::encode(encoding, version, "APIGroupList", body),
            Legacy::Group(body) => wire::encode(encoding, version, "APIGroup", body),
            Legacy::Resources(body) => wire::encode(encoding, version, "APIResourceList", body),
        }
    }
}

impl ResourceList {
    /// What the list says, in aggregated form: for servers that speak only legacy discovery. `group_version` is the one
    /// that was asked for; a list of another one yields nothing.
    pub fn into_version(self, group_version: crate::api::GvRef<'_>) -> Option<Version> {
        if self.group_version != group_version.to_string() {
            return None;
        }
        let mut resources: Vec<Resource> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for listed in self.resources {
            let kind = if listed.kind.is_empty() {
                GroupVersionKind::default()
            } else {
                GroupVersionKind {
                    group: listed.group,
                    version: listed.version,
                    kind: listed.kind,
                }
            };
            let verbs = listed.verbs.unwrap_or_default().items;
            let scope = if listed.namespaced {
                "Namespaced"
            } else {
                "Cluster"
            }
            .to_owned();
            let (parent, subresource) = match listed.name.split_once('/') {
                Some((parent, subresource)) => (parent, Some(subresource)),
                None => (listed.name.as_str(), None),
            };
            let place = if let Some(place) = places.get(parent) {
                *place
            } else {
                places.insert(parent.to_owned(), resources.len());
                resources.push(Resource {
                    resource: parent.to_owned(),
                    scope: scope.clone(),
                    // As kube-apiserver has it while the resource itself is not listed.
                    response_kind: Some(GroupVersionKind::default()),
                    ..Resource::default()
                });
                resources.len() - 1
            };
            let Some(resource) = resources.get_mut(place) else {
                continue;
            };
            if let Some(subresource) = subresource {
                resource.subresources.push(Subresource {
                    subresource: subresource.to_owned(),
                    response_kind: Some(kind),
                    accepted_types: Vec::new(),
                    verbs,
                });
            } else {
                resource.response_kind = Some(kind);
                resource.scope = scope;
                resource.singular_resource = listed.singular_name;
                resource.verbs = verbs;
                resource.short_names = listed.short_names;
                resource.categories = listed.categories;
            }
        }
        clean_resources(&mut resources);
        Some(Version {
            version: group_version.version.to_owned(),
            resources,
            freshness: crate::api::discovery::CURRENT.to_owned(),
        })
    }
}

/// A version's resources as legacy discovery lists them: each followed by its subresources. No storage version hashes.
pub fn resources_of(resources: &[Resource]) -> Vec<ListedResource> {
    let mut listed = Vec::new();
    for resource in resources {
        let namespaced = resource.scope == "Namespaced";
        // A resource that has only subresources is not itself listed.
        if let Some(kind) = resource.kind() {
            listed.push(ListedResource {
                name: resource.resource.clone(),
                singular_name: resource.singular_resource.clone(),
                namespaced,
                group: kind.group.clone(),
                version: kind.version.clone(),
                kind: kind.kind.clone(),
                verbs: Some(VerbList {
                    items: resource.verbs.clone(),
                }),
                short_names: resource.short_names.clone(),
                categories: resource.categories.clone(),
                storage_version_hash: String::new(),
            });
        }
        for sub in &resource.subresources {
            let kind = sub.response_kind.clone().unwrap_or_default();
            listed.push(ListedResource {
                name: format!("{}/{}", resource.resource, sub.subresource),
                namespaced,
                group: kind.group,
                version: kind.version,
                kind: kind.kind,
                verbs: Some(VerbList {
                    items: sub.verbs.clone(),
                }),
                ..ListedResource::default()
            });
        }
    }
    listed
}
