//! HTTP/1.1 connections to an API server that speaks nothing newer, and those of upgrades; what they have in common with
//! those of `private`.

use std::{
    pin::Pin,
    sync::{Arc, atomic::AtomicUsize},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1},
};
use hyper_util::rt::TokioIo;
use tokio::{
    sync::oneshot,
    task::spawn_local,
    time::{Instant, Sleep, sleep},
};

use super::{
    Stream,
    link::{CONTINUE_TIMEOUT, MAX_HEADERS},
};
use crate::body::{Body, BodyError, Gate, Open, waits};

/// kube-apiserver answers with few header lines; a bound is needed only so that they are bounded.
const MAX_HEADER_LINES: usize = 1024;

/// A connection without a request on it.
pub(super) struct Http1 {
    pub(super) sender: http1::SendRequest<Body>,
    pub(super) opened: Instant,
}

/// How every connection reads answers.
pub(super) fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .max_headers(MAX_HEADER_LINES)
        .max_buf_size(MAX_HEADERS as usize);
    builder
}

/// Speaks HTTP/1.1 on a fresh connection; `count` counts it while it lives.
pub(super) async fn open(
    stream: Stream,
    count: &Arc<AtomicUsize>,
    upgrades: bool,
) -> hyper::Result<Http1> {
    let (sender, connection) = builder().handshake(TokioIo::new(stream)).await?;
    let open = Open::new(count);
    spawn_local(async move {
        let end = if upgrades {
            connection.with_upgrades().await
        } else {
            connection.await
        };
        if let Err(error) = end {
            tracing::debug!(%error, "Upstream HTTP/1.1 connection ended");
        }
        drop(open);
    });
    Ok(Http1 {
        sender,
        opened: Instant::now(),
    })
}

impl Http1 {
    /// Whether the other side has closed it.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// One request, one answer. The URI is absolute, as for HTTP/2.
    pub(super) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, Box<TrySendError<Request<Body>>>> {
        let version = request.version();
        self.sender
            .try_send_request(gate(origin_form(request), version))
            .await
            .map_err(Box::new)
    }
}

/// HTTP/1.1 names the authority in Host, first of all headers.
pub(super) fn origin_form(mut request: Request<Body>) -> Request<Body> {
    *request.version_mut() = Version::HTTP_11;
    let mut uri = std::mem::take(request.uri_mut()).into_parts();
    uri.scheme = None;
    if let Some(authority) = uri.authority.take()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(header::HOST, host);
    }
    // Only the path is left, and it was part of a URI.
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
    request
}

/// Undoes what HTTP/1.1 needed, for a request that comes back unsent.
pub(super) fn absolute_form(mut request: Request<Body>) -> Request<Body> {
    if let Some(host) = request.headers_mut().remove(header::HOST)
        && let Ok(authority) = http::uri::Authority::try_from(host.as_bytes())
    {
        let mut uri = std::mem::take(request.uri_mut()).into_parts();
        uri.scheme = Some(http::uri::Scheme::HTTPS);
        uri.authority = Some(authority);
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
    }
    request
}

/// Keeps a body that waits for 100-continue from being read before the upstream asks for it: reading it makes hyper
/// tell the client to send.
fn gate(mut request: Request<Body>, version: Version) -> Request<Body> {
    let gate = request.extensions_mut().remove::<Gate>();
    if !waits(request.headers(), version) || request.body().is_end_stream() {
        return request;
    }
    let (open, opened) = oneshot::channel();
    let open = std::sync::Mutex::new(Some(open));
    hyper::ext::on_informational(&mut request, move |interim| {
        if interim.status() == StatusCode::CONTINUE
            && let Ok(mut open) = open.lock()
            && let Some(open) = open.take()
        {
            // Fails if the body is gone already.
            open.send(()).unwrap_or_default();
        }
    });
    request.map(|body| {
        Body::boxed(Gated {
            body,
            waiting: Some(Waiting {
                asked: opened,
                late: Box::pin(sleep(CONTINUE_TIMEOUT)),
                gate,
            }),
        })
    })
}

/// A body behind the gate of 100-continue.
struct Gated {
    body: Body,
    waiting: Option<Waiting>,
}

/// What opens the gate.
struct Waiting {
    asked: oneshot::Receiver<()>,
    late: Pin<Box<Sleep>>,
    /// The client's; an HTTP/2 client has none.
    gate: Option<Gate>,
}

impl Waiting {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sends = self
            .gate
            .as_ref()
            .is_some_and(|gate| gate.poll_open(cx).is_ready());
        if !sends && Pin::new(&mut self.asked).poll(cx).is_pending() {
            ready!(self.late.as_mut().poll(cx));
        }
        if let Some(gate) = &self.gate {
            gate.open();
        }
        Poll::Ready(())
    }
}

impl HttpBody for Gated {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(waiting) = &mut self.waiting {
            ready!(waiting.poll(cx));
            self.waiting = None;
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
