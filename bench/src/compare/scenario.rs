//! What is compared: every scenario as data. Its name is its row and its file name.

use std::time::Duration;

mod curves;

pub use self::curves::curves;
use crate::load::{Shot, origin::AGGREGATED};

/// What of real kube-apiservers only the second serves.
pub(super) const PATH: &str = "/apis/batch/v1/namespaces/default/jobs";

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
    /// Latency at the one rate of all (else: as it was), microseconds.
    P50,
    /// See [`Metric::P50`].
    P90,
    /// See [`Metric::P50`].
    P99,
    /// See [`Metric::P50`].
    P999,
    /// What a rerouted request takes longer than one that goes to the right server at once, median, microseconds.
    AddedP50,
    /// Most memory ever resident, bytes.
    PeakMemory,
    /// Memory that each connection, watch or stream added, bytes.
    MemoryPerUnit,
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
            Self::P50 => "p50 us",
            Self::P90 => "p90 us",
            Self::P99 => "p99 us",
            Self::P999 => "p99.9 us",
            Self::AddedP50 => "added p50 us",
            Self::PeakMemory => "peak memory MiB",
            Self::MemoryPerUnit => "memory per unit KiB",
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
const DIRECT: &[Against] = &[Against::Direct];
const REROUTED: &[Against] = &[Against::Direct, Against::Native];

const SMALL: &str = "/api/v1/namespaces/bench/configmaps/one?bytes=1024";
/// Only the peer serves it.
const ELSEWHERE: &str = "/apis/batch/v1/namespaces/bench/jobs/one?bytes=1024";

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

/// All of them, in the order of reports.
#[expect(clippy::too_many_lines, reason = "a table")]
pub fn all() -> Vec<Scenario> {
    use Against::{Direct, Haproxy, Native};
    use Metric::{
        AddedP50, CpuPerRequest, MemoryPerUnit, MibPerSecond, P50, P99, RequestsPerSecond,
    };
    use Rival::{Better, Nobody, One};
    let small = || Kind::Requests(vec![Shot::get(SMALL)]);
    let body = |bytes: u64| {
        Kind::Requests(vec![Shot::get(format!(
            "/api/v1/namespaces/bench/pods?bytes={bytes}"
        ))])
    };
    let create = |bytes| {
        Kind::Requests(vec![Shot::post(
            "/api/v1/namespaces/bench/configmaps",
            bytes,
        )])
    };
    let shared = [
        goal(CpuPerRequest, Better, 1.0, 0.8),
        goal(RequestsPerSecond, Better, 1.0, 1.2),
        goal(P99, Better, 1.0, 0.8),
    ];
    let watches = Kind::Watches {
        events: 20,
        every: Duration::from_millis(50),
    };
    let many = Kind::Watches {
        events: 4,
        every: Duration::from_secs(1),
    };
    let watch_memory = goal(MemoryPerUnit, Nobody, 24.0 * 1024.0, 12.0 * 1024.0);
    let connection_memory = goal(MemoryPerUnit, Nobody, 64.0 * 1024.0, 32.0 * 1024.0);
    let same = [
        goal(RequestsPerSecond, One(Direct), 1.0, 1.0),
        goal(P50, One(Direct), 1.0, 1.0),
    ];
    let discovery = || Shot::get("/apis").accepting(AGGREGATED);
    vec![
        Scenario::new(
            "get-h2-cert",
            "1 KiB GET, HTTP/2, client certificate, 10 streams a connection",
            small(),
        )
        .wants(&shared),
        Scenario::new(
            "get-h2-cert-single",
            "the same, one stream a connection",
            small(),
        )
        .shape(20, 1)
        .wants(&shared),
        Scenario::new(
            "get-h1-cert",
            "1 KiB GET, HTTP/1.1, client certificate",
            small(),
        )
        .http1()
        .wants(&shared),
        Scenario::new(
            "get-h2-token",
            "1 KiB GET, HTTP/2, bearer token: upstream connections paired with the client's",
            small(),
        )
        .token()
        .wants(&[goal(CpuPerRequest, One(Haproxy), 1.0, 0.8)]),
        Scenario::new("get-h1-token", "the same over HTTP/1.1", small())
            .token()
            .http1()
            .wants(&[goal(CpuPerRequest, One(Haproxy), 1.0, 0.8)]),
        Scenario::new(
            "rerouted",
            "1 KiB GET of what only the peer serves",
            Kind::Requests(vec![Shot::get(ELSEWHERE)]),
        )
        .against(DIRECT),
        Scenario::new(
            "rerouted-native",
            "list of what only the peer serves, real kube-apiservers",
            Kind::Requests(vec![Shot::get(PATH)]),
        )
        .mode(Mode::BeforeNative)
        .shape(4, 2)
        .against(REROUTED)
        .wants(&[
            goal(AddedP50, One(Native), 0.5, 0.25),
            goal(CpuPerRequest, One(Native), 0.5, 0.25),
        ]),
        Scenario::new("create-1k", "POST of 1 KiB", create(1 << 10)),
        Scenario::new("create-64k", "POST of 64 KiB", create(64 << 10)),
        Scenario::new("create-1m", "POST of 1 MiB", create(1 << 20)).shape(10, 2),
        Scenario::new("list-100k", "list of 100 KB", body(100_000)).shape(10, 4),
        Scenario::new("list-10m", "list of 10 MB", body(10_000_000)).shape(4, 1),
        Scenario::new("list-100m", "list of 100 MB", body(100_000_000))
            .shape(2, 1)
            .wants(&[
                goal(MibPerSecond, Better, 1.5, 2.0),
                goal(MibPerSecond, One(Direct), 0.75, 0.85),
            ]),
        Scenario::new("watch-10", "10 watches, 20 events to each", watches.clone()).shape(1, 10),
        Scenario::new("watch-1000", "1,000 watches, 20 events to each", watches).shape(10, 100),
        Scenario::new("watch-10000", "10,000 watches, 4 events to each", many)
            .shape(100, 100)
            .wants(&[watch_memory]),
        Scenario::new(
            "storm",
            "TLS handshakes with client certificates, one GET each",
            Kind::Storm,
        )
        .shape(32, 1),
        Scenario::new(
            "exec",
            "exec tunnels: the server sends as fast as it can",
            Kind::Tunnels { bytes: 256 << 20 },
        )
        .http1()
        .shape(2, 1),
        Scenario::new(
            "discovery-cold",
            "completed discovery, the first caller after a start",
            Kind::First(discovery()),
        )
        .shape(1, 1)
        .against(DIRECT),
        Scenario::new(
            "discovery-warm",
            "completed discovery, unchanged, 200",
            Kind::Requests(vec![discovery()]),
        )
        .shape(4, 1)
        .against(DIRECT)
        .wants(&[goal(P50, One(Direct), 1.5, 1.3)]),
        Scenario::new(
            "discovery-304",
            "completed discovery, unchanged, 304",
            Kind::Requests(vec![discovery().conditional()]),
        )
        .shape(4, 1)
        .against(DIRECT)
        .wants(&[goal(P50, One(Direct), 1.5, 1.3)]),
        Scenario::new(
            "mixed",
            "what controllers do: gets, lists of 100 KB, updates, leases",
            Kind::Requests(vec![
                Shot::get(SMALL).weighing(60),
                Shot::get("/api/v1/namespaces/bench/pods?limit=500&bytes=100000").weighing(5),
                Shot::post("/api/v1/namespaces/bench/events", 1024).weighing(15),
                Shot {
                    method: "PUT".to_owned(),
                    ..Shot::post(
                        "/apis/apps/v1/namespaces/bench/deployments/one/status",
                        4096,
                    )
                }
                .weighing(10),
                Shot {
                    method: "PUT".to_owned(),
                    ..Shot::post(
                        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/one",
                        512,
                    )
                }
                .weighing(10),
            ]),
        )
        .shape(20, 4)
        .wants(&shared),
        Scenario::new(
            "no-skew-auto",
            "1 KiB GET, steering on auto and nothing to steer for",
            small(),
        )
        .mode(Mode::Auto)
        .against(DIRECT)
        .wants(&same),
        Scenario::new("steered", "1 KiB GET through the steer", small())
            .mode(Mode::Steered)
            .against(DIRECT),
        Scenario::new("idle-100", "100 idle connections", Kind::Idle).shape(100, 1),
        Scenario::new("idle-1000", "1,000 idle connections", Kind::Idle)
            .shape(1000, 1)
            .wants(&[connection_memory]),
        Scenario::new("idle-5000", "5,000 idle connections", Kind::Idle)
            .shape(5000, 1)
            .wants(&[connection_memory]),
        Scenario::new(
            "slow-list",
            "lists of 1 GiB to slow clients",
            Kind::Slow {
                bytes: 1 << 30,
                rate: 1 << 20,
            },
        )
        .shape(4, 2)
        .wants(&[goal(
            MemoryPerUnit,
            Nobody,
            2.0 * 1024.0 * 1024.0,
            1024.0 * 1024.0,
        )]),
    ]
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
