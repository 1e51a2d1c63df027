//! A client whose bodies and limits the test chooses.

use std::net::SocketAddr;

use bench::client::Client;
use http::{Request, Response, header};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::fake::AnyBody;

/// One connection.
pub(crate) enum Wire {
    H1(http1::SendRequest<AnyBody>),
    H2(http2::SendRequest<AnyBody>),
}

impl Wire {
    /// Opens one; `client` says as whom, and over which protocol.
    pub(crate) async fn open(client: &Client, to: SocketAddr) -> Self {
        let io = client.tls(to).await.unwrap();
        if io.get_ref().1.alpn_protocol() == Some(b"h2") {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .max_header_list_size(1 << 21)
                .handshake(TokioIo::new(io))
                .await
                .unwrap();
            tokio::spawn(connection);
            Self::H2(sender)
        } else {
            let (sender, connection) = http1::Builder::new()
                .max_headers(2000)
                .handshake(TokioIo::new(io))
                .await
                .unwrap();
            tokio::spawn(connection.with_upgrades());
            Self::H1(sender)
        }
    }

    /// Sends a request; the URI is a path.
    pub(crate) async fn send(
        &mut self,
        mut request: Request<AnyBody>,
    ) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::H1(sender) => {
                request
                    .headers_mut()
                    .insert(header::HOST, "kubernetes.default.svc".parse().unwrap());
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::H2(sender) => {
                let mut parts = request.uri().clone().into_parts();
                parts.scheme = Some(http::uri::Scheme::HTTPS);
                parts.authority = Some("kubernetes.default.svc".parse().unwrap());
                *request.uri_mut() = http::Uri::from_parts(parts).unwrap();
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// Whether the server has ended the connection.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::H1(sender) => sender.is_closed(),
            Self::H2(sender) => sender.is_closed(),
        }
    }
}

/// A request without a body, with the caller's credentials.
pub(crate) fn get(client: &Client, path: &str) -> Request<AnyBody> {
    request(client, "GET", path, crate::fake::full(""))
}

/// A request with the caller's credentials.
pub(crate) fn request(
    client: &Client,
    method: &str,
    path: &str,
    body: AnyBody,
) -> Request<AnyBody> {
    let template = client.request(method, path, &[], "").unwrap();
    let (mut parts, _) = template.into_parts();
    parts.uri = path.parse().unwrap();
    Request::from_parts(parts, body)
}

/// An HTTP/2 connection that shows what hyper hides: whether the server has sent GOAWAY.
pub(crate) struct Bare {
    sender: h2::client::SendRequest<bytes::Bytes>,
}

impl Bare {
    pub(crate) async fn open(client: &Client, to: SocketAddr) -> Self {
        let (sender, connection) = h2::client::handshake(client.tls(to).await.unwrap())
            .await
            .unwrap();
        tokio::spawn(connection);
        Self { sender }
    }

    /// Sends a GET.
    pub(crate) async fn get(&mut self, client: &Client, path: &str) -> Response<h2::RecvStream> {
        let (parts, _) = client.request("GET", path, &[], "").unwrap().into_parts();
        self.sender = self.sender.clone().ready().await.unwrap();
        let (answer, _) = self
            .sender
            .send_request(Request::from_parts(parts, ()), true)
            .unwrap();
        answer.await.unwrap()
    }

    /// Whether the server has said that it takes no more requests.
    pub(crate) fn is_sent_away(&self) -> bool {
        let mut sender = self.sender.clone();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        matches!(sender.poll_ready(&mut cx), std::task::Poll::Ready(Err(_)))
    }
}
