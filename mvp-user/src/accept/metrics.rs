//! What became of each connection, counted by kind.

use std::io;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::RawReason;
use crate::metrics::begin;

/// What became of a connection. [`Outcome::as_str`] is the label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// TLS handshake done.
    Terminated,
    /// Passed raw.
    Raw(RawReason),
    /// Answered as Go does.
    PlainHttp,
    /// The client went away before the handshake was done.
    Closed,
    /// The client opened a connection and closed it without a byte: a health check.
    Probe,
    /// Too slow.
    Timeout,
    /// The client sent an alert: it does not trust the serving certificate, or cannot agree on parameters.
    AlertReceived,
    /// The certificate's key was not the client's, or its certificate cannot be parsed.
    BadCertificate,
    /// Nothing in common: version, suite, ALPN.
    Incompatible,
    /// Not TLS, or not correct TLS.
    Malformed,
    /// The socket failed.
    Socket,
    /// accept(2) failed for lack of room.
    Exhausted,
    /// accept(2) failed otherwise.
    AcceptError,
}

impl Outcome {
    /// All of them.
    const ALL: [Self; 14] = [
        Self::Terminated,
        Self::Raw(RawReason::Loopback),
        Self::Raw(RawReason::Direct),
        Self::PlainHttp,
        Self::Closed,
        Self::Probe,
        Self::Timeout,
        Self::AlertReceived,
        Self::BadCertificate,
        Self::Incompatible,
        Self::Malformed,
        Self::Socket,
        Self::Exhausted,
        Self::AcceptError,
    ];

    /// The stable word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Terminated => "terminated",
            Self::Raw(RawReason::Loopback) => "raw_loopback",
            Self::Raw(RawReason::Direct) => "raw_direct",
            Self::PlainHttp => "plain_http",
            Self::Closed => "closed",
            Self::Probe => "probe",
            Self::Timeout => "timeout",
            Self::AlertReceived => "alert_received",
            Self::BadCertificate => "bad_certificate",
            Self::Incompatible => "incompatible",
            Self::Malformed => "malformed",
            Self::Socket => "socket",
            Self::Exhausted => "exhausted",
            Self::AcceptError => "accept_error",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Labels {
    outcome: &'static str,
}

#[derive(Debug)]
pub(super) struct Metrics {
    accepted: Family<Labels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let accepted = Family::default();
        let outcomes = Outcome::ALL.map(|outcome| Labels {
            outcome: outcome.as_str(),
        });
        begin(&accepted, outcomes);
        Self { accepted }
    }
}

impl Metrics {
    pub(super) fn count(&self, outcome: Outcome) {
        let labels = Labels {
            outcome: outcome.as_str(),
        };
        self.accepted.get_or_create(&labels).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "mvp_client_connections_accepted",
            "Client connections by what became of them",
            self.accepted.clone(),
        );
    }

    #[cfg(test)]
    pub(super) fn get(&self, outcome: Outcome) -> u64 {
        let labels = Labels {
            outcome: outcome.as_str(),
        };
        self.accepted.get_or_create(&labels).get()
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) outcome: Outcome,
    pub(super) detail: String,
}

impl Failure {
    pub(super) fn timeout(detail: &str) -> Self {
        Self {
            outcome: Outcome::Timeout,
            detail: detail.to_owned(),
        }
    }

    pub(super) fn closed(after: usize) -> Self {
        let outcome = if after == 0 {
            Outcome::Probe
        } else {
            Outcome::Closed
        };
        Self {
            outcome,
            detail: format!("closed after {after} bytes"),
        }
    }
}

impl From<rustls::Error> for Failure {
    fn from(error: rustls::Error) -> Self {
        use rustls::Error;
        let outcome = match &error {
            Error::AlertReceived(_) => Outcome::AlertReceived,
            Error::InvalidCertificate(_) | Error::DecryptError => Outcome::BadCertificate,
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Outcome::Incompatible,
            _ => Outcome::Malformed,
        };
        Self {
            outcome,
            detail: error.to_string(),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        // tokio-rustls wraps what rustls says.
        let error = match error.downcast::<rustls::Error>() {
            Ok(error) => return error.into(),
            Err(error) => error,
        };
        let outcome = match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Outcome::Closed,
            io::ErrorKind::InvalidData => Outcome::Malformed,
            _ => Outcome::Socket,
        };
        Self {
            outcome,
            detail: error.to_string(),
        }
    }
}
