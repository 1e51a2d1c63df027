//! How much goes where and how long it takes: answers and times by server, counted at every request with a few atomic
//! additions; and the last unusual requests ([`Recent`]). Not for what is counted rarely (`metrics`).

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use http::StatusCode;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet},
    metrics::MetricType,
};

use super::recent::Recent;
use crate::{api::ServerId, table::Table};

/// Upper bounds of the buckets, in seconds; one more bucket holds what is above. Finer than kube-apiserver's where a
/// proxy's own part would show.
pub const BOUNDS: [f64; 16] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];

/// The same in microseconds.
const LIMITS: [u64; 16] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Answers and times of one server.
#[derive(Debug, Default)]
struct Route {
    answers: [AtomicU64; CLASSES.len()],
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

/// Parts of local's counts. Threads that count in the same one take its memory from each other at every request.
const PARTS: usize = 16;

/// One part; processors fetch two lines of memory at a time.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part(Route);

thread_local! {
    /// The part that this thread counts in.
    static OWN: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % PARTS
    };
}

/// A [`Route`] as it was at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Answers by the first digit of their status.
    pub answers: [u64; CLASSES.len()],
    /// Answers by time until their head, between the bounds of [`BOUNDS`].
    pub buckets: [u64; BOUNDS.len() + 1],
    /// All times together, in microseconds.
    pub micros: u64,
}

/// All traffic; shared by the threads.
#[derive(Debug, Default)]
pub struct Traffic {
    local: [Part; PARTS],
    peers: DashMap<ServerId, Arc<Route>>,
    /// Peers that are no longer known, together.
    former: Route,
    /// The last requests that went elsewhere or nowhere.
    pub recent: Recent,
}

impl Route {
    fn note(&self, status: StatusCode, took: Duration) {
        let class = usize::from(status.as_u16() / 100).wrapping_sub(1);
        if let Some(count) = self.answers.get(class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = LIMITS.partition_point(|limit| *limit < micros);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn read(&self) -> Count {
        let read = |it: &AtomicU64| it.load(Ordering::Relaxed);
        Count {
            answers: std::array::from_fn(|at| read(&self.answers[at])),
            buckets: std::array::from_fn(|at| read(&self.buckets[at])),
            micros: read(&self.micros),
        }
    }

    fn absorb(&self, other: &Count) {
        let add = |to: &[AtomicU64], from: &[u64]| {
            for (to, from) in to.iter().zip(from) {
                to.fetch_add(*from, Ordering::Relaxed);
            }
        };
        add(&self.answers, &other.answers);
        add(&self.buckets, &other.buckets);
        self.micros.fetch_add(other.micros, Ordering::Relaxed);
    }
}

impl Count {
    fn add(&mut self, other: &Self) {
        for (to, from) in self.answers.iter_mut().zip(other.answers) {
            *to += from;
        }
        for (to, from) in self.buckets.iter_mut().zip(other.buckets) {
            *to += from;
        }
        self.micros += other.micros;
    }
}

impl Traffic {
    /// `server` answered after `took`.
    pub(super) fn note(&self, server: ServerId, status: StatusCode, took: Duration) {
        if server == ServerId::Local {
            let Part(own) = &self.local[OWN.with(|own| *own)];
            own.note(status, took);
            return;
        }
        // Apart from the first request, no lock is taken for writing.
        let route = self.peers.get(&server).map(|it| Arc::clone(it.value()));
        let route =
            route.unwrap_or_else(|| Arc::clone(self.peers.entry(server).or_default().value()));
        route.note(status, took);
    }

    /// Local's traffic.
    pub fn local(&self) -> Count {
        let mut all = Count::default();
        for Part(part) in &self.local {
            all.add(&part.read());
        }
        all
    }

    /// Each known peer's traffic, and that of former ones together. Peers that `table` does not know any more become
    /// former ones, so that what is kept is bounded by the number of servers.
    pub fn peers(&self, table: &Table) -> (Vec<(ServerId, Count)>, Count) {
        let members = table.members();
        self.peers.retain(|id, route| {
            let known = members.peers.iter().any(|peer| peer.id == *id);
            if !known {
                self.former.absorb(&route.read());
            }
            known
        });
        let mut peers: Vec<_> = self
            .peers
            .iter()
            .map(|entry| (*entry.key(), entry.value().read()))
            .collect();
        peers.sort_by_key(|(id, _)| *id);
        (peers, self.former.read())
    }

    fn all_peers(&self) -> Count {
        let mut all = self.former.read();
        for entry in &self.peers {
            all.add(&entry.value().read());
        }
        all
    }
}

/// The part of it that `/metrics` shows: local, and all peers together.
#[derive(Debug)]
pub(super) struct Families(pub(super) Arc<Traffic>);

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RequestLabels {
    server: &'static str,
    code: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ServerLabels {
    server: &'static str,
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = [("local", self.0.local()), ("peer", self.0.all_peers())];
        let mut family = encoder.encode_descriptor(
            "mvp_requests",
            "Requests answered by a kube-apiserver, by the first digit of the status",
            None,
            MetricType::Counter,
        )?;
        for (server, count) in counts {
            for (code, answers) in CLASSES.into_iter().zip(count.answers) {
                family
                    .encode_family(&RequestLabels { server, code })?
                    .encode_counter::<NoLabelSet, _, f64>(&answers, None)?;
            }
        }
        let mut family = encoder.encode_descriptor(
            "mvp_request_duration_seconds",
            "From the head of a request to the head of a kube-apiserver's answer, further attempts included",
            None,
            MetricType::Histogram,
        )?;
        for (server, count) in counts {
            let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(count.buckets).collect();
            let seconds = Duration::from_micros(count.micros).as_secs_f64();
            family
                .encode_family(&ServerLabels { server })?
                .encode_histogram::<NoLabelSet>(
                    seconds,
                    count.buckets.iter().sum(),
                    &buckets,
                    None,
                )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text, registry::Registry};

    use super::*;
    use crate::table::Server;

    fn peer(number: u8) -> ServerId {
        ServerId::Peer(([10, 0, 0, number], 6443).into())
    }

    #[test]
    fn times_are_told_by_server_in_cumulative_buckets() {
        let traffic = Arc::new(Traffic::default());
        let ok = StatusCode::OK;
        traffic.note(ServerId::Local, ok, Duration::from_micros(500));
        traffic.note(ServerId::Local, ok, Duration::from_micros(501));
        traffic.note(
            ServerId::Local,
            StatusCode::NOT_FOUND,
            Duration::from_mins(2),
        );
        traffic.note(peer(2), ok, Duration::from_millis(7));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Families(traffic)));
        let mut out = String::new();
        text::encode(&mut out, &registry).unwrap();
        for line in [
            "mvp_requests_total{server=\"local\",code=\"2xx\"} 2",
            "mvp_requests_total{server=\"local\",code=\"4xx\"} 1",
            "mvp_requests_total{server=\"peer\",code=\"2xx\"} 1",
            "mvp_requests_total{server=\"peer\",code=\"5xx\"} 0",
            "mvp_request_duration_seconds_bucket{le=\"0.0005\",server=\"local\"} 1",
            "mvp_request_duration_seconds_bucket{le=\"0.001\",server=\"local\"} 2",
            "mvp_request_duration_seconds_bucket{le=\"60.0\",server=\"local\"} 2",
            "mvp_request_duration_seconds_bucket{le=\"+Inf\",server=\"local\"} 3",
            "mvp_request_duration_seconds_count{server=\"local\"} 3",
            "mvp_request_duration_seconds_sum{server=\"peer\"} 0.007",
        ] {
            assert!(out.contains(line), "{line} is not in\n{out}");
        }
    }

    #[test]
    fn what_threads_count_apart_is_told_together() {
        let traffic = Traffic::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * PARTS {
                scope.spawn(|| {
                    traffic.note(ServerId::Local, StatusCode::OK, Duration::from_micros(1));
                });
            }
        });
        let parts = traffic.local.iter();
        let used = parts.filter(|it| it.0.read() != Count::default()).count();
        assert!(used > 1, "{used}");
        let count = traffic.local();
        assert_eq!(
            (count.answers[1], count.buckets[0], count.micros),
            (32, 32, 32)
        );
    }

    #[test]
    fn a_status_that_is_none_is_counted_by_time_only() {
        let traffic = Traffic::default();
        let odd = StatusCode::from_u16(999).unwrap();
        traffic.note(ServerId::Local, odd, Duration::ZERO);
        let count = traffic.local();
        assert_eq!((count.answers, count.buckets[0]), ([0; 5], 1));
    }

    #[test]
    fn servers_that_come_and_go_do_not_pile_up_and_no_count_is_lost() {
        let address = |number: u8| ([10, 0, 0, number], 6443).into();
        let local = Arc::new(Server::new(ServerId::Local, address(1)));
        let table = Table::new(local);
        let traffic = Traffic::default();
        for number in 2..=200 {
            table.set_peers(vec![Arc::new(Server::new(peer(number), address(number)))]);
            traffic.note(peer(number), StatusCode::OK, Duration::ZERO);
            let (peers, former) = traffic.peers(&table);
            assert_eq!(peers.len(), 1);
            assert_eq!(former.answers[1], u64::from(number) - 2);
        }
        assert_eq!(traffic.all_peers().answers[1], 199);
    }
}
