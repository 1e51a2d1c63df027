//! The state of one server as a pure machine: what probes see and what traffic reports, in; a [`Health`], out.
//!
//! No IO and no clock of its own, so every rule of design 5.4 is tested without a server.

use std::time::Duration;

use tokio::time::Instant;

use crate::table::{Health, Proof};

/// How long `/readyz` must have been 200 before a server that was not up is up again (design 5.4).
pub const READY_FOR: Duration = Duration::from_secs(2);

/// What one probe saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// `/readyz` was 200 over verified TLS.
    Ready,
    /// It answered, but not 200, or not in time.
    NotReady {
        /// Its answer says that it is shutting down (429 or 503 of `kubernetes.md` 34, or the `shutdown` check).
        leaving: bool,
    },
    /// Refused, reset, silent, or not the server that it should be.
    Unreachable,
}

/// The last decided proof of identity forwarding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decided {
    /// When its probe began.
    pub began: Instant,
    /// [`Proof::Proven`] or [`Proof::Refused`]; undecided ones are not kept. [`Proof::Unproven`]: nothing can be proven.
    pub proof: Proof,
}

/// One server's state and what it takes to leave it.
#[derive(Debug)]
pub struct Vitals {
    health: Health,
    /// Nothing was seen yet: the first sight decides at once, because nothing has to recover.
    first: bool,
    /// Since when every probe was [`Seen::Ready`].
    ready_since: Option<Instant>,
    /// When it was last found, reported or declared not up.
    ill_at: Option<Instant>,
}

impl Default for Vitals {
    /// A server that nothing was seen of.
    fn default() -> Self {
        Self {
            health: Health::Down,
            first: true,
            ready_since: None,
            ill_at: None,
        }
    }
}

impl Vitals {
    /// How it is.
    pub const fn health(&self) -> Health {
        self.health
    }

    /// Whether a proof is wanted now: there is none, or it is ready again and the last one is from before it was ill.
    pub fn wants_proof(&self, proof: Option<Decided>) -> bool {
        let recovering = self.health != Health::Up && self.ready_since.is_some();
        proof.is_none_or(|proof| recovering && self.ill_at.is_some_and(|at| proof.began < at))
    }

    /// Traffic, or the watch over local's listening socket, says that it is not up: true at once.
    pub const fn report(&mut self, health: Health, now: Instant) {
        self.first = false;
        self.health = health;
        if !matches!(health, Health::Up) {
            self.ready_since = None;
            self.ill_at = Some(now);
        }
    }

    /// Takes in one probe that began at `began` and ended `now`.
    pub fn observe(
        &mut self,
        seen: Seen,
        began: Instant,
        now: Instant,
        proof: Option<Decided>,
    ) -> Health {
        let first = std::mem::replace(&mut self.first, false);
        if seen != Seen::Ready {
            self.ready_since = None;
            self.ill_at = Some(now);
        }
        self.health = match (seen, self.health) {
            (Seen::Unreachable, _) => Health::Down,
            // A draining server goes on draining until its port closes or its successor is declared.
            (Seen::NotReady { leaving: true }, _)
            | (Seen::NotReady { leaving: false }, Health::Draining) => Health::Draining,
            (Seen::NotReady { leaving: false }, _) => Health::Starting,
            (Seen::Ready, Health::Up) => Health::Up,
            (Seen::Ready, _) if first => Health::Up,
            (Seen::Ready, before) => {
                if self.ill_at.is_some_and(|ill_at| began < ill_at) {
                    // The probe is older than the bad news: it says nothing.
                    before
                } else if self.recovered(began, now, proof) {
                    Health::Up
                } else if before == Health::Draining {
                    before
                } else {
                    Health::Starting
                }
            }
        };
        self.health
    }

    /// Ready for long enough, and its identity forwarding was decided since it was ill. A server that *refuses* recovers
    /// too: it serves its own clients well, so that new connections must reach it directly (steering is off without a
    /// proof) rather than fail over for ever.
    fn recovered(&mut self, began: Instant, now: Instant, proof: Option<Decided>) -> bool {
        let since = *self.ready_since.get_or_insert(began);
        let decided =
            proof.is_some_and(|proof| self.ill_at.is_none_or(|ill_at| proof.began >= ill_at));
        now.duration_since(since) >= READY_FOR && decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[expect(clippy::unnecessary_wraps, reason = "what `observe` takes")]
    fn proven(at: Instant) -> Option<Decided> {
        Some(Decided {
            began: at,
            proof: Proof::Proven,
        })
    }

    #[test]
    fn the_first_sight_decides_at_once() {
        let now = Instant::now();
        let mut vitals = Vitals::default();
        assert_eq!(vitals.observe(Seen::Ready, now, now, None), Health::Up);
        let mut vitals = Vitals::default();
        assert_eq!(
            vitals.observe(Seen::NotReady { leaving: false }, now, now, None),
            Health::Starting
        );
    }

    #[test]
    fn a_server_is_up_again_after_two_seconds_of_ready_and_a_proof() {
        let t = Instant::now();
        let mut vitals = Vitals::default();
        vitals.observe(Seen::Ready, t, t, proven(t));
        assert_eq!(
            vitals.observe(Seen::Unreachable, t + 500 * MS, t + 500 * MS, proven(t)),
            Health::Down
        );
        let back = t + 1000 * MS;
        assert_eq!(
            vitals.observe(Seen::Ready, back, back, proven(t)),
            Health::Starting
        );
        assert!(vitals.wants_proof(proven(t)));
        assert!(!vitals.wants_proof(proven(back)));
        // Two seconds have passed, but the proof is from before the fall.
        let later = back + 2500 * MS;
        assert_eq!(
            vitals.observe(Seen::Ready, later, later, proven(t)),
            Health::Starting
        );
        assert_eq!(
            vitals.observe(Seen::Ready, later, later, proven(back)),
            Health::Up
        );
    }

    #[test]
    fn a_proof_alone_does_not_shorten_the_two_seconds() {
        let t = Instant::now();
        let mut vitals = Vitals::default();
        vitals.report(Health::Down, t);
        vitals.observe(Seen::Ready, t + MS, t + MS, proven(t + MS));
        assert_eq!(
            vitals.observe(Seen::Ready, t + 1900 * MS, t + 1900 * MS, proven(t + MS)),
            Health::Starting
        );
        assert_eq!(
            vitals.observe(Seen::Ready, t + 2001 * MS, t + 2001 * MS, proven(t + MS)),
            Health::Up
        );
    }

    #[test]
    fn one_red_probe_starts_the_two_seconds_anew() {
        let t = Instant::now();
        let mut vitals = Vitals::default();
        vitals.report(Health::Down, t);
        let proof = proven(t + 1900 * MS);
        vitals.observe(Seen::Ready, t + MS, t + MS, proof);
        vitals.observe(
            Seen::NotReady { leaving: false },
            t + 1500 * MS,
            t + 1500 * MS,
            proof,
        );
        assert_eq!(
            vitals.observe(Seen::Ready, t + 2500 * MS, t + 2500 * MS, proof),
            Health::Starting
        );
        assert_eq!(
            vitals.observe(Seen::Ready, t + 4500 * MS, t + 4500 * MS, proof),
            Health::Up
        );
    }

    #[test]
    fn a_probe_that_began_before_bad_news_does_not_count() {
        let t = Instant::now();
        let mut vitals = Vitals::default();
        vitals.observe(Seen::Ready, t, t, proven(t));
        vitals.report(Health::Down, t + 100 * MS);
        assert_eq!(
            vitals.observe(Seen::Ready, t + 50 * MS, t + 150 * MS, proven(t + 120 * MS)),
            Health::Down
        );
        assert!(!vitals.wants_proof(proven(t)));
    }

    #[test]
    fn a_draining_server_stays_draining_until_its_successor_starts() {
        let t = Instant::now();
        let mut vitals = Vitals::default();
        vitals.observe(Seen::Ready, t, t, proven(t));
        assert_eq!(
            vitals.observe(Seen::NotReady { leaving: true }, t, t, proven(t)),
            Health::Draining
        );
        assert_eq!(
            vitals.observe(Seen::NotReady { leaving: false }, t, t, proven(t)),
            Health::Draining
        );
        vitals.report(Health::Starting, t + MS);
        assert_eq!(
            vitals.observe(
                Seen::NotReady { leaving: false },
                t + 2 * MS,
                t + 2 * MS,
                proven(t)
            ),
            Health::Starting
        );
    }

    #[test]
    fn a_ready_server_that_refuses_forwarding_is_up_all_the_same() {
        let t = Instant::now();
        let mut vitals = Vitals::default();
        vitals.report(Health::Starting, t);
        let refused = Some(Decided {
            began: t + MS,
            proof: Proof::Refused,
        });
        vitals.observe(Seen::Ready, t + MS, t + MS, refused);
        assert_eq!(
            vitals.observe(Seen::Ready, t + 3000 * MS, t + 3000 * MS, refused),
            Health::Up
        );
    }
}
