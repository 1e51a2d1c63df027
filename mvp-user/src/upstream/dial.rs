//! Opens connections: raw or verified TLS, to local from an address that steering exempts, to a peer from any.
//!
//! Not for keeping connections or for what is said over them.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol as IpProtocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    api::ServerId,
    body::BodyError,
    table::Server,
    tls::{Presenting, Protocol, RecordStream, Tls},
};

/// How long a TCP connection may take to be established (design 7).
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a TLS handshake may take (design 7).
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long sent bytes may stay unacknowledged (`TCP_USER_TIMEOUT`, design 7).
pub const USER_TIMEOUT: Duration = Duration::from_secs(10);
/// When the kernel begins to probe an idle connection; Go's default is the same.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Want of what a connection to local takes is told again after it was well for so long.
const TELL_AGAIN: Duration = Duration::from_mins(1);

/// A verified TLS connection to an API server.
pub type Stream = TlsStream<RecordStream>;

/// Lets one exact connection pass steering, for a local at `::1` on a node that has no other IPv6 address, which it could be
/// known by (design 2).
///
/// Given by `steer`; the direct mode has none and needs none.
pub trait Exempt: Send + Sync {
    /// Called between `bind()` and `connect()`: connections from `source` to `destination` are not steered from now on.
    fn exempt(&self, source: SocketAddr, destination: SocketAddr) -> io::Result<()>;
}

/// Why no connection came about. Nothing of a request was sent, so every one of these leaves it unprocessed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No socket, no address to bind to, or no exemption.
    #[error("cannot prepare a connection to {address}: {source}")]
    Prepare {
        /// Where to.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Refused, unreachable or reset.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// No answer to SYN within [`CONNECT_TIMEOUT`].
    #[error("no connection to {0} within 1 s")]
    ConnectTimeout(SocketAddr),
    /// The handshake failed: wrong certificate, wrong protocol, closed.
    #[error("TLS handshake with {address} failed: {source}")]
    Handshake {
        /// Where to.
        address: SocketAddr,
        /// What rustls or the kernel said.
        source: io::Error,
    },
    /// The handshake took longer than [`HANDSHAKE_TIMEOUT`].
    #[error("TLS handshake with {0} not finished within 3 s")]
    HandshakeTimeout(SocketAddr),
    /// It does not speak the protocol that was agreed.
    #[error("no HTTP with {address}: {source}")]
    Protocol {
        /// Where to.
        address: SocketAddr,
        /// What h2 or hyper said.
        source: BodyError,
    },
    /// The front-proxy certificate is to be presented and none is configured; without it `X-Remote-*` would be ignored.
    #[error("no connection to {0}: there is no front-proxy certificate (--proxy-client-cert-file)")]
    NoFrontProxy(SocketAddr),
}

impl DialError {
    /// Whether the server is to blame, and not this node.
    pub const fn is_the_servers(&self) -> bool {
        !matches!(self, Self::Prepare { .. } | Self::NoFrontProxy(_))
    }
}

/// Opens connections to API servers. One per process.
pub struct Dialer {
    tls: Arc<Tls>,
    exempt_source: Ipv4Addr,
    exempt: Option<Arc<dyn Exempt>>,
    /// When this node last could not make a connection to local, see [`Self::lacked_within`].
    lacked: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer")
            .field("exempt_source", &self.exempt_source)
            .finish_non_exhaustive()
    }
}

impl Dialer {
    /// A dialer; `exempt` is needed only where local is `::1`.
    pub const fn new(
        exempt_source: Ipv4Addr,
        tls: Arc<Tls>,
        exempt: Option<Arc<dyn Exempt>>,
    ) -> Self {
        Self {
            tls,
            exempt_source,
            exempt,
            lacked: Mutex::new(None),
        }
    }

    /// The certificates and keys in use.
    pub const fn certificates(&self) -> &Arc<Tls> {
        &self.tls
    }

    /// Whether within the last `period` this node had no port, descriptor or memory for a connection to local: clients
    /// that go there directly may do better, for theirs come from other addresses.
    pub fn lacked_within(&self, period: Duration) -> bool {
        let lacked = *self.lacked.lock().unwrap_or_else(PoisonError::into_inner);
        lacked.is_some_and(|then| then.elapsed() <= period)
    }

    /// A plain TCP connection; to local it comes from the exempt source.
    pub async fn raw(&self, server: &Server) -> Result<TcpStream, DialError> {
        let connected = self.connect(server).await;
        if server.id == ServerId::Local
            && let Err(error @ DialError::Prepare { .. }) = &connected
            && self.note_lack()
        {
            tracing::warn!(%error, "This node cannot make a connection to local");
        }
        connected
    }

    /// This node could not make a connection to local; whether that is news.
    fn note_lack(&self) -> bool {
        let before = self
            .lacked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(Instant::now());
        before.is_none_or(|then| then.elapsed() >= TELL_AGAIN)
    }

    async fn connect(&self, server: &Server) -> Result<TcpStream, DialError> {
        let address = server.address;
        let socket = self
            .prepare(server)
            .map_err(|source| DialError::Prepare { address, source })?;
        match timeout(CONNECT_TIMEOUT, socket.connect(address)).await {
            Ok(Ok(stream)) => Ok(stream),
            // This node has no port left towards it.
            Ok(Err(source)) if source.kind() == io::ErrorKind::AddrNotAvailable => {
                Err(DialError::Prepare { address, source })
            }
            Ok(Err(source)) => Err(DialError::Connect { address, source }),
            Err(_elapsed) => Err(DialError::ConnectTimeout(address)),
        }
    }

    /// A TLS connection whose server certificate was verified against the peer CA.
    pub async fn tls(
        &self,
        server: &Server,
        presenting: Presenting,
        protocol: Protocol,
    ) -> Result<Stream, DialError> {
        let address = server.address;
        let material = self.tls.current();
        let config = material
            .client(presenting, protocol)
            .ok_or(DialError::NoFrontProxy(address))?;
        let stream = RecordStream::new(self.raw(server).await?);
        let connecting = TlsConnector::from(config).connect(material.server_name().clone(), stream);
        match timeout(HANDSHAKE_TIMEOUT, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(source)) => Err(DialError::Handshake { address, source }),
            Err(_elapsed) => Err(DialError::HandshakeTimeout(address)),
        }
    }

    fn prepare(&self, server: &Server) -> io::Result<TcpSocket> {
        let socket = Socket::new(
            Domain::for_address(server.address),
            Type::STREAM.nonblocking().cloexec(),
            Some(IpProtocol::TCP),
        )?;
        tune(&SockRef::from(&socket))?;
        if server.id == ServerId::Local {
            self.bind_to_local(&socket, server.address)?;
        }
        Ok(TcpSocket::from_std_stream(socket.into()))
    }

    fn bind_to_local(&self, socket: &Socket, destination: SocketAddr) -> io::Result<()> {
        match destination.ip() {
            IpAddr::V4(_) => {
                // The port is chosen at connect(), where only the whole four-tuple must be unique: others' connections from
                // this port range do not count. Our own to this one destination are bounded by it (28,000).
                bind_without_port(socket, self.exempt_source.into())
            }
            // To this node's other addresses this one leads as well, and the steering program of every mvp knows it: while one
            // replaces another, neither may take the other's connections, which would go from one to the other for ever.
            IpAddr::V6(address) if !address.is_loopback() => {
                bind_without_port(socket, Ipv6Addr::LOCALHOST.into())
            }
            IpAddr::V6(address) => {
                let Some(exempt) = &self.exempt else {
                    return Ok(());
                };
                // The same the other way round: nobody else goes from another address of the node to this one.
                if v6_addresses().any(|ip| bind_without_port(socket, ip.into()).is_ok()) {
                    return Ok(());
                }
                setsockopt(socket, sockopt::IpBindAddressNoPort, &false)?;
                // An address of this node reaches itself; the port must be known before connect() sends the SYN.
                socket.bind(&SockAddr::from(SocketAddr::from((address, 0))))?;
                let source = socket
                    .local_addr()?
                    .as_socket()
                    .ok_or_else(|| io::Error::other("the kernel gave a bound socket no address"))?;
                exempt.exempt(source, destination)
            }
        }
    }
}

/// This node's IPv6 addresses, but for `::1` and those of one link.
fn v6_addresses() -> impl Iterator<Item = Ipv6Addr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    interfaces
        .filter_map(|interface| Some(interface.address?.as_sockaddr_in6()?.ip()))
        .filter(|ip| !ip.is_loopback() && !ip.is_unicast_link_local())
}

fn bind_without_port(socket: &Socket, address: IpAddr) -> io::Result<()> {
    setsockopt(socket, sockopt::IpBindAddressNoPort, &true)?;
    socket.bind(&SockAddr::from(SocketAddr::new(address, 0)))
}

/// Options of every connection that carries traffic, on either side: small writes go out at once, dead ends are noticed.
pub fn tune(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE),
    )
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::tls::fixtures::Pki;

    #[tokio::test(start_paused = true)]
    async fn want_is_told_when_it_begins_and_not_as_long_as_it_lasts() {
        let dialer = Dialer::new(Ipv4Addr::LOCALHOST, Pki::new().load(), None);
        for _ in 0..2 {
            assert!(dialer.note_lack(), "it begins");
            for _ in 0..100 {
                advance(Duration::from_secs(1)).await;
                assert!(!dialer.note_lack(), "it lasts");
            }
            advance(TELL_AGAIN).await;
        }
    }
}
