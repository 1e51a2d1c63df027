//! Completes legacy discovery (`/api`, `/apis`, `/apis/GROUP`, `/apis/GROUP/VERSION`) from what aggregated discovery of all
//! servers says. Pure but for the last results, which are kept.
//!
//! The lists of groups are built from APIService objects that all servers share and that a mix of versions damages (k8s
//! objects are deleted by a server that lacks the group-version and not put back by its owner), so a group-version may be
//! missing from a server that serves it, and listed though nobody serves it any more.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use dashmap::DashMap;
use http::{HeaderValue, Response, header};
use tokio::{sync::Mutex, time::Instant};

use super::{
    Case, Document,
    aggregated::{Aggregated, BLOCKING_FROM, Completed, Rendering, blocking},
    answer::{Authorised, Comparison, Completion, Plain, Unread, compress},
    merge::{order, union},
};
use crate::{
    api::{
        GroupVersion, GvRef, ServerId,
        discovery::{self, Version},
        legacy::{
            Group, GroupList, GroupVersion as Listed, Legacy, LegacyDocument, ListedResource,
            ResourceList, VerbList, Versions, resources_of,
        },
        wire::{Encoding, MAX_DOCUMENT, WireError},
    },
    body::Body,
    table::{Freshness, Table},
};

/// Results and sightings kept; far more than a server has group-versions.
const MAX_KEPT: usize = 8192;

/// The last results.
#[derive(Debug, Default)]
pub(super) struct LegacyCache {
    done: DashMap<(ServerId, Document, Encoding), Arc<Done>>,
    /// When a server was first seen to list a group-version that nobody is known to serve.
    unserved: Arc<Unserved>,
    /// Held while a large one is built: an aggregated API server may write another one for each request.
    building: Arc<Mutex<()>>,
}

type Unserved = DashMap<(ServerId, GroupVersion), Instant>;

/// A result and what it was made of.
#[derive(Debug)]
struct Done {
    input: Bytes,
    /// Only to recognise it: results of long ago must not keep it.
    known: Weak<Completed>,
    /// `None`: nothing to add.
    output: Option<Rendering>,
}

impl LegacyCache {
    /// Completes a server's answer.
    pub(super) async fn complete(
        &self,
        case: Case<'_>,
        aggregated: &Aggregated,
        mut answer: Authorised,
    ) -> Response<Body> {
        let Case {
            plan,
            from,
            counters,
            ..
        } = case;
        let encoding = answer.text(&header::CONTENT_TYPE).and_then(Encoding::of);
        let (Some(mut encoding), false, false) =
            (encoding, answer.is_unchanged(), plan.client.head)
        else {
            return answer.relay();
        };
        let (core, bound) = match &plan.document {
            Document::Api => (true, MAX_DOCUMENT),
            // What is in them is a part of what all documents together may have.
            Document::Version(group_version) => (group_version.group.is_empty(), MAX_DOCUMENT / 4),
            Document::Group(_) => (false, MAX_DOCUMENT / 4),
            Document::Apis | Document::OpenApi => (false, MAX_DOCUMENT),
        };
        let input = match answer.read(bound).await {
            Ok(input) => input,
            Err(Unread::Broken) => return answer.broken(),
            Err(Unread::Opaque(error)) => {
                counters.unreadable(from, &error);
                return answer.relay();
            }
        };
        if encoding == Encoding::Json && input.starts_with(b"{\n") {
            encoding = Encoding::PrettyJson;
        }
        let Some(known) = aggregated.known_to_all(&answer, case, core).await else {
            return answer.relay();
        };
        let done = match self.result(case, encoding, input, &known).await {
            Ok(done) => done,
            Err(error) => {
                counters.unreadable(from, &error);
                return answer.relay();
            }
        };
        let Some((bytes, gzip)) = done.output.clone() else {
            return answer.relay();
        };
        let content_type = HeaderValue::from_static(encoding.media_type());
        answer.complete(
            &plan.client,
            Completion {
                plain: Plain::Bytes(bytes),
                gzip,
                content_type,
                etag: None,
                comparison: Comparison::Exact,
            },
        )
    }

    /// The result for this input, kept or built: a large one on another thread, so that no request waits behind it.
    #[expect(
        clippy::significant_drop_tightening,
        reason = "a turn lasts as long as what is built in it"
    )]
    async fn result(
        &self,
        case: Case<'_>,
        encoding: Encoding,
        input: Bytes,
        known: &Arc<Completed>,
    ) -> Result<Arc<Done>, WireError> {
        let key = (case.from, case.plan.document.clone(), encoding);
        let kept = || {
            let done = self.done.get(&key).map(|done| Arc::clone(&*done))?;
            let holds = Weak::ptr_eq(&done.known, &Arc::downgrade(known)) && done.input == input;
            holds.then_some(done)
        };
        let mut done = kept();
        let turn = if done.is_none() && input.len() >= BLOCKING_FROM {
            Some(Arc::clone(&self.building).lock_owned().await)
        } else {
            None
        };
        if turn.is_some() {
            done = kept();
        }
        if let Some(done) = done {
            case.counters.hit();
            return Ok(done);
        }
        case.counters.parse();
        case.counters.build();
        let (table, unserved) = (Arc::clone(case.table), Arc::clone(&self.unserved));
        let (from, known) = (case.from, Arc::clone(known));
        let (done, lasting) = blocking(input.len(), move || {
            let built = build(encoding, input, &known, |group_version| {
                is_gone(&table, &unserved, from, group_version)
            });
            // Not before, also if the client leaves.
            drop(turn);
            built
        })
        .await
        .unwrap_or_else(|| {
            let failed = "the parser failed".to_owned();
            Err(WireError::Syntax("document", failed))
        })?;
        if self.done.len() >= MAX_KEPT {
            self.done.clear();
        }
        if lasting {
            self.done.insert(key, Arc::clone(&done));
        }
        Ok(done)
    }
}

/// The result, and whether it holds as long as its inputs do.
fn build(
    encoding: Encoding,
    input: Bytes,
    known: &Arc<Completed>,
    is_gone: impl Fn(GvRef<'_>) -> bool,
) -> Result<(Arc<Done>, bool), WireError> {
    let before = LegacyDocument::parse(encoding, &input)?;
    let mut lasting = true;
    let after = complete(&before, known.list(), |group_version| {
        let gone = is_gone(group_version);
        lasting &= gone;
        gone
    });
    let output = if after == before {
        None
    } else {
        let bytes = after.write(encoding)?;
        let gzip = compress(&bytes);
        Some((Bytes::from(bytes), gzip))
    };
    let done = Done {
        input,
        known: Arc::downgrade(known),
        output,
    };
    Ok((Arc::new(done), lasting))
}

/// Whether a listed group-version that is in nobody's aggregated discovery is served by nobody, not merely new: the
/// server was read whole after it was first seen.
fn is_gone(table: &Table, unserved: &Unserved, from: ServerId, group_version: GvRef<'_>) -> bool {
    if !table.is_ready() || table.shared.load().owned.contains(&group_version) {
        return false;
    }
    let Some(catalogue) = table.catalogue(from) else {
        return false;
    };
    if unserved.len() >= MAX_KEPT {
        unserved.clear();
    }
    let key = (
        from,
        GroupVersion::new(group_version.group, group_version.version),
    );
    let seen = *unserved.entry(key).or_insert_with(Instant::now);
    catalogue.freshness == Freshness::Fresh && catalogue.read_at > seen
}

/// The document with what `known`, the union of all servers, has beyond it, and without what `is_gone`.
fn complete(
    document: &LegacyDocument,
    known: &discovery::GroupList,
    mut is_gone: impl FnMut(GvRef<'_>) -> bool,
) -> LegacyDocument {
    let legacy = match &document.legacy {
        Legacy::Versions(versions) => Legacy::Versions(complete_core(versions, known)),
        Legacy::Groups(list) => {
            let theirs: HashMap<&str, &discovery::Group> = known
                .items
                .iter()
                .map(|group| (group.name(), group))
                .collect();
            let ours: HashMap<&str, &Group> = list
                .groups
                .iter()
                .map(|group| (group.name.as_str(), group))
                .collect();
            let names = order(&[
                known.items.iter().map(discovery::Group::name).collect(),
                list.groups
                    .iter()
                    .map(|group| group.name.as_str())
                    .collect(),
            ]);
            let groups = names
                .into_iter()
                .map(|name| {
                    let group = ours.get(name).map_or_else(
                        || Group {
                            name: name.to_owned(),
                            ..Group::default()
                        },
                        |group| (*group).clone(),
                    );
                    complete_group(group, theirs.get(name).copied(), &mut is_gone)
                })
                .filter(|group| !group.versions.is_empty())
                .collect();
            Legacy::Groups(GroupList { groups })
        }
        Legacy::Group(group) => {
            let theirs = known.items.iter().find(|known| known.name() == group.name);
            let completed = complete_group(group.clone(), theirs, &mut is_gone);
            // An empty group would be no answer at all.
            Legacy::Group(if completed.versions.is_empty() {
                group.clone()
            } else {
                completed
            })
        }
        Legacy::Resources(list) => {
            let (group, name) = list
                .group_version
                .split_once('/')
                .unwrap_or(("", &list.group_version));
            let theirs = known
                .items
                .iter()
                .find(|known| known.name() == group)
                .and_then(|known| {
                    known
                        .versions
                        .iter()
                        .find(|version| version.version == name)
                });
            Legacy::Resources(
                theirs.map_or_else(|| list.clone(), |theirs| complete_resources(list, theirs)),
            )
        }
    };
    LegacyDocument {
        api_version: document.api_version.clone(),
        legacy,
    }
}

fn complete_core(versions: &Versions, known: &discovery::GroupList) -> Versions {
    let mut completed = versions.clone();
    for version in known
        .items
        .iter()
        .filter(|group| group.name().is_empty())
        .flat_map(|group| &group.versions)
    {
        if !completed.versions.contains(&version.version) {
            completed.versions.push(version.version.clone());
        }
    }
    completed
}

fn complete_group(
    mut group: Group,
    known: Option<&discovery::Group>,
    is_gone: &mut impl FnMut(GvRef<'_>) -> bool,
) -> Group {
    let theirs: Vec<&str> = known
        .iter()
        .flat_map(|known| &known.versions)
        .map(|version| version.version.as_str())
        .collect();
    let ours: Vec<&str> = group
        .versions
        .iter()
        .map(|listed| listed.version.as_str())
        .collect();
    let versions: Vec<Listed> = order(&[theirs.clone(), ours])
        .into_iter()
        .filter(|version| {
            theirs.contains(version)
                || !is_gone(GvRef {
                    group: &group.name,
                    version,
                })
        })
        .map(|version| Listed {
            group_version: format!("{}/{version}", group.name),
            version: version.to_owned(),
        })
        .collect();
    if let Some(preferred) = versions.first() {
        // What clients of aggregated discovery prefer: the first that is not stale (`convertAPIGroup` of client-go).
        let first = known.and_then(|known| {
            let mut theirs = known.versions.iter();
            let current = theirs.find(|version| version.freshness != discovery::STALE);
            current.or_else(|| known.versions.first())
        });
        let first = first.and_then(|first| {
            versions
                .iter()
                .find(|listed| listed.version == first.version)
        });
        group.preferred_version = first.unwrap_or(preferred).clone();
    }
    group.versions = versions;
    group
}

fn complete_resources(list: &ResourceList, known: &Version) -> ResourceList {
    let theirs = resources_of(&known.resources);
    let by_name = |listed: &[ListedResource]| -> HashMap<String, ListedResource> {
        listed
            .iter()
            .map(|resource| (resource.name.clone(), resource.clone()))
            .collect()
    };
    let names = order(&[
        theirs
            .iter()
            .map(|resource| resource.name.as_str())
            .collect(),
        list.resources
            .iter()
            .map(|resource| resource.name.as_str())
            .collect(),
    ]);
    let (mut ours, mut added) = (by_name(&list.resources), by_name(&theirs));
    let resources = names
        .into_iter()
        .filter_map(|name| match (ours.remove(name), added.remove(name)) {
            (Some(mut mine), Some(other)) => {
                let have = mine.verbs.take().unwrap_or_default().items;
                let more = other.verbs.unwrap_or_default().items;
                let items = if more.iter().all(|verb| have.contains(verb)) {
                    have
                } else {
                    union([have.as_slice(), more.as_slice()].into_iter())
                };
                mine.verbs = Some(VerbList { items });
                Some(mine)
            }
            (mine, other) => mine.or(other),
        })
        .collect();
    ResourceList {
        group_version: list.group_version.clone(),
        resources,
    }
}
