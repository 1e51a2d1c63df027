//! The client of the watches: the service account's (or a kubeconfig's) identity, over connections to local first, then
//! to peers, never through the Service address, which may lead to any server or through mvp itself.

use std::{
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::{
    client::legacy::{
        Client as HttpClient,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::{
    Client, Config as KubeConfig,
    client::{Body as KubeBody, ConfigExt as _},
    config::{KubeConfigOptions, Kubeconfig},
};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Interval, interval, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::{BoxError, ServiceBuilder};

use crate::{
    api::ALPN_DIRECT,
    config::Config,
    table::{Health, Membership, Server, Table},
    upstream::{Dialer, HANDSHAKE_TIMEOUT},
};

/// How soon a connection without traffic is asked whether it lives, and how long that may take.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// How often a connection looks whether its server is about to stop.
const LOOK: Duration = Duration::from_millis(500);

/// The token that every pod with a service account finds.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// `--kubeconfig` cannot be used.
    #[error("cannot use the kubeconfig {path}: {source}")]
    Kubeconfig {
        /// Which.
        path: String,
        /// What about it.
        source: Box<kube::config::KubeconfigError>,
    },
    /// There is no service account.
    #[error("no --kubeconfig was given and there is no in-cluster service account: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    /// Its credentials cannot be used.
    #[error("cannot use the credentials: {0}")]
    Credentials(#[from] Box<kube::Error>),
    /// `--peer-server-name`.
    #[error("the name of the servers is not a DNS name: {0}")]
    Name(#[from] rustls_pki_types::InvalidDnsNameError),
}

/// Connects to the best server that can be reached.
#[derive(Clone)]
struct Nearest {
    table: Arc<Table>,
    dialer: Arc<Dialer>,
    tls: Arc<rustls::ClientConfig>,
    name: ServerName<'static>,
}

/// A TLS connection that says which protocol was agreed upon, and that ends when its server is about to stop:
/// kube-apiserver waits up to a minute for watches, and mvp's must not be what it waits for.
struct Link {
    stream: TlsStream<TcpStream>,
    server: Arc<Server>,
    /// Since this connection was made.
    was_up: bool,
    look: Interval,
}

/// Whether there is anything to make a client of: a kubeconfig, or a pod's service account.
pub(super) fn has_credentials(config: &Config) -> bool {
    config.kubeconfig.is_some() || Path::new(POD_TOKEN).exists()
}

/// A client for the watches, with credentials read now.
pub(crate) async fn client(
    config: &Config,
    table: Arc<Table>,
    dialer: Arc<Dialer>,
) -> Result<Client, ClientError> {
    let kube = match &config.kubeconfig {
        Some(path) => from_file(path).await?,
        None => KubeConfig::incluster()?,
    };
    let mut tls = kube.rustls_client_config().map_err(Box::new)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec(), ALPN_DIRECT.to_vec()];
    let nearest = Nearest {
        table,
        dialer,
        tls: Arc::new(tls),
        name: ServerName::try_from(config.tls.peer_server_name.clone())?,
    };
    let http: HttpClient<_, KubeBody> = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(KEEP_ALIVE)
        .http2_keep_alive_timeout(KEEP_ALIVE)
        .http2_keep_alive_while_idle(true)
        .build(nearest);
    let service = ServiceBuilder::new()
        .layer(kube.base_uri_layer())
        .option_layer(kube.auth_layer().map_err(Box::new)?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, kube.default_namespace))
}

async fn from_file(path: &Path) -> Result<KubeConfig, ClientError> {
    let fail = |source| ClientError::Kubeconfig {
        path: path.display().to_string(),
        source: Box::new(source),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(fail)?;
    KubeConfig::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(fail)
}

impl Nearest {
    /// Servers that are up before those that may be, local before peers.
    fn order(&self) -> Vec<Arc<Server>> {
        let members = self.table.members();
        let mut servers: Vec<_> = std::iter::once(&members.local)
            .chain(&members.peers)
            .filter(|server| server.membership() == Membership::Listed)
            .map(Arc::clone)
            .collect();
        servers.sort_by_key(|server| server.health() != Health::Up);
        servers
    }

    async fn connect(self) -> Result<TokioIo<Link>, BoxError> {
        let mut last = None;
        for server in self.order() {
            match self.connect_to(&server).await {
                Ok(stream) => {
                    let look = interval(LOOK);
                    return Ok(TokioIo::new(Link {
                        stream,
                        server,
                        was_up: false,
                        look,
                    }));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| "no kube-apiserver is known".into()))
    }

    async fn connect_to(&self, server: &Server) -> Result<TlsStream<TcpStream>, BoxError> {
        let stream = self.dialer.raw(server).await?;
        let connecting =
            TlsConnector::from(Arc::clone(&self.tls)).connect(self.name.clone(), stream);
        Ok(timeout(HANDSHAKE_TIMEOUT, connecting).await??)
    }
}

impl tower::Service<Uri> for Nearest {
    type Response = TokioIo<Link>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    /// The URI names the cluster; where to connect is decided here.
    fn call(&mut self, _uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

impl Connection for Link {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            connected.negotiated_h2()
        } else {
            connected
        }
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.look.poll_tick(cx).is_ready() {
            // A server that stops closes its listener at once, so that it looks like one that is down.
            match self.server.health() {
                Health::Up => self.was_up = true,
                Health::Draining | Health::Down if self.was_up => return Poll::Ready(Ok(())),
                Health::Draining | Health::Down | Health::Starting => {}
            }
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
