//! The conductor: serves one client connection, and walks each of its requests from room to room.
//!
//! [`Visit::answer`] is the walk, written once. One [`Thread`] per data thread, used by that thread alone. Not for any
//! decision: those are the rooms'.

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use tokio::{
    net::TcpStream,
    sync::{Notify, watch},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::{
    accept::{Connection, RawReason, TlsConnection},
    api::PEER_PROXIED,
    body::Body,
    config::Config,
    discovery::Discovery,
    forward::{Attempt, Forward, From, Outbound},
    health::Prober,
    identity::{self, Caller, Presented},
    peers::Learner,
    reply::{self, Refusal},
    request_info::RequestInfo,
    route::{self, Asker, AskerKind, Decision, Evidence, To},
    table::{Server, Table},
    tls::{Presenting, Tls},
    tunnel::{self, Half, Tally},
    upstream::{Dialer, Lane, Pair, Pool},
};

mod conn;
mod metrics;
mod self_check;

pub use metrics::Metrics;
pub use self_check::SelfCheck;

/// How long the double check may take (design 5.2).
const REFRESH_WITHIN: Duration = Duration::from_secs(2);
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
    /// Recognises mvp's requests to itself.
    pub self_check: SelfCheck,
}

/// One data thread.
pub struct Thread {
    shared: Arc<Shared>,
    forward: Forward,
    leave: watch::Receiver<u64>,
}

/// One client connection whose TLS ends here.
struct Visit {
    thread: Rc<Thread>,
    client: std::net::SocketAddr,
    from: From,
    decided: bool,
    h2: bool,
    presented: RefCell<Option<Presented>>,
    /// Upstream connections for tokens and for nobody.
    pair: OnceCell<Rc<Pair>>,
    /// Upstream connections for forwarded users whom the upstream treats as nobody.
    forwarding_pair: OnceCell<Rc<Pair>>,
    /// Asks for a graceful end of the connection.
    farewell: Rc<Notify>,
    /// What the connection becomes after a 101.
    tunnel: RefCell<Option<Joint>>,
    answers: Cell<u64>,
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
    /// A thread without connections; whenever `leave` changes, the clients connected by then are asked to go.
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
                self.pass(stream, head, why, peer).await;
                drop(slot);
            }
            Connection::Tls(connection) => self.welcome(*connection).await,
        }
    }

    /// A raw connection goes to local as it is; if local is down, it is closed.
    async fn pass(
        &self,
        stream: TcpStream,
        head: Bytes,
        why: RawReason,
        client: std::net::SocketAddr,
    ) {
        let local = Arc::clone(&self.shared.table.members().local);
        let upstream = match self.shared.dialer.raw(&local).await {
            Ok(upstream) => upstream,
            Err(error) => {
                tracing::info!(%client, ?why, %error, "Raw connection closed");
                self.shared.metrics.raw(why, false);
                return;
            }
        };
        self.shared.metrics.raw(why, true);
        let source = upstream.local_addr().ok();
        tracing::info!(%client, upstream_source = ?source, ?why, "Raw connection");
        let client = Half::plain(stream, head);
        let upstream = Half::plain(upstream, Bytes::new());
        self.join(client, upstream).await;
    }

    async fn join(&self, client: Half, upstream: Half) {
        let tally = Tally::default();
        self.shared.metrics.tunnels.inc();
        let end = tunnel::join(client, upstream, &tally).await;
        self.shared.metrics.tunnels.dec();
        let (up, down) = (tally.up.get(), tally.down.get());
        self.shared.metrics.tunnelled(up, down);
        match end {
            Ok(()) => tracing::debug!(up, down, "Tunnel ended"),
            Err(error) => tracing::debug!(up, down, %error, "Tunnel broke"),
        }
    }

    async fn welcome(self: Rc<Self>, connection: TlsConnection) {
        let visit = Rc::new(Visit {
            client: connection.peer,
            from: From::new(connection.peer.ip()),
            decided: connection.decided,
            h2: connection.h2,
            presented: RefCell::new(connection.chain().and_then(Presented::new)),
            pair: OnceCell::new(),
            forwarding_pair: OnceCell::new(),
            farewell: Rc::default(),
            tunnel: RefCell::default(),
            answers: Cell::new(0),
            thread: self,
        });
        let mut leave = visit.thread.leave.clone();
        leave.mark_unchanged();
        if connection.h2 {
            conn::serve_h2(connection.io, &visit, leave).await;
        } else {
            conn::serve_h1(connection.io, &visit, leave).await;
            let joint = visit.tunnel.take();
            if let Some(joint) = joint {
                visit.thread.tunnel(joint).await;
            }
        }
        drop(connection.slot);
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

    /// Has every doubtful server read again; whether all could be.
    async fn refresh(&self, evidence: &Evidence) -> bool {
        let shared = &self.shared;
        let doubtful: Vec<Arc<Server>> = {
            let members = shared.table.members();
            route::to_refresh(&members, &shared.table, evidence)
                .map(Arc::clone)
                .collect()
        };
        let after = Instant::now();
        let reads = doubtful
            .iter()
            .map(|server| shared.learner.refresh(server, after));
        timeout(REFRESH_WITHIN, futures_util::future::join_all(reads))
            .await
            .is_ok_and(|results| results.iter().all(Result::is_ok))
    }
}

impl Visit {
    /// The walk of one request.
    async fn answer(
        self: Rc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Gone> {
        self.answers.set(self.answers.get() + 1);
        let shared = &self.thread.shared;
        let caller = self.caller(&request); // who asks
        let Some(asker) = self.asker(&caller, &request) else {
            return Ok(self.refuse(request.method(), Refusal::Unauthorized));
        };
        let info = match RequestInfo::parse(request.method(), request.uri()) {
            Ok(info) => info, // what is asked
            Err(bad) => {
                return Ok(self.refuse(request.method(), Refusal::BadRequest(bad.as_str())));
            }
        };
        if shared.self_check.asks(request.headers()) {
            let nothing = Evidence::default();
            let decision = route::decide(
                &info,
                &asker,
                &nothing,
                &shared.table,
                shared.config.local_down,
            );
            return Ok(shared.self_check.answer(&decision));
        }
        let head = *request.method() == Method::HEAD;
        let client = self.client_upgrade(&mut request);
        let names = &shared.config.request_headers;
        let lane = self.lane(&caller, &request);
        let outbound = Outbound::new(request, &self.from, &info, &caller, names);
        let mut outbound = match outbound {
            Ok(outbound) => outbound,
            Err(what) => return Ok(self.refuse(&Method::GET, Refusal::BadRequest(what))),
        };
        let mut evidence = Evidence::default();
        let mut held = None; // a server's own words, in case nobody has better ones
        let (answer, decision) = loop {
            let decision = route::decide(
                &info,
                &asker,
                &evidence,
                &shared.table,
                shared.config.local_down,
            ); // where, and why
            let server = match &decision.to {
                To::Server(server) => server,
                To::Refresh => {
                    evidence.refreshed(self.thread.refresh(&evidence).await);
                    continue;
                }
                To::Relay => match held.take() {
                    Some(answer) => break (answer, decision),
                    None => break (self.refused(head, Refusal::Unconfirmed), decision),
                },
                To::Refuse(Refusal::Unreachable(_)) if held.is_some() => {
                    break (held.take().unwrap_or_default(), decision);
                }
                To::Refuse(why) => break (self.refused(head, *why), decision),
            };
            let Some(mut request) = outbound.request(server) else {
                let why = if evidence.any_not_found() {
                    Refusal::Unconfirmed
                } else {
                    Refusal::Unreachable(crate::forward::side(server))
                };
                break (self.refused(head, why), decision);
            };
            let forward = &self.thread.forward;
            let attempt = if client.is_some() && outbound.is_upgrade() {
                let presenting = presenting(&lane, &caller);
                forward
                    .attempt_upgrade(server, presenting, &info, &mut outbound, request)
                    .await
            } else {
                let plan = shared
                    .discovery
                    .prepare(&info, &asker, server, &mut request);
                let attempt = forward
                    .attempt(server, &lane, &info, &mut outbound, request)
                    .await;
                match (plan, attempt) {
                    (Some(plan), Attempt::Answer(answer)) => {
                        Attempt::Answer(shared.discovery.complete(plan, server, answer).await)
                    }
                    (_, attempt) => attempt,
                }
            };
            match attempt {
                Attempt::Answer(answer) => {
                    shared.metrics.answered(&info, server, answer.status());
                    break (answer, decision);
                }
                Attempt::Switch(answer, upstream) => {
                    shared.metrics.answered(&info, server, answer.status());
                    if let Some(client) = client {
                        self.tunnel.replace(Some(Joint { client, upstream }));
                    }
                    break (answer, decision);
                }
                Attempt::Unknown(answer) => {
                    evidence.not_found(server.id, Instant::now());
                    held = Some(answer);
                }
                Attempt::Failed(outcome, words) => {
                    shared.metrics.failed(&info, server, outcome);
                    evidence.add(server.id, outcome);
                    held = held.or(words);
                }
                Attempt::Again => shared.metrics.again(),
                Attempt::Refused(why) => break (self.refused(head, why), decision),
                Attempt::Gone => return Err(Gone),
            }
        };
        self.observe(&info, &asker, &decision, &answer);
        Ok(answer)
    }

    fn caller(&self, request: &Request<Incoming>) -> Caller {
        let shared = &self.thread.shared;
        match self.presented.borrow_mut().as_mut() {
            None => identity::without_certificate(request.headers()),
            Some(presented) => {
                let caller = presented.caller(
                    request.headers(),
                    &shared.tls.current().authorities,
                    &shared.config.request_headers,
                    SystemTime::now(),
                );
                if matches!(caller, Caller::Token | Caller::Rejected(_))
                    && let Some(reason) = presented.fault()
                {
                    shared.metrics.certificate(reason);
                    tracing::info!(
                        client = %self.client,
                        reason = reason.as_str(),
                        subject = ?presented.subject(),
                        token = matches!(caller, Caller::Token),
                        "Certificate without identity"
                    );
                }
                caller
            }
        }
    }

    /// How routing sees the caller; none: a certificate without identity, and no token.
    fn asker(&self, caller: &Caller, request: &Request<Incoming>) -> Option<Asker> {
        let kind = match caller {
            Caller::FrontProxy => AskerKind::FrontProxy,
            Caller::User(_) => AskerKind::User,
            Caller::Token => AskerKind::Token,
            Caller::Anonymous => AskerKind::Anonymous,
            Caller::Rejected(_) => return None,
        };
        Some(Asker {
            kind,
            marker: kind == AskerKind::FrontProxy
                && request
                    .headers()
                    .get(PEER_PROXIED)
                    .is_some_and(|value| value == "true"),
            decided: self.decided,
            client: self.client.ip(),
        })
    }

    /// Which upstream connections the request may use (design 4.3).
    fn lane(&self, caller: &Caller, request: &Request<Incoming>) -> Lane {
        let names = &self.thread.shared.config.request_headers;
        let (cell, presenting) = match caller {
            Caller::FrontProxy | Caller::User(_) => {
                if !identity::ends_connections(caller, request.headers(), names) {
                    return Lane::Shared;
                }
                (&self.forwarding_pair, Presenting::FrontProxy)
            }
            _ => (&self.pair, Presenting::Nothing),
        };
        let pair = cell.get_or_init(|| {
            let farewell = Rc::clone(&self.farewell);
            Pair::new(presenting, move || farewell.notify_one())
        });
        Lane::Pair(Rc::clone(pair))
    }

    /// Holds the client's side of an upgrade, if it asks for one.
    fn client_upgrade(&self, request: &mut Request<Incoming>) -> Option<OnUpgrade> {
        (!self.h2 && request.headers().contains_key(header::UPGRADE))
            .then(|| hyper::upgrade::on(request))
    }

    /// A refusal before anything was decided.
    fn refuse(&self, method: &Method, why: Refusal) -> Response<Body> {
        tracing::debug!(client = %self.client, why = why.as_str(), "Refused");
        if why == Refusal::Unauthorized {
            // As kube-apiserver after a 401 over HTTP/2.
            self.farewell.notify_one();
        }
        self.refused(*method == Method::HEAD, why)
    }

    fn refused(&self, head: bool, why: Refusal) -> Response<Body> {
        self.thread.shared.metrics.refused(why);
        let mut answer = reply::refuse(why);
        if head {
            *answer.body_mut() = Body::Empty;
        }
        if why == Refusal::ForwardingRefused {
            // So that the client comes again, directly.
            self.farewell.notify_one();
            if !self.h2 {
                answer
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
        }
        answer
    }

    /// Logs, and ends what kube-apiserver would end.
    fn observe(
        &self,
        info: &RequestInfo,
        asker: &Asker,
        decision: &Decision,
        answer: &Response<Body>,
    ) {
        let status = answer.status();
        // kube-apiserver ends the whole connection after these; streams that run go on (design 4.3).
        if self.h2
            && (status == StatusCode::UNAUTHORIZED || asker.kind == AskerKind::Anonymous)
            && matches!(decision.to, To::Server(_))
        {
            self.farewell.notify_one();
        }
        let because = decision.because.as_str();
        let verb = info.verb().as_str();
        let path = info.path();
        match &decision.to {
            To::Server(server) if server.id != crate::api::ServerId::Local => {
                tracing::info!(client = %self.client, verb, path, server = %server.id, because, status = status.as_u16(), "Rerouted");
            }
            to => {
                tracing::debug!(client = %self.client, verb, path, ?to, because, status = status.as_u16(), "Answered");
            }
        }
    }
}

/// Which certificate an upgrade's own connection shows.
const fn presenting(lane: &Lane, caller: &Caller) -> Presenting {
    match (lane, caller) {
        (Lane::Shared, _) | (_, Caller::FrontProxy | Caller::User(_)) => Presenting::FrontProxy,
        _ => Presenting::Nothing,
    }
}
