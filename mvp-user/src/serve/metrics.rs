//! What `serve` counts.

use std::io;

use http::StatusCode;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::{
    accept::RawReason,
    api::ServerId,
    identity::Reason,
    reply::{Refusal, Side},
    request_info::RequestInfo,
    route::{Because, Outcome},
    table::Server,
    tunnel::{self, Tally},
};

/// All counts of this room; shared by the threads. What is counted at every request needs no look-up.
#[derive(Debug)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    local: Answers,
    peer: Answers,
    refused: Family<RefusedLabels, Counter>,
    certificates: Family<CertificateLabels, Counter>,
    rerouted: Family<ReroutedLabels, Counter>,
    peer_errors: Family<PeerErrorLabels, Counter>,
    again: Counter,
    raw: Family<RawLabels, Counter>,
    /// Tunnels that are open now: upgrades and raw connections.
    pub(super) tunnels: Gauge,
    bytes_up: Family<WayLabels, Counter>,
    bytes_down: Family<WayLabels, Counter>,
    in_kernel: Counter,
    key_updates: Counter,
}

/// Answers by the first digit of their status: counters of one family.
#[derive(Debug)]
struct Answers([Counter; 5]);

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RequestLabels {
    server: &'static str,
    code: &'static str,
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
    group: String,
    version: String,
    resource: String,
}

/// kube-apiserver's own labels (`apiserver_peer_proxy_errors_total`).
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct PeerErrorLabels {
    r#type: &'static str,
    group: String,
    version: String,
    resource: String,
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

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

impl Default for Metrics {
    fn default() -> Self {
        let requests = Family::<RequestLabels, Counter>::default();
        let answers = |server| {
            Answers(CLASSES.map(|code| {
                requests
                    .get_or_create(&RequestLabels { server, code })
                    .clone()
            }))
        };
        Self {
            local: answers("local"),
            peer: answers("peer"),
            requests,
            refused: Family::default(),
            certificates: Family::default(),
            rerouted: Family::default(),
            peer_errors: Family::default(),
            again: Counter::default(),
            raw: Family::default(),
            tunnels: Gauge::default(),
            bytes_up: Family::default(),
            bytes_down: Family::default(),
            in_kernel: Counter::default(),
            key_updates: Counter::default(),
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
        registry.register(
            "mvp_requests",
            "Requests answered by a kube-apiserver",
            self.requests.clone(),
        );
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
            "Requests answered by a peer",
            self.rerouted.clone(),
        );
        registry.register(
            "apiserver_peer_proxy_errors",
            "Attempts at a peer that failed",
            self.peer_errors.clone(),
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
            "mvp_tunnel_bytes_up",
            "Bytes tunnelled from clients",
            self.bytes_up.clone(),
        );
        registry.register(
            "mvp_tunnel_bytes_down",
            "Bytes tunnelled to clients",
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

    pub(super) fn answered(
        &self,
        info: &RequestInfo,
        server: &Server,
        status: StatusCode,
        because: Because,
    ) {
        let counts = match server.id {
            ServerId::Local => &self.local,
            ServerId::Peer(_) => &self.peer,
        };
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(counter) = counts.0.get(class) {
            counter.inc();
        }
        if server.id != ServerId::Local && info.resource().is_some() {
            let [group, version, resource] = names(info, because);
            self.rerouted
                .get_or_create(&ReroutedLabels {
                    code: status.as_u16(),
                    group,
                    version,
                    resource,
                })
                .inc();
        }
    }

    pub(super) fn refused(&self, why: Refusal) {
        self.refused
            .get_or_create(&RefusedLabels {
                reason: why.as_str(),
                side: match why.side() {
                    Side::Client => "client",
                    Side::Local => "local",
                    Side::Peer => "peer",
                    Side::Proxy => "proxy",
                },
            })
            .inc();
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
        info: &RequestInfo,
        server: &Server,
        outcome: Outcome,
        because: Because,
    ) {
        if server.id == ServerId::Local {
            return;
        }
        let [group, version, resource] = names(info, because);
        self.peer_errors
            .get_or_create(&PeerErrorLabels {
                r#type: match outcome {
                    Outcome::Unprocessed => "unprocessed",
                    Outcome::Unreachable => "proxy_transport",
                    Outcome::NotFound => "not_found",
                    Outcome::Refused => "forwarding_refused",
                },
                group,
                version,
                resource,
            })
            .inc();
    }

    pub(super) fn again(&self) {
        self.again.inc();
    }

    pub(super) fn raw(&self, why: RawReason, connected: bool) {
        self.raw
            .get_or_create(&RawLabels {
                why: match why {
                    RawReason::Loopback => "loopback",
                    RawReason::Direct => "direct",
                },
                result: if connected { "joined" } else { "local_down" },
            })
            .inc();
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

/// Labels for a resource: those of one that a catalogue has. A peer that stands in for local is sent whatever clients,
/// unknown ones too, think of: labels of their making would grow without bound.
fn names(info: &RequestInfo, because: Because) -> [String; 3] {
    let known = matches!(
        because,
        Because::AuthorityServes | Because::PeerServes | Because::LastResort
    );
    match info.resource().filter(|_| known) {
        Some(it) => [it.group.into(), it.version.into(), it.resource.into()],
        None => Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn labels_are_never_of_a_clients_making() {
        let metrics = Metrics::default();
        let address = "10.0.0.2:6443".parse().unwrap();
        let peer = Server::new(ServerId::Peer(address), address);
        let ask = |path: &str| RequestInfo::parse(&Method::GET, &path.parse().unwrap()).unwrap();
        for number in 0..100 {
            // Anybody's, while local is down: the peer says 403 before it looks whether there is such a resource.
            let info = ask(&format!("/apis/g{number}/v1/things"));
            metrics.answered(&info, &peer, StatusCode::FORBIDDEN, Because::NobodyServes);
            metrics.failed(&info, &peer, Outcome::Unreachable, Because::AuthorityUnread);
        }
        let jobs = ask("/apis/batch/v1/jobs");
        metrics.answered(&jobs, &peer, StatusCode::OK, Because::PeerServes);
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let lines = |family: &str| text.lines().filter(|it| it.starts_with(family)).count();
        assert_eq!(lines("apiserver_rerouted_request_total{"), 2, "{text}");
        assert_eq!(lines("apiserver_peer_proxy_errors_total{"), 1, "{text}");
        assert!(
            text.contains("group=\"batch\",version=\"v1\",resource=\"jobs\"} 1"),
            "{text}"
        );
    }
}
