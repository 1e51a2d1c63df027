//! The answering process: looks enough like a kube-apiserver for mvp (TLS, authentication by certificate, front proxy or
//! token, discovery, `/readyz`, self reviews) and answers everything else at once from memory, so that the proxy in front
//! of it is what is measured. Not for tests of behaviour: that is [`crate::standin`], which lends its discovery.
//!
//! * any path with `bytes=N` in its query: a body of N bytes;
//! * `watch=1`: a stream of events, one for each `POST /bench/emit`;
//! * `Upgrade` with `bytes=N`: 101, then N bytes;
//! * `POST`, `PUT`, `PATCH`: the body is read to its end, then 201 with 1 KiB.
//!
//! Who is nobody gets 401, so a proxy that forwards no identity is noticed.

mod answer;
mod documents;

use std::{
    cell::RefCell,
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use hyper::{
    rt::Executor,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc::UnboundedSender,
    task::spawn_local,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use x509_parser::prelude::{FromDer as _, X509Certificate};

pub use self::documents::{AGGREGATED, Documents};

/// The token that is known.
pub const TOKEN: &str = "bench-token-0123456789abcdef0123456789abcdef";
/// As kube-apiserver's.
const MAX_STREAMS: u32 = 100;
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * (MAX_STREAMS + 1);

/// What an origin is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// Certificates as [`crate::pki::ClusterPki::write`] lays them out.
    pub pki: PathBuf,
    /// Group-versions that are not served.
    pub off: Vec<String>,
}

/// Everything that connections share.
struct House {
    tls: TlsAcceptor,
    front_proxy: Vec<u8>,
    documents: Documents,
    watches: RefCell<Vec<UnboundedSender<Bytes>>>,
}

/// Who a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    /// A front proxy: its headers say who asks.
    FrontProxy,
    /// A user with a certificate.
    Client,
    /// A token, or nobody.
    Open,
}

/// Serves for ever, on this thread. Must be called inside a `LocalSet`. `listening` is called when connections are taken.
pub async fn serve(settings: &Settings, listening: impl FnOnce()) -> Result<()> {
    let house = Rc::new(House {
        tls: TlsAcceptor::from(tls(&settings.pki)?),
        front_proxy: subject(&certificate(&settings.pki.join("front-proxy-ca.crt"))?)?,
        documents: Documents::record(&settings.off).await?,
        watches: RefCell::default(),
    });
    let mut listeners = Vec::new();
    for address in &settings.listen {
        listeners.push(bind(*address).with_context(|| format!("listening on {address}"))?);
    }
    listening();
    let loops = listeners
        .into_iter()
        .map(|listener| accept(listener, Rc::clone(&house)));
    futures_util::future::join_all(loops).await;
    Ok(())
}

fn bind(address: SocketAddr) -> Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM,
        None,
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    Ok(TcpListener::from_std(socket.into())?)
}

#[expect(clippy::infinite_loop, reason = "serves until its process ends")]
async fn accept(listener: TcpListener, house: Rc<House>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let house = Rc::clone(&house);
                spawn_local(async move {
                    if let Err(error) = connection(house, stream).await {
                        tracing::debug!(%error, "A connection ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "No connection accepted");
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    }
}

async fn connection(house: Rc<House>, stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let stream: TlsStream<TcpStream> = house.tls.accept(stream).await?;
    let (_, state) = stream.get_ref();
    let http2 = state.alpn_protocol() == Some(b"h2");
    let door = match state.peer_certificates().and_then(<[_]>::first) {
        None => Door::Open,
        Some(certificate) if issuer(certificate)? == house.front_proxy => Door::FrontProxy,
        Some(_) => Door::Client,
    };
    let service = service_fn(move |request| answer::answer(Rc::clone(&house), door, request));
    let io = TokioIo::new(stream);
    if http2 {
        http2::Builder::new(Local)
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_pending_accept_reset_streams(1000)
            .serve_connection(io, service)
            .await?;
    } else {
        http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(io, service)
            .with_upgrades()
            .await?;
    }
    Ok(())
}

/// Tasks of this thread.
#[derive(Clone, Copy, Debug)]
struct Local;

impl<F: Future + 'static> Executor<F> for Local {
    fn execute(&self, future: F) {
        spawn_local(async move { drop(future.await) });
    }
}

fn certificate(path: &Path) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_file(path).with_context(|| format!("{}", path.display()))
}

fn subject(certificate: &CertificateDer<'_>) -> Result<Vec<u8>> {
    Ok(X509Certificate::from_der(certificate)?
        .1
        .subject()
        .as_raw()
        .to_vec())
}

fn issuer(certificate: &CertificateDer<'_>) -> Result<Vec<u8>> {
    Ok(X509Certificate::from_der(certificate)?
        .1
        .issuer()
        .as_raw()
        .to_vec())
}

fn tls(pki: &Path) -> Result<Arc<ServerConfig>> {
    let mut roots = RootCertStore::empty();
    for authority in ["ca.crt", "front-proxy-ca.crt"] {
        roots.add(certificate(&pki.join(authority))?)?;
    }
    let provider = super::provider();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        // As the asker: see `channel`.
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![certificate(&pki.join("apiserver.crt"))?],
            PrivateKeyDer::from_pem_file(pki.join("apiserver.key"))?,
        )?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
    config.send_tls13_tickets = 1;
    // As Go's server.
    config.ignore_client_order = true;
    Ok(Arc::new(config))
}
