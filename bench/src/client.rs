//! A plain client of the API, as checks need it: one connection, the caller's identity, requests on it.
//!
//! Not a load generator (see `load`): here every connection is made for the purpose and closed after it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Longest time that one connect, or one answer's headers, may take before the check fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Who asks.
#[derive(Debug)]
pub enum Who {
    /// A client certificate and its key.
    Certificate(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
    /// A bearer token.
    Token(String),
    /// Nobody.
    Anonymous,
}

impl Clone for Who {
    fn clone(&self) -> Self {
        match self {
            Self::Certificate(chain, key) => Self::Certificate(chain.clone(), key.clone_key()),
            Self::Token(token) => Self::Token(token.clone()),
            Self::Anonymous => Self::Anonymous,
        }
    }
}

/// Where to connect, as whom, and how.
#[derive(Clone, Debug)]
pub struct Client {
    tls: Arc<ClientConfig>,
    token: Option<HeaderValue>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Headers, repeated lines kept.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {:?}", self.text()))
    }

    /// The beginning of the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body[..self.body.len().min(200)]).into_owned()
    }
}

/// An open connection.
#[derive(Debug)]
pub enum Connection {
    /// HTTP/1.1.
    Http1(http1::SendRequest<Full<Bytes>>),
    /// HTTP/2.
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    /// A client that trusts the certificate authority `ca` and speaks HTTP/2 or only HTTP/1.1.
    pub fn new(ca: &CertificateDer<'static>, who: Who, http2: bool) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let (mut tls, token) = match who {
            Who::Certificate(chain, key) => (builder.with_client_auth_cert(chain, key)?, None),
            Who::Token(token) => {
                let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
                value.set_sensitive(true);
                (builder.with_no_client_auth(), Some(value))
            }
            Who::Anonymous => (builder.with_no_client_auth(), None),
        };
        tls.alpn_protocols = if http2 {
            vec![b"h2".to_vec()]
        } else {
            vec![b"http/1.1".to_vec()]
        };
        // Every connection of a check is a whole handshake.
        tls.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            tls: Arc::new(tls),
            token,
        })
    }

    /// A TLS connection to `to`.
    pub async fn tls(&self, to: SocketAddr) -> Result<TlsStream<TcpStream>> {
        let connect = async {
            let tcp = TcpStream::connect(to)
                .await
                .with_context(|| format!("connect to {to}"))?;
            tcp.set_nodelay(true)?;
            let name = ServerName::try_from("kubernetes.default.svc")?;
            TlsConnector::from(Arc::clone(&self.tls))
                .connect(name, tcp)
                .await
                .with_context(|| format!("TLS with {to}"))
        };
        tokio::time::timeout(PATIENCE, connect)
            .await
            .with_context(|| format!("no connection to {to}"))?
    }

    /// An HTTP connection to `to`.
    pub async fn connect(&self, to: SocketAddr) -> Result<Connection> {
        let io = self.tls(to).await?;
        if io.get_ref().1.alpn_protocol() == Some(b"h2") {
            let (send, connection) = http2::Builder::new(TokioExecutor::new())
                .handshake(TokioIo::new(io))
                .await?;
            drive(async move { drop(connection.await) });
            Ok(Connection::Http2(send))
        } else {
            let (send, connection) = http1::handshake(TokioIo::new(io)).await?;
            drive(async move { drop(connection.with_upgrades().await) });
            Ok(Connection::Http1(send))
        }
    }

    /// A request with the caller's credentials.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://kubernetes.default.svc{path}"))
            .body(Full::new(body.into()))?;
        for (name, value) in headers {
            request
                .headers_mut()
                .append(HeaderName::try_from(*name)?, HeaderValue::try_from(*value)?);
        }
        if let Some(token) = &self.token {
            request
                .headers_mut()
                .insert(header::AUTHORIZATION, token.clone());
        }
        Ok(request)
    }

    /// One request on a connection of its own; the whole answer.
    pub async fn once(&self, to: SocketAddr, method: &str, path: &str) -> Result<Answer> {
        self.once_with(to, method, path, &[], Bytes::new()).await
    }

    /// As [`Self::once`], with headers and a body.
    pub async fn once_with(
        &self,
        to: SocketAddr,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer> {
        let request = self.request(method, path, headers, body)?;
        self.connect(to).await?.send(request).await
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a client's connection has nothing to drain"
)]
fn drive(connection: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(connection);
}

impl Connection {
    /// Sends a request; the answer's headers have come when this returns.
    pub async fn start(&mut self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let answer = async {
            match self {
                Self::Http2(send) => {
                    send.ready().await?;
                    send.send_request(request).await
                }
                Self::Http1(send) => {
                    // HTTP/1.1 names the host in a header and only the path in its first line.
                    let uri = request.uri().clone();
                    if let Some(host) = uri.authority() {
                        let host = HeaderValue::try_from(host.as_str());
                        if let Ok(host) = host {
                            request.headers_mut().entry(header::HOST).or_insert(host);
                        }
                    }
                    if let Some(path) = uri.path_and_query() {
                        *request.uri_mut() = http::Uri::from(path.clone());
                    }
                    *request.version_mut() = Version::HTTP_11;
                    send.ready().await?;
                    send.send_request(request).await
                }
            }
        };
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(answer) => Ok(answer?),
            Err(_) => bail!("no answer within {PATIENCE:?}"),
        }
    }

    /// Sends a request and reads the whole answer.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Answer> {
        let (parts, body) = self.start(request).await?.into_parts();
        let body = tokio::time::timeout(PATIENCE, body.collect())
            .await
            .context("the body did not end")??
            .to_bytes();
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body,
        })
    }
}
