//! Spans for a collector on this node: OTLP over HTTP, in its JSON form (`POST /v1/traces`). One for each request whose
//! client samples (W3C Trace Context), so that nothing is sampled here, and nobody who does not trace pays.
//!
//! To loopback and in the clear: this process holds the apiserver's key, and opens no connection to the outside for
//! this. A collector that is slow or away costs spans, never requests. Not for logs or metrics.

use std::{
    hash::{BuildHasher as _, RandomState},
    io, mem,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    api::{Gvr, ServerId},
    metrics::begin,
};

/// Spans that wait; what comes beyond is left out.
const WAITING: usize = 2048;
/// Between two documents. Each has all that waits.
const EVERY: Duration = Duration::from_secs(2);
/// A collector has so long to take one.
const WITHIN: Duration = Duration::from_secs(5);

/// Takes spans from any thread; without a collector none. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Spans {
    queue: Option<Arc<Queue>>,
    ended: Family<End, Counter>,
}

/// The span of one request. It ends, and waits to be sent, where this is dropped: with the head of the answer, or when
/// the client leaves. Empty if the client does not sample: telling it something then costs nothing.
#[derive(Debug)]
pub struct Open(Option<Box<Begun>>);

/// What is told of one request: neither its query, nor who asks, nor anything else from a header.
#[derive(Debug)]
pub struct Span {
    parent: Parent,
    began: SystemTime,
    took: Duration,
    /// Of the request; `_OTHER` in the document if it is not a usual one.
    pub method: Method,
    /// Of the request, without the query.
    pub path: Box<str>,
    /// What is asked for, without names of objects.
    pub what: Box<str>,
    /// The resource, where it is one.
    pub resource: Option<Gvr>,
    /// Which kube-apiserver answered; none: mvp.
    pub server: Option<ServerId>,
    /// Why: the word of a decision or of a refusal; none: the client has left.
    pub reason: Option<&'static str>,
    /// Of the answer.
    pub status: Option<StatusCode>,
}

/// The span of the client that a request belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parent {
    trace: u128,
    span: u64,
}

#[derive(Debug)]
struct Begun {
    span: Span,
    at: Instant,
    spans: Spans,
}

#[derive(Debug)]
struct Queue {
    collector: SocketAddr,
    waiting: Mutex<Vec<Span>>,
    more: Notify,
}

/// What became of a span.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct End {
    outcome: &'static str,
}

/// The collector took it.
const SENT: End = End { outcome: "sent" };
/// The collector did not.
const LOST: End = End { outcome: "lost" };
/// Too many waited.
const LEFT_OUT: End = End {
    outcome: "left_out",
};

/// Why a collector has not taken a document.
#[derive(Debug, thiserror::Error)]
enum Untaken {
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    #[error("no request can be made: {0}")]
    Request(#[from] http::Error),
    #[error("the connection broke off: {0}")]
    Broken(#[from] hyper::Error),
    #[error("it answered {0}")]
    Refused(StatusCode),
    #[error("no answer within {} s", WITHIN.as_secs())]
    Late,
}

impl Spans {
    /// For `collector`, to which [`Self::send`] sends; without one no span ever begins.
    pub fn new(collector: Option<SocketAddr>) -> Self {
        let ended = Family::default();
        begin(&ended, [SENT, LOST, LEFT_OUT]);
        let queue = collector.map(|collector| {
            Arc::new(Queue {
                collector,
                waiting: Mutex::default(),
                more: Notify::new(),
            })
        });
        Self { queue, ended }
    }

    /// Publishes what became of them.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Spans of traced requests, by what became of them";
        registry.register("mvp_spans", help, self.ended.clone());
    }

    /// Begins the span of a request with these headers.
    pub fn open(&self, headers: &HeaderMap) -> Open {
        let sampled = self.queue.as_ref().and_then(|_| Parent::of(headers));
        Open(sampled.map(|parent| {
            Box::new(Begun {
                span: Span::new(parent),
                at: Instant::now(),
                spans: self.clone(),
            })
        }))
    }

    /// Sends, for ever; returns at once if there is no collector.
    #[expect(clippy::infinite_loop, reason = "ends with the task that it is in")]
    pub async fn send(self) {
        let Some(queue) = &self.queue else { return };
        let collector = queue.collector;
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let keys = RandomState::new(); // random: no other process makes the same ids
        let mut last = 0_u64;
        let mut id = || {
            last += 1;
            keys.hash_one(last)
        };
        let mut takes = true;
        loop {
            let spans = queue.all().await;
            let document = document(&spans, &host, &mut id).to_string();
            let taken = timeout(WITHIN, post(collector, document))
                .await
                .unwrap_or(Err(Untaken::Late));
            let end = if taken.is_ok() { SENT } else { LOST };
            self.ended.get_or_create(&end).inc_by(spans.len() as u64);
            match &taken {
                Err(error) if takes => {
                    tracing::warn!(%collector, %error, "The collector does not take spans");
                }
                Ok(()) if !takes => tracing::info!(%collector, "The collector takes spans again"),
                _ => {}
            }
            takes = taken.is_ok();
            drop(spans);
            sleep(EVERY).await;
        }
    }

    fn end(&self, span: Span) {
        if self.queue.as_ref().is_some_and(|queue| !queue.put(span)) {
            self.ended.get_or_create(&LEFT_OUT).inc();
        }
    }
}

impl Queue {
    /// Never waits; false: there is no room.
    fn put(&self, span: Span) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let room = waiting.len() < WAITING;
        if room {
            waiting.push(span);
        }
        drop(waiting);
        self.more.notify_one();
        room
    }

    /// All that wait, once there are any.
    async fn all(&self) -> Vec<Span> {
        loop {
            self.more.notified().await;
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let all = mem::take(&mut *waiting);
            drop(waiting);
            if !all.is_empty() {
                return all;
            }
        }
    }
}

impl Open {
    /// Adds to what is known.
    pub fn tell(&mut self, what: impl FnOnce(&mut Span)) {
        if let Some(begun) = &mut self.0 {
            what(&mut begun.span);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(begun) = self.0.take() {
            let Begun {
                mut span,
                at,
                spans,
            } = *begun;
            span.took = at.elapsed();
            spans.end(span);
        }
    }
}

impl Parent {
    /// What `traceparent` says (<https://www.w3.org/TR/trace-context/#traceparent-header>), if it is one and the client
    /// samples.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all("traceparent").iter();
        let (Some(only), None) = (all.next(), all.next()) else {
            return None;
        };
        let mut parts = only.to_str().ok()?.split('-');
        let version = hex(parts.next()?, 2)?;
        let trace = hex(parts.next()?, 32)?;
        let span = hex(parts.next()?, 16)?;
        let flags = hex(parts.next()?, 2)?;
        // Version 00 has these four parts; a later one may have more. ff is none.
        let whole = version > 0 && version < 0xff || version == 0 && parts.next().is_none();
        let sampled = flags & 1 == 1;
        (whole && sampled && trace != 0 && span != 0).then_some(Self {
            trace,
            span: u64::try_from(span).ok()?,
        })
    }
}

/// A number of so many hexadecimal digits, in lower case.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let digit = |it| matches!(it, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != digits || !text.bytes().all(digit) {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

impl Span {
    fn new(parent: Parent) -> Self {
        Self {
            parent,
            began: SystemTime::now(),
            took: Duration::ZERO,
            method: Method::GET,
            path: Box::default(),
            what: Box::default(),
            resource: None,
            server: None,
            reason: None,
            status: None,
        }
    }

    /// As `opentelemetry/proto/trace/v1/trace.proto` has it in JSON, with the attributes that the semantic conventions
    /// ask of HTTP servers.
    fn encoded(&self, id: u64) -> Value {
        const SERVER: u8 = 2;
        const ERROR: u8 = 2;
        /// Sampled; it is known that the parent is remote; it is.
        const FLAGS: u32 = 0x301;
        let nanos = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH);
            since.unwrap_or_default().as_nanos().to_string()
        };
        let method = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
            .into_iter()
            .find(|known| self.method == *known);
        let server = self
            .server
            .map_or_else(|| "mvp".to_owned(), |it| it.to_string());
        let mut attributes = vec![
            text("http.request.method", method.unwrap_or("_OTHER")),
            text("url.scheme", "https"),
            text("url.path", &self.path),
            text("mvp.server", &server),
            text("mvp.reason", self.reason.unwrap_or("client_left")),
        ];
        if let Some(it) = &self.resource {
            attributes.extend([
                text("k8s.group", &it.group),
                text("k8s.version", &it.version),
                text("k8s.resource", &it.resource),
            ]);
        }
        let mut status = json!({});
        if let Some(code) = self.status {
            let value = json!({"intValue": code.as_str()});
            attributes.push(json!({"key": "http.response.status_code", "value": value}));
            if code.is_server_error() {
                attributes.push(text("error.type", code.as_str()));
                status = json!({"code": ERROR});
            }
        }
        json!({
            "traceId": format!("{:032x}", self.parent.trace),
            "spanId": format!("{id:016x}"),
            "parentSpanId": format!("{:016x}", self.parent.span),
            "flags": FLAGS,
            "name": format!("{} {}", method.unwrap_or("HTTP"), self.what).trim_end(),
            "kind": SERVER,
            "startTimeUnixNano": nanos(self.began),
            "endTimeUnixNano": nanos(self.began + self.took),
            "attributes": attributes,
            "status": status,
        })
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn document(spans: &[Span], host: &str, id: impl FnMut() -> u64) -> Value {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    let resource = [
        text("service.name", "mvp"),
        text("service.version", VERSION),
        text("host.name", host),
    ];
    let ids = std::iter::repeat_with(id);
    let spans: Vec<Value> = spans
        .iter()
        .zip(ids)
        .map(|(span, id)| span.encoded(id))
        .collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "mvp", "version": VERSION}, "spans": spans}],
    }]})
}

async fn post(collector: SocketAddr, document: String) -> Result<(), Untaken> {
    let stream = TcpStream::connect(collector).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::post("/v1/traces")
        .header(header::HOST, collector.to_string())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(document)))?;
    let mut asked = pin!(sender.send_request(request));
    let answer = tokio::select! {
        answer = &mut asked => answer?,
        // Ends with the answer, or with what the request is told.
        _ended = connection => asked.await?,
    };
    if answer.status().is_success() {
        Ok(())
    } else {
        Err(Untaken::Refused(answer.status()))
    }
}

#[cfg(test)]
mod tests;
