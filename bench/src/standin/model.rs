//! What one server serves: the discovery model of a release, minus what is switched off, plus what is added. It is the source of
//! every discovery form and of the routing of resource requests; it knows nothing of HTTP.

mod build;
mod types;

pub use build::{Release, Serving};
pub(crate) use build::{base, is_version};
pub(crate) use types::{Group, GroupMeta, Groups, ListMeta, Version};
pub use types::{Gvk, Resource, Subresource};

use std::collections::{BTreeMap, HashSet};

/// Everything a server serves at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Catalogue {
    /// The release's version document, `/version`.
    pub(crate) version: bytes::Bytes,
    /// Groups of `/apis`, in their order.
    pub(crate) groups: Vec<Group>,
    /// The one group of `/api`.
    pub(crate) core: Group,
    /// `group/version/resource` -> hash, for the legacy documents.
    pub(crate) storage_hashes: BTreeMap<String, String>,
    /// Group-versions that the release has built in (the others are custom resources).
    pub(crate) built_in: HashSet<(String, String)>,
    /// `group`, `version` -> priorities of the APIService.
    pub(crate) priorities: BTreeMap<(String, String), (i64, i64)>,
    /// Which directory of recorded OpenAPI belongs to it (`1.36`).
    pub(crate) release: String,
    /// `group/version` or `group/version/resource`, for OpenAPI: what the release has and this server does not.
    pub(crate) removed: Vec<String>,
}

impl Catalogue {
    /// The group, core included (empty name).
    pub(crate) fn group(&self, group: &str) -> Option<&Group> {
        if group.is_empty() {
            Some(&self.core)
        } else {
            self.groups.iter().find(|found| found.name() == group)
        }
    }

    /// One version of a group.
    pub(crate) fn version(&self, group: &str, version: &str) -> Option<&Version> {
        self.group(group)?
            .versions
            .iter()
            .find(|found| found.version == version)
    }

    /// One resource.
    pub(crate) fn resource(&self, group: &str, version: &str, resource: &str) -> Option<&Resource> {
        self.version(group, version)?
            .resources
            .iter()
            .find(|found| found.resource == resource)
    }

    /// All group-versions with their APIService priorities, core included.
    pub(crate) fn group_versions(&self) -> impl Iterator<Item = (&str, &str)> {
        std::iter::once(&self.core)
            .chain(&self.groups)
            .flat_map(|group| {
                group
                    .versions
                    .iter()
                    .map(|version| (group.name(), version.version.as_str()))
            })
    }
}
