//! What one request's attempts showed: small, of fixed size, carried from one decision to the next.

use tokio::time::Instant;

use crate::{
    api::ServerId,
    reply::{Refusal, Side},
};

/// How many servers one request is tried at, at most; control planes have up to seven.
pub const MAX_TRIES: usize = 8;

/// How an attempt at a server ended without an answer for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Provably not worked on: refused stream, beyond GOAWAY's last stream, shutting down, starting.
    Unprocessed,
    /// No connection, or a safe request broke off before any response byte.
    Unreachable,
    /// kube-apiserver's 404 for an unknown path or resource (never one of a missing object).
    NotFound,
    /// It refused mvp's own identity forwarding (a 401 that the client did not cause).
    Refused,
}

/// Whether what the servers serve was read again for this request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Refreshed {
    /// Not asked for.
    #[default]
    No,
    /// Every server of [`super::to_refresh`] was read.
    Done,
    /// At least one of them, which was readable before, could not be read.
    Failed,
}

/// What was tried, in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence {
    tried: [Option<(ServerId, Outcome)>; MAX_TRIES],
    count: u8,
    not_found_at: Option<Instant>,
    refreshed: Refreshed,
}

impl Evidence {
    /// Records an attempt. A later one at the same server replaces the earlier.
    pub fn add(&mut self, server: ServerId, outcome: Outcome) {
        let known = self
            .tried
            .iter_mut()
            .flatten()
            .find(|(id, _)| *id == server);
        if let Some(known) = known {
            known.1 = outcome;
        } else if let Some(slot) = self.tried.get_mut(usize::from(self.count)) {
            *slot = Some((server, outcome));
            self.count += 1;
        }
    }

    /// Records an unknown-resource 404 that arrived at `now`.
    pub fn not_found(&mut self, server: ServerId, now: Instant) {
        self.add(server, Outcome::NotFound);
        self.not_found_at = Some(now);
    }

    /// Records that the refresh which a decision asked for is over.
    pub fn refreshed(&mut self, all: bool) {
        self.refreshed = if all {
            Refreshed::Done
        } else {
            Refreshed::Failed
        };
    }

    /// How the attempt at `server` ended, if there was one.
    pub fn outcome(&self, server: ServerId) -> Option<Outcome> {
        if self.count == 0 {
            return None;
        }
        self.tried
            .iter()
            .flatten()
            .find(|(id, _)| *id == server)
            .map(|(_, outcome)| *outcome)
    }

    /// Whether `server` failed to answer at all.
    pub fn failed(&self, server: ServerId) -> bool {
        self.outcome(server)
            .is_some_and(|outcome| outcome != Outcome::NotFound)
    }

    /// Number of servers tried.
    pub fn tries(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether no further server may be tried.
    pub fn is_full(&self) -> bool {
        self.tries() == MAX_TRIES
    }

    /// Whether some server said that it does not know what was asked for.
    pub fn any_not_found(&self) -> bool {
        self.not_found_at.is_some()
    }

    /// When the last unknown-resource 404 arrived.
    pub fn not_found_at(&self) -> Option<Instant> {
        self.not_found_at
    }

    /// Whether the double check was made.
    pub fn refresh(&self) -> Refreshed {
        self.refreshed
    }

    /// The refusal for a request whose servers all failed: by the first that did.
    pub(super) fn blame(&self) -> Refusal {
        let first = self
            .tried
            .iter()
            .flatten()
            .find(|(_, outcome)| *outcome != Outcome::NotFound);
        match first {
            Some((_, Outcome::Refused)) => Refusal::ForwardingRefused,
            Some((server, _)) => Refusal::Unreachable((*server).into()),
            None => Refusal::Unreachable(Side::Peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_holds_no_more_than_it_has_room_for() {
        let mut evidence = Evidence::default();
        for number in 0..20_u8 {
            let peer = ServerId::Peer(([10, 0, 0, number], 6443).into());
            evidence.add(peer, Outcome::Unprocessed);
        }
        assert_eq!(evidence.tries(), MAX_TRIES);
        assert!(evidence.is_full());
    }
}
