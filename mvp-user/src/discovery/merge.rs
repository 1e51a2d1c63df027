//! Merges what several servers serve into one document. Pure: no IO, no clock.
//!
//! The rules are those of kube-apiserver's peer-aggregated discovery (`peer_aggregated_handler.go`,
//! `k8s.io/apimachinery/pkg/util/sort`): every list keeps its relative order, a resource that servers know differently
//! gets the sorted union of verbs and subresources, the rest comes from the first that has it. Beyond these: the first
//! source always comes first, freshness is judged, and shared groups (CRDs, APIServices) are the first source's.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, HashSet},
};

use crate::{
    api::{
        GvRef, GvrRef,
        discovery::{CURRENT, Group, GroupList, Resource, STALE, Subresource, Version},
    },
    table::SharedGroups,
};

#[cfg(test)]
pub(super) mod tests;

/// One server's document.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// What it serves.
    pub groups: &'a GroupList,
    /// Whether it can be asked: up and listed.
    pub live: bool,
    /// Whether its document is current, as its word on what all servers share must be.
    pub fresh: bool,
}

/// Merges `base`, which is the answering server's own and counts as live, with the others in their order.
pub fn merge(base: &GroupList, others: &[Source<'_>], shared: &SharedGroups) -> GroupList {
    let own: HashSet<GvRef<'_>> = base
        .items
        .iter()
        .flat_map(|group| {
            group.versions.iter().map(|version| GvRef {
                group: group.name(),
                version: &version.version,
            })
        })
        .collect();
    let rules = Rules { own, shared };
    let mut groups: HashMap<&str, Vec<(&Group, Origin)>> = HashMap::new();
    let mut orders = Vec::with_capacity(others.len() + 1);
    let base = Source {
        groups: base,
        live: true,
        fresh: true,
    };
    for (place, source) in std::iter::once(&base).chain(others).enumerate() {
        let origin = Origin {
            base: place == 0,
            live: source.live,
            fresh: source.fresh,
        };
        let mut names = Vec::with_capacity(source.groups.items.len());
        for group in &source.groups.items {
            // A group of which nothing may be taken does not appear.
            if group.versions.is_empty()
                || group
                    .versions
                    .iter()
                    .any(|version| rules.admits(group.name(), version, origin))
            {
                names.push(group.name());
                groups
                    .entry(group.name())
                    .or_default()
                    .push((group, origin));
            }
        }
        orders.push(names);
    }
    let items = order(&orders)
        .into_iter()
        .filter_map(|name| groups.get(name))
        .filter_map(|known| merge_group(known, &rules))
        .collect();
    GroupList::new(items)
}

#[derive(Clone, Copy)]
struct Origin {
    base: bool,
    live: bool,
    fresh: bool,
}

struct Rules<'a> {
    own: HashSet<GvRef<'a>>,
    shared: &'a SharedGroups,
}

impl Rules<'_> {
    /// Whether anything of a version may come from there (design 5.3, last item).
    fn admits(&self, group: &str, version: &Version, origin: Origin) -> bool {
        let group_version = GvRef {
            group,
            version: &version.version,
        };
        if origin.base {
            return true;
        }
        if self.shared.owned.contains(&group_version) && !(origin.live && origin.fresh) {
            return false;
        }
        if self.shared.hides_version(group_version) {
            return false;
        }
        // With all its resources deleted, a version that the first source lacks is gone too.
        self.own.contains(&group_version)
            || version.resources.is_empty()
            || version
                .resources
                .iter()
                .any(|resource| self.admits_resource(group_version, resource))
    }

    fn admits_resource(&self, group_version: GvRef<'_>, resource: &Resource) -> bool {
        !self.shared.hides(GvrRef {
            group: group_version.group,
            version: group_version.version,
            resource: &resource.resource,
        })
    }
}

fn merge_group(known: &[(&Group, Origin)], rules: &Rules<'_>) -> Option<Group> {
    let (first, _) = known.first()?;
    let mut versions: HashMap<&str, Vec<(&Version, Origin)>> = HashMap::new();
    let mut orders = Vec::with_capacity(known.len());
    for (group, origin) in known {
        let mut names = Vec::with_capacity(group.versions.len());
        for version in &group.versions {
            if rules.admits(group.name(), version, *origin) {
                names.push(version.version.as_str());
                versions
                    .entry(&version.version)
                    .or_default()
                    .push((version, *origin));
            }
        }
        orders.push(names);
    }
    let versions = order(&orders)
        .into_iter()
        .filter_map(|name| versions.get(name))
        .filter_map(|known| merge_version(first.name(), known, rules))
        .collect();
    Some(Group {
        metadata: first.metadata.clone(),
        versions,
    })
}

fn merge_version(group: &str, known: &[(&Version, Origin)], rules: &Rules<'_>) -> Option<Version> {
    let (first, origin) = known.first()?;
    let group_version = GvRef {
        group,
        version: &first.version,
    };
    let owned = rules.shared.owned.contains(&group_version);
    let freshness = if owned && origin.base {
        first.freshness.clone()
    } else {
        known
            .iter()
            .find(|(version, origin)| origin.live && version.freshness != STALE)
            .map_or_else(
                || STALE.to_owned(),
                |(version, _)| match version.freshness.as_str() {
                    "" => CURRENT.to_owned(),
                    freshness => freshness.to_owned(),
                },
            )
    };
    let mut resources: HashMap<&str, Vec<&Resource>> = HashMap::new();
    let mut orders = Vec::with_capacity(known.len());
    for (version, origin) in known {
        let mut names = Vec::with_capacity(version.resources.len());
        for resource in &version.resources {
            if origin.base || rules.admits_resource(group_version, resource) {
                names.push(resource.resource.as_str());
                let known = resources.entry(&resource.resource).or_default();
                // A shared resource is as the first source has it: a peer's word on its verbs is older or newer.
                if !owned || known.is_empty() {
                    known.push(resource);
                }
            }
        }
        orders.push(names);
    }
    let resources = order(&orders)
        .into_iter()
        .filter_map(|name| resources.get(name))
        .filter_map(|known| merge_resource(known))
        .collect();
    Some(Version {
        version: first.version.clone(),
        resources,
        freshness,
    })
}

fn merge_resource(known: &[&Resource]) -> Option<Resource> {
    let (first, rest) = known.split_first()?;
    let mut merged = (*first).clone();
    if rest.iter().all(|other| other == first) {
        return Some(merged);
    }
    // A server may know only subresources of it; its description then comes from the next one.
    if merged.kind().is_none()
        && let Some(described) = known.iter().find(|known| known.kind().is_some())
    {
        merged = (*described).clone();
    }
    merged.verbs = union(known.iter().map(|known| known.verbs.as_slice()));
    let mut subresources: HashMap<&str, Vec<&Subresource>> = HashMap::new();
    for sub in known.iter().flat_map(|known| &known.subresources) {
        subresources.entry(&sub.subresource).or_default().push(sub);
    }
    merged.subresources = subresources
        .into_values()
        .filter_map(|known| {
            let (first, rest) = known.split_first()?;
            let mut merged = (*first).clone();
            if rest.iter().any(|other| other != first) {
                merged.verbs = union(known.iter().map(|known| known.verbs.as_slice()));
            }
            Some(merged)
        })
        .collect();
    merged
        .subresources
        .sort_unstable_by(|a, b| a.subresource.cmp(&b.subresource));
    Some(merged)
}

/// The sorted union.
pub(super) fn union<'a, I: Iterator<Item = &'a [String]>>(lists: I) -> Vec<String> {
    lists
        .flatten()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .cloned()
        .collect()
}

/// One order that keeps the relative order of every list. Where the lists say nothing, the alphabet decides; where they
/// contradict each other, the earlier list. A list that has every item is the answer itself.
pub fn order<'a>(lists: &[Vec<&'a str>]) -> Vec<&'a str> {
    let all: HashSet<&str> = lists.iter().flatten().copied().collect();
    if let Some(complete) = lists.iter().find(|list| list.len() == all.len()) {
        return complete.clone();
    }
    let mut after: HashMap<&str, BTreeSet<&'a str>> = HashMap::new();
    let mut before: HashMap<&str, usize> = HashMap::new();
    for list in lists {
        for pair in list.windows(2) {
            if let [left, right] = pair
                && after.entry(left).or_default().insert(right)
            {
                *before.entry(right).or_default() += 1;
            }
        }
    }
    let mut ready: BinaryHeap<Reverse<&str>> = all
        .iter()
        .filter(|item| before.get(*item).is_none_or(|count| *count == 0))
        .map(|item| Reverse(*item))
        .collect();
    let mut done: HashSet<&str> = HashSet::with_capacity(all.len());
    let mut ordered = Vec::with_capacity(all.len());
    // Only asked for an item while the lists contradict each other.
    let mut fallback = lists.iter().flatten().copied();
    loop {
        let next = match ready.pop() {
            Some(Reverse(item)) => item,
            None => match fallback.find(|item| !done.contains(item)) {
                Some(item) => item,
                None => return ordered,
            },
        };
        if !done.insert(next) {
            continue;
        }
        ordered.push(next);
        for follower in after.remove(next).unwrap_or_default() {
            if let Some(count) = before.get_mut(follower) {
                *count -= 1;
                if *count == 0 {
                    ready.push(Reverse(follower));
                }
            }
        }
    }
}
