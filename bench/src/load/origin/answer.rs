//! One request, answered from memory.

use std::{
    convert::Infallible,
    pin::Pin,
    rc::Rc,
    sync::LazyLock,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::{
    io::AsyncWriteExt as _,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::spawn_local,
};

use super::{Door, House, TOKEN};
use crate::load::{
    CHUNK,
    watches::{MARK, now},
};

/// How long an event is: a small pod.
const EVENT: usize = 1024;
/// What an unknown path weighs.
const SMALL: u64 = 1024;

static ZEROS: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![b'0'; CHUNK]));

/// A body from memory.
pub(super) enum Body {
    Whole(Bytes),
    /// So many bytes of no meaning.
    Filler(u64),
    Events(UnboundedReceiver<Bytes>),
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Filler(0) => Poll::Ready(None),
            Self::Filler(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(CHUNK);
                *left -= length as u64;
                Poll::Ready(Some(Ok(Frame::data(ZEROS.slice(..length)))))
            }
            Self::Events(events) => events
                .poll_recv(cx)
                .map(|event| event.map(|event| Ok(Frame::data(event)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Filler(left) => *left == 0,
            Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Filler(left) => SizeHint::with_exact(*left),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

pub(super) async fn answer(
    house: Rc<House>,
    door: Door,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    if !is_known(door, request.headers()) {
        return Ok(plain(
            StatusCode::UNAUTHORIZED,
            Body::Whole(Bytes::from_static(b"Unauthorized")),
        ));
    }
    let path = request.uri().path();
    match path {
        "/readyz" | "/livez" | "/healthz" => {
            return Ok(plain(
                StatusCode::OK,
                Body::Whole(Bytes::from_static(b"ok")),
            ));
        }
        "/bench/emit" => {
            emit(&house);
            return Ok(plain(StatusCode::OK, Body::Whole(Bytes::new())));
        }
        _ if path.ends_with("/selfsubjectreviews") => return Ok(review(request.headers())),
        _ => {}
    }
    if let Some((status, headers, body)) = house.documents.find(path, request.headers()) {
        let mut answer = Response::new(Body::Whole(body));
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        return Ok(answer);
    }
    let query = request.uri().query().unwrap_or_default();
    let bytes = number(query, "bytes=");
    if request.headers().contains_key(header::UPGRADE) {
        return Ok(upgrade(&mut request, bytes.unwrap_or(0)));
    }
    if query.contains("watch=1") {
        let (sender, events) = unbounded_channel();
        // As most watches begin; and nginx holds an answer's headers back until there is something of its body.
        if let Err(error) = sender.send(event()) {
            tracing::debug!(%error, "A watch ended at once");
        }
        house.watches.borrow_mut().push(sender);
        return Ok(json(StatusCode::OK, Body::Events(events)));
    }
    if *request.method() == Method::GET {
        return Ok(json(StatusCode::OK, Body::Filler(bytes.unwrap_or(SMALL))));
    }
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(json(StatusCode::CREATED, Body::Filler(SMALL)))
}

/// As kube-apiserver: a front proxy's word, a certificate, a token.
fn is_known(door: Door, headers: &HeaderMap) -> bool {
    match door {
        Door::FrontProxy => headers
            .get("x-remote-user")
            .is_some_and(|user| !user.is_empty()),
        Door::Client => true,
        Door::Open => headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
            .is_some_and(|token| token == TOKEN.as_bytes()),
    }
}

fn number(query: &str, name: &str) -> Option<u64> {
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix(name)?.parse().ok())
}

fn plain(status: StatusCode, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    answer
}

/// The headers of a kube-apiserver's answer.
fn json(status: StatusCode, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(
        "audit-id",
        HeaderValue::from_static("5f7d5e2b-6f0f-4b0c-9a5e-0d6c6d1c9a11"),
    );
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    let uid = HeaderValue::from_static("2f1a3a52-7f0c-4b5f-8d0e-94c9a4a3c0de");
    headers.insert("x-kubernetes-pf-flowschema-uid", uid.clone());
    headers.insert("x-kubernetes-pf-prioritylevel-uid", uid);
    answer
}

/// Who asks, as the headers say: what mvp's proof of identity forwarding wants to see.
fn review(headers: &HeaderMap) -> Response<Body> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let groups: Vec<String> = headers.get_all("x-remote-group").iter().map(text).collect();
    let user = headers.get("x-remote-user").map(text).unwrap_or_default();
    let review = serde_json::json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "SelfSubjectReview",
        "status": {"userInfo": {"username": user, "groups": groups}},
    });
    json(
        StatusCode::CREATED,
        Body::Whole(Bytes::from(review.to_string())),
    )
}

/// An event of now.
fn event() -> Bytes {
    let mut event = format!(
        "{}{:019},\"object\":\"",
        String::from_utf8_lossy(MARK),
        now()
    )
    .into_bytes();
    event.resize(EVENT - 3, b'.');
    event.extend_from_slice(b"\"}\n");
    Bytes::from(event)
}

/// One event to every watch that is still there.
fn emit(house: &House) {
    let event = event();
    house
        .watches
        .borrow_mut()
        .retain(|watch| watch.send(event.clone()).is_ok());
}

fn upgrade(request: &mut Request<Incoming>, bytes: u64) -> Response<Body> {
    let Some(protocol) = request.headers().get(header::UPGRADE).cloned() else {
        return plain(StatusCode::BAD_REQUEST, Body::Whole(Bytes::new()));
    };
    let switched = hyper::upgrade::on(request);
    spawn_local(async move {
        let pour = async {
            let mut stream = TokioIo::new(switched.await.map_err(std::io::Error::other)?);
            let mut left = bytes;
            while left > 0 {
                let length = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK);
                stream.write_all(&ZEROS[..length]).await?;
                left -= length as u64;
            }
            stream.flush().await?;
            // Until the other side has read everything and closes.
            let mut rest = tokio::io::sink();
            tokio::io::copy(&mut stream, &mut rest).await
        };
        if let Err(error) = pour.await {
            tracing::debug!(%error, "A tunnel broke");
        }
    });
    let mut answer = Response::new(Body::Whole(Bytes::new()));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.headers_mut().insert(header::UPGRADE, protocol);
    answer
}
