//! The conductor: serves one client connection, and walks each of its requests from room to room.
//!
//! [`Visit::answer`] is the walk, written once. One [`Thread`] per data thread, used by that thread alone. Not for any
//! decision: those are the rooms'.

use std::{net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use tokio::{
    net::TcpStream,
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use self::visit::{Ask, Visit};
use crate::{
    accept::{Connection, RawReason, TlsConnection},
    body::Body,
    config::Config,
    discovery::Discovery,
    forward::{Attempt, Forward},
    health::Prober,
    peers::Learner,
    reply::Refusal,
    route::{self, Evidence, To},
    spans::Spans,
    table::{Server, Table},
    tls::Tls,
    tunnel::{self, Half, How, Tally},
    upstream::{Dialer, Lane, Pool},
    wire::Wire,
};

mod backlog;
mod conn;
mod header_limits;
mod metrics;
mod patience;
mod recent;
mod self_check;
mod taken_back;
pub mod traffic;
mod visit;

pub use backlog::{Backlogs, Ended, Ends};
pub use metrics::Metrics;
pub use recent::{Entry, Recent};
pub use self_check::SelfCheck;

/// How long the double check may take (design 5.2).
const REFRESH_WITHIN: Duration = Duration::from_secs(2);
/// How long an unknown-resource 404 waits for a look at a server that was down; one whose packets vanish is down for longer.
const LOOK_WITHIN: Duration = Duration::from_millis(500);
/// What a thread's farewell says in the end: it is also for who arrives later.
pub const LAST_FAREWELL: u64 = u64::MAX;
/// How often closed connections of the pool are forgotten.
const SWEEP: Duration = Duration::from_secs(30);

/// What all data threads share.
#[derive(Debug)]
pub struct Shared {
    /// What was resolved from flags.
    pub config: Arc<Config>,
    /// Who serves what.
    pub table: Arc<Table>,
    /// Certificates and keys.
    pub tls: Arc<Tls>,
    /// Opens upstream connections.
    pub dialer: Arc<Dialer>,
    /// Completes discovery.
    pub discovery: Arc<Discovery>,
    /// Is told how servers are, and proves identity forwarding.
    pub prober: Prober,
    /// Reads servers again.
    pub learner: Learner,
    /// Counts.
    pub metrics: Metrics,
    /// What clients have not taken.
    pub backlogs: Backlogs,
    /// Recognises mvp's requests to itself.
    pub self_check: SelfCheck,
    /// Takes a span of each request that its client traces.
    pub spans: Spans,
}

/// One data thread.
pub struct Thread {
    shared: Arc<Shared>,
    forward: Forward,
    leave: watch::Receiver<u64>,
}

/// Two connections that are about to be joined.
struct Joint {
    client: OnUpgrade,
    upstream: OnUpgrade,
}

/// The client left before there was an answer; hyper closes its stream or connection.
#[derive(Debug, thiserror::Error)]
#[error("the client has left")]
struct Gone;

impl Thread {
    /// A thread without connections; whenever `leave` changes, the clients connected by then are asked to go, and at
    /// [`LAST_FAREWELL`] later ones too.
    pub fn new(shared: Arc<Shared>, leave: watch::Receiver<u64>) -> Rc<Self> {
        let pool = Pool::new(Arc::clone(&shared.dialer));
        let forward = Forward::new(pool, shared.prober.clone(), Arc::clone(&shared.table));
        Rc::new(Self {
            shared,
            forward,
            leave,
        })
    }

    /// Keeps the thread's upstream connections tidy, for ever.
    pub async fn tend(self: Rc<Self>) {
        let mut generations = self.shared.tls.generations();
        let mut sweep = interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = sweep.tick() => self.forward.pool().sweep(),
                Ok(()) = generations.changed() => self.forward.pool().retire(),
            }
        }
    }

    /// Serves one connection to its end.
    pub async fn serve(self: Rc<Self>, connection: Connection) {
        match connection {
            Connection::Raw {
                stream,
                head,
                why,
                peer,
                slot,
            } => {
                Box::pin(self.pass(stream, head, why, peer)).await;
                drop(slot);
            }
            Connection::Tls(connection) => self.welcome(connection).await,
        }
    }

    /// A raw connection goes to local as it is; if local is down, it is closed.
    async fn pass(&self, stream: TcpStream, head: Bytes, why: RawReason, client: SocketAddr) {
        let local = Arc::clone(&self.shared.table.members().local);
        let upstream = match self.shared.dialer.raw(&local).await {
            Ok(upstream) => upstream,
            Err(error) => {
                if let Some(left_out) = self.shared.metrics.lines.raw_closed.admit() {
                    tracing::info!(%client, ?why, %error, left_out, "Raw connection closed");
                }
                self.shared.metrics.raw(why, false);
                return;
            }
        };
        self.shared.metrics.raw(why, true);
        let source = upstream.local_addr().ok();
        match why {
            // Every peer's probe is one, every two seconds.
            RawReason::Direct => {
                tracing::debug!(%client, upstream_source = ?source, ?why, "Raw connection");
            }
            RawReason::Loopback => {
                if let Some(left_out) = self.shared.metrics.lines.raw.admit() {
                    tracing::info!(%client, upstream_source = ?source, ?why, left_out, "Raw connection");
                }
            }
        }
        let client = Half::plain(stream, head);
        let upstream = Half::plain(upstream, Bytes::new());
        self.join(client, upstream).await;
    }

    async fn join(&self, client: Half, upstream: Half) {
        let tally = Tally::default();
        self.shared.metrics.tunnels.inc();
        let how = How {
            splice: self.shared.config.splice,
            ktls: self.shared.config.ktls,
        };
        let end = tunnel::join(client, upstream, how, &tally).await;
        self.shared.metrics.tunnels.dec();
        self.shared.metrics.tunnelled(&tally, &end);
        let (up, down) = (tally.up.total(), tally.down.total());
        match end {
            Ok(()) => tracing::debug!(up, down, "Tunnel ended"),
            Err(error) => tracing::debug!(up, down, %error, "Tunnel broke"),
        }
    }

    /// Boxed by kind, and not `async`: a future is as large as the largest of its states, and keeps its arguments as long as
    /// it lives; this one lives as long as an idle connection.
    fn welcome(self: Rc<Self>, connection: Box<TlsConnection>) -> impl Future<Output = ()> {
        let visit = Rc::new(Visit::new(self, &connection));
        let mut leave = visit.thread.leave.clone();
        if *leave.borrow() != LAST_FAREWELL {
            leave.mark_unchanged();
        }
        let TlsConnection { io, h2, slot, .. } = *connection;
        let served: LocalBoxFuture<'static, ()> = if h2 {
            let (socket, tls) = io.into_inner();
            let wire = Wire::new(socket.into_stream(), tls);
            Box::pin(conn::serve_h2(wire, Rc::clone(&visit), leave))
        } else {
            Box::pin(conn::serve_h1(io, Rc::clone(&visit), leave))
        };
        async move {
            served.await;
            let joint = visit.tunnel.take();
            if let Some(joint) = joint {
                Box::pin(visit.thread.tunnel(joint)).await;
            }
            drop(slot);
        }
    }

    async fn tunnel(&self, joint: Joint) {
        let halves = async {
            let client = Half::client(joint.client.await?)?;
            let upstream = Half::upstream(joint.upstream.await?)?;
            Ok::<_, Box<dyn std::error::Error>>((client, upstream))
        };
        match halves.await {
            Ok((client, upstream)) => self.join(client, upstream).await,
            Err(error) => tracing::debug!(%error, "No tunnel after 101"),
        }
    }

    /// Has every doubtful server read again; whether all could be. One that was down when it was last looked at is looked at
    /// first: between two of its probes it may have come back as another version.
    async fn refresh(&self, evidence: &Evidence) -> bool {
        let shared = &self.shared;
        let doubtful: Vec<Arc<Server>> = {
            let members = shared.table.members();
            route::to_refresh(&members, &shared.table, evidence)
                .map(Arc::clone)
                .collect()
        };
        let after = Instant::now();
        let reads = doubtful.iter().map(async |server| {
            let read = timeout(REFRESH_WITHIN, async {
                if !route::is_readable(server) {
                    let look = shared.prober.look_now(server, after);
                    timeout(LOOK_WITHIN, look).await.unwrap_or_default();
                }
                route::is_readable(server) && shared.learner.refresh(server, after).await.is_ok()
            });
            matches!(read.await, Ok(true)) || !route::must_be_sure(server)
        });
        let all = futures_util::future::join_all(reads).await;
        all.into_iter().all(|sure| sure)
    }
}

/// What is seldom needed is boxed on the way: the walk is a future as large as the largest of its states, and there is one
/// for every request (docs/performance.md).
impl Visit {
    /// The walk of one request.
    async fn answer(self: Rc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Gone> {
        let began = Instant::now();
        let shared = &self.thread.shared;
        let decide = |ask: &Ask, evidence: &Evidence| {
            let local_down = shared.config.local_down;
            route::decide(&ask.info, &ask.asker, evidence, &shared.table, local_down)
        };
        let mine = shared.self_check.asks(&request);
        let mut ask = match self.ask(request) {
            Ok(ask) => ask, // who asks, and for what
            Err(refusal) => return Ok(*refusal),
        };
        let mut evidence = Evidence::default();
        if mine {
            return Ok(shared.self_check.answer(&decide(&ask, &evidence)));
        }
        let unanswered = self.taken_back.begin();
        let mut unknown: Option<(Arc<Server>, _)> = None; // the last answer that may be a false 404
        let mut words = None; // a server's own reason for not answering
        let (decision, outcome) = loop {
            let decision = decide(&ask, &evidence); // where, and why
            let server = match &decision.to {
                To::Server(server) => server,
                To::Refresh => {
                    evidence.refreshed(Box::pin(self.thread.refresh(&evidence)).await);
                    continue;
                }
                To::Relay => {
                    let Some((server, answer)) = unknown else {
                        break (decision, Err(Refusal::Unconfirmed));
                    };
                    self.answered(&mut ask, &server, &answer, began);
                    break (decision, Ok(answer));
                }
                &To::Refuse(why @ (Refusal::Unreachable(_) | Refusal::LocalDown)) => {
                    break (decision, words.ok_or(why));
                }
                &To::Refuse(why) => break (decision, Err(why)),
            };
            match self.attempt(server, &mut ask, &evidence).await {
                Attempt::Answer(answer) => {
                    self.answered(&mut ask, server, &answer, began);
                    break (decision, Ok(answer));
                }
                Attempt::Switch(answer, upstream) => {
                    self.answered(&mut ask, server, &answer, began);
                    let joint = ask.client.map(|client| Joint { client, upstream });
                    ask.client = None;
                    self.tunnel.replace(joint);
                    break (decision, Ok(answer));
                }
                Attempt::Unknown(answer) => {
                    evidence.not_found(server.id, Instant::now());
                    unknown = Some((Arc::clone(server), answer));
                }
                Attempt::Failed(outcome, said) => {
                    shared
                        .metrics
                        .failed(&shared.table, &ask.info, server, outcome);
                    evidence.add(server.id, outcome);
                    // A server that shuts down says 429 at first: a word about itself, which is the whole truth only if
                    // nobody else may answer. Where somebody may, an API that nobody else serves is 503.
                    let alone =
                        decision.because.names_local() || shared.table.members().peers.is_empty();
                    let said = said
                        .filter(|said| alone || said.status() == StatusCode::SERVICE_UNAVAILABLE);
                    words = words.or(said);
                }
                Attempt::Again => shared.metrics.again(),
                Attempt::Refused(why) => break (decision, Err(why)),
                Attempt::Gone => return Err(Gone),
            }
        };
        let answer = outcome
            .unwrap_or_else(|why| self.refused(&ask.method, Some(&ask.info), &mut ask.span, why));
        self.observe(&mut ask, &decision, &answer);
        unanswered.answered();
        Ok(answer)
    }

    /// One door, once.
    async fn attempt(&self, server: &Arc<Server>, ask: &mut Ask, evidence: &Evidence) -> Attempt {
        let Some(mut request) = ask.outbound.request(server) else {
            return Attempt::Refused(if evidence.any_not_found() {
                Refusal::Unconfirmed
            } else {
                Refusal::Unreachable(server.id.into())
            });
        };
        let (forward, discovery) = (&self.thread.forward, &self.thread.shared.discovery);
        let (info, outbound) = (&ask.info, &mut ask.outbound);
        if ask.client.is_some() && outbound.is_upgrade() {
            let upgrade = forward.attempt_upgrade(server, ask.presenting, info, outbound, request);
            return Box::pin(upgrade).await;
        }
        let plan = discovery.prepare(info, &ask.asker, server, &mut request);
        let attempt = forward
            .attempt(server, &ask.lane, info, outbound, request)
            .await;
        match (plan, attempt) {
            (Some(plan), Attempt::Answer(answer)) => {
                Attempt::Answer(Box::pin(discovery.complete(plan, server, answer)).await)
            }
            // Whoever holds all shared connections (a hundred readers that read nothing, on each of 256) shall not keep others
            // from the server: they get some of their own.
            (_, Attempt::Refused(Refusal::Busy)) if matches!(ask.lane, Lane::Shared) => {
                ask.lane = Lane::Pair(Rc::clone(self.own(ask.presenting)));
                Attempt::Again
            }
            (_, attempt) => attempt,
        }
    }
}
