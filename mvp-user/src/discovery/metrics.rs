//! What completing discovery counts.

use prometheus_client::{metrics::counter::Counter, registry::Registry};

use super::openapi::Trouble;
use crate::api::{ServerId, wire::WireError};

/// What was done so far, for metrics and tests.
#[derive(Debug, Default)]
pub struct Counters {
    builds: Counter,
    hits: Counter,
    parses: Counter,
    unreadable: Counter,
    openapi_fallbacks: Counter,
}

impl Counters {
    /// Offers the counters.
    pub fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            (
                "mvp_discovery_builds",
                "Discovery and OpenAPI documents completed from several servers",
                &self.builds,
            ),
            (
                "mvp_discovery_hits",
                "Requests whose completed document was there already",
                &self.hits,
            ),
            (
                "mvp_discovery_parses",
                "Discovery answers of servers that had to be parsed",
                &self.parses,
            ),
            (
                "mvp_discovery_unreadable",
                "Discovery answers relayed without completion because they could not be read",
                &self.unreadable,
            ),
            (
                "mvp_openapi_fallbacks",
                "OpenAPI answers relayed without completion although something is missing from them",
                &self.openapi_fallbacks,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
    }

    /// Documents that were merged.
    pub fn builds(&self) -> u64 {
        self.builds.get()
    }

    /// Requests that found their document merged.
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }

    /// Answers of servers that were parsed.
    pub fn parses(&self) -> u64 {
        self.parses.get()
    }

    /// Answers that could not be completed because they could not be read.
    pub fn unreadable_answers(&self) -> u64 {
        self.unreadable.get()
    }

    /// OpenAPI answers that went out as they were although something was missing.
    pub fn openapi_fallbacks(&self) -> u64 {
        self.openapi_fallbacks.get()
    }

    pub(super) fn build(&self) {
        self.builds.inc();
    }

    pub(super) fn hit(&self) {
        self.hits.inc();
    }

    pub(super) fn parse(&self) {
        self.parses.inc();
    }

    pub(super) fn unreadable(&self, server: ServerId, error: &WireError) {
        // Once at the level that people read: a server that answers like this does so for every request.
        if self.unreadable.inc() == 0 {
            tracing::warn!(%server, %error, "Discovery answer relayed without completion");
        } else {
            tracing::debug!(%server, %error, "Discovery answer relayed without completion");
        }
    }

    pub(super) fn openapi_fallback(&self, server: ServerId, trouble: &Trouble) {
        if self.openapi_fallbacks.inc() == 0 {
            tracing::warn!(%server, %trouble, "OpenAPI answer relayed without completion");
        } else {
            tracing::debug!(%server, %trouble, "OpenAPI answer relayed without completion");
        }
    }
}
