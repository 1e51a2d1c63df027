//! Door 2: one attempt to have a request answered by a server.
//!
//! Cleans the headers once ([`Outbound::new`]), sends the request as often as the walk decides ([`Forward::attempt`]), and
//! says at the birth of every failure what it proves. Not for deciding who is asked (`route`).

use std::{cell::RefCell, sync::Arc, time::Duration};

use http::{HeaderValue, Method, Request, Response, StatusCode, request::Parts};
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::{
    api::ServerId,
    body::{Body, Gate, Keeper},
    config::RequestHeaders,
    health::Prober,
    identity::{self, Caller},
    reply::{Refusal, Side},
    request_info::{Class, RequestInfo},
    route::Outcome,
    table::{Health, Proof, Server, Table},
    upstream::{Cause, Lane, Pool, SendError},
};

mod headers;
mod recognise;
mod upgrade;

use recognise::Meaning;

/// Re-sent safe requests per server and [`RETRY_WINDOW`], however little traffic there is (design 5.2).
const RETRY_FLOOR: u32 = 100;
/// One in so many requests may be re-sent beyond that.
const RETRY_SHARE: u32 = 10;
/// What the share is of.
const RETRY_WINDOW: Duration = Duration::from_secs(10);
/// Servers whose requests are counted; more than a control plane ever has.
const MAX_BUDGETS: usize = 64;

/// What is the same for all requests of one client connection.
#[derive(Debug)]
pub struct From {
    address: HeaderValue,
}

impl From {
    /// A client at `address`.
    pub fn new(address: std::net::IpAddr) -> Self {
        Self {
            address: headers::address_value(address),
        }
    }
}

/// A request, cleaned, that can be sent as often as the rules allow.
#[derive(Debug)]
pub struct Outbound {
    head: Parts,
    body: Source,
    /// To be upgraded to this.
    upgrade: Option<HeaderValue>,
    /// Sending it twice changes nothing.
    safe: bool,
    /// A backend's answer can look like kube-apiserver's own.
    proxied: bool,
    vouched: Vouched,
    tries: Tries,
}

/// Whether a request carries `X-Remote-User` by our word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Vouched {
    /// Its own credentials go on.
    No,
    Yes,
    /// And a verified front proxy marked it: the marker goes on to local, whose own Mixed Version Proxy would otherwise
    /// decide about it a second time (and two nodes that believe each other, without end).
    Marked,
}

/// What happened to it so far.
#[derive(Clone, Copy, Debug, Default)]
struct Tries {
    /// It may have been worked on, and was sent once more.
    resent: bool,
    /// The last connection refused it.
    refused: bool,
}

#[derive(Debug)]
enum Source {
    Empty,
    Kept(Keeper),
}

/// What became of one attempt.
pub enum Attempt {
    /// The client gets this.
    Answer(Response<Body>),
    /// The server does not know the path or resource; this is its answer.
    Unknown(Response<Body>),
    /// No answer for the client yet; with the server's words, where it said why.
    Failed(Outcome, Option<Response<Body>>),
    /// Once more at the same server, over another connection.
    Again,
    /// A valid 101: the client gets this, then its connection and this one become a tunnel.
    Switch(Response<Body>, hyper::upgrade::OnUpgrade),
    /// The client gets this refusal: nothing more may be tried.
    Refused(Refusal),
    /// The client has left.
    Gone,
}

impl Outbound {
    /// Cleans `request` and makes it carry `caller` (design 4.3). `Err` says what is malformed.
    pub fn new(
        request: Request<Incoming>,
        from: &From,
        info: &RequestInfo,
        caller: &Caller,
        names: &RequestHeaders,
    ) -> Result<Self, &'static str> {
        let (head, body) = request.into_parts();
        let body = if http_body::Body::is_end_stream(&body) {
            Source::Empty
        } else {
            Source::Kept(Keeper::new(body))
        };
        Self::of(head, body, from, info, caller, names)
    }

    /// The same of a request that has no body.
    pub fn bare(
        head: Parts,
        from: &From,
        info: &RequestInfo,
        caller: &Caller,
        names: &RequestHeaders,
    ) -> Result<Self, &'static str> {
        Self::of(head, Source::Empty, from, info, caller, names)
    }

    fn of(
        mut head: Parts,
        body: Source,
        from: &From,
        info: &RequestInfo,
        caller: &Caller,
        names: &RequestHeaders,
    ) -> Result<Self, &'static str> {
        let version = head.version;
        let marked = head
            .headers
            .remove(headers::MARKER)
            .is_some_and(|it| it == "true");
        let vouched = match caller {
            Caller::FrontProxy if marked => Vouched::Marked,
            Caller::FrontProxy | Caller::User(_) => Vouched::Yes,
            _ => Vouched::No,
        };
        if head.method == Method::CONNECT {
            return Err("CONNECT is not served");
        }
        let upgrade = headers::upgrade(&head.headers, version);
        let headers = &mut head.headers;
        headers::strip_hop_by_hop(headers, version, |name| {
            headers::is_end_to_end(name) || identity::is_identity_header(name, names)
        });
        headers::forwarded_for(headers, &from.address);
        if upgrade.is_some() && vouched != Vouched::No {
            headers::drop_token_protocols(headers);
        }
        identity::forward_identity(caller, headers, names);
        head.uri = headers::absolute(std::mem::take(&mut head.uri), headers, version)?;
        let gate = head.extensions.remove::<Gate>();
        head.extensions.clear();
        if let Some(gate) = gate {
            head.extensions.insert(gate);
        }
        Ok(Self {
            head,
            body,
            upgrade,
            safe: info.is_safe(),
            proxied: info.subresource() == Some("proxy"),
            vouched,
            tries: Tries::default(),
        })
    }

    /// Whether it asks for an upgrade that mvp passes on.
    pub const fn is_upgrade(&self) -> bool {
        self.upgrade.is_some()
    }

    /// The request as `server` gets it; `None` if its body cannot be sent again.
    pub fn request(&self, server: &Server) -> Option<Request<Body>> {
        let body = match &self.body {
            Source::Empty => Body::Empty,
            Source::Kept(keeper) => keeper.send()?,
        };
        let mut request = Request::from_parts(self.head.clone(), body);
        if self.vouched == Vouched::Marked || server.id != ServerId::Local {
            request
                .headers_mut()
                .insert(headers::MARKER, HeaderValue::from_static("true"));
        }
        Some(request)
    }

    /// Whether an answer with this status is the client's, whatever it says.
    fn is_plain(&self, status: StatusCode) -> bool {
        !status.is_informational()
            && status != StatusCode::UNAUTHORIZED
            && (self.proxied || !recognise::is_suspect(status))
    }

    /// The answer is the client's: the body will not be sent again.
    fn relay(&self, mut answer: Response<Body>) -> Attempt {
        if let Source::Kept(keeper) = &self.body {
            keeper.release();
        }
        clean_answer(&mut answer);
        Attempt::Answer(answer)
    }
}

/// Sends requests; one per thread.
pub struct Forward {
    pool: Pool,
    prober: Prober,
    table: Arc<Table>,
    budgets: RefCell<Vec<(ServerId, Budget)>>,
}

/// How many safe requests may be re-sent to one server.
#[derive(Clone, Copy, Debug)]
struct Budget {
    since: Instant,
    requests: u32,
    retries: u32,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            requests: 0,
            retries: 0,
        }
    }

    /// Whether one more may be re-sent.
    fn take(&mut self, now: Instant) -> bool {
        if now - self.since >= RETRY_WINDOW {
            *self = Self::new(now);
        }
        let allowed = self.retries < RETRY_FLOOR.max(self.requests / RETRY_SHARE);
        self.retries += u32::from(allowed);
        allowed
    }
}

/// The side of `server`.
pub const fn side(server: &Server) -> Side {
    match server.id {
        ServerId::Local => Side::Local,
        ServerId::Peer(_) => Side::Peer,
    }
}

impl Forward {
    /// Sends over `pool`; tells `prober` what the answers show.
    pub const fn new(pool: Pool, prober: Prober, table: Arc<Table>) -> Self {
        Self {
            pool,
            prober,
            table,
            budgets: RefCell::new(Vec::new()),
        }
    }

    /// The thread's connections.
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Sends `request`, which [`Outbound::request`] made of `outbound`, and judges what comes back.
    pub async fn attempt(
        &self,
        server: &Arc<Server>,
        lane: &Lane,
        info: &RequestInfo,
        outbound: &mut Outbound,
        request: Request<Body>,
    ) -> Attempt {
        self.count(server.id);
        match self.pool.send(server, lane, request).await {
            Ok(answer) if outbound.is_plain(answer.status()) => outbound.relay(answer),
            // Boxed because it is rare, and would make every walk larger.
            Ok(answer) => Box::pin(self.judge(server, info, outbound, answer)).await,
            Err(error) => self.failed(server, outbound, &error),
        }
    }

    /// Whether the answer is for the client.
    async fn judge(
        &self,
        server: &Arc<Server>,
        info: &RequestInfo,
        outbound: &mut Outbound,
        mut answer: Response<Body>,
    ) -> Attempt {
        let status = answer.status();
        if status.is_informational() {
            // Nobody asked to switch protocols.
            return Attempt::Refused(Refusal::UpgradeFailed);
        }
        if status == StatusCode::UNAUTHORIZED
            && outbound.vouched != Vouched::No
            && self.prober.probe_now(server).await == Proof::Refused
        {
            return Attempt::Failed(Outcome::Refused, None);
        }
        if recognise::is_suspect(status) && !outbound.proxied {
            let (meaning, whole) = match recognise::look(&outbound.head.method, answer).await {
                Ok(looked) => looked,
                Err(error) => {
                    let error = SendError {
                        cause: Cause::Broken(error),
                        unprocessed: false,
                        request: None,
                    };
                    return self.failed(server, outbound, &error);
                }
            };
            answer = whole;
            // kube-openapi's 404 has no body at all; elsewhere that may be a backend's own.
            let meaning = match info.class() {
                Class::OpenApi(_) if status == StatusCode::NOT_FOUND => Meaning::Unknown,
                _ => meaning,
            };
            match meaning {
                Meaning::Answer => {}
                Meaning::Unknown => {
                    clean_answer(&mut answer);
                    return Attempt::Unknown(answer);
                }
                Meaning::ShuttingDown | Meaning::Starting => {
                    // An aggregated API server says the same words about itself.
                    if !self.is_delegated(info) {
                        self.prober.report(
                            server,
                            if meaning == Meaning::Starting {
                                Health::Starting
                            } else {
                                Health::Draining
                            },
                        );
                    }
                    clean_answer(&mut answer);
                    return Attempt::Failed(Outcome::Unprocessed, Some(answer));
                }
            }
        }
        outbound.relay(answer)
    }

    /// What the failure proves, and what may be tried next (design 5.2).
    fn failed(&self, server: &Server, outbound: &mut Outbound, error: &SendError) -> Attempt {
        tracing::debug!(server = %server.id, unprocessed = error.unprocessed, error = %error.cause, "No answer");
        match &error.cause {
            Cause::ClientGone(_) => Attempt::Gone,
            Cause::Busy => Attempt::Refused(Refusal::Busy),
            Cause::Dial(error) => {
                if error.is_the_servers() {
                    self.prober.report(server, Health::Down);
                }
                Attempt::Failed(Outcome::Unreachable, None)
            }
            // A connection that ends (GOAWAY) says nothing against the server; a second one that does, does.
            Cause::Refused(_) | Cause::Closed => {
                outbound.tries.refused = !outbound.tries.refused;
                if outbound.tries.refused {
                    Attempt::Again
                } else {
                    Attempt::Failed(Outcome::Unprocessed, None)
                }
            }
            Cause::Broken(_) => {
                self.prober.look(server.id);
                if !outbound.safe {
                    Attempt::Refused(Refusal::Interrupted)
                } else if outbound.tries.resent || !self.may_resend(server.id) {
                    Attempt::Refused(Refusal::Unreachable(side(server)))
                } else {
                    outbound.tries.resent = true;
                    Attempt::Again
                }
            }
        }
    }

    fn is_delegated(&self, info: &RequestInfo) -> bool {
        info.group_version()
            .is_some_and(|it| self.table.shared.load().owned.contains(&it))
    }

    fn count(&self, server: ServerId) {
        let mut budgets = self.budgets.borrow_mut();
        if let Some((_, budget)) = budgets.iter_mut().find(|(id, _)| *id == server) {
            budget.requests = budget.requests.saturating_add(1);
            return;
        }
        if budgets.len() >= MAX_BUDGETS {
            budgets.clear();
        }
        budgets.push((server, Budget::new(Instant::now())));
    }

    fn may_resend(&self, server: ServerId) -> bool {
        self.budgets
            .borrow_mut()
            .iter_mut()
            .find(|(id, _)| *id == server)
            .is_some_and(|(_, budget)| budget.take(Instant::now()))
    }
}

/// What an answer of an upstream connection must not say about the client's connection.
fn clean_answer(answer: &mut Response<Body>) {
    let version = answer.version();
    headers::strip_hop_by_hop(answer.headers_mut(), version, |_| false);
    *answer.version_mut() = http::Version::default();
}

#[cfg(test)]
mod tests;
