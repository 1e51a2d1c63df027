//! Door 2: one attempt to have a request answered by a server.
//!
//! Cleans the headers once ([`Outbound::new`]), sends the request as often as the walk decides ([`Forward::attempt`]), and
//! says at the birth of every failure what it proves. Not for deciding who is asked (`route`).

use std::{net::IpAddr, rc::Rc, sync::Arc};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, request::Parts};
use hyper::{body::Incoming, upgrade::OnUpgrade};

use crate::{
    api::ServerId,
    body::{Body, Gate, Keeper},
    config::RequestHeaders,
    health::Prober,
    identity::{self, Caller},
    reply::Refusal,
    request_info::{Class, RequestInfo},
    route::Outcome,
    table::{Catalogue, Health, Proof, Server, Table},
    upstream::{Cause, Lane, Pair, Pool, SendError},
};

mod headers;
mod ours;
mod recognise;
mod retry_budget;
mod upgrade;

use ours::{Lines, Ours};
use recognise::Meaning;
use retry_budget::RetryBudgets;

/// Subresources of pods for which kube-apiserver asks the kubelet, and passes its words on.
const OF_KUBELETS: [&str; 4] = ["log", "exec", "attach", "portforward"];

/// What is the same for all requests of one client connection.
#[derive(Debug)]
pub struct Client {
    address: HeaderValue,
    ours: Ours,
}

impl Client {
    /// A client at `address`.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address: headers::address_value(address),
            ours: Ours::default(),
        }
    }
}

/// A request, cleaned, that can be sent as often as the rules allow.
#[derive(Debug)]
pub struct Outbound {
    /// What the client has sent, cleaned; if it is no user of a certificate, with what we say.
    head: Parts,
    /// What we say of a user.
    ours: Option<Lines>,
    /// `head` has an `X-Forwarded-For` that takes the place of ours.
    chained: bool,
    body: Source,
    /// To be upgraded to this.
    upgrade: Option<HeaderValue>,
    /// Sending it twice changes nothing.
    safe: bool,
    /// A backend's answer can look like kube-apiserver's own.
    proxied: bool,
    vouched: Vouched,
    tries: Tries,
    /// The first attempt may go over the HTTP/1.1 connection of these.
    own: Option<Rc<Pair>>,
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
    Switch(Response<Body>, OnUpgrade),
    /// The client gets this refusal: nothing more may be tried.
    Refused(Refusal),
    /// The client has left.
    Gone,
}

impl Outbound {
    /// Cleans a request and makes it carry `caller` (design 4.3). `Err` says what is malformed.
    pub fn new(
        mut head: Parts,
        body: Option<Incoming>,
        client: &Client,
        info: &RequestInfo,
        caller: &Caller,
        names: &RequestHeaders,
    ) -> Result<Self, &'static str> {
        let body = match body {
            Some(body) if !http_body::Body::is_end_stream(&body) => Source::Kept(Keeper::new(body)),
            _ => Source::Empty,
        };
        let version = head.version;
        let plain = headers::is_plain(&head.headers);
        let marked = !plain
            && head
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
        let ours = client.ours.of(caller, &client.address, names);
        let headers = &mut head.headers;
        headers::strip_hop_by_hop(headers, version, |name| {
            headers::is_end_to_end(name) || identity::is_identity_header(name, names)
        });
        if ours.is_none() || !plain {
            headers::forwarded_for(headers, &client.address);
        }
        if upgrade.is_some() && vouched != Vouched::No {
            headers::drop_token_protocols(headers);
        }
        identity::strip_identity(caller, headers, names);
        head.uri = headers::absolute(std::mem::take(&mut head.uri), headers, version)?;
        let gate = head.extensions.remove::<Gate>();
        head.extensions.clear();
        if let Some(gate) = gate {
            head.extensions.insert(gate);
        }
        Ok(Self {
            head,
            chained: ours.is_some() && !plain,
            ours,
            body,
            upgrade,
            safe: info.is_safe(),
            proxied: info.subresource() == Some("proxy"),
            vouched,
            tries: Tries::default(),
            own: None,
        })
    }

    /// Lets the first attempt of a read of one object go over the HTTP/1.1 connection of the client's `own`.
    pub fn prefer(&mut self, info: &RequestInfo, own: impl FnOnce() -> Rc<Pair>) {
        if info.reads_one() && matches!(self.body, Source::Empty) && !self.is_upgrade() {
            self.own = Some(own());
        }
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
        let mut request = Request::new(body);
        *request.method_mut() = self.head.method.clone();
        *request.uri_mut() = self.head.uri.clone();
        *request.version_mut() = self.head.version;
        *request.headers_mut() = self.headers();
        *request.extensions_mut() = self.head.extensions.clone();
        if self.vouched == Vouched::Marked || server.id != ServerId::Local {
            request
                .headers_mut()
                .insert(headers::MARKER, HeaderValue::from_static("true"));
        }
        Some(request)
    }

    /// Ours and the client's; no name is in both, but for `X-Forwarded-For`.
    fn headers(&self) -> HeaderMap {
        let Some(ours) = &self.ours else {
            return self.head.headers.clone();
        };
        let mut all = HeaderMap::clone(ours);
        if self.chained {
            all.remove(headers::X_FORWARDED_FOR);
        }
        for (name, value) in &self.head.headers {
            all.append(name, value.clone());
        }
        all
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
    budgets: RetryBudgets,
}

impl Forward {
    /// Sends over `pool`; tells `prober` what the answers show.
    pub const fn new(pool: Pool, prober: Prober, table: Arc<Table>) -> Self {
        Self {
            pool,
            prober,
            table,
            budgets: RetryBudgets::new(),
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
        self.budgets.count(server.id);
        let sent = match outbound.own.take() {
            // Boxed: only HTTP/1.1 clients need it, and it would make every walk larger.
            Some(own) => Box::pin(self.pool.read(server, lane, own, request)).await,
            None => self.pool.send(server, lane, request).await,
        };
        match sent {
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
            && self.prober.prove_now(server).await == Proof::Refused
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
                // What was said behind the server may follow work that was done: a write is not sent again for it.
                Meaning::Unknown if !outbound.safe && self.is_from_behind(server, info) => {}
                Meaning::Unknown => {
                    clean_answer(&mut answer);
                    return Attempt::Unknown(answer);
                }
                Meaning::ShuttingDown | Meaning::Starting => {
                    if !self.is_of_another(info) {
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
            // Once: the next attempt goes the common way, and has the last word.
            Cause::Unanswered(_) => Attempt::Again,
            Cause::Broken(_) => {
                self.prober.look(server.id);
                if !outbound.safe {
                    Attempt::Refused(Refusal::Interrupted)
                } else if outbound.tries.resent || !self.budgets.may_resend(server.id) {
                    Attempt::Refused(Refusal::Unreachable(server.id.into()))
                } else {
                    outbound.tries.resent = true;
                    Attempt::Again
                }
            }
        }
    }

    /// Whether a 404 is no word about what the server serves: it has the resource, and another may have answered for it.
    fn is_from_behind(&self, server: &Server, info: &RequestInfo) -> bool {
        let Some(resource) = info.resource() else {
            return false;
        };
        let (subresource, verb) = (info.subresource(), info.verb());
        let serves = |catalogue: &Catalogue| catalogue.serves(resource, subresource, verb);
        self.is_of_another(info) && self.table.look(server.id, serves) == Some(true)
    }

    /// Whether the words may be those of an aggregated API server about itself, or of a kubelet, which has no say in whom
    /// its control plane takes for alive.
    fn is_of_another(&self, info: &RequestInfo) -> bool {
        let of_kubelet = info
            .resource()
            .is_some_and(|it| it.group.is_empty() && it.resource == "pods")
            && info
                .subresource()
                .is_some_and(|it| OF_KUBELETS.contains(&it));
        of_kubelet
            || info
                .group_version()
                .is_some_and(|it| self.table.shared.load().owned.contains(&it))
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
