//! Aggregated discovery v2 (`apidiscovery.k8s.io/v2`, KEP-3352) as serde and prost types: one Rust type per message,
//! read from JSON and protobuf alike. Field numbers: `k8s.io/api/apidiscovery/v2/generated.proto`.

use serde::{Deserialize, Serialize};

/// `APIGroupDiscoveryList`.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug, Default)]
pub struct GroupList {
    /// Groups in the server's order.
    #[serde(default)]
    pub items: Vec<Group>,
}

/// `APIGroupDiscovery`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct Group {
    /// Carries the group's name; the core group has none.
    #[serde(default)]
    pub metadata: GroupMeta,
    /// Versions in order of preference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<Version>,
}

/// The part of `ObjectMeta` that discovery uses.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct GroupMeta {
    /// Group name; empty for core.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// `APIVersionDiscovery`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct Version {
    /// Version name.
    pub version: String,
    /// Resources in the server's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Resource>,
    /// `Current` or `Stale`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub freshness: String,
}

/// `APIResourceDiscovery`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Plural name.
    pub resource: String,
    /// Kind that it answers with; absent where only subresources exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kind: Option<GroupVersionKind>,
    /// `Cluster` or `Namespaced`.
    #[serde(default)]
    pub scope: String,
    /// Singular name.
    #[serde(default)]
    pub singular_resource: String,
    /// Verbs, sorted.
    #[serde(default)]
    pub verbs: Vec<String>,
    /// Short names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub short_names: Vec<String>,
    /// Categories such as `all`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Subresources in the server's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subresources: Vec<Subresource>,
}

/// `APISubresourceDiscovery`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct Subresource {
    /// Name, e.g. `status`.
    pub subresource: String,
    /// Kind that it answers with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kind: Option<GroupVersionKind>,
    /// Kinds that it accepts, where several do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted_types: Vec<GroupVersionKind>,
    /// Verbs, sorted.
    #[serde(default)]
    pub verbs: Vec<String>,
}

/// `metav1.GroupVersionKind`; empty group and version mean those of the enclosing document.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct GroupVersionKind {
    /// API group.
    #[serde(default)]
    pub group: String,
    /// Version.
    #[serde(default)]
    pub version: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
}
