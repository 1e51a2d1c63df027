//! Connections of a load process: HTTP/2 by the h2 crate itself and HTTP/1.1 by hyper, as cheap as they get, because the
//! generator must not be what is measured.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::{net::TcpStream, task::spawn_local};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    LOOPBACK_NAME,
    plan::{Identity, Plan, Shot},
    provider,
};
use crate::pki::SERVER_NAME;

/// What a reader takes ahead: as much as kube-apiserver's own clients allow (Go's net/http2: 4 MiB a stream).
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;

/// Opens connections.
#[derive(Debug)]
pub struct Channels {
    tls: Arc<ClientConfig>,
    token: Option<HeaderValue>,
    to: SocketAddr,
    http2: bool,
    /// By which the server is asked for and known.
    name: &'static str,
}

/// One connection, or a handle to it.
#[derive(Debug)]
pub(super) enum Channel {
    Http2(SendRequest<Bytes>),
    Http1(http1::SendRequest<Full<Bytes>>),
}

/// What came back.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) bytes: u64,
}

/// A request that is sent again and again.
#[derive(Clone, Debug)]
pub(super) struct Template {
    head: Request<()>,
    body: Bytes,
}

impl Template {
    /// Answers with this status are failures.
    pub(super) fn is_wanted(&self, status: StatusCode) -> bool {
        let conditional = self.head.headers().contains_key(header::IF_NONE_MATCH);
        if conditional {
            status == StatusCode::NOT_MODIFIED
        } else {
            status.is_success()
        }
    }

    /// As a request of its own.
    pub(super) fn request(&self) -> Request<Full<Bytes>> {
        self.head.clone().map(|()| Full::new(self.body.clone()))
    }

    /// From now on only if the answer has changed.
    pub(super) fn unless(&mut self, etag: HeaderValue) {
        self.head.headers_mut().insert(header::IF_NONE_MATCH, etag);
    }
}

impl Channels {
    /// As the plan says; nothing is opened yet.
    pub fn new(plan: &Plan) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&plan.ca)? {
            roots.add(certificate?)?;
        }
        let builder = ClientConfig::builder_with_provider(provider())
            // A proxy that speaks an older version does other work.
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots);
        let (mut tls, token) = match &plan.identity {
            Identity::Certificate(chain, key) => {
                let chain = CertificateDer::pem_file_iter(chain)?.collect::<Result<Vec<_>, _>>()?;
                let key = PrivateKeyDer::from_pem_file(key)?;
                (builder.with_client_auth_cert(chain, key)?, None)
            }
            Identity::Token(token) => {
                let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
                value.set_sensitive(true);
                (builder.with_no_client_auth(), Some(value))
            }
        };
        tls.alpn_protocols = vec![if plan.http2 {
            b"h2".to_vec()
        } else {
            b"http/1.1".to_vec()
        }];
        // Every handshake is a whole one.
        tls.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            tls: Arc::new(tls),
            token,
            to: plan.to,
            http2: plan.http2,
            name: SERVER_NAME,
        })
    }

    /// The same client at another address.
    pub(super) fn at(&self, to: SocketAddr) -> Self {
        Self {
            tls: Arc::clone(&self.tls),
            token: self.token.clone(),
            to,
            http2: self.http2,
            name: self.name,
        }
    }

    /// The same client as kube-apiserver's own.
    pub(super) fn inward(&self) -> Self {
        Self {
            name: LOOPBACK_NAME,
            ..self.at(self.to)
        }
    }

    /// A TLS connection.
    pub(super) async fn tls(&self) -> Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.to)
            .await
            .with_context(|| format!("connecting to {}", self.to))?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(self.name)?;
        let stream = TlsConnector::from(Arc::clone(&self.tls))
            .connect(name, tcp)
            .await;
        let stream = stream.with_context(|| format!("TLS with {}", self.to))?;
        let agreed = stream.get_ref().1.alpn_protocol();
        if agreed != self.tls.alpn_protocols.first().map(Vec::as_slice) {
            bail!("{} does not speak the protocol that is asked for", self.to);
        }
        Ok(stream)
    }

    /// An HTTP connection.
    pub(super) async fn open(&self) -> Result<Channel> {
        let stream = self.tls().await?;
        if self.http2 {
            let (send, connection) = h2::client::Builder::new()
                .initial_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .enable_push(false)
                .handshake::<_, Bytes>(stream)
                .await?;
            spawn_local(async move { drop(connection.await) });
            Ok(Channel::Http2(send))
        } else {
            let (send, connection) = http1::handshake(TokioIo::new(stream)).await?;
            spawn_local(async move { drop(connection.await) });
            Ok(Channel::Http1(send))
        }
    }

    /// Makes a request ready to be sent often.
    pub(super) fn template(&self, shot: &Shot) -> Result<Template> {
        let uri = if self.http2 {
            format!("https://{SERVER_NAME}{}", shot.path).parse::<Uri>()?
        } else {
            shot.path.parse::<Uri>()?
        };
        let mut head = Request::builder()
            .method(shot.method.as_str())
            .uri(uri)
            .body(())?;
        let headers = head.headers_mut();
        if !self.http2 {
            headers.insert(header::HOST, HeaderValue::from_static(SERVER_NAME));
        }
        // What client-go sends.
        let agent = "kube-controller-manager/v1.36.0 (linux/amd64) kubernetes/abcdef0/bench";
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        let accept = shot
            .accept
            .as_deref()
            .unwrap_or("application/vnd.kubernetes.protobuf,application/json");
        headers.insert(header::ACCEPT, HeaderValue::from_str(accept)?);
        if let Some(token) = &self.token {
            headers.insert(header::AUTHORIZATION, token.clone());
        }
        let (body, kind) = match &shot.json {
            Some(json) => (Bytes::from(json.clone()), "application/json"),
            None => (
                Bytes::from(vec![b'x'; shot.body]),
                "application/vnd.kubernetes.protobuf",
            ),
        };
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        Ok(Template { head, body })
    }
}

impl Channel {
    /// A second handle to an HTTP/2 connection; HTTP/1.1 has none.
    pub(super) fn again(&self) -> Option<Self> {
        match self {
            Self::Http2(send) => Some(Self::Http2(send.clone())),
            Self::Http1(_) => None,
        }
    }

    /// Sends a request and reads the whole answer.
    pub(super) async fn exchange(&mut self, template: &Template) -> Result<Reply> {
        match self {
            Self::Http2(send) => {
                let answer = start_http2(send, template).await?;
                let (head, mut body) = answer.into_parts();
                let mut bytes = 0;
                while let Some(chunk) = body.data().await {
                    let length = chunk?.len();
                    body.flow_control().release_capacity(length)?;
                    bytes += length as u64;
                }
                Ok(Reply {
                    status: head.status,
                    headers: head.headers,
                    bytes,
                })
            }
            Self::Http1(send) => {
                send.ready().await?;
                let (head, mut body) = send.send_request(template.request()).await?.into_parts();
                let mut bytes = 0;
                while let Some(frame) = body.frame().await {
                    bytes += frame?.data_ref().map_or(0, Bytes::len) as u64;
                }
                Ok(Reply {
                    status: head.status,
                    headers: head.headers,
                    bytes,
                })
            }
        }
    }

    /// Sends a request over HTTP/2; the body is the caller's to read.
    pub(super) async fn start(&mut self, template: &Template) -> Result<Response<h2::RecvStream>> {
        match self {
            Self::Http2(send) => start_http2(send, template).await,
            Self::Http1(_) => bail!("this work is done over HTTP/2"),
        }
    }
}

async fn start_http2(
    send: &SendRequest<Bytes>,
    template: &Template,
) -> Result<Response<h2::RecvStream>> {
    let mut ready = send.clone().ready().await?;
    let (answer, mut stream) =
        ready.send_request(template.head.clone(), template.body.is_empty())?;
    let mut rest = template.body.clone();
    stream.reserve_capacity(rest.len());
    while !rest.is_empty() {
        let room = stream.capacity().min(rest.len());
        if room == 0 {
            let more = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
            more.context("the stream was closed while a body was sent")??;
            continue;
        }
        let part = rest.split_to(room);
        stream.send_data(part, rest.is_empty())?;
    }
    Ok(answer.await?)
}
