//! One short-lived HTTP/1.1 connection from the side room to one server, speaking as the marker user.
//!
//! Every probe and every read of discovery dials anew: so each of them also sees whether the port still listens, the
//! handshake still succeeds and the certificate is still the right one, and no dead connection is ever believed in.
//! Bodies are collected here, and only here in the side room, within a bound. Not for requests of clients.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use crate::{
    config::RequestHeaders,
    table::Server,
    tls::{Presenting, Protocol},
    upstream::{DialError, Dialer},
};

/// The user in whose name mvp probes and reads discovery (design 4.3).
pub const PROBE_USER: &str = "mvp:probe";
/// Its only group; kube-apiserver adds `system:authenticated`.
pub const PROBE_GROUP: &str = "mvp:probes";
/// The most that one answer may weigh: aggregated discovery of thousands of CRDs is a tenth of it.
pub const BODY_LIMIT: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No connection, or not to the server that it should be.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The connection broke, or does not speak HTTP.
    #[error("the connection to the kube-apiserver failed: {0}")]
    Broken(#[from] hyper::Error),
    /// No complete answer in time.
    #[error("no answer within the time allowed")]
    TimedOut,
    /// More than the bound.
    #[error("the answer is larger than allowed")]
    TooLarge,
    /// Compressed although that was not asked for: refused unread, so that nothing unpacks beyond the bound.
    #[error("the answer has a content encoding that was not asked for")]
    Encoded,
}

/// A complete answer.
#[derive(Debug)]
pub struct Answer {
    /// Status; redirections are answers like others and are never followed.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// The headers by which requests of the side room say who asks.
#[derive(Clone, Debug)]
pub struct Marker {
    user: HeaderName,
    group: HeaderName,
}

/// One connection. Dropping it closes it.
#[derive(Debug)]
pub struct Link {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
    marker: Option<Marker>,
    deadline: Instant,
    limit: usize,
}

impl Marker {
    /// The configured header names, the first of each kind; the standard ones where none is configured.
    pub fn new(headers: &RequestHeaders) -> Self {
        let first = |names: &[HeaderName], standard| {
            names
                .first()
                .cloned()
                .unwrap_or_else(|| HeaderName::from_static(standard))
        };
        Self {
            user: first(&headers.username, "x-remote-user"),
            group: first(&headers.group, "x-remote-group"),
        }
    }
}

impl Link {
    /// Connects. Everything over this link, its opening included, must be over within `within`.
    ///
    /// Without front-proxy material it presents nothing and names nobody: `/readyz` answers anonymous callers too.
    pub async fn open(
        dialer: &Dialer,
        server: &Server,
        marker: &Marker,
        within: Duration,
    ) -> Result<Self, LinkError> {
        let deadline = Instant::now() + within;
        let (presenting, marker) = if dialer.certificates().current().can_forward() {
            (Presenting::FrontProxy, Some(marker.clone()))
        } else {
            (Presenting::Nothing, None)
        };
        let dialing = dialer.tls(server, presenting, Protocol::Http1);
        let stream = timeout_at(deadline, dialing)
            .await
            .map_err(|_elapsed| LinkError::TimedOut)??;
        Self::over(stream, marker, deadline).await
    }

    /// Speaks HTTP/1.1 over a stream that is connected already.
    pub(crate) async fn over<S>(
        stream: S,
        marker: Option<Marker>,
        deadline: Instant,
    ) -> Result<Self, LinkError>
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Its errors reach whoever waits for an answer through `sender`.
        let driver = tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(Self {
            sender,
            driver,
            marker,
            deadline,
            limit: BODY_LIMIT,
        })
    }

    /// Moves the moment by which everything over this link must be over.
    pub fn extend(&mut self, within: Duration) {
        self.deadline = Instant::now() + within;
    }

    /// Answers may be this large, in bytes, instead of [`BODY_LIMIT`].
    pub const fn allow(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Whether requests over it carry the marker user.
    pub const fn forwards(&self) -> bool {
        self.marker.is_some()
    }

    /// GET.
    pub async fn get(
        &mut self,
        path: &str,
        accept: &'static str,
        if_none_match: Option<&HeaderValue>,
    ) -> Result<Answer, LinkError> {
        let mut request = Request::new(Full::default());
        if let Some(etag) = if_none_match {
            request
                .headers_mut()
                .insert(header::IF_NONE_MATCH, etag.clone());
        }
        self.send(request, path, accept).await
    }

    /// POST of a JSON document.
    pub async fn post_json(&mut self, path: &str, body: String) -> Result<Answer, LinkError> {
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = Method::POST;
        request.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        self.send(request, path, "application/json").await
    }

    async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
        path: &str,
        accept: &'static str,
    ) -> Result<Answer, LinkError> {
        // Paths come from constants and from names that were checked to be plain; anything else is asked for as "/".
        *request.uri_mut() = path.parse().unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(
            header::HOST,
            HeaderValue::from_static("kubernetes.default.svc"),
        );
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        headers.insert(
            header::USER_AGENT,
            HeaderValue::from_static(concat!("mvp/", env!("CARGO_PKG_VERSION"))),
        );
        if let Some(marker) = &self.marker {
            headers.insert(&marker.user, HeaderValue::from_static(PROBE_USER));
            headers.insert(&marker.group, HeaderValue::from_static(PROBE_GROUP));
        }
        let (deadline, limit) = (self.deadline, self.limit);
        let exchange = async {
            self.sender.ready().await?;
            let answer = self.sender.send_request(request).await?;
            let (head, mut body) = answer.into_parts();
            if head.headers.contains_key(header::CONTENT_ENCODING) {
                return Err(LinkError::Encoded);
            }
            let mut whole = BytesMut::new();
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame?.into_data() {
                    if whole.len() + data.len() > limit {
                        return Err(LinkError::TooLarge);
                    }
                    whole.extend_from_slice(&data);
                }
            }
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                body: whole.freeze(),
            })
        };
        timeout_at(deadline, exchange)
            .await
            .map_err(|_elapsed| LinkError::TimedOut)?
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
