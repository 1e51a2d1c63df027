//! Certificates and keys from files, hot-reloaded, as one immutable [`Material`] per generation; the only maker of
//! rustls configurations.
//!
//! Not for judging who a client is (`identity` does, at every request): the handshake checks only that the client has
//! the private key of the certificate it shows, as kube-apiserver's does (`tls.RequestClientCert`).

use std::{net::IpAddr, path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use rustls_pki_types::ServerName;
use tokio::sync::watch;

use crate::config::TlsConfig;

/// Which client certificate an upstream is shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Presenting {
    /// The front-proxy certificate: requests carry `X-Remote-*` (design 4.3, kinds 1 and 2).
    FrontProxy,
    /// None: the request's own token, or nobody (kinds 3 and 4).
    Nothing,
}

/// What an upstream connection offers by ALPN; `mvp-direct` is always behind the rest (design 4.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protocol {
    /// `h2`, `http/1.1`.
    Any,
    /// `http/1.1` alone: upgrades.
    Http1,
}

/// Everything that was read from the files at one moment.
#[derive(Debug)]
pub struct Material {
    /// Counts the changes.
    pub generation: u64,
    /// For clients.
    pub server: Arc<rustls::ServerConfig>,
    /// What client certificates are judged by.
    pub authorities: Arc<Authorities>,
}

/// The CAs of client certificates.
#[derive(Debug, Default)]
pub struct Authorities {
    /// Counts the changes; verdicts are cached by it.
    pub generation: u64,
    /// `--client-ca-file`.
    pub client: Option<Anchors>,
    /// `--requestheader-client-ca-file`.
    pub requestheader: Option<Anchors>,
    /// `--requestheader-allowed-names`; empty: any.
    pub allowed_names: Vec<String>,
}

/// The trust anchors of one CA file.
#[derive(Debug, Default)]
pub struct Anchors {}

/// What is wrong with one file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct TlsError {
    /// Which file.
    pub file: PathBuf,
    /// What about it.
    pub fault: String,
}

/// The files, and what they said when they last made sense.
#[derive(Debug)]
pub struct Tls {
    current: ArcSwap<Material>,
    generation: watch::Sender<u64>,
}

impl Tls {
    /// Reads every file once; all that is wrong with any of them comes back together.
    pub fn load(_config: &TlsConfig) -> Result<Arc<Self>, Vec<TlsError>> {
        Err(Vec::new())
    }

    /// The newest generation.
    pub fn current(&self) -> Arc<Material> {
        self.current.load_full()
    }

    /// Changes whenever [`Tls::current`] does.
    pub fn generations(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Reads the files again whenever they change, for ever.
    pub async fn watch_files(self: Arc<Self>) {
        std::future::pending().await
    }
}

impl Material {
    /// The configuration of a connection to an upstream.
    pub fn client(
        &self,
        _presenting: Presenting,
        _protocol: Protocol,
    ) -> Arc<rustls::ClientConfig> {
        unimplemented!("tls is being built")
    }

    /// The name that serving certificates of upstreams must have (`--peer-server-name`).
    pub fn server_name(&self) -> &ServerName<'static> {
        unimplemented!("tls is being built")
    }

    /// The server configuration for a connection that arrived at `local`: a client that sends no SNI gets the
    /// certificate configured for that address, if there is one (kube-apiserver's `GetConfigForClient`).
    pub fn server_for(&self, _local: IpAddr, _sni: Option<&str>) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.server)
    }

    /// Whether there is a front-proxy certificate at all.
    pub fn can_forward(&self) -> bool {
        false
    }
}
