//! A kube-apiserver made of one closure: for behaviour that the stand-in has not, or must not have.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bench::pki::ClusterPki;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

pub(crate) type BoxError = std::io::Error;
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BoxError>;
type Answering = Pin<Box<dyn Future<Output = Result<Response<AnyBody>, BoxError>> + Send>>;

/// What reached the server.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "shown when an assertion fails")]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) connection: usize,
    /// Whether a client certificate was presented.
    pub(crate) certificate: bool,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Vec<String> {
        self.headers
            .get_all(name)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    }
}

/// A running server; dropping it kills it with all its connections.
pub(crate) struct Fake {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

/// One connection, as long as it is served.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn one_of(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What the server offers by ALPN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Speaks {
    Both,
    Http1,
}

pub(crate) fn full(text: impl Into<Bytes>) -> AnyBody {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

pub(crate) fn text(status: u16, body: impl Into<Bytes>) -> Response<AnyBody> {
    Response::builder().status(status).body(full(body)).unwrap()
}

/// Answers with the number of bytes that the body has. Window is not given back.
pub(crate) async fn answer_size(
    request: Request<h2::RecvStream>,
    respond: &mut h2::server::SendResponse<Bytes>,
) {
    let mut body = request.into_body();
    let mut size = 0;
    while let Some(Ok(chunk)) = body.data().await {
        size += chunk.len();
    }
    let mut stream = respond.send_response(Response::new(()), false).unwrap();
    stream.send_data(size.to_string().into(), true).unwrap();
}

pub(crate) fn acceptor(pki: &ClusterPki, speaks: Speaks) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let issued = pki.serving(&[[127, 0, 0, 1].into()]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(pki.front_proxy_ca.certificate.der.clone())
        .unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        Arc::clone(&provider),
    )
    .allow_unauthenticated()
    .build()
    .unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![issued.der.clone()], issued.private_key())
        .unwrap();
    config.alpn_protocols = match speaks {
        Speaks::Both => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Speaks::Http1 => vec![b"http/1.1".to_vec()],
    };
    TlsAcceptor::from(Arc::new(config))
}

impl Fake {
    /// Serves with `answer`.
    pub(crate) async fn start<F, R>(pki: &ClusterPki, speaks: Speaks, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response<AnyBody>, BoxError>> + Send + 'static,
    {
        let answer: Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync> =
            Arc::new(move |request| Box::pin(answer(request)));
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let log = Arc::clone(&seen);
        Self::raw(pki, speaks, seen, move |io, connection| {
            let answer = Arc::clone(&answer);
            let log = Arc::clone(&log);
            async move {
                let certificate = io.get_ref().1.peer_certificates().is_some();
                let h2 = io.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = service_fn(move |request: Request<Incoming>| {
                    log.lock().unwrap().push(Seen {
                        method: request.method().clone(),
                        uri: request.uri().clone(),
                        version: request.version(),
                        headers: request.headers().clone(),
                        connection,
                        certificate,
                    });
                    answer(request)
                });
                if h2 {
                    drop(
                        http2::Builder::new(TokioExecutor::new())
                            .max_header_list_size(1 << 21)
                            .serve_connection(TokioIo::new(io), service)
                            .await,
                    );
                } else {
                    drop(
                        http1::Builder::new()
                            .max_headers(2000)
                            .serve_connection(TokioIo::new(io), service)
                            .with_upgrades()
                            .await,
                    );
                }
            }
        })
        .await
    }

    /// Hands every TLS connection to `serve`.
    pub(crate) async fn raw<F, R>(
        pki: &ClusterPki,
        speaks: Speaks,
        seen: Arc<Mutex<Vec<Seen>>>,
        serve: F,
    ) -> Self
    where
        F: Fn(TlsStream<TcpStream>, usize) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = acceptor(pki, speaks);
        let connections = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&connections);
        let open = Arc::<AtomicUsize>::default();
        let count_open = Arc::clone(&open);
        let serve = Arc::new(serve);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut tasks = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                tcp.set_nodelay(true).unwrap();
                let number = count.fetch_add(1, Ordering::SeqCst);
                let open = Open::one_of(&count_open);
                let acceptor = acceptor.clone();
                let serve = Arc::clone(&serve);
                tasks.spawn(async move {
                    if let Ok(io) = acceptor.accept(tcp).await {
                        serve(io, number).await;
                    }
                    drop(open);
                });
            }
        });
        Self {
            address,
            seen,
            connections,
            open,
            _task: task,
        }
    }

    /// Answers everything with its own name.
    pub(crate) async fn named(pki: &ClusterPki, speaks: Speaks, name: &'static str) -> Self {
        Self::start(pki, speaks, move |_| async move { Ok(text(200, name)) }).await
    }

    /// Answers everything with this status and the body that came.
    pub(crate) async fn echo(pki: &ClusterPki, speaks: Speaks, status: u16) -> Self {
        Self::start(pki, speaks, move |request: Request<Incoming>| async move {
            let body = request.into_body().collect().await;
            let body = body.map_err(std::io::Error::other)?;
            Ok(text(status, body.to_bytes()))
        })
        .await
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The connection that each request came on, in their order.
    pub(crate) fn used(&self) -> Vec<usize> {
        self.seen().iter().map(|it| it.connection).collect()
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Connections that are served now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}
