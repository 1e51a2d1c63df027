//! What a load process is told, and what it tells.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// One piece of work against one address.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Whom to ask: a server or a proxy.
    pub to: SocketAddr,
    /// Authority of its certificate, PEM.
    pub ca: PathBuf,
    /// As whom.
    pub identity: Identity,
    /// HTTP/2, or HTTP/1.1.
    pub http2: bool,
    /// Connections.
    pub connections: usize,
    /// Requests (streams) at a time on each connection; HTTP/1.1 has one.
    pub streams: usize,
    /// What to do on them.
    pub work: Work,
}

/// Who asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Identity {
    /// A client certificate and its key, PEM files.
    Certificate(PathBuf, PathBuf),
    /// A bearer token.
    Token(String),
}

/// What is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Work {
    /// Requests, one after the other in each stream, chosen from `shots` by weight.
    Requests {
        /// What is asked for.
        shots: Vec<Shot>,
        /// How fast.
        pace: Pace,
        /// Unmeasured at first.
        warm: Duration,
        /// Measured.
        run: Duration,
    },
    /// One request on a fresh connection: what the first caller waits for.
    First {
        /// What is asked for.
        shot: Shot,
    },
    /// Full TLS handshakes, each with one request, as many as fit.
    Storm {
        /// Measured.
        run: Duration,
    },
    /// Connections with one request each, then silence.
    Idle,
    /// Bodies read slower than they could be sent.
    Slow {
        /// Length of each.
        bytes: u64,
        /// Bytes a second that each reader takes.
        rate: u64,
        /// How long that goes on before memory is measured.
        hold: Duration,
    },
    /// Upgraded connections through which the server sends as fast as it can.
    Tunnels {
        /// How much on each.
        bytes: u64,
        /// As kube-apiserver's own client, whose connections mvp passes as they are.
        raw: bool,
    },
    /// `connections` times `streams` watches, and events that reach all of them.
    Watches {
        /// How many events.
        events: u32,
        /// How far apart.
        every: Duration,
        /// The server that sends them when told to.
        origin: SocketAddr,
    },
}

/// One kind of request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shot {
    /// How often, relative to the others.
    pub weight: u32,
    /// Method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// `Accept`, if any.
    pub accept: Option<String>,
    /// Bytes of the request's body.
    pub body: usize,
    /// The body itself, JSON, where the server reads it.
    pub json: Option<String>,
    /// With the `ETag` of an earlier answer, so that 304 is expected.
    pub conditional: bool,
}

impl Shot {
    /// A GET of `path`.
    pub fn get(path: impl Into<String>) -> Self {
        Self {
            weight: 1,
            method: "GET".to_owned(),
            path: path.into(),
            accept: None,
            body: 0,
            json: None,
            conditional: false,
        }
    }

    /// A POST of `body` bytes to `path`.
    pub fn post(path: impl Into<String>, body: usize) -> Self {
        Self {
            method: "POST".to_owned(),
            body,
            ..Self::get(path)
        }
    }

    /// With a body that means something.
    #[must_use]
    pub fn saying(mut self, json: String) -> Self {
        (self.body, self.json) = (json.len(), Some(json));
        self
    }

    /// With a weight.
    #[must_use]
    pub fn weighing(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// With an `Accept` header.
    #[must_use]
    pub fn accepting(mut self, accept: &str) -> Self {
        self.accept = Some(accept.to_owned());
        self
    }

    /// With `If-None-Match`.
    #[must_use]
    pub const fn conditional(mut self) -> Self {
        self.conditional = true;
        self
    }
}

/// How fast requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Pace {
    /// The next as soon as the last was answered: throughput.
    Closed,
    /// So many a second whatever the answers do; latency counts from when each was due, so that a stall is seen by every
    /// request that it delays (no coordinated omission).
    Open(f64),
}

/// What was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests (handshakes, events received) that succeeded.
    pub done: u64,
    /// That failed.
    pub failed: u64,
    /// What the first failure said.
    pub failure: Option<String>,
    /// Bytes of bodies.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Latency of requests (open pace: from when they were due).
    pub latency: Curve,
    /// How late this process itself handed out due times (open pace): large means that the figures are about it.
    pub lag: Curve,
}

/// A distribution in microseconds: points (percentile, value).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Ascending.
    pub points: Vec<(f64, f64)>,
}

/// The percentiles that are kept.
const PERCENTILES: [f64; 16] = [
    0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 97.5, 99.0, 99.5, 99.75, 99.9, 99.95, 99.99, 99.999,
    100.0,
];

impl Curve {
    /// Of a histogram of nanoseconds.
    #[expect(
        clippy::cast_precision_loss,
        reason = "latencies are far below 2^52 ns"
    )]
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let value = |percentile| histogram.value_at_percentile(percentile) as f64 / 1e3;
        Self {
            points: PERCENTILES
                .map(|percentile| (percentile, value(percentile)))
                .to_vec(),
        }
    }

    /// The value at one of the kept percentiles, in microseconds.
    pub fn at(&self, percentile: f64) -> Option<f64> {
        let found = self
            .points
            .iter()
            .find(|(at, _)| (at - percentile).abs() < 1e-9);
        found.map(|(_, value)| *value)
    }
}

/// A histogram of nanoseconds up to two minutes, to three digits.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 120_000_000_000, 3)?)
}
