//! The other servers, as far as they add to a document: their catalogues, and what tells whether these are still the same.

use std::sync::Arc;

use http::HeaderValue;

use super::ENTRY;
use crate::{
    api::{ServerId, discovery::GroupList},
    discovery::merge::{Source, merge},
    table::{Catalogue, Freshness, Health, Membership, Server, SharedGroups, Table},
};

/// What a merged document was made of.
#[derive(Debug)]
pub(in super::super) struct Inputs {
    base: HeaderValue,
    others: Vec<(ServerId, u64, bool)>,
    shared: Arc<SharedGroups>,
}

impl PartialEq for Inputs {
    fn eq(&self, other: &Self) -> bool {
        self.base == other.base
            && self.others == other.others
            && Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// The other servers' catalogues, in their fixed order.
pub(in super::super) struct Others {
    pub(in super::super) catalogues: Vec<(ServerId, Arc<Catalogue>, bool)>,
    pub(in super::super) shared: Arc<SharedGroups>,
}

impl Others {
    /// Everyone but `from`, local first.
    pub(in super::super) fn of(table: &Table, from: ServerId) -> Self {
        let members = table.members();
        let catalogues = std::iter::once(&members.local)
            .chain(members.peers.iter())
            .filter(|server| server.id != from)
            .filter_map(|server| {
                let catalogue = table.catalogue(server.id)?;
                Some((server.id, catalogue, is_live(server)))
            })
            .collect();
        Self {
            catalogues,
            shared: table.shared.load_full(),
        }
    }

    pub(in super::super) fn inputs(&self, base: &HeaderValue) -> Inputs {
        Inputs {
            base: base.clone(),
            others: self
                .catalogues
                .iter()
                .map(|(id, catalogue, live)| (*id, catalogue.generation, *live))
                .collect(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// About how many bytes their documents have.
    pub(super) fn weight(&self) -> usize {
        let entries = self
            .catalogues
            .iter()
            .map(|(_, catalogue, _)| catalogue.group_versions.len() + catalogue.resources.len());
        entries.sum::<usize>() * ENTRY
    }

    pub(super) fn merge(&self, base: &GroupList, core: bool) -> GroupList {
        let sources: Vec<Source<'_>> = self
            .catalogues
            .iter()
            .map(|(_, catalogue, live)| Source {
                groups: if core {
                    &catalogue.documents.core
                } else {
                    &catalogue.documents.groups
                },
                live: *live,
                fresh: catalogue.freshness == Freshness::Fresh,
            })
            .collect();
        merge(base, &sources, &self.shared)
    }
}

/// Whether what only this server serves can be asked for: `route` sends it there then, however old the catalogue is.
fn is_live(server: &Server) -> bool {
    server.health() == Health::Up && server.membership() == Membership::Listed
}
