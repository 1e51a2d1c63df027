//! What `serve` counts.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Method, StatusCode};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::{
    accept::RawReason,
    api::ServerId,
    identity::Reason,
    metrics::begin,
    reply::{Refusal, Side},
    request_info::RequestInfo,
    route::Outcome,
    table::{Server, Table},
    throttle::Throttle,
    tunnel::{self, Tally},
};

use super::{
    recent::Kind,
    traffic::{Families, Traffic},
};

/// All counts of this room; shared by the threads. What is counted at every request needs no look-up.
#[derive(Debug)]
pub struct Metrics {
    traffic: Arc<Traffic>,
    /// Lines that clients can provoke.
    pub(super) lines: Lines,
    refused: Family<RefusedLabels, Counter>,
    certificates: Family<CertificateLabels, Counter>,
    rerouted: Bounded<ReroutedLabels>,
    peer_errors: Bounded<PeerErrorLabels>,
    again: Counter,
    raw: Family<RawLabels, Counter>,
    /// Tunnels that are open now: upgrades and raw connections.
    pub(super) tunnels: Gauge,
    bytes_up: Family<WayLabels, Counter>,
    bytes_down: Family<WayLabels, Counter>,
    in_kernel: Counter,
    key_updates: Counter,
}

/// What bounds each line of the log that a client can provoke.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) certificate: Throttle,
    pub(super) raw: Throttle,
    pub(super) raw_closed: Throttle,
    pub(super) rerouted: Throttle,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RefusedLabels {
    reason: &'static str,
    side: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct CertificateLabels {
    reason: &'static str,
}

/// kube-apiserver's own labels (`apiserver_rerouted_request_total`).
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ReroutedLabels {
    code: u16,
    #[prometheus(flatten)]
    named: Named,
}

/// kube-apiserver's own labels (`apiserver_peer_proxy_errors_total`).
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct PeerErrorLabels {
    r#type: &'static str,
    #[prometheus(flatten)]
    named: Named,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RawLabels {
    why: &'static str,
    result: &'static str,
}

/// `spliced`: inside the kernel; `copied`: through memory of this process.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct WayLabels {
    way: &'static str,
}

/// Stands for names that no server serves, and for those beyond [`MAX_SETS`].
const OTHER: &str = "other";
/// Sets of labels of one family that names resources. More than a cluster has; what comes beyond is counted together.
const MAX_SETS: usize = 2000;

/// The resource of a request, as labels: only names that the server serves, whatever a client asks for. (While local is
/// away a peer is asked for everything, and a server that was not read for what nobody is known to serve.)
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Named {
    group: String,
    version: String,
    resource: String,
}

impl Named {
    fn of(table: &Table, info: &RequestInfo, server: &Server) -> Self {
        let Some(asked) = info.resource() else {
            return Self::default();
        };
        let known = table.look(server.id, |it| it.resources.contains_key(&asked));
        if known != Some(true) {
            return Self::other();
        }
        Self {
            group: asked.group.to_owned(),
            version: asked.version.to_owned(),
            resource: asked.resource.to_owned(),
        }
    }

    fn other() -> Self {
        Self {
            group: OTHER.to_owned(),
            version: OTHER.to_owned(),
            resource: OTHER.to_owned(),
        }
    }
}

/// A family whose labels name resources: bounded, because resources come and go with CRDs for years.
#[derive(Debug)]
struct Bounded<L> {
    family: Family<L, Counter>,
    sets: AtomicUsize,
}

impl<L: Clone + std::hash::Hash + Eq> Bounded<L> {
    fn new() -> Self {
        Self {
            family: Family::default(),
            sets: AtomicUsize::new(0),
        }
    }

    /// Counts in the labels of `named`, or in those of [`Named::other`] if the family is full.
    fn count(&self, named: Named, labels: impl Fn(Named) -> L) {
        let own = labels(named);
        if let Some(counter) = self.family.get(&own) {
            counter.inc();
            return;
        }
        let full = self.sets.fetch_add(1, Ordering::Relaxed) >= MAX_SETS;
        let own = if full { labels(Named::other()) } else { own };
        self.family.get_or_create(&own).inc();
    }
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            certificate: Throttle::new(10, 1),
            raw: Throttle::new(20, 5),
            raw_closed: Throttle::new(20, 5),
            // One line per rerouted request is promised; a flood of them is not.
            rerouted: Throttle::new(500, 100),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            traffic: Arc::default(),
            lines: Lines::default(),
            refused: Family::default(),
            certificates: Family::default(),
            rerouted: Bounded::new(),
            peer_errors: Bounded::new(),
            again: Counter::default(),
            raw: Family::default(),
            tunnels: Gauge::default(),
            bytes_up: Family::default(),
            bytes_down: Family::default(),
            in_kernel: Counter::default(),
            key_updates: Counter::default(),
        };
        begin(&metrics.refused, Refusal::ALL.map(RefusedLabels::of));
        let certificate = |reason: Reason| CertificateLabels {
            reason: reason.as_str(),
        };
        begin(&metrics.certificates, Reason::ALL.map(certificate));
        for why in [RawReason::Loopback, RawReason::Direct] {
            begin(&metrics.raw, [true, false].map(|it| RawLabels::of(why, it)));
        }
        for family in [&metrics.bytes_up, &metrics.bytes_down] {
            begin(family, ["spliced", "copied"].map(|way| WayLabels { way }));
        }
        metrics
    }
}

impl RefusedLabels {
    const fn of(why: Refusal) -> Self {
        Self {
            reason: why.as_str(),
            side: match why.side() {
                Side::Client => "client",
                Side::Local => "local",
                Side::Peer => "peer",
                Side::Proxy => "proxy",
            },
        }
    }
}

impl RawLabels {
    const fn of(why: RawReason, connected: bool) -> Self {
        Self {
            why: match why {
                RawReason::Loopback => "loopback",
                RawReason::Direct => "direct",
            },
            result: if connected { "joined" } else { "local_down" },
        }
    }
}

impl Metrics {
    /// How often a client certificate yielded no identity for this reason.
    pub fn certificates_without_identity(&self, reason: Reason) -> u64 {
        let reason = reason.as_str();
        self.certificates
            .get(&CertificateLabels { reason })
            .map_or(0, |count| count.get())
    }

    /// Publishes them.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(Families(Arc::clone(&self.traffic))));
        registry.register(
            "mvp_refused",
            "Requests answered by mvp itself",
            self.refused.clone(),
        );
        registry.register(
            "mvp_certificates_without_identity",
            "Requests with a client certificate that yields no identity; without a token they are refused",
            self.certificates.clone(),
        );
        registry.register(
            "apiserver_rerouted_request",
            "Requests about a resource that were answered by a peer",
            self.rerouted.family.clone(),
        );
        registry.register(
            "apiserver_peer_proxy_errors",
            "Attempts at a peer that failed",
            self.peer_errors.family.clone(),
        );
        registry.register(
            "mvp_sent_again",
            "Requests sent once more to the same server",
            self.again.clone(),
        );
        registry.register(
            "mvp_raw_connections",
            "Connections passed byte for byte",
            self.raw.clone(),
        );
        registry.register(
            "mvp_tunnels",
            "Open upgrades and raw connections",
            self.tunnels.clone(),
        );
        registry.register(
            "mvp_tunnel_up_bytes",
            "Bytes tunnelled from clients, inside the kernel (spliced) or through memory (copied)",
            self.bytes_up.clone(),
        );
        registry.register(
            "mvp_tunnel_down_bytes",
            "Bytes tunnelled to clients, inside the kernel (spliced) or through memory (copied)",
            self.bytes_down.clone(),
        );
        registry.register(
            "mvp_tunnels_in_kernel_tls",
            "Tunnels whose TLS was handed to the kernel",
            self.in_kernel.clone(),
        );
        registry.register(
            "mvp_tunnels_cut_by_key_update",
            "Tunnels in kernel TLS that ended because a peer changed its key",
            self.key_updates.clone(),
        );
    }

    /// How much goes where, for those who look.
    pub fn traffic(&self) -> Arc<Traffic> {
        Arc::clone(&self.traffic)
    }

    /// Makes families appear that have no sample before something happens to a resource.
    #[cfg(test)]
    pub(crate) fn show_all(&self, table: &Table) {
        let address = ([10, 0, 0, 2], 6443).into();
        let peer = Server::new(ServerId::Peer(address), address);
        let uri = http::Uri::from_static("/apis/apps/v1/deployments");
        let Ok(info) = RequestInfo::parse(&Method::GET, &uri) else {
            return;
        };
        self.answered(table, &info, &peer, StatusCode::OK, Duration::ZERO);
        self.failed(table, &info, &peer, Outcome::Unreachable);
    }

    pub(super) fn answered(
        &self,
        table: &Table,
        info: &RequestInfo,
        server: &Server,
        status: StatusCode,
        took: Duration,
    ) {
        self.traffic.note(server.id, status, took);
        if server.id != ServerId::Local && info.resource().is_some() {
            let code = status.as_u16();
            let named = Named::of(table, info, server);
            self.rerouted
                .count(named, |named| ReroutedLabels { code, named });
        }
    }

    pub(super) fn rerouted(
        &self,
        method: &Method,
        info: &RequestInfo,
        server: &Server,
        why: &'static str,
        status: StatusCode,
    ) {
        self.traffic.recent.rerouted(Kind {
            method,
            info: Some(info),
            server: Some(server.id),
            why,
            status: status.as_u16(),
        });
    }

    pub(super) fn refused(&self, method: &Method, info: Option<&RequestInfo>, why: Refusal) {
        self.traffic.recent.refused(Kind {
            method,
            info,
            server: None,
            why: why.as_str(),
            status: why.status().as_u16(),
        });
        self.refused.get_or_create(&RefusedLabels::of(why)).inc();
    }

    /// What came could not be read as a request.
    pub(super) fn unread(&self, why: Refusal) {
        self.refused.get_or_create(&RefusedLabels::of(why)).inc();
    }

    pub(super) fn certificate(&self, reason: Reason) {
        self.certificates
            .get_or_create(&CertificateLabels {
                reason: reason.as_str(),
            })
            .inc();
    }

    pub(super) fn failed(
        &self,
        table: &Table,
        info: &RequestInfo,
        server: &Server,
        outcome: Outcome,
    ) {
        if server.id == ServerId::Local {
            return;
        }
        let r#type = match outcome {
            Outcome::Unprocessed => "unprocessed",
            Outcome::Unreachable => "proxy_transport",
            Outcome::NotFound => "not_found",
            Outcome::Refused => "forwarding_refused",
        };
        let named = Named::of(table, info, server);
        self.peer_errors
            .count(named, |named| PeerErrorLabels { r#type, named });
    }

    pub(super) fn again(&self) {
        self.again.inc();
    }

    pub(super) fn raw(&self, why: RawReason, connected: bool) {
        self.raw.get_or_create(&RawLabels::of(why, connected)).inc();
    }

    pub(super) fn tunnelled(&self, tally: &Tally, end: &io::Result<()>) {
        if tally.in_kernel.get() {
            self.in_kernel.inc();
        }
        if end.as_ref().is_err_and(tunnel::is_key_update) {
            self.key_updates.inc();
        }
        for (family, count) in [(&self.bytes_up, &tally.up), (&self.bytes_down, &tally.down)] {
            for (way, bytes) in [("spliced", &count.spliced), ("copied", &count.copied)] {
                family.get_or_create(&WayLabels { way }).inc_by(bytes.get());
            }
        }
    }
}

#[cfg(test)]
mod tests;
