//! What learning counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use crate::metrics::begin;

/// Counters of `peers`.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics {
    /// Complete reads of a server.
    pub(super) reads: Counter,
    /// Departed peers dropped after their grace period, or because somebody asked for it.
    pub(super) dropped: Counter,
    errors: Family<ErrorLabels, Counter>,
}

/// kube-apiserver's own label (`apiserver_peer_discovery_sync_errors_total`).
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ErrorLabels {
    r#type: &'static str,
}

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let kinds = ["connection", "not_ready", "status", "document"];
        begin(&self.errors, kinds.map(|r#type| ErrorLabels { r#type }));
        registry.register(
            "mvp_discovery_reads",
            "Complete reads of what a server serves",
            self.reads.clone(),
        );
        registry.register(
            "mvp_peers_dropped",
            "Departed peers dropped after their grace period, or by mvp peers forget",
            self.dropped.clone(),
        );
        registry.register(
            "apiserver_peer_discovery_sync_errors",
            "Reads of what a server serves that failed or were not complete",
            self.errors.clone(),
        );
    }

    pub(super) fn failed(&self, kind: &'static str) {
        self.errors
            .get_or_create(&ErrorLabels { r#type: kind })
            .inc();
    }
}
