//! What is compared: every scenario as data. Its name is its row and its file name.

use std::time::Duration;

mod curves;
mod table;

pub use self::{curves::curves, table::all};
use crate::load::Shot;

/// What of real kube-apiservers only the second serves.
pub(super) const PATH: &str = "/apis/batch/v1/namespaces/default/jobs";
/// What of them is a long list.
pub(super) const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

/// One comparison.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name, for `--scenario` and reports.
    pub name: &'static str,
    /// What happens, in a sentence.
    pub what: &'static str,
    /// A token instead of a client certificate.
    pub token: bool,
    /// HTTP/1.1 instead of HTTP/2.
    pub http1: bool,
    /// Connections of the asker.
    pub connections: usize,
    /// Requests at a time on each.
    pub streams: usize,
    /// What is done.
    pub kind: Kind,
    /// How mvp comes between.
    pub mode: Mode,
    /// What its processes may use of the processors.
    pub shares: Shares,
    /// Whom mvp is compared with.
    pub against: &'static [Against],
    /// What design 10 wants.
    pub goals: Vec<Goal>,
}

/// What is done.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Requests: first as fast as they are answered (throughput, CPU), then at one rate for all (latency).
    Requests(Vec<Shot>),
    /// The first request after the proxy's start.
    First(Shot),
    /// Bodies through a proxy under valgrind: bytes that it copies in memory for each that it forwards.
    Copies(Shot),
    /// Handshakes.
    Storm,
    /// Idle connections: memory of each.
    Idle,
    /// Readers slower than the sender: memory of each stream.
    Slow {
        /// Length of each body.
        bytes: u64,
        /// Bytes a second of each reader.
        rate: u64,
    },
    /// Upgraded connections: throughput.
    Tunnels {
        /// Bytes on each.
        bytes: u64,
        /// As kube-apiserver's own client, whose connections are passed as they are.
        raw: bool,
    },
    /// Watches: memory of each, then latency of events.
    Watches {
        /// Events.
        events: u32,
        /// Between two.
        every: Duration,
    },
}

/// How mvp is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At its own port (`--listen`), as the other proxies are.
    Listen,
    /// Behind the steer.
    Steered,
    /// `--steer auto` without skew: it must not be noticed.
    Auto,
    /// At its own port, in front of real kube-apiservers.
    BeforeNative,
}

/// Per cent of one processor, for all threads of a process together; none: all there is. So processors that a machine does not
/// have can be done without: three processes with a share each do not wait for one another's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Of the asker, and as much of the answerer.
    pub ends: Option<u32>,
    /// Of the proxy.
    pub proxy: Option<u32>,
}

/// Whom mvp is compared with.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Against {
    /// No proxy.
    Direct,
    /// `HAProxy`.
    Haproxy,
    /// nginx.
    Nginx,
    /// A minimal proxy on pingora.
    Pingora,
    /// kube-apiserver's own peer proxy.
    Native,
    /// Another build of mvp, for experiments.
    Build,
}

/// What a figure is called.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Requests (handshakes) a second, as many as there were.
    RequestsPerSecond,
    /// MiB of bodies a second.
    MibPerSecond,
    /// CPU of the proxy process at full throughput, microseconds (= milliseconds per 1,000).
    CpuPerRequest,
    /// The same at the one rate of all.
    CpuPerRequestAtEqualLoad,
    /// CPU of the proxy process for each MiB of bodies, microseconds.
    CpuPerMib,
    /// Bytes that mvp moved inside the kernel, by its own count.
    Spliced,
    /// Latency at the one rate of all (else: as it was), microseconds.
    P50,
    /// See [`Metric::P50`].
    P90,
    /// See [`Metric::P50`].
    P99,
    /// See [`Metric::P50`].
    P999,
    /// What a request takes longer than one that goes to the right server at once, median, microseconds.
    AddedP50,
    /// Most memory ever resident, bytes.
    PeakMemory,
    /// Memory that each connection, watch or stream added, bytes.
    MemoryPerUnit,
    /// Bytes copied in memory for each byte of bodies.
    CopiedPerByte,
}

impl Metric {
    /// As in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RequestsPerSecond => "requests/s",
            Self::MibPerSecond => "MiB/s",
            Self::CpuPerRequest => "CPU ms per 1,000 requests",
            Self::CpuPerRequestAtEqualLoad => "CPU ms per 1,000 requests at equal load",
            Self::CpuPerMib => "CPU us per MiB",
            Self::Spliced => "MiB spliced",
            Self::P50 => "p50 us",
            Self::P90 => "p90 us",
            Self::P99 => "p99 us",
            Self::P999 => "p99.9 us",
            Self::AddedP50 => "added p50 us",
            Self::PeakMemory => "peak memory MiB",
            Self::MemoryPerUnit => "memory per unit KiB",
            Self::CopiedPerByte => "bytes copied per byte",
        }
    }

    /// Whether more is better.
    pub const fn more_is_better(self) -> bool {
        matches!(self, Self::RequestsPerSecond | Self::MibPerSecond)
    }
}

/// A bound of design 10.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// Of what.
    pub metric: Metric,
    /// Against whom.
    pub rival: Rival,
    /// The ratio (absolute: the figure) that is required.
    pub required: f64,
    /// That is wanted.
    pub goal: f64,
}

/// Whom a bound is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// One.
    One(Against),
    /// The better of `HAProxy` and nginx.
    Better,
    /// Nobody: the figure itself is bounded.
    Nobody,
}

const ALL: &[Against] = &[
    Against::Direct,
    Against::Haproxy,
    Against::Nginx,
    Against::Pingora,
];
/// nginx and pingora share upstream connections between clients: with tokens that is not the same work.
const PAIRING: &[Against] = &[Against::Direct, Against::Haproxy];

const fn goal(metric: Metric, rival: Rival, required: f64, goal: f64) -> Goal {
    Goal {
        metric,
        rival,
        required,
        goal,
    }
}

impl Scenario {
    fn new(name: &'static str, what: &'static str, kind: Kind) -> Self {
        Self {
            name,
            what,
            token: false,
            http1: false,
            connections: 20,
            streams: 10,
            kind,
            mode: Mode::Listen,
            shares: Shares::default(),
            against: ALL,
            goals: Vec::new(),
        }
    }

    fn shape(mut self, connections: usize, streams: usize) -> Self {
        (self.connections, self.streams) = (connections, streams);
        self
    }

    fn token(mut self) -> Self {
        (self.token, self.against) = (true, PAIRING);
        self
    }

    fn http1(mut self) -> Self {
        self.http1 = true;
        self.streams = 1;
        self
    }

    fn against(mut self, against: &'static [Against]) -> Self {
        self.against = against;
        self
    }

    fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    fn shares(mut self, ends: Option<u32>, proxy: u32) -> Self {
        self.shares = Shares {
            ends,
            proxy: Some(proxy),
        };
        self
    }

    /// Whether processor time is the limit.
    pub(super) fn is_bounded(&self) -> bool {
        self.shares != Shares::default()
    }

    /// Whether only root can make what it needs.
    pub(super) fn needs_root(&self) -> bool {
        self.mode != Mode::Listen || self.is_bounded()
    }

    /// Whether a comparison with `against` says something that a lean run cannot go without.
    pub(super) fn matters(&self, against: Against) -> bool {
        // No proxy has no memory of its own.
        let no_use =
            against == Against::Direct && matches!(self.kind, Kind::Idle | Kind::Slow { .. });
        let bounded = self.goals.iter().any(|goal| match goal.rival {
            Rival::One(rival) => rival == against,
            Rival::Better => matches!(against, Against::Haproxy | Against::Nginx),
            Rival::Nobody => false,
        });
        let always = matches!(
            against,
            Against::Direct | Against::Haproxy | Against::Native | Against::Build
        );
        !no_use && (bounded || always || self.name == "get-h2-cert")
    }

    fn wants(mut self, goals: &[Goal]) -> Self {
        self.goals.extend(goals);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_file_names_and_there_is_one_of_each() {
        let all = all();
        let mut names: Vec<_> = all.iter().map(|scenario| scenario.name).collect();
        assert!(names.iter().all(|name| {
            name.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        }));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn bounds_are_about_somebody_that_is_measured() {
        for scenario in all() {
            for goal in &scenario.goals {
                let measured = match goal.rival {
                    Rival::One(rival) => scenario.against.contains(&rival),
                    Rival::Better => {
                        scenario.against.contains(&Against::Haproxy)
                            && scenario.against.contains(&Against::Nginx)
                    }
                    Rival::Nobody => true,
                };
                assert!(measured, "{}: {goal:?}", scenario.name);
            }
        }
    }
}
