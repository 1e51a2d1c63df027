//! Which other servers could answer, and which of them is best: one lookup each, of what was hashed once.

use std::{
    hash::{Hash as _, Hasher},
    sync::Arc,
};

use super::{Evidence, Outcome, SURE, Walk, is_readable};
use crate::{
    api::{GroupVersion, GvRef, ServerId},
    table::{
        Catalogue, Freshness, Health, Known, Lookup, Membership, Proof, Server, SharedGroups, Table,
    },
};

/// What a server must have to be able to answer.
#[derive(Clone, Copy)]
pub(super) enum Want<'a> {
    /// A resource, or a subresource of it, with a verb.
    Resource(Lookup<'a>),
    /// Any version of a group.
    Group(&'a str),
    /// A group-version.
    Version(GvRef<'a>),
}

/// Why nobody can be sent the request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// No catalogue has it.
    Nobody,
    /// Who serves it, and is up, does not accept forwarded identities.
    Unproven,
    /// Who serves it is down, departed, or was down when tried.
    Unavailable,
    /// The authority serves it and failed just now.
    Failed,
}

/// All other servers, looked at once.
pub(super) struct Survey<'a> {
    /// The preferred one of those that are up.
    pub(super) best: Option<&'a Arc<Server>>,
    /// One that looks unavailable and was not tried yet.
    pub(super) last_resort: Option<&'a Arc<Server>>,
    /// What keeps the rest from answering.
    pub(super) need: Need,
}

impl Want<'_> {
    pub(super) fn is_in(&self, catalogue: &Catalogue) -> bool {
        match self {
            Self::Resource(lookup) => catalogue.has(lookup),
            Self::Version(group_version) => catalogue.lists(*group_version),
            Self::Group(group) => versions_of(catalogue, group).next().is_some(),
        }
    }

    /// The same, but of what all servers share only if the server is `believed`, and no group that was deleted whole.
    fn is_still_in(&self, catalogue: &Catalogue, shared: &SharedGroups, believed: bool) -> bool {
        match self {
            Self::Group(group) => versions_of(catalogue, group).any(|listed| {
                !shared.hides_version(listed.as_ref())
                    && (believed || !shared.owned.contains(listed))
            }),
            Self::Resource(..) | Self::Version(_) => {
                (believed || !self.is_shared(shared)) && self.is_in(catalogue)
            }
        }
    }

    fn is_hidden(&self, shared: &SharedGroups) -> bool {
        match self {
            Self::Resource(lookup) => shared.hides(lookup.resource),
            Self::Version(group_version) => shared.hides_version(*group_version),
            Self::Group(_) => false,
        }
    }

    fn is_shared(&self, shared: &SharedGroups) -> bool {
        match self {
            _ if shared.owned.is_empty() => false,
            Self::Resource(lookup) => shared.owned.contains(&lookup.resource.group_version()),
            Self::Version(group_version) => shared.owned.contains(group_version),
            Self::Group(_) => false,
        }
    }

    fn hash(&self, hasher: &mut impl Hasher) {
        match self {
            Self::Resource(lookup) => lookup.resource.hash(hasher),
            Self::Version(group_version) => group_version.hash(hasher),
            Self::Group(group) => group.hash(hasher),
        }
    }
}

impl<'a> Walk<'a> {
    /// Looks at every server but the authority.
    pub(super) fn survey(&self, want: Want<'_>) -> Survey<'a> {
        let mut survey = Survey {
            best: None,
            last_resort: None,
            need: Need::Nobody,
        };
        let shared = self.table.shared.load();
        // What all servers share through etcd, and what local, being up, does not list, is gone or not there yet: only
        // a server that was read just now may know better.
        let only_fresh = self.authority.id == ServerId::Local;
        if want.is_hidden(&shared) {
            return survey;
        }
        let mut seed = None;
        for Known { server, catalogue } in &self.members.known {
            let outcome = self.evidence.outcome(server.id);
            if outcome == Some(Outcome::NotFound) {
                continue;
            }
            // The authority is here only because it failed: the first rung has dealt with it otherwise.
            if server.id == self.authority.id && outcome.is_none() {
                continue;
            }
            let health = server.health();
            let up = health == Health::Up && server.membership() == Membership::Listed;
            let serves = catalogue.as_ref().is_some_and(|catalogue| {
                let believed = !only_fresh || up && catalogue.freshness == Freshness::Fresh;
                want.is_still_in(catalogue, &shared, believed)
            });
            if !serves {
                continue;
            }
            let need = self.consider(server, up, outcome);
            if need != Need::Nobody {
                survey.need = survey.need.max(need);
            } else if up {
                // Most often there is one, and nothing to choose.
                survey.best = Some(survey.best.map_or(server, |best| {
                    let seed = *seed.get_or_insert_with(|| self.seed(want));
                    preferred(seed, best, server)
                }));
            } else if survey.last_resort.is_none() {
                survey.last_resort = Some(server);
            }
        }
        survey
    }

    /// What keeps a server that serves it from being sent the request; [`Need::Nobody`] if nothing does.
    fn consider(&self, server: &Server, up: bool, outcome: Option<Outcome>) -> Need {
        if outcome.is_some() {
            return if server.id == ServerId::Local {
                Need::Failed
            } else {
                Need::Unavailable
            };
        }
        if server.membership() == Membership::Departed || self.evidence.is_full() {
            return Need::Unavailable;
        }
        let unproven = server.id != ServerId::Local
            && self.asker.kind.needs_proof()
            && server.proof() != Proof::Proven;
        match (unproven, up) {
            (true, true) => Need::Unproven,
            (true, false) => Need::Unavailable,
            (false, _) => Need::Nobody,
        }
    }

    /// One hash of client and resource; each server's rank is mixed into it (rendezvous hashing).
    fn seed(&self, want: Want<'_>) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        self.asker.client.hash(&mut hasher);
        want.hash(&mut hasher);
        hasher.finish()
    }
}

/// The better of two servers for those who share the seed; of equals the first.
fn preferred<'a>(seed: u64, first: &'a Arc<Server>, second: &'a Arc<Server>) -> &'a Arc<Server> {
    if mix(seed ^ second.rank) > mix(seed ^ first.rank) {
        second
    } else {
        first
    }
}

/// The versions of a group that a server lists.
fn versions_of<'a>(
    catalogue: &'a Catalogue,
    group: &'a str,
) -> impl Iterator<Item = &'a GroupVersion> {
    let listed = catalogue.group_versions.iter();
    listed.filter(move |listed| &*listed.group == group)
}

/// The finaliser of `splitmix64`: every input bit moves every output bit.
const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// Whether a server might by now serve what it was not known to serve when the 404 came.
pub(super) fn is_doubtful(server: &Server, table: &Table, evidence: &Evidence) -> bool {
    let Some(now) = evidence.not_found_at() else {
        return false;
    };
    let is_old = || table.look(server.id, |catalogue| catalogue.read_at + SURE < now);
    evidence.outcome(server.id).is_none() && (!is_readable(server) || is_old() == Some(true))
}
