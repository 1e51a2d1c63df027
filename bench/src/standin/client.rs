//! A small HTTPS client for tests: one connection at a time, every header line and byte as given. Load tests have their own.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::pki::{Issued, SERVER_NAME};

/// How to connect.
#[derive(Debug, Clone)]
pub struct Client {
    roots: Vec<CertificateDer<'static>>,
    certificate: Option<Issued>,
    alpn: Vec<Vec<u8>>,
    server_name: String,
    token: Option<String>,
}

/// An answer that has been read to its end.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status code.
    pub status: StatusCode,
    /// Header lines.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> anyhow::Result<serde_json::Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("no JSON: {}", String::from_utf8_lossy(&self.body)))
    }

    /// A header's first value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// An open connection.
#[derive(Debug)]
pub enum Connection {
    /// HTTP/1.1.
    Http1(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    /// HTTP/2.
    Http2(hyper::client::conn::http2::SendRequest<Full<Bytes>>),
}

impl Client {
    /// Trusts this authority and speaks HTTP/1.1.
    pub fn new(ca: &CertificateDer<'static>) -> Self {
        Self {
            roots: vec![ca.clone()],
            certificate: None,
            alpn: vec![b"http/1.1".to_vec()],
            server_name: SERVER_NAME.to_owned(),
            token: None,
        }
    }

    /// With a client certificate.
    #[must_use]
    pub fn certificate(mut self, issued: &Issued) -> Self {
        self.certificate = Some(issued.clone());
        self
    }

    /// With a bearer token on every request.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// HTTP/2.
    #[must_use]
    pub fn http2(self) -> Self {
        self.alpn(&["h2"])
    }

    /// Offers these ALPN entries.
    #[must_use]
    pub fn alpn(mut self, entries: &[&str]) -> Self {
        self.alpn = entries
            .iter()
            .map(|entry| entry.as_bytes().to_vec())
            .collect();
        self
    }

    /// Another server name, in SNI and to be verified.
    #[must_use]
    pub fn server_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.server_name);
        self
    }

    /// TLS only.
    pub async fn tls(&self, address: SocketAddr) -> anyhow::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        let mut roots = RootCertStore::empty();
        for root in &self.roots {
            roots.add(root.clone())?;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match &self.certificate {
            // Not `with_client_auth_cert`: it refuses the odd certificates that tests want to present.
            Some(issued) => {
                let key = provider
                    .key_provider
                    .load_private_key(issued.private_key())?;
                let certified = CertifiedKey::new(vec![issued.der.clone()], key);
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols.clone_from(&self.alpn);
        let name = ServerName::try_from(self.server_name.clone())?;
        Ok(TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await?)
    }

    /// Connects; HTTP/2 if that was chosen by ALPN.
    #[expect(
        clippy::disallowed_methods,
        reason = "a test's connection task has no owner to tell"
    )]
    pub async fn connect(&self, address: SocketAddr) -> anyhow::Result<Connection> {
        let tls = self.tls(address).await?;
        let http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let io = TokioIo::new(tls);
        if http2 {
            let (sender, connection) =
                hyper::client::conn::http2::Builder::new(TokioExecutor::new())
                    .max_header_list_size(1 << 20)
                    .handshake(io)
                    .await?;
            tokio::spawn(async move { drop(connection.await) });
            Ok(Connection::Http2(sender))
        } else {
            let (sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            tokio::spawn(async move { drop(connection.with_upgrades().await) });
            Ok(Connection::Http1(sender))
        }
    }

    /// A request for `target` (path and query) with these header lines.
    pub fn request(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let uri: Uri = format!("https://{SERVER_NAME}{target}").parse()?;
        let mut builder = Request::builder().method(method).uri(uri);
        if let Some(token) = &self.token {
            builder = builder.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        Ok(builder.body(Full::new(Bytes::copy_from_slice(body)))?)
    }

    /// One request on a connection of its own.
    pub async fn send(
        &self,
        address: SocketAddr,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> anyhow::Result<Answer> {
        let mut connection = self.connect(address).await?;
        let response = connection
            .send(self.request(method, target, headers, body)?)
            .await?;
        finish(response).await
    }

    /// GET on a connection of its own.
    pub async fn get(&self, address: SocketAddr, target: &str) -> anyhow::Result<Answer> {
        self.send(address, "GET", target, &[], b"").await
    }
}

impl Connection {
    /// Sends a request; the body is still to be read.
    pub async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> anyhow::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => {
                let uri = request.uri().clone();
                if let Some(authority) = uri.authority() {
                    let host = http::HeaderValue::try_from(authority.as_str())?;
                    request
                        .headers_mut()
                        .entry(http::header::HOST)
                        .or_insert(host);
                }
                *request.uri_mut() = uri
                    .path_and_query()
                    .map_or("/", |target| target.as_str())
                    .parse()?;
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
        }
    }
}

/// Reads an answer to its end.
pub async fn finish(response: Response<Incoming>) -> anyhow::Result<Answer> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Answer {
        status: parts.status,
        headers: parts.headers,
        body,
    })
}
