//! The Kubernetes nouns that every room speaks: group-versions, resources, verbs, servers.
//!
//! Not for wire formats of discovery (see `discovery`) nor for what is known about a server (see `table`).

use std::{fmt, hash::Hash, net::SocketAddr};

/// Header that marks a request which was rerouted once (KEP-4020, `peerproxy_handler.go`): the receiver serves it itself.
pub const PEER_PROXIED: &str = "x-kubernetes-peer-proxied";
/// ALPN entry by which one mvp tells another (or itself) that the decision was taken; kube-apiserver ignores it (RFC 7301, 3.2).
pub const ALPN_DIRECT: &[u8] = b"mvp-direct";
/// SNI of kube-apiserver's own loopback client (`k8s.io/apiserver/pkg/server/secure_serving.go`).
pub const LOOPBACK_SNI: &str = "apiserver-loopback-client";

/// One kube-apiserver: the node's own, or a peer by the address it is reached at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ServerId {
    /// The kube-apiserver of this node.
    Local,
    /// Another node's kube-apiserver.
    Peer(SocketAddr),
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Peer(address) => address.fmt(f),
        }
    }
}

/// A group and a version, e.g. `apps` and `v1`; the core group is the empty string.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GroupVersion {
    /// API group; empty for core.
    pub group: Box<str>,
    /// Version within the group.
    pub version: Box<str>,
}

/// A group-version borrowed from a request; looks up a [`GroupVersion`] without allocating.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GvRef<'a> {
    /// API group; empty for core.
    pub group: &'a str,
    /// Version within the group.
    pub version: &'a str,
}

impl hashbrown::Equivalent<GroupVersion> for GvRef<'_> {
    fn equivalent(&self, key: &GroupVersion) -> bool {
        same_group(self.group, &key.group) && *self.version == *key.version
    }
}

/// Whether two groups are the same. The core group's name is empty, and `==` calls `memcmp` even then: glibc's for AVX-512
/// takes more than 100 ns to read no bytes under a mask where nothing is mapped, which is where an empty `Box<str>` points.
fn same_group(one: &str, other: &str) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

impl GroupVersion {
    /// Owns a copy of both parts.
    pub fn new(group: &str, version: &str) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
        }
    }

    /// The borrowed form.
    pub fn as_ref(&self) -> GvRef<'_> {
        GvRef {
            group: &self.group,
            version: &self.version,
        }
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

impl fmt::Display for GvRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(self.version)
        } else {
            write!(f, "{}/{}", self.group, self.version)
        }
    }
}

/// A resource of a group-version, e.g. `apps/v1 deployments`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Gvr {
    /// API group; empty for core.
    pub group: Box<str>,
    /// Version within the group.
    pub version: Box<str>,
    /// Plural resource name.
    pub resource: Box<str>,
}

/// A resource borrowed from a request; looks up a [`Gvr`] without allocating.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GvrRef<'a> {
    /// API group; empty for core.
    pub group: &'a str,
    /// Version within the group.
    pub version: &'a str,
    /// Plural resource name.
    pub resource: &'a str,
}

impl hashbrown::Equivalent<Gvr> for GvrRef<'_> {
    fn equivalent(&self, key: &Gvr) -> bool {
        same_group(self.group, &key.group)
            && *self.version == *key.version
            && *self.resource == *key.resource
    }
}

impl Gvr {
    /// Owns a copy of the parts.
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
        }
    }

    /// The borrowed form.
    pub fn as_ref(&self) -> GvrRef<'_> {
        GvrRef {
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
        }
    }
}

impl<'a> GvrRef<'a> {
    /// The group-version it belongs to.
    pub fn group_version(&self) -> GvRef<'a> {
        GvRef {
            group: self.group,
            version: self.version,
        }
    }
}

impl fmt::Display for GvrRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group_version(), self.resource)
    }
}

/// A set of request verbs (`k8s.io/apiserver/pkg/endpoints/request/requestinfo.go`); unknown ones of discovery are not kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Verbs(u16);

/// A request verb.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Verb {
    /// POST.
    Create,
    /// DELETE of one object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
    /// GET of one object, or of a subresource.
    Get,
    /// GET of a collection.
    List,
    /// PATCH.
    Patch,
    /// PUT.
    Update,
    /// GET of a collection with `watch=1`, or the deprecated `/watch/` prefix.
    Watch,
    /// The deprecated `/proxy/` prefix.
    Proxy,
    /// A method that Kubernetes gives no verb (OPTIONS, TRACE, ...): matches whatever a resource offers.
    Other,
}

impl Verb {
    /// All verbs that discovery lists, in alphabetical order.
    pub const ALL: [Self; 9] = [
        Self::Create,
        Self::Delete,
        Self::DeleteCollection,
        Self::Get,
        Self::List,
        Self::Patch,
        Self::Proxy,
        Self::Update,
        Self::Watch,
    ];

    /// The name in discovery documents and authorisation rules.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Get => "get",
            Self::List => "list",
            Self::Patch => "patch",
            Self::Update => "update",
            Self::Watch => "watch",
            Self::Proxy => "proxy",
            Self::Other => "",
        }
    }

    /// The verb of that name, if it is one that requests can have.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == name)
    }
}

impl Verbs {
    /// No verb at all.
    pub const NONE: Self = Self(0);

    /// With `verb` added.
    #[must_use]
    pub const fn with(self, verb: Verb) -> Self {
        Self(self.0 | 1 << verb as u8)
    }

    /// The union.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether a request with `verb` is among them; [`Verb::Other`] always is.
    pub const fn allow(self, verb: Verb) -> bool {
        matches!(verb, Verb::Other) || self.0 & 1 << verb as u8 != 0
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The verbs, alphabetically.
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL.into_iter().filter(move |verb| self.allow(*verb))
    }
}

impl<'a> FromIterator<&'a str> for Verbs {
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> Self {
        names
            .into_iter()
            .filter_map(Verb::parse)
            .fold(Self::NONE, Self::with)
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(Verb::as_str))
            .finish()
    }
}

pub mod discovery;
pub mod legacy;
#[cfg(test)]
pub(crate) mod recorded;
pub mod wire;

#[cfg(test)]
mod tests {
    use hashbrown::Equivalent as _;

    use super::*;

    const NAMES: [&str; 4] = ["", "v1", "v2", "apps"];

    #[test]
    fn a_borrowed_name_is_equivalent_to_its_owned_form_only() {
        let mut all = Vec::new();
        for group in NAMES {
            for version in NAMES {
                for resource in NAMES {
                    all.push(Gvr::new(group, version, resource));
                }
            }
        }
        for one in &all {
            for other in &all {
                let asked = one.as_ref();
                assert_eq!(asked.equivalent(other), one == other, "{one:?} {other:?}");
                let asked = asked.group_version();
                let listed = GroupVersion::new(&other.group, &other.version);
                let same = asked == listed.as_ref();
                assert_eq!(asked.equivalent(&listed), same, "{asked:?} {listed:?}");
            }
        }
    }
}
