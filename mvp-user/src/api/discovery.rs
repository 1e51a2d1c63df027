//! Aggregated discovery v2 (`apidiscovery.k8s.io/v2`, KEP-3352) as serde and prost types: one Rust type per message,
//! read from and written to JSON and protobuf alike.
//!
//! Field numbers: `k8s.io/api/apidiscovery/v2/generated.proto`. `required` in prost's sense: written even when empty,
//! as gogo-protobuf does, and never demanded when read. [`GroupList::parse`] is the door for bytes of a server;
//! not for legacy discovery (`api::legacy`) nor for merging (`discovery::merge`).

use prost::Message;
use serde::{Deserialize, Deserializer, Serialize};

use crate::api::wire::{self, Encoding, WireError};

mod clean;
pub(crate) use clean::clean_resources;
#[cfg(test)]
mod tests;

/// `Version::freshness` of a group-version whose server answers.
pub const CURRENT: &str = "Current";
/// `Version::freshness` of a group-version whose servers do not answer; clients report it as a failed group.
pub const STALE: &str = "Stale";
/// `kind` of a [`GroupList`].
pub const KIND: &str = "APIGroupDiscoveryList";
/// API group of a [`GroupList`].
pub const GROUP: &str = "apidiscovery.k8s.io";

/// The form of aggregated discovery; both have the same fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// `apidiscovery.k8s.io/v2`, since Kubernetes 1.30.
    V2,
    /// `apidiscovery.k8s.io/v2beta1`, removed in 1.34.
    V2Beta1,
}

impl Form {
    /// The version name.
    pub const fn version(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V2Beta1 => "v2beta1",
        }
    }

    /// `apiVersion` of the document.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::V2 => "apidiscovery.k8s.io/v2",
            Self::V2Beta1 => "apidiscovery.k8s.io/v2beta1",
        }
    }
}

/// `APIGroupDiscoveryList`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
pub struct GroupList {
    /// Always empty; kube-apiserver writes it.
    #[serde(default)]
    #[prost(message, required, tag = "1")]
    pub metadata: ListMeta,
    /// Groups in the server's order.
    #[serde(default, deserialize_with = "null_as_empty")]
    #[prost(message, repeated, tag = "2")]
    pub items: Vec<Group>,
}

/// `metav1.ListMeta`, of which discovery uses nothing.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
#[expect(
    missing_docs,
    reason = "only there to be written as kube-apiserver writes them"
)]
pub struct ListMeta {
    #[serde(skip)]
    #[prost(string, required, tag = "1")]
    pub self_link: String,
    #[serde(skip)]
    #[prost(string, required, tag = "2")]
    pub resource_version: String,
    #[serde(skip)]
    #[prost(string, required, tag = "3")]
    pub r#continue: String,
}

/// `APIGroupDiscovery`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Message)]
pub struct Group {
    /// Carries the group's name; the core group has none.
    #[serde(default)]
    #[prost(message, required, tag = "1")]
    pub metadata: GroupMeta,
    /// Versions in order of preference.
    #[serde(
        default,
        deserialize_with = "null_as_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[prost(message, repeated, tag = "2")]
    pub versions: Vec<Version>,
}

/// The part of `ObjectMeta` that discovery uses.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Message)]
#[expect(
    missing_docs,
    reason = "all but the name are only there to be written as kube-apiserver writes them"
)]
pub struct GroupMeta {
    /// Group name; empty for core.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[prost(string, required, tag = "1")]
    pub name: String,
    #[serde(skip)]
    #[prost(string, required, tag = "2")]
    pub generate_name: String,
    #[serde(skip)]
    #[prost(string, required, tag = "3")]
    pub namespace: String,
    #[serde(skip)]
    #[prost(string, required, tag = "4")]
    pub self_link: String,
    #[serde(skip)]
    #[prost(string, required, tag = "5")]
    pub uid: String,
    #[serde(skip)]
    #[prost(string, required, tag = "6")]
    pub resource_version: String,
    #[serde(skip)]
    #[prost(int64, required, tag = "7")]
    pub generation: i64,
    #[serde(skip)]
    #[prost(message, required, tag = "8")]
    pub creation_timestamp: Time,
}

/// `metav1.Time`; never set in discovery.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Time {
    /// Seconds since the epoch.
    #[prost(int64, optional, tag = "1")]
    pub seconds: Option<i64>,
    /// Nanoseconds.
    #[prost(int32, optional, tag = "2")]
    pub nanos: Option<i32>,
}

/// `APIVersionDiscovery`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Message)]
pub struct Version {
    /// Version name.
    #[serde(default)]
    #[prost(string, required, tag = "1")]
    pub version: String,
    /// Resources in the server's order.
    #[serde(
        default,
        deserialize_with = "null_as_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Resource>,
    /// [`CURRENT`] or [`STALE`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[prost(string, required, tag = "3")]
    pub freshness: String,
}

/// `APIResourceDiscovery`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Message)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Plural name.
    #[serde(default)]
    #[prost(string, required, tag = "1")]
    pub resource: String,
    /// Kind that it answers with; empty where only subresources exist: see [`Resource::kind`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[prost(message, optional, tag = "2")]
    pub response_kind: Option<GroupVersionKind>,
    /// `Cluster` or `Namespaced`.
    #[serde(default)]
    #[prost(string, required, tag = "3")]
    pub scope: String,
    /// Singular name.
    #[serde(default)]
    #[prost(string, required, tag = "4")]
    pub singular_resource: String,
    /// Verbs, sorted.
    #[serde(default, deserialize_with = "null_as_empty")]
    #[prost(string, repeated, tag = "5")]
    pub verbs: Vec<String>,
    /// Short names.
    #[serde(
        default,
        deserialize_with = "null_as_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[prost(string, repeated, tag = "6")]
    pub short_names: Vec<String>,
    /// Categories such as `all`.
    #[serde(
        default,
        deserialize_with = "null_as_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[prost(string, repeated, tag = "7")]
    pub categories: Vec<String>,
    /// Subresources in the server's order.
    #[serde(
        default,
        deserialize_with = "null_as_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[prost(message, repeated, tag = "8")]
    pub subresources: Vec<Subresource>,
}

/// `APISubresourceDiscovery`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Message)]
#[serde(rename_all = "camelCase")]
pub struct Subresource {
    /// Name, e.g. `status`.
    #[serde(default)]
    #[prost(string, required, tag = "1")]
    pub subresource: String,
    /// Kind that it answers with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[prost(message, optional, tag = "2")]
    pub response_kind: Option<GroupVersionKind>,
    /// Kinds that it accepts, where several do.
    #[serde(
        default,
        deserialize_with = "null_as_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[prost(message, repeated, tag = "3")]
    pub accepted_types: Vec<GroupVersionKind>,
    /// Verbs, sorted.
    #[serde(default, deserialize_with = "null_as_empty")]
    #[prost(string, repeated, tag = "4")]
    pub verbs: Vec<String>,
}

/// `metav1.GroupVersionKind`; empty group and version mean those of the enclosing document.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Message)]
pub struct GroupVersionKind {
    /// API group.
    #[serde(default)]
    #[prost(string, required, tag = "1")]
    pub group: String,
    /// Version.
    #[serde(default)]
    #[prost(string, required, tag = "2")]
    pub version: String,
    /// Kind.
    #[serde(default)]
    #[prost(string, required, tag = "3")]
    pub kind: String,
}

/// Go writes a nil slice as `null`.
pub(crate) fn null_as_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl GroupList {
    /// A list of `items`.
    pub fn new(items: Vec<Group>) -> Self {
        Self {
            metadata: ListMeta::default(),
            items,
        }
    }

    /// Reads a server's answer by its Content-Type. Unknown fields are ignored, duplicates united (the first wins), names that
    /// cannot occur in a request path dropped. A document of another kind is an error: a server that speaks only
    /// legacy discovery answers 200 with `APIGroupList`.
    pub fn parse(content_type: &str, body: &[u8]) -> Result<(Form, Self), WireError> {
        let encoding = Encoding::of(content_type)
            .ok_or_else(|| WireError::ContentType(wire::shorten(content_type)))?;
        let (head, mut list): (_, Self) = wire::decode(encoding, body)?;
        let form = match (head.kind.as_str(), head.api_version.as_str()) {
            (KIND, "apidiscovery.k8s.io/v2") => Form::V2,
            (KIND, "apidiscovery.k8s.io/v2beta1") => Form::V2Beta1,
            _ => {
                return Err(WireError::Kind(
                    wire::shorten(&head.kind),
                    wire::shorten(&head.api_version),
                ));
            }
        };
        list.clean();
        Ok((form, list))
    }

    /// Writes the document as kube-apiserver writes it.
    pub fn write(&self, form: Form, encoding: Encoding) -> Result<Vec<u8>, WireError> {
        wire::encode(encoding, form.api_version(), KIND, self)
    }
}

impl Group {
    /// Name of the group; empty for core.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl Resource {
    /// Kind that it answers with; none if it is there for its subresources alone. kube-apiserver writes an empty kind then,
    /// because clients of 1.26 panic where there is none (k/k 118361).
    pub fn kind(&self) -> Option<&GroupVersionKind> {
        self.response_kind
            .as_ref()
            .filter(|kind| **kind != GroupVersionKind::default())
    }
}
