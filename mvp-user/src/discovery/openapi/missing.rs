//! What other servers serve beyond one server, by their catalogues: which OpenAPI documents need completion, from whom,
//! and with which resources. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use super::super::aggregated::Others;
use crate::{
    api::{GroupVersion, GvRef, GvrRef, ServerId, discovery::Resource},
    table::{Documents, Freshness},
};

/// `deployments`, `deployments/scale`.
type Names = BTreeSet<String>;

/// What the others add.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// By group-version: who adds which resources. Each resource is of one server: of the first that is up, as requests
    /// for it go to one that is up.
    by_version: BTreeMap<GroupVersion, BTreeMap<ServerId, Names>>,
    /// In the order of the servers, with their generations and whether they can be asked.
    pub(super) servers: Vec<(ServerId, u64, bool)>,
}

/// Verbs of what a server serves, by name.
fn served<'a>(documents: &'a Documents) -> HashMap<GvRef<'a>, HashMap<String, HashSet<&'a str>>> {
    let mut served: HashMap<GvRef<'a>, HashMap<String, HashSet<&'a str>>> = HashMap::new();
    for group in documents.core.items.iter().chain(&documents.groups.items) {
        for version in &group.versions {
            let names = served
                .entry(GvRef {
                    group: group.name(),
                    version: &version.version,
                })
                .or_default();
            for (name, verbs) in version.resources.iter().flat_map(names_of) {
                names
                    .entry(name)
                    .or_default()
                    .extend(verbs.iter().map(String::as_str));
            }
        }
    }
    served
}

fn names_of(resource: &Resource) -> impl Iterator<Item = (String, &[String])> {
    let own = resource
        .kind()
        .is_some()
        .then(|| (resource.resource.clone(), resource.verbs.as_slice()));
    own.into_iter()
        .chain(resource.subresources.iter().map(|sub| {
            (
                format!("{}/{}", resource.resource, sub.subresource),
                sub.verbs.as_slice(),
            )
        }))
}

impl Missing {
    /// What `others` add to `own`.
    pub(super) fn of(own: &Documents, others: &Others) -> Self {
        let own = served(own);
        let mut missing = Self {
            by_version: BTreeMap::new(),
            servers: others
                .catalogues
                .iter()
                .map(|(id, catalogue, live)| (*id, catalogue.generation, *live))
                .collect(),
        };
        let mut taken: HashMap<(GroupVersion, String), HashSet<String>> = HashMap::new();
        let (live, away): (Vec<_>, Vec<_>) =
            others.catalogues.iter().partition(|(_, _, live)| *live);
        for (id, catalogue, live) in live.into_iter().chain(away) {
            let documents: &Arc<Documents> = &catalogue.documents;
            for group in documents.core.items.iter().chain(&documents.groups.items) {
                for version in &group.versions {
                    let group_version = GvRef {
                        group: group.name(),
                        version: &version.version,
                    };
                    let owned = others.shared.owned.contains(&group_version);
                    let believed = *live && catalogue.freshness == Freshness::Fresh;
                    if others.shared.hides_version(group_version) || owned && !believed {
                        continue;
                    }
                    let mine = own.get(&group_version);
                    for resource in &version.resources {
                        let hidden = others.shared.hides(GvrRef {
                            group: group_version.group,
                            version: group_version.version,
                            resource: &resource.resource,
                        });
                        let known = |name: &str| mine.and_then(|mine| mine.get(name));
                        if hidden || owned && known(&resource.resource).is_some() {
                            continue;
                        }
                        for (name, verbs) in names_of(resource) {
                            let have = known(&name);
                            if verbs
                                .iter()
                                .all(|verb| have.is_some_and(|have| have.contains(verb.as_str())))
                                && have.is_some()
                            {
                                continue;
                            }
                            let key = GroupVersion::new(group_version.group, group_version.version);
                            let taken = taken.entry((key.clone(), name.clone())).or_default();
                            let before = taken.len();
                            taken.extend(verbs.iter().cloned());
                            if before == 0 || taken.len() > before {
                                missing
                                    .by_version
                                    .entry(key)
                                    .or_default()
                                    .entry(*id)
                                    .or_default()
                                    .insert(name);
                            }
                        }
                    }
                }
            }
        }
        missing
    }

    /// Whether nobody adds anything.
    pub(super) fn is_empty(&self) -> bool {
        self.by_version.is_empty()
    }

    /// The group-versions of which something is added.
    pub(super) fn versions(&self) -> impl Iterator<Item = GvRef<'_>> {
        self.by_version.keys().map(GroupVersion::as_ref)
    }

    /// Who adds to a group-version, in the order of the servers; to all of them if none is named.
    pub(super) fn contributors(&self, of: Option<GvRef<'_>>) -> Vec<Contributor> {
        self.servers
            .iter()
            .filter_map(|(server, generation, live)| {
                let adds: BTreeMap<GroupVersion, Names> = self
                    .by_version
                    .iter()
                    .filter(|(known, _)| of.is_none_or(|of| of == known.as_ref()))
                    .filter_map(|(known, by_server)| {
                        Some((known.clone(), by_server.get(server)?.clone()))
                    })
                    .collect();
                (!adds.is_empty()).then_some(Contributor {
                    server: *server,
                    generation: *generation,
                    live: *live,
                    adds,
                })
            })
            .collect()
    }
}

/// What one server adds to a document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Contributor {
    pub(super) server: ServerId,
    pub(super) generation: u64,
    pub(super) live: bool,
    adds: BTreeMap<GroupVersion, Names>,
}

impl Contributor {
    /// Whether a path of its document is about something that it adds.
    pub(super) fn wants(&self, path: &str) -> bool {
        resource_of(path).is_some_and(|(group_version, name)| {
            self.adds
                .iter()
                .any(|(known, names)| known.as_ref() == group_version && names.contains(&name))
        })
    }

    /// All of it as text, for hashing.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (group_version, names) in &self.adds {
            text.push_str(&group_version.to_string());
            for name in names {
                text.push(' ');
                text.push_str(name);
            }
            text.push('\n');
        }
        text
    }
}

/// The resource, perhaps with subresource, that a path template is about.
fn resource_of(path: &str) -> Option<(GvRef<'_>, String)> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    let version = parts.next()?;
    let mut rest: Vec<&str> = parts.collect();
    if matches!(rest.first(), Some(&"watch" | &"proxy")) {
        rest.remove(0);
    }
    if let ["namespaces", "{namespace}", _, ..] = rest.as_slice() {
        rest.drain(..2);
    }
    let name = match rest.as_slice() {
        [resource] | [resource, _] => (*resource).to_owned(),
        [resource, _, subresource, ..] => format!("{resource}/{subresource}"),
        [] => return None,
    };
    Some((GvRef { group, version }, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_templates_are_about_resources() {
        let of =
            |path| resource_of(path).map(|(group_version, name)| format!("{group_version} {name}"));
        for (path, want) in [
            ("/apis/batch/v1/", None),
            ("/apis/batch/v1/jobs", Some("batch/v1 jobs")),
            (
                "/apis/batch/v1/namespaces/{namespace}/jobs",
                Some("batch/v1 jobs"),
            ),
            (
                "/apis/batch/v1/namespaces/{namespace}/jobs/{name}",
                Some("batch/v1 jobs"),
            ),
            (
                "/apis/batch/v1/namespaces/{namespace}/jobs/{name}/status",
                Some("batch/v1 jobs/status"),
            ),
            (
                "/apis/batch/v1/watch/namespaces/{namespace}/jobs/{name}",
                Some("batch/v1 jobs"),
            ),
            ("/api/v1/namespaces", Some("v1 namespaces")),
            ("/api/v1/namespaces/{name}", Some("v1 namespaces")),
            (
                "/api/v1/namespaces/{name}/status",
                Some("v1 namespaces/status"),
            ),
            ("/api/v1/nodes/{name}/proxy/{path}", Some("v1 nodes/proxy")),
            ("/version/", None),
            ("/apis/", None),
            ("/api/", None),
        ] {
            assert_eq!(of(path).as_deref(), want, "{path}");
        }
    }
}
