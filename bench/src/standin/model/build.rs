//! Making a catalogue: a release's recorded documents, then the switches of one server, then custom resources.

use std::collections::{BTreeMap, HashSet};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

use super::{Catalogue, Group, GroupMeta, Groups, Resource, Version};
use crate::standin::fixtures;

/// A release whose answers were recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// v1.34.
    V1_34,
    /// v1.35.
    V1_35,
    /// v1.36.
    V1_36,
}

impl Release {
    /// `1.36`.
    pub fn minor(self) -> &'static str {
        match self {
            Self::V1_34 => "1.34",
            Self::V1_35 => "1.35",
            Self::V1_36 => "1.36",
        }
    }
}

impl std::str::FromStr for Release {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim_start_matches('v') {
            minor if minor.starts_with("1.34") => Ok(Self::V1_34),
            minor if minor.starts_with("1.35") => Ok(Self::V1_35),
            minor if minor.starts_with("1.36") => Ok(Self::V1_36),
            _ => Err(format!(
                "no answers of {text} were recorded; there are v1.34, v1.35 and v1.36"
            )),
        }
    }
}

/// How a server differs from its release.
#[derive(Debug, Clone, Default)]
pub struct Serving {
    /// Every API on, alpha and beta too (`--runtime-config=api/all=true`).
    pub all_apis: bool,
    /// Off: `batch/v1` (group-version; `v1` for core), `batch/v1/jobs`, `v1/pods/resize` (subresource) or, with a verb behind a
    /// colon, `apps/v1/deployments:deletecollection`.
    pub off: Vec<String>,
    /// On: a group-version (made if it is not there) and a resource.
    pub on: Vec<(String, Resource)>,
}

/// The release's own catalogue.
pub(crate) fn base(release: Release, all_apis: bool) -> anyhow::Result<Catalogue> {
    let archive = fixtures::recorded()?;
    let minor = release.minor();
    let directory = if all_apis {
        format!("{minor}/api-all")
    } else {
        minor.to_owned()
    };
    let read = |name: &str| -> anyhow::Result<Groups> {
        let name = format!("{directory}/{name}");
        serde_json::from_slice(&fixtures::file(archive, &name)?)
            .with_context(|| format!("{name} is no discovery document"))
    };
    let groups = read("apis__v2.json")?.items;
    let core = read("api__v2.json")?
        .items
        .into_iter()
        .next()
        .context("/api has no group")?;
    let mut catalogue = Catalogue {
        version: fixtures::file(archive, &format!("{minor}/version__json.json"))?,
        groups,
        core,
        release: minor.to_owned(),
        storage_hashes: storage_hashes(archive, minor),
        priorities: priorities(&fixtures::file(
            archive,
            &format!("{minor}/apis_apiregistration.k8s.io_v1_apiservices__json.json"),
        )?)?,
        ..Catalogue::default()
    };
    catalogue.built_in = catalogue
        .group_versions()
        .map(|(group, version)| (group.to_owned(), version.to_owned()))
        .collect::<HashSet<_>>();
    // With every API on there are group-versions whose APIService was not recorded; their place in the list tells it.
    let ordered: Vec<(String, String)> = catalogue
        .group_versions()
        .map(|(group, version)| (group.to_owned(), version.to_owned()))
        .collect();
    let (mut last_group, mut last_version) = (18_000, 100);
    let mut seen = String::new();
    for (group, version) in ordered {
        if group != seen {
            last_version = 100;
            seen.clone_from(&group);
        }
        let known = catalogue
            .priorities
            .get(&(group.clone(), version.clone()))
            .copied();
        let same_group = catalogue
            .priorities
            .iter()
            .find(|((known, _), _)| *known == group)
            .map(|(_, found)| found.0);
        let (of_group, of_version) =
            known.unwrap_or_else(|| (same_group.unwrap_or(last_group - 1), last_version - 1));
        (last_group, last_version) = (of_group, of_version);
        catalogue
            .priorities
            .insert((group, version), (of_group, of_version));
    }
    Ok(catalogue)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LegacyResource {
    name: String,
    storage_version_hash: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LegacyList {
    group_version: String,
    resources: Vec<LegacyResource>,
}

fn storage_hashes(archive: &'static fixtures::Archive, minor: &str) -> BTreeMap<String, String> {
    let directory = format!("{minor}/");
    let documents = archive.iter().filter(|(name, _)| {
        name.starts_with(&directory)
            && !name[directory.len()..].contains('/')
            && name.ends_with("__json.json")
    });
    documents
        .filter_map(|(_, body)| serde_json::from_slice::<LegacyList>(body).ok())
        .flat_map(|list| {
            let group_version = list.group_version;
            list.resources.into_iter().filter_map(move |resource| {
                Some((
                    format!("{group_version}/{}", resource.name),
                    resource.storage_version_hash?,
                ))
            })
        })
        .collect()
}

fn priorities(body: &[u8]) -> anyhow::Result<BTreeMap<(String, String), (i64, i64)>> {
    let list: Value =
        serde_json::from_slice(body).context("the recorded APIServices are no JSON")?;
    let items = list["items"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    Ok(items
        .iter()
        .map(|item| {
            let spec = &item["spec"];
            let text = |name: &str| spec[name].as_str().unwrap_or_default().to_owned();
            let number = |name: &str| spec[name].as_i64().unwrap_or_default();
            (
                (text("group"), text("version")),
                (number("groupPriorityMinimum"), number("versionPriority")),
            )
        })
        .collect())
}

/// `v1` -> ("", "v1"); `batch/v1` -> ("batch", "v1").
pub(crate) fn split_group_version(text: &str) -> (&str, &str) {
    text.split_once('/').unwrap_or(("", text))
}

impl Catalogue {
    /// The catalogue of a server with these switches.
    pub(crate) fn with(mut self, serving: &Serving) -> anyhow::Result<Self> {
        for switch in &serving.off {
            self.switch_off(switch)
                .with_context(|| format!("{switch} cannot be switched off"))?;
        }
        for (group_version, resource) in &serving.on {
            let (group, version) = split_group_version(group_version);
            self.add(group, version, resource.clone());
        }
        Ok(self)
    }

    fn switch_off(&mut self, switch: &str) -> anyhow::Result<()> {
        let (path, verb) = match switch.split_once(':') {
            Some((path, verb)) => (path, Some(verb)),
            None => (switch, None),
        };
        let mut parts: Vec<&str> = path.split('/').collect();
        // `v1/pods`: a version in front means the core group.
        if parts.first().is_some_and(|first| is_version(first)) {
            parts.insert(0, "");
        }
        let [group, version, rest @ ..] = parts.as_slice() else {
            anyhow::bail!("it is not GROUP/VERSION[/RESOURCE[/SUBRESOURCE]][:VERB]");
        };
        let (group, version) = ((*group).to_owned(), (*version).to_owned());
        let Some(resource) = rest.first() else {
            return self.remove_version(&group, &version);
        };
        let holder = if group.is_empty() {
            Some(&mut self.core)
        } else {
            self.groups.iter_mut().find(|found| found.name() == group)
        };
        let list = holder
            .and_then(|holder| {
                holder
                    .versions
                    .iter_mut()
                    .find(|found| found.version == version)
            })
            .map(|found| &mut found.resources)
            .context("the release has no such group-version")?;
        let at = list
            .iter()
            .position(|found| found.resource == *resource)
            .context("the release has no such resource")?;
        match (rest.get(1), verb) {
            (None, None) => {
                list.remove(at);
            }
            (None, Some(verb)) => list[at].verbs.retain(|found| found != verb),
            (Some(subresource), verb) => {
                let subresources = &mut list[at].subresources;
                let found = subresources
                    .iter_mut()
                    .position(|found| found.subresource == *subresource);
                let found = found.context("the release has no such subresource")?;
                match verb {
                    Some(verb) => subresources[found].verbs.retain(|kept| kept != verb),
                    None => drop(subresources.remove(found)),
                }
            }
        }
        if verb.is_none() {
            self.removed.push(path.to_owned());
        }
        Ok(())
    }

    fn remove_version(&mut self, group: &str, version: &str) -> anyhow::Result<()> {
        let before = self.group_versions().count();
        for found in self.groups.iter_mut().chain([&mut self.core]) {
            if found.name() == group {
                found.versions.retain(|kept| kept.version != version);
            }
        }
        self.groups.retain(|found| !found.versions.is_empty());
        self.built_in
            .remove(&(group.to_owned(), version.to_owned()));
        self.removed.push(if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        });
        anyhow::ensure!(
            self.group_versions().count() < before,
            "the release has no such group-version"
        );
        Ok(())
    }

    /// Adds a resource; a new group comes last, as custom resources do (their priority is 1000).
    pub(crate) fn add(&mut self, group: &str, version: &str, resource: Resource) {
        let holder = if group.is_empty() {
            &mut self.core
        } else if let Some(at) = self.groups.iter().position(|found| found.name() == group) {
            &mut self.groups[at]
        } else {
            let name = Some(group.to_owned());
            self.groups.push(Group {
                metadata: GroupMeta { name },
                versions: Vec::new(),
            });
            let last = self.groups.len() - 1;
            &mut self.groups[last]
        };
        if !holder.versions.iter().any(|found| found.version == version) {
            holder.versions.push(Version {
                version: version.to_owned(),
                resources: Vec::new(),
                freshness: "Current".to_owned(),
            });
        }
        let Some(found) = holder
            .versions
            .iter_mut()
            .find(|found| found.version == version)
        else {
            return;
        };
        found
            .resources
            .retain(|kept| kept.resource != resource.resource);
        let at = found
            .resources
            .partition_point(|kept| kept.resource < resource.resource);
        found.resources.insert(at, resource);
        self.priorities
            .entry((group.to_owned(), version.to_owned()))
            .or_insert((1000, 100));
    }
}

/// `v1`, `v2beta1`.
pub(crate) fn is_version(text: &str) -> bool {
    text.strip_prefix('v')
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}
