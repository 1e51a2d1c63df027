//! What is known about one client connection, and about one request on it: who asks, for what, over which connections.

use std::{
    cell::{Cell, OnceCell, RefCell},
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::SystemTime,
};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use tokio::{sync::Notify, time::Instant};

use super::{
    Joint, Thread,
    backlog::Backlog,
    header_limits::{MAX_SHARED_HEADERS, has_bad_name, is_too_large},
    recent::{cut, what},
    taken_back::TakenBack,
};
use crate::{
    accept::TlsConnection,
    api::{Gvr, PEER_PROXIED, ServerId},
    body::Body,
    forward::{Client, Outbound},
    identity::{self, Caller, Presented},
    reply::{self, Refusal},
    request_info::RequestInfo,
    route::{Asker, AskerKind, Decision, To},
    spans::Open,
    table::Server,
    throttle,
    tls::Presenting,
    upstream::{Lane, Pair, header_list_size},
};

/// Requests that may come after GOAWAY was sent: as many as were on their way, and as many that answers on their way called
/// forth. Whoever never answers the PING could go on without end, and kube-apiserver ends a connection to mvp for each.
const MOST_BEHIND_GOAWAY: u64 = 200;

/// One client connection whose TLS ends here.
pub(super) struct Visit {
    pub(super) thread: Rc<Thread>,
    pub(super) client: SocketAddr,
    pub(super) from: Client,
    pub(super) decided: bool,
    pub(super) h2: bool,
    pub(super) presented: RefCell<Option<Presented>>,
    /// Upstream connections for tokens and for nobody.
    pub(super) pair: OnceCell<Rc<Pair>>,
    /// Upstream connections for forwarded users whom the upstream treats as nobody, for what may end a
    /// connection, for reads over HTTP/1.1, and for all while the shared ones have no room.
    pub(super) forwarding_pair: OnceCell<Rc<Pair>>,
    /// Asks for a graceful end of the connection.
    pub(super) farewell: Rc<Notify>,
    /// What the connection becomes after a 101.
    pub(super) tunnel: RefCell<Option<Joint>>,
    pub(super) answers: Cell<u64>,
    /// Requests there had been when the client was first asked to go.
    asked_to_go: Cell<Option<u64>>,
    pub(super) taken_back: TakenBack,
    /// What the client has not taken.
    pub(super) backlog: Arc<Backlog>,
}

/// One request, read and cleaned.
pub(super) struct Ask {
    pub(super) info: RequestInfo,
    pub(super) asker: Asker,
    pub(super) outbound: Outbound,
    /// Upstream connections that it may use.
    pub(super) lane: Lane,
    /// What the connection of its upgrade presents.
    pub(super) presenting: Presenting,
    /// The client's side of an upgrade.
    pub(super) client: Option<OnUpgrade>,
    pub(super) method: Method,
    pub(super) span: Open,
}

impl Visit {
    /// A client that has just arrived at `thread`.
    pub(super) fn new(thread: Rc<Thread>, connection: &TlsConnection) -> Self {
        let ends = (connection.local, connection.peer);
        Self {
            client: connection.peer,
            from: Client::new(connection.peer.ip()),
            decided: connection.decided,
            h2: connection.h2,
            presented: RefCell::new(connection.chain().and_then(Presented::new)),
            pair: OnceCell::new(),
            forwarding_pair: OnceCell::new(),
            farewell: Rc::default(),
            tunnel: RefCell::default(),
            answers: Cell::new(0),
            asked_to_go: Cell::new(None),
            taken_back: TakenBack::new(),
            backlog: thread.shared.backlogs.enter(ends),
            thread,
        }
    }

    /// GOAWAY goes out. h2 takes further requests until the client answers the PING behind it.
    pub(super) fn ask_to_go(&self) {
        if self.asked_to_go.get().is_none() {
            self.asked_to_go.set(Some(self.answers.get()));
        }
    }

    /// Reads a request twice (who asks, and for what) and cleans it; or the refusal it deserves.
    pub(super) fn ask(&self, mut request: Request<Incoming>) -> Result<Ask, Box<Response<Body>>> {
        let answers = self.answers.get() + 1;
        self.answers.set(answers);
        if let Some(before) = self.asked_to_go.get()
            && answers - before > MOST_BEHIND_GOAWAY
        {
            self.taken_back.cut_off();
        }
        let method = request.method().clone();
        let mut span = self.thread.shared.spans.open(request.headers());
        span.tell(|span| {
            span.method = method.clone();
            span.path = throttle::short(request.uri().path()).into();
        });
        let mut refuse = |why| Box::new(self.refuse(&method, &mut span, why));
        let size = header_list_size(request.headers());
        if self.h2 && is_too_large(request.headers(), size) {
            return Err(refuse(Refusal::HeadersTooLarge));
        }
        let caller = self.caller(&request);
        let Some(asker) = self.asker(&caller, &request) else {
            return Err(refuse(Refusal::Unauthorized));
        };
        if self.h2 && has_bad_name(request.headers()) {
            return Err(refuse(Refusal::BadRequest("invalid header field name")));
        }
        let info = RequestInfo::parse(request.method(), request.uri())
            .map_err(|bad| refuse(Refusal::BadRequest(bad.as_str())))?;
        let client = (!self.h2 && request.headers().contains_key(header::UPGRADE))
            .then(|| hyper::upgrade::on(&mut request));
        let names = &self.thread.shared.config.request_headers;
        let (lane, presenting) = self.lane(&caller, request.headers(), size);
        let (head, body) = request.into_parts();
        let mut outbound = Outbound::new(head, Some(body), &self.from, &info, &caller, names)
            .map_err(|what| refuse(Refusal::BadRequest(what)))?;
        if !self.h2 {
            outbound.prefer(&info, || Rc::clone(self.own(presenting)));
        }
        span.tell(|span| {
            span.what = what(Some(&info));
            span.resource = info
                .resource()
                .map(|it| Gvr::new(cut(it.group), cut(it.version), cut(it.resource)));
        });
        Ok(Ask {
            info,
            asker,
            outbound,
            lane,
            presenting,
            client,
            method,
            span,
        })
    }

    fn caller(&self, request: &Request<Incoming>) -> Caller {
        let shared = &self.thread.shared;
        match self.presented.borrow_mut().as_mut() {
            None => identity::without_certificate(request.headers()),
            Some(presented) => {
                let caller = presented.caller(
                    request.headers(),
                    &shared.tls.look().authorities,
                    &shared.config.request_headers,
                    SystemTime::now(),
                );
                if matches!(caller, Caller::Token | Caller::Rejected(_))
                    && let Some(reason) = presented.fault()
                {
                    shared.metrics.certificate(reason);
                    if let Some(left_out) = shared.metrics.lines.certificate.admit() {
                        let subject = presented.subject();
                        tracing::info!(
                            client = %self.client,
                            reason = reason.as_str(),
                            subject = throttle::short(&subject),
                            token = matches!(caller, Caller::Token),
                            left_out,
                            "Certificate without identity"
                        );
                    }
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

    /// Which upstream connections the request may use (design 4.3); `size` is that of its headers.
    fn lane(&self, caller: &Caller, headers: &HeaderMap, size: usize) -> (Lane, Presenting) {
        let names = &self.thread.shared.config.request_headers;
        let presenting = match caller {
            Caller::FrontProxy | Caller::User(_) => {
                // Go's server ends the whole connection, too, where trailers cross its own end of the stream.
                let alone = size > MAX_SHARED_HEADERS
                    || headers.keys().any(|name| *name == header::TRAILER);
                if !alone && !identity::ends_connections(caller, headers, names) {
                    return (Lane::Shared, Presenting::FrontProxy);
                }
                Presenting::FrontProxy
            }
            _ => Presenting::Nothing,
        };
        (Lane::Pair(Rc::clone(self.own(presenting))), presenting)
    }

    /// The upstream connections that no other client connection uses.
    pub(super) fn own(&self, presenting: Presenting) -> &Rc<Pair> {
        let cell = match presenting {
            Presenting::FrontProxy => &self.forwarding_pair,
            Presenting::Nothing => &self.pair,
        };
        cell.get_or_init(|| {
            let farewell = Rc::clone(&self.farewell);
            Pair::new(presenting, move || farewell.notify_one())
        })
    }

    /// A refusal before anything was decided.
    fn refuse(&self, method: &Method, span: &mut Open, why: Refusal) -> Response<Body> {
        tracing::debug!(client = %self.client, why = why.as_str(), "Refused");
        if why == Refusal::Unauthorized {
            // As kube-apiserver after a 401 over HTTP/2.
            self.farewell.notify_one();
        }
        self.refused(method, None, span, why)
    }

    pub(super) fn refused(
        &self,
        method: &Method,
        info: Option<&RequestInfo>,
        span: &mut Open,
        why: Refusal,
    ) -> Response<Body> {
        self.thread.shared.metrics.refused(method, info, why);
        let mut answer = reply::refuse(why);
        span.tell(|span| {
            span.reason = Some(why.as_str());
            span.status = Some(answer.status());
        });
        if *method == Method::HEAD {
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

    /// Counts what a server answered, and tells the span who it was.
    pub(super) fn answered(
        &self,
        ask: &mut Ask,
        server: &Server,
        answer: &Response<Body>,
        began: Instant,
    ) {
        let shared = &self.thread.shared;
        let (status, took) = (answer.status(), began.elapsed());
        ask.span.tell(|span| span.server = Some(server.id));
        shared
            .metrics
            .answered(&shared.table, &ask.info, server, status, took);
    }

    /// Logs, completes the span, and ends what kube-apiserver would end.
    pub(super) fn observe(&self, ask: &mut Ask, decision: &Decision, answer: &Response<Body>) {
        let status = answer.status();
        let because = decision.because.as_str();
        ask.span.tell(|span| {
            span.status = Some(status);
            span.reason.get_or_insert(because);
        });
        let Ask { info, asker, .. } = ask;
        // kube-apiserver ends the whole connection after these; streams that run go on (design 4.3).
        if self.h2
            && (status == StatusCode::UNAUTHORIZED || asker.kind == AskerKind::Anonymous)
            && matches!(decision.to, To::Server(_))
        {
            self.farewell.notify_one();
        }
        let verb = info.verb().as_str();
        let path = throttle::short(info.path());
        match &decision.to {
            To::Server(server) if server.id != ServerId::Local => {
                let metrics = &self.thread.shared.metrics;
                metrics.rerouted(&ask.method, info, server, because, status);
                if let Some(left_out) = metrics.lines.rerouted.admit() {
                    tracing::info!(client = %self.client, verb, path, server = %server.id, because, status = status.as_u16(), left_out, "Rerouted");
                }
            }
            to => {
                tracing::debug!(client = %self.client, verb, path, ?to, because, status = status.as_u16(), "Answered");
            }
        }
    }
}
