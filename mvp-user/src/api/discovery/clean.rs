//! Makes what another server said safe to merge: names that fit into a path, and no duplicates. Pure.

use std::collections::{HashMap, hash_map::Entry};

use super::{Group, GroupList, Resource, Subresource, Version};

impl GroupList {
    /// Drops impossible names and unites duplicates; of two same entries the first wins.
    pub(super) fn clean(&mut self) {
        self.metadata = super::ListMeta::default();
        self.items
            .retain(|group| group.name().is_empty() || is_name(group.name()));
        for group in &mut self.items {
            // Other metadata (a UID, a time stamp of an older server) says nothing about the group.
            group.metadata = super::GroupMeta {
                name: std::mem::take(&mut group.metadata.name),
                ..Default::default()
            };
        }
        unite(
            &mut self.items,
            |group| group.metadata.name.clone(),
            |first: &mut Group, more| {
                first.versions.extend(more.versions);
            },
        );
        for group in &mut self.items {
            group.versions.retain(|version| is_name(&version.version));
            unite(
                &mut group.versions,
                |version| version.version.clone(),
                |first: &mut Version, more| {
                    first.resources.extend(more.resources);
                },
            );
            for version in &mut group.versions {
                clean_resources(&mut version.resources);
            }
        }
    }
}

/// The same for the resources of one version.
pub(crate) fn clean_resources(resources: &mut Vec<Resource>) {
    resources.retain(|resource| is_name(&resource.resource));
    unite(
        resources,
        |resource| resource.resource.clone(),
        |first: &mut Resource, more| {
            first.subresources.extend(more.subresources);
        },
    );
    for resource in resources {
        resource
            .subresources
            .retain(|sub| is_name(&sub.subresource));
        unite(
            &mut resource.subresources,
            |sub| sub.subresource.clone(),
            |_: &mut Subresource, _| {},
        );
    }
}

/// Whether it can be one segment of a path: as Kubernetes' own `IsValidPathSegmentName`, and printable ASCII.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'%' | b'?' | b'#'))
}

fn unite<T>(items: &mut Vec<T>, key: impl Fn(&T) -> String, mut join: impl FnMut(&mut T, T)) {
    let mut places: HashMap<String, usize> = HashMap::with_capacity(items.len());
    let mut kept: Vec<T> = Vec::with_capacity(items.len());
    for item in items.drain(..) {
        match places.entry(key(&item)) {
            Entry::Occupied(place) => {
                if let Some(first) = kept.get_mut(*place.get()) {
                    join(first, item);
                }
            }
            Entry::Vacant(place) => {
                place.insert(kept.len());
                kept.push(item);
            }
        }
    }
    *items = kept;
}
