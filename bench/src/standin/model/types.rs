//! The types of `apidiscovery.k8s.io/v2`, with the field order of the Go structs (their JSON is compared byte for byte).

use serde::{Deserialize, Serialize};

/// `APIGroupDiscoveryList`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Groups {
    pub(crate) kind: String,
    pub(crate) api_version: String,
    pub(crate) metadata: ListMeta,
    pub(crate) items: Vec<Group>,
}

/// The always empty list metadata.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ListMeta {}

/// `APIGroupDiscovery`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) metadata: GroupMeta,
    #[serde(default)]
    pub(crate) versions: Vec<Version>,
}

impl Group {
    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

/// The name; none for the core group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupMeta {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

/// `APIVersionDiscovery`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names are the API's")]
pub(crate) struct Version {
    pub(crate) version: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) resources: Vec<Resource>,
    #[serde(default)]
    pub(crate) freshness: String,
}

/// `APIResourceDiscovery`: one resource of a group-version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Plural name.
    pub resource: String,
    /// Kind of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kind: Option<Gvk>,
    /// `Namespaced` or `Cluster`.
    pub scope: String,
    /// Singular name.
    pub singular_resource: String,
    /// Verbs, sorted.
    pub verbs: Vec<String>,
    /// Short names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub short_names: Vec<String>,
    /// Categories (`all`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Subresources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subresources: Vec<Subresource>,
}

impl Resource {
    /// A resource with all verbs, a `status` subresource, and names derived from the kind.
    pub fn new(resource: &str, kind: &str, namespaced: bool) -> Self {
        let verbs = [
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ];
        let kind_of = || {
            Some(Gvk {
                group: String::new(),
                version: String::new(),
                kind: kind.to_owned(),
            })
        };
        Self {
            resource: resource.to_owned(),
            response_kind: kind_of(),
            scope: if namespaced { "Namespaced" } else { "Cluster" }.to_owned(),
            singular_resource: kind.to_lowercase(),
            verbs: verbs.map(str::to_owned).to_vec(),
            short_names: Vec::new(),
            categories: Vec::new(),
            subresources: vec![Subresource {
                subresource: "status".to_owned(),
                response_kind: kind_of(),
                accepted_types: Vec::new(),
                verbs: ["get", "patch", "update"].map(str::to_owned).to_vec(),
            }],
        }
    }

    pub(crate) fn namespaced(&self) -> bool {
        self.scope == "Namespaced"
    }

    pub(crate) fn kind(&self) -> &str {
        self.response_kind.as_ref().map_or("", |gvk| &gvk.kind)
    }
}

/// `APISubresourceDiscovery`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subresource {
    /// Its name, without the parent's.
    pub subresource: String,
    /// Kind of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kind: Option<Gvk>,
    /// Kinds it takes, if other ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted_types: Vec<Gvk>,
    /// Verbs, sorted.
    pub verbs: Vec<String>,
}

/// `GroupVersionKind`; an empty group and version mean those of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gvk {
    /// Group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
}
