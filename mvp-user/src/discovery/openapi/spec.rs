//! Completes one OpenAPI document with what another server's has beyond it. Pure.
//!
//! Paths of resources (or operations on them) that only the other server serves are taken over with every definition that
//! they reach. A definition of the same name and other content gets a suffix made of its content, and the references that
//! were taken over follow; what the first document says is never changed, because the first server stores by it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map::Entry};

use sha2::{Digest as _, Sha256};

use super::format::{Doc, Format, SpecError};

#[cfg(test)]
mod tests;

/// Adds to `base` what `other` has of the paths that are `wanted`.
pub(super) fn graft<'a>(
    format: Format,
    base: &mut Doc<'a>,
    other: &Doc<'a>,
    wanted: impl Fn(&str) -> bool,
) -> Result<(), SpecError> {
    let added = additions(format, base, other, wanted)?;
    if added.is_empty() {
        return Ok(());
    }
    let graph = Graph::reach(format, other, added.values().flat_map(Addition::pieces))?;
    let renames = graph.renames(base, other);
    let rename = |reference: &str| renames.get(reference).cloned();
    for reference in graph.edges.keys() {
        let Some(piece) = other.definitions.get(reference) else {
            continue;
        };
        let (name, strip) = match renames.get(reference) {
            Some(renamed) => (renamed, true),
            None => (reference, false),
        };
        if !base.definitions.contains_key(name) {
            let piece = format.rewrite(piece, &rename, strip)?;
            base.definitions.insert(name.clone(), piece.into());
        }
    }
    for (path, addition) in added {
        let item = match addition {
            Addition::Item(item) => format.rewrite(&item, &rename, false)?,
            Addition::Operations { mut known, more } => {
                for (key, operation) in more {
                    // Both representations keep an operation as something that can be rewritten by itself.
                    known.insert(key, format.rewrite(&operation, &rename, false)?);
                }
                format.item(&known)
            }
        };
        base.paths.insert(path, item.into());
    }
    Ok(())
}

enum Addition {
    /// A path that the base lacks.
    Item(Vec<u8>),
    /// Operations that its path item lacks.
    Operations {
        known: BTreeMap<String, Vec<u8>>,
        more: BTreeMap<String, Vec<u8>>,
    },
}

impl Addition {
    fn pieces(&self) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        match self {
            Self::Item(item) => Box::new(std::iter::once(item.as_slice())),
            Self::Operations { more, .. } => Box::new(more.values().map(Vec::as_slice)),
        }
    }
}

fn additions(
    format: Format,
    base: &Doc<'_>,
    other: &Doc<'_>,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Addition>, SpecError> {
    let mut added = BTreeMap::new();
    for (path, item) in &other.paths {
        if !wanted(path) {
            continue;
        }
        match base.paths.get(path) {
            None => {
                added.insert(path.clone(), Addition::Item(item.to_vec()));
            }
            Some(own) if own == item => {}
            Some(own) => {
                let known = format.operations(own)?;
                let mut more = format.operations(item)?;
                more.retain(|key, _| !known.contains_key(key));
                if !more.is_empty() {
                    added.insert(path.clone(), Addition::Operations { known, more });
                }
            }
        }
    }
    Ok(added)
}

/// The definitions that are reached, each with those it refers to.
struct Graph {
    edges: BTreeMap<String, Vec<String>>,
}

impl Graph {
    fn reach<'b, I: Iterator<Item = &'b [u8]>>(
        format: Format,
        doc: &Doc<'_>,
        pieces: I,
    ) -> Result<Self, SpecError> {
        let mut edges = BTreeMap::new();
        let mut open: Vec<String> = Vec::new();
        for piece in pieces {
            open.extend(format.references(piece)?);
        }
        while let Some(reference) = open.pop() {
            let Some(piece) = doc.definitions.get(&reference) else {
                continue;
            };
            if let Entry::Vacant(place) = edges.entry(reference) {
                let next = format.references(piece)?;
                open.extend(next.iter().cloned());
                place.insert(next);
            }
        }
        Ok(Self { edges })
    }

    /// New names of those that mean something else in the base.
    fn renames(&self, base: &Doc<'_>, other: &Doc<'_>) -> HashMap<String, String> {
        let mut differ: HashSet<&str> = self
            .edges
            .keys()
            .filter(|reference| {
                base.definitions
                    .get(*reference)
                    .is_some_and(|own| Some(own) != other.definitions.get(*reference))
            })
            .map(String::as_str)
            .collect();
        // The same text that refers to something else means something else.
        loop {
            let more: Vec<&str> = self
                .edges
                .iter()
                .filter(|(reference, next)| {
                    !differ.contains(reference.as_str())
                        && base.definitions.contains_key(*reference)
                        && next.iter().any(|next| differ.contains(next.as_str()))
                })
                .map(|(reference, _)| reference.as_str())
                .collect();
            if more.is_empty() {
                break;
            }
            differ.extend(more);
        }
        differ
            .into_iter()
            .map(|reference| {
                (
                    reference.to_owned(),
                    format!("{reference}_{}", self.hash(reference, other)),
                )
            })
            .collect()
    }

    /// Of everything that the definition says and refers to.
    fn hash(&self, reference: &str, doc: &Doc<'_>) -> String {
        let mut reached = BTreeSet::new();
        let mut open = vec![reference];
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(
                    self.edges
                        .get(next)
                        .into_iter()
                        .flatten()
                        .map(String::as_str),
                );
            }
        }
        let mut hash = Sha256::new();
        for reference in reached {
            let piece = doc
                .definitions
                .get(reference)
                .map_or(&b""[..], |piece| piece);
            hash.update((reference.len() as u64).to_be_bytes());
            hash.update(reference);
            hash.update((piece.len() as u64).to_be_bytes());
            hash.update(piece);
        }
        let mut begin = [0; 8];
        for (to, byte) in begin.iter_mut().skip(3).zip(hash.finalize()) {
            *to = byte;
        }
        format!("{:010x}", u64::from_be_bytes(begin))
    }
}
