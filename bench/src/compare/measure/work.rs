//! What a load process is told: the work of a scenario, in the size that suits the effort.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::Run;
use crate::{
    compare::{Effort, ground::Ground, scenario::Kind, target::Target},
    load::{Identity, Pace, Plan, Shot, Work, origin::TOKEN},
};

/// Runs with a share of a processor are so much longer: the kernel gives out time ten times a second.
const BOUNDED_RUNS: u32 = 3;

impl Run<'_> {
    /// What a load process is told.
    pub(super) fn plan(
        &self,
        target: &Target,
        ground: &Ground,
        work: Work,
        connections: usize,
    ) -> Plan {
        let pki = ground.pki();
        let identity = if self.scenario.token {
            Identity::Token(TOKEN.to_owned())
        } else {
            Identity::Certificate(pki.join("user.crt"), pki.join("user.key"))
        };
        let work = match work {
            Work::Watches { events, every, .. } => Work::Watches {
                events,
                every,
                origin: ground.local,
            },
            work => work,
        };
        // What only the peer serves is asked of the peer where nobody reroutes.
        let elsewhere = self.is_rerouted() && !target.is_proxy();
        let to = if elsewhere {
            ground.peer
        } else {
            target.address
        };
        Plan {
            to,
            ca: pki.join("ca.crt"),
            identity,
            http2: !self.scenario.http1,
            connections,
            streams: self.streams(),
            work,
        }
    }

    /// The work of one sample.
    pub(super) fn work(&self, pace: Option<Pace>) -> Result<Work> {
        let effort = self.options.effort;
        let most = |bytes: u64| {
            if effort == Effort::Smoke {
                bytes.min(1 << 20)
            } else {
                bytes
            }
        };
        Ok(match &self.scenario.kind {
            Kind::Requests(shots) => Work::Requests {
                shots: shots.iter().map(|shot| smaller(shot, effort)).collect(),
                pace: pace.context("requests have a pace")?,
                warm: effort.warm(),
                run: if self.scenario.is_bounded() {
                    effort.run() * BOUNDED_RUNS
                } else {
                    effort.run()
                },
            },
            Kind::First(shot) => Work::First { shot: shot.clone() },
            // All that goes through is counted.
            Kind::Copies(shot) => Work::Requests {
                shots: vec![smaller(shot, effort)],
                pace: Pace::Closed,
                warm: Duration::ZERO,
                run: effort.run(),
            },
            Kind::Storm => Work::Storm {
                run: effort.run() * 2,
            },
            Kind::Idle => Work::Idle,
            Kind::Slow { bytes, rate } => Work::Slow {
                bytes: *bytes,
                rate: *rate,
                hold: effort.run() * 4,
            },
            Kind::Tunnels { bytes, raw } => Work::Tunnels {
                bytes: most(*bytes),
                raw: *raw,
            },
            Kind::Watches { events, every } => Work::Watches {
                events: *events,
                every: *every,
                origin: ([127, 0, 0, 1], 0).into(),
            },
        })
    }

    pub(super) fn connections(&self) -> usize {
        self.options.effort.cap(self.scenario.connections, 4)
    }

    pub(super) fn streams(&self) -> usize {
        self.options.effort.cap(self.scenario.streams, 4)
    }

    fn is_rerouted(&self) -> bool {
        self.scenario.name.starts_with("rerouted")
    }

    /// Work whose memory matters, or that is only the first after a start.
    pub(super) const fn is_heavy(&self) -> bool {
        matches!(
            self.scenario.kind,
            Kind::First(_)
                | Kind::Idle
                | Kind::Slow { .. }
                | Kind::Copies(_)
                | Kind::Watches { .. }
        )
    }
}

/// A shot whose sizes suit a smoke run.
fn smaller(shot: &Shot, effort: Effort) -> Shot {
    let mut shot = shot.clone();
    if effort == Effort::Smoke {
        shot.body = shot.body.min(64 * 1024);
        if let Some((path, bytes)) = shot.path.rsplit_once("bytes=") {
            let bytes = bytes.parse::<u64>().unwrap_or(1024).min(200_000);
            shot.path = format!("{path}bytes={bytes}");
        }
    }
    shot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smoke_run_asks_for_little() {
        let shot = smaller(
            &Shot::get("/api/v1/pods?limit=5&bytes=100000000"),
            Effort::Smoke,
        );
        assert_eq!(shot.path, "/api/v1/pods?limit=5&bytes=200000");
        let same = smaller(&Shot::get("/apis"), Effort::Quick);
        assert_eq!(same.path, "/apis");
    }
}
