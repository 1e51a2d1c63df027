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
    time::{Instant, Interval, interval, timeout},
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
/// How long a server that was up may be not ready before its connections end: one that is slow for a moment keeps them.
const NOT_READY_FOR: Duration = Duration::from_secs(10);

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
    turn: usize,
}

/// A TLS connection that says which protocol was agreed upon, and that ends when its server is about to stop:
/// kube-apiserver waits up to a minute for watches, and mvp's must not be what it waits for. It ends as well when its server
/// stays not ready while another one is up: cut off from etcd it keeps watches open, silent, until they time out.
struct Link {
    stream: TlsStream<TcpStream>,
    table: Arc<Table>,
    server: Arc<Server>,
    /// Since this connection was made.
    was_up: bool,
    not_ready_since: Option<Instant>,
    look: Interval,
}

/// Whether there is anything to make a client of: a kubeconfig, or a pod's service account.
pub(super) fn has_credentials(config: &Config) -> bool {
    config.kubeconfig.is_some() || Path::new(POD_TOKEN).exists()
}

/// A client for the watches, with credentials read now. `turn`: how many before it got nothing from the server that they were
/// connected to, although that is up; this one begins with the next.
pub(crate) async fn client(
    config: &Config,
    table: Arc<Table>,
    dialer: Arc<Dialer>,
    turn: usize,
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
        turn,
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

fn is_up(server: &Server) -> bool {
    server.health() == Health::Up && server.membership() == Membership::Listed
}

/// Servers that are up before those that may be, and these before those that have left: after a restart of mvp the list may
/// be from before they came back. Local before peers, but for `turn` of those that are up, which come last of them.
fn order(table: &Table, turn: usize) -> Vec<Arc<Server>> {
    let members = table.members();
    let mut servers: Vec<_> = std::iter::once(&members.local)
        .chain(&members.peers)
        .map(Arc::clone)
        .collect();
    servers.sort_by_key(|server| (!is_up(server), server.membership() != Membership::Listed));
    let up = servers.iter().take_while(|server| is_up(server)).count();
    if let Some(up) = servers.get_mut(..up) {
        up.rotate_left(turn.checked_rem(up.len()).unwrap_or(0));
    }
    servers
}

impl Nearest {
    async fn connect(self) -> Result<TokioIo<Link>, BoxError> {
        let mut last = None;
        for server in order(&self.table, self.turn) {
            match self.connect_to(&server).await {
                Ok(stream) => {
                    let look = interval(LOOK);
                    return Ok(TokioIo::new(Link {
                        stream,
                        table: self.table,
                        server,
                        was_up: false,
                        not_ready_since: None,
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

impl Link {
    /// Whether its server is not to be waited for any longer, as it is now.
    fn is_over(&mut self, now: Instant) -> bool {
        // A server that stops closes its listener at once, so that it looks like one that is down.
        match self.server.health() {
            Health::Up => {
                self.was_up = true;
                self.not_ready_since = None;
                false
            }
            Health::Draining | Health::Down => self.was_up,
            Health::Starting => {
                let since = *self.not_ready_since.get_or_insert(now);
                let members = self.table.members();
                self.was_up
                    && now - since >= NOT_READY_FOR
                    && (is_up(&members.local) || members.peers.iter().any(|peer| is_up(peer)))
            }
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
            if self.is_over(Instant::now()) {
                return Poll::Ready(Ok(()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ServerId;

    #[test]
    fn servers_that_gave_nothing_come_last_of_those_that_are_up_and_those_that_left_last_of_all() {
        let server = |id, last: u8| Arc::new(Server::new(id, ([10, 0, 0, last], 6443).into()));
        let peer = |last: u8| server(ServerId::Peer(([10, 0, 0, last], 6443).into()), last);
        let (local, peers) = (server(ServerId::Local, 1), [2, 3, 4, 5].map(peer));
        let table = Table::new(Arc::clone(&local));
        table.set_peers(peers.to_vec());
        let first = |turn| -> Vec<u8> {
            let octet = |server: &Arc<Server>| match server.address.ip() {
                std::net::IpAddr::V4(ip) => ip.octets()[3],
                std::net::IpAddr::V6(_) => 0,
            };
            order(&table, turn).iter().map(octet).collect()
        };
        peers[0].set_membership(Membership::Departed);
        assert_eq!(first(7), [1, 3, 4, 5, 2], "nobody is up");
        for up in [&local, &peers[0], &peers[2], &peers[3]] {
            up.set_health(Health::Up);
        }
        assert_eq!(first(0), [1, 4, 5, 3, 2]);
        assert_eq!(first(1), [4, 5, 1, 3, 2]);
        assert_eq!(first(5), [5, 1, 4, 3, 2]);
    }
}
