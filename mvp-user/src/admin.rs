//! Looks at everything, changes nothing but what `mvp steer` and `mvp peers forget` ask for: the control socket (root
//! only), and `/metrics`, `/livez`, `/readyz` on a TCP port.
//!
//! Simple JSON over HTTP/1.1; the objects are in [`wire`]. Not for carrying out what was ordered: `daemon` does, behind
//! [`Daemon`].

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Json, Router,
    extract::{Query, Request},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use serde::Deserialize;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    config::{Config, Flags, Setting, SteerMode},
    health::Prober,
    identity::Reason,
    metrics::{Exposition, Format},
    peers::Learner,
    route::{Asker, AskerKind},
    serve::traffic::Traffic,
    table::{Membership, Table},
    tls::Tls,
};

pub mod check;
mod collect;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod listen;
mod report;
#[cfg(test)]
mod tests;
pub mod wire;

use listen::{Control, Exposed};
use wire::{Connections, Mode, Probe, Problem, SteerOrder, Steering};

/// What only `daemon` knows and does.
pub trait Daemon: Send + Sync + 'static {
    /// Whether new connections are steered, and why.
    fn steering(&self) -> Steering;
    /// `mvp steer on|off|auto`; the error is one sentence.
    fn set_mode(&self, mode: SteerMode) -> Result<Taken, String>;
    /// `mvp steer percent N`; carried out when it returns.
    fn set_percent(&self, percent: u8) -> Result<(), String>;
    /// Since each thread that holds connections gave a sign of life.
    fn beats(&self) -> Vec<Duration>;
    /// Since mvp last answered its request to itself; none: it sends none.
    fn answered_itself(&self) -> Option<Duration>;
    /// Client connections.
    fn connections(&self) -> Connections;
    /// Whether a stop was asked for.
    fn is_draining(&self) -> bool;
    /// What `mvp check` looks at servers with; none: it does not look.
    fn ground(&self) -> Option<check::Ground> {
        None
    }
    /// How often a client certificate yielded no identity for this reason.
    fn certificates_without_identity(&self, _reason: Reason) -> u64 {
        0
    }
}

/// How long an order is waited for: the steering loop wakes at once, unless the node is starved or the kernel refuses.
const CARRIED_OUT_WITHIN: Duration = Duration::from_secs(2);

/// An order that was taken; that it was carried out is told by who does it.
#[derive(Debug)]
pub struct Taken {
    number: u64,
    carried_out: watch::Receiver<u64>,
}

impl Taken {
    /// The order of this number; `carried_out` tells the number of the last one that was carried out.
    pub fn new(number: u64, carried_out: watch::Receiver<u64>) -> Self {
        Self {
            number,
            carried_out,
        }
    }

    /// Waits; false: not within [`CARRIED_OUT_WITHIN`].
    async fn carried_out(self) -> bool {
        let Self {
            number,
            mut carried_out,
        } = self;
        let done = carried_out.wait_for(|last| *last >= number);
        let done = timeout(CARRIED_OUT_WITHIN, done).await;
        done.is_ok_and(|told| told.is_ok())
    }
}

/// What is looked at.
pub struct State {
    /// The routing table.
    pub table: Arc<Table>,
    /// Certificates.
    pub tls: Arc<Tls>,
    /// What the side room knows beside the table.
    pub learner: Learner,
    /// Proves identity forwarding on demand.
    pub prober: Prober,
    /// What `mvp run` was told.
    pub config: Arc<Config>,
    /// The same, with origins.
    pub settings: Vec<Setting>,
    /// What they were made of.
    pub flags: Flags,
    /// How much goes where.
    pub traffic: Arc<Traffic>,
    /// Everything else.
    pub daemon: Arc<dyn Daemon>,
    /// Since when there is what to look at.
    pub process: Process,
}

/// What begins with the process.
pub struct Process {
    started: Instant,
    started_unix: f64,
    differences: report::Remembered,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl Process {
    /// From this moment it counts as started.
    pub fn begin() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            started: Instant::now(),
            started_unix: now.unwrap_or_default().as_secs_f64(),
            differences: report::Remembered::default(),
        }
    }
}

/// Serves `state` until it is dropped: the control socket, and metrics where they are wanted until mvp drains. `exposition`
/// holds what the rooms registered. While [`State::not_ready`] is empty for the first time, the control socket is announced.
pub async fn run(
    state: Arc<State>,
    mut exposition: Exposition,
    control: Control,
    exposed: Option<Exposed>,
) {
    exposition.collect(collect::Scrape(Arc::clone(&state)));
    let exposition = Arc::new(exposition);
    let public = public(&state, &exposition);
    let private = private(&state).merge(public.clone());
    let announce = async {
        while !state.not_ready().is_empty() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        control.announce();
    };
    let until_it_drains = async {
        while !state.daemon.is_draining() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let metrics = async {
        // The port is the next process's then: a scraper that meets now one of them and now the other takes each change for a
        // restart, and every counter for one that has grown by all it has.
        if let Some(exposed) = exposed {
            tokio::select! {
                () = exposed.serve(public) => {}
                () = until_it_drains => {}
            }
        }
    };
    tokio::join!(announce, control.serve(private), metrics);
}

/// What `/metrics` reads at scrape time, for tests.
#[cfg(test)]
pub(crate) fn collector(state: &Arc<State>) -> impl prometheus_client::collector::Collector {
    collect::Scrape(Arc::clone(state))
}

/// `/metrics`, `/livez`, `/readyz`.
fn public(state: &Arc<State>, exposition: &Arc<Exposition>) -> Router {
    let live = Arc::clone(state);
    let ready = Arc::clone(state);
    let exposition = Arc::clone(exposition);
    Router::new()
        .route("/livez", get(async move || verdict(&live.dead())))
        .route("/readyz", get(async move || verdict(&ready.not_ready())))
        .route(
            "/metrics",
            get(async move |headers: HeaderMap| scrape(&exposition, &headers)),
        )
}

fn verdict(problems: &[String]) -> (StatusCode, String) {
    if problems.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        let mut text = problems.join("\n");
        text.push('\n');
        (StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

fn scrape(exposition: &Exposition, headers: &HeaderMap) -> Response {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok());
    let format = Format::of(accept);
    match exposition.encode(format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn problem(status: StatusCode, error: impl Into<String>) -> Response {
    let error = error.into();
    (status, Json(Problem { error })).into_response()
}

#[derive(Deserialize)]
struct RoutesQuery {
    resource: Option<String>,
}

#[derive(Deserialize)]
struct ExplainQuery {
    method: String,
    path: String,
    #[serde(rename = "as")]
    caller: Option<String>,
    from: Option<IpAddr>,
}

#[derive(Deserialize)]
struct ForgetOrder {
    address: SocketAddr,
}

/// What only root may ask.
fn private(state: &Arc<State>) -> Router {
    let with = |state: &Arc<State>| Arc::clone(state);
    let (status, peers, skew, routes) = (with(state), with(state), with(state), with(state));
    let (explain, order, forget, probe) = (with(state), with(state), with(state), with(state));
    let (steering, check, settings) = (with(state), with(state), with(state));
    let overview = with(state);
    Router::new()
        .route("/v1/status", get(async move || Json(status.status())))
        .route("/v1/overview", get(async move || Json(overview.overview())))
        .route("/v1/peers", get(async move || Json(peers.servers())))
        .route("/v1/skew", get(async move || Json(skew.differences())))
        .route(
            "/v1/config",
            get(async move || Json(settings.settings.clone())),
        )
        .route(
            "/v1/routes",
            get(async move |Query(query): Query<RoutesQuery>| {
                Json(routes.routes(query.resource.as_deref()))
            }),
        )
        .route(
            "/v1/explain",
            get(async move |Query(query): Query<ExplainQuery>| explanation(&explain, &query)),
        )
        .route("/v1/probe", get(async move || Json(probe.probe())))
        .route(
            "/v1/check",
            get(async move || Json(check::running(&check).await)),
        )
        .route(
            "/v1/steer",
            get(async move || Json(steering.daemon.steering()))
                .post(async move |Json(wanted): Json<SteerOrder>| steer(&order, wanted).await),
        )
        .route(
            "/v1/peers/forget",
            post(async move |Json(wanted): Json<ForgetOrder>| {
                forgotten(&forget, wanted.address).await
            }),
        )
        .fallback(async |request: Request| {
            problem(
                StatusCode::NOT_FOUND,
                format!("{} is unknown", request.uri().path()),
            )
        })
}

impl State {
    fn probe(&self) -> Probe {
        let mut problems = self.dead();
        let live = problems.is_empty();
        let not_ready = self.not_ready();
        let ready = not_ready.is_empty();
        for problem in not_ready {
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        Probe {
            live,
            ready,
            problems,
        }
    }
}

/// Only who has left: a listed one would come back at once.
async fn forgotten(state: &State, address: SocketAddr) -> Response {
    let departed = state
        .table
        .members()
        .peers
        .iter()
        .any(|it| it.address == address && it.membership() == Membership::Departed);
    if departed && state.learner.forget(address).await {
        return StatusCode::NO_CONTENT.into_response();
    }
    let error = format!("{address} is not a departed kube-apiserver; only those can be forgotten");
    problem(StatusCode::NOT_FOUND, error)
}

/// Carries out an order; the answer shows what has become of it, not how it was before.
async fn steer(state: &State, wanted: SteerOrder) -> Response {
    let taken = match wanted {
        SteerOrder {
            mode: Some(mode),
            percent: None,
        } => {
            let mode = match mode {
                Mode::On => SteerMode::Always,
                Mode::Off => SteerMode::Never,
                Mode::Auto => SteerMode::Auto,
            };
            state.daemon.set_mode(mode).map(Some)
        }
        SteerOrder {
            mode: None,
            percent: Some(percent @ 0..=100),
        } => state.daemon.set_percent(percent).map(|()| None),
        _ => {
            let error = "either a mode or a share from 0 to 100 is wanted";
            return problem(StatusCode::BAD_REQUEST, error);
        }
    };
    let taken = match taken {
        Ok(taken) => taken,
        Err(error) => return problem(StatusCode::CONFLICT, error),
    };
    if let Some(taken) = taken
        && !taken.carried_out().await
    {
        let error = format!(
            "the order was taken, but not carried out within {} s; `mvp steer status` shows what became of it, and the log of mvp run why",
            CARRIED_OUT_WITHIN.as_secs()
        );
        return problem(StatusCode::GATEWAY_TIMEOUT, error);
    }
    Json(state.daemon.steering()).into_response()
}

fn explanation(state: &State, query: &ExplainQuery) -> Response {
    let bad = |error: String| problem(StatusCode::BAD_REQUEST, error);
    let Ok(method) = query.method.parse::<Method>() else {
        return bad(format!("{:?} is not a method", query.method));
    };
    if !query.path.starts_with('/') {
        return bad(format!("{:?} is not a path: it begins with /", query.path));
    }
    let Ok(uri) = query.path.parse::<Uri>() else {
        return bad(format!("{:?} is not a path", query.path));
    };
    let wanted = query.caller.as_deref().unwrap_or("user");
    let kinds = [
        AskerKind::User,
        AskerKind::FrontProxy,
        AskerKind::Token,
        AskerKind::Anonymous,
    ];
    let Some(kind) = kinds.into_iter().find(|it| report::kind(*it) == wanted) else {
        return bad(format!(
            "{wanted:?} is none of user, front-proxy, token, anonymous"
        ));
    };
    let asker = Asker {
        kind,
        marker: false,
        decided: false,
        client: query.from.unwrap_or_else(|| IpAddr::from([127, 0, 0, 1])),
    };
    match state.explain(&method, &uri, &asker) {
        Ok(explanation) => Json(explanation).into_response(),
        Err(error) => bad(error.to_string()),
    }
}
