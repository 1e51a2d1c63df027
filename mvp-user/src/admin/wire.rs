//! What the control socket says: JSON objects, the same on both sides of it. Times are whole seconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config;

/// `mvp status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Version of mvp.
    pub version: String,
    /// Process.
    pub pid: u32,
    /// Name of the node.
    #[serde(default)]
    pub node: String,
    /// Since it started.
    pub uptime: u64,
    /// Whether `/readyz` is 200.
    pub ready: bool,
    /// What keeps it from being ready.
    pub not_ready: Vec<String>,
    /// Whether new connections come here.
    pub steering: Steering,
    /// Client connections.
    pub connections: Connections,
    /// Seconds since each thread last gave a sign of life, in thousandths.
    pub beats_ms: Vec<u64>,
    /// All servers, local first.
    pub servers: Vec<Server>,
    /// How many rows `mvp skew` has.
    pub skew: usize,
}

/// Whether new connections are steered, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steering {
    /// `auto`, `always` or `never`.
    pub mode: String,
    /// `on`, `off`, `full`, or `none`: this process does not steer (`--listen`).
    pub state: String,
    /// The reason, one word.
    pub why: String,
    /// What `auto` steers for, in full: the server and what it has that local lacks; empty: there is nothing to add.
    #[serde(default)]
    pub detail: String,
    /// Since the state last changed.
    pub since: u64,
    /// Share of client addresses that is steered.
    pub percent: u8,
    /// The kernel's look-ups by outcome.
    pub lookups: BTreeMap<String, u64>,
    /// Direct connections that are older than steering and still there; none: not counted.
    pub older_connections: Option<u64>,
}

/// Client connections at mvp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Open now.
    pub open: usize,
    /// The bound (`--max-connections`).
    pub bound: usize,
}

/// One kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// `local`, or the address.
    pub id: String,
    /// Where it is reached.
    pub address: String,
    /// From its identity Lease.
    pub name: Option<String>,
    /// Kubernetes version; none: never read.
    pub version: Option<String>,
    /// `up`, `starting`, `draining`, `down`.
    pub health: String,
    /// `proven`, `unproven`, `refused`.
    pub proof: String,
    /// `listed`, `departed`.
    pub membership: String,
    /// `fresh`, `stale`; none: never read.
    pub catalogue: Option<String>,
    /// Since its discovery was last read.
    pub age: Option<u64>,
    /// Resources and subresources that it serves.
    pub resources: usize,
    /// Microseconds that its last good probe took: connection, TLS handshake and `/readyz`.
    #[serde(default)]
    pub latency_us: Option<u64>,
    /// Why the last read was not complete.
    pub trouble: Option<String>,
    /// Until a departed server is forgotten.
    pub forgotten_in: Option<u64>,
}

/// A difference between servers: who serves these verbs and who does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Group; empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Resource.
    pub resource: String,
    /// Subresource, if the difference is there.
    pub subresource: Option<String>,
    /// Verbs.
    pub verbs: Vec<String>,
    /// Who serves them.
    pub served_by: Vec<String>,
    /// Who does not.
    pub lacked_by: Vec<String>,
    /// Owned by a CRD or an aggregated APIService: shared by all servers, so the difference is only one of time.
    pub shared: bool,
}

/// `GET /v1/overview`: everything that the status page shows, taken at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Overview {
    /// `mvp status`.
    pub status: Status,
    /// `mvp skew`.
    pub differences: Vec<Difference>,
    /// How much goes where.
    pub traffic: Traffic,
}

/// How much went where since the process started, and the last unusual requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Upper bounds in seconds of [`RouteTraffic::buckets`], whose last has none.
    pub bounds: Vec<f64>,
    /// Local, each peer that answered, and `former`: peers that are not known any more.
    pub routes: Vec<RouteTraffic>,
    /// Requests that a peer answered, newest first.
    pub rerouted: Vec<Event>,
    /// Requests that mvp answered itself, newest first.
    pub refused: Vec<Event>,
}

/// Answers of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteTraffic {
    /// `local`, an address, or `former`.
    pub server: String,
    /// By the first digit of the status, from 1 to 5.
    pub answers: Vec<u64>,
    /// By time from the head of the request to that of the answer; not cumulative.
    pub buckets: Vec<u64>,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// HTTP method; `OTHER` for an unusual one.
    pub method: String,
    /// Group, version, resource and subresource, or a word for another path; empty: refused unread.
    pub what: String,
    /// Who answered; none: mvp.
    pub server: Option<String>,
    /// Why, one word.
    pub why: String,
    /// HTTP status.
    pub status: u16,
    /// How many.
    pub count: u64,
    /// Seconds since the last one.
    pub ago: u64,
}

/// Where requests for a resource go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Group; empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Resource.
    pub resource: String,
    /// Subresource.
    pub subresource: Option<String>,
    /// `local`, an address, or the word of a refusal.
    pub to: String,
    /// Why.
    pub because: String,
    /// Who serves it.
    pub served_by: Vec<String>,
}

/// `mvp explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The request.
    pub method: String,
    /// Decoded.
    pub path: String,
    /// `resource`, `discovery`, `openapi`, `local only`, `other`.
    pub class: String,
    /// Kubernetes verb.
    pub verb: Option<String>,
    /// Group, version and resource.
    pub resource: Option<String>,
    /// Subresource.
    pub subresource: Option<String>,
    /// Namespace.
    pub namespace: Option<String>,
    /// Object name.
    pub name: Option<String>,
    /// Kind of caller that is assumed.
    pub caller: String,
    /// The first decision, and what follows as long as every server fails: ends in a refusal.
    pub steps: Vec<Step>,
    /// Every server, as the decision saw it.
    pub servers: Vec<View>,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// `local`, an address, or the word of a refusal.
    pub to: String,
    /// Why.
    pub because: String,
    /// HTTP status of a refusal.
    pub status: Option<u16>,
}

/// One server, as a decision saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// `local`, or the address.
    pub server: String,
    /// Its name.
    pub name: Option<String>,
    /// Health.
    pub health: String,
    /// Proof of identity forwarding.
    pub proof: String,
    /// Membership.
    pub membership: String,
    /// `yes`, `no`, or `unread`.
    pub serves: String,
}

/// One line of `mvp check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at.
    pub check: String,
    /// How it is.
    pub result: Grade,
    /// What was found.
    pub found: String,
    /// What to do, if anything.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
}

/// How a check ended; the worst decides the exit code of `mvp check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// As it should be.
    Ok,
    /// Works, but should be looked at.
    Warn,
    /// Does not work.
    Fail,
}

/// What `POST /v1/steer` takes; one of both.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SteerOrder {
    /// New mode.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<Mode>,
    /// New share.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub percent: Option<u8>,
}

/// Modes of `mvp steer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Steer whenever it is safe.
    On,
    /// Do not steer.
    Off,
    /// Steer while servers differ.
    Auto,
}

/// `mvp config`: one flag of `mvp run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value as text; lists with commas.
    pub value: String,
    /// Where that is from.
    pub origin: String,
}

impl From<&config::Setting> for Setting {
    fn from(it: &config::Setting) -> Self {
        Self {
            name: it.name.to_owned(),
            value: it.value.clone(),
            origin: it.origin.to_string(),
        }
    }
}

/// `GET /v1/probe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Whether its threads work.
    pub live: bool,
    /// Whether it is ready.
    pub ready: bool,
    /// What is wrong.
    pub problems: Vec<String>,
}

/// An answer that is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// One sentence.
    pub error: String,
}
