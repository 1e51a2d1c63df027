//! The accept loop: reads the ClientHello, decides whether a connection is passed raw, else does the TLS handshake.
//!
//! Not for requests (`serve`), nor for who the client is (`identity`).

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};

use rustls_pki_types::CertificateDer;

use crate::{table::Table, tls::Tls};

/// Why a connection is passed on byte for byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RawReason {
    /// kube-apiserver's own loopback client: it trusts only an in-memory certificate (design 2).
    Loopback,
    /// Another mvp, or this one, has decided already (design 4.4).
    Direct,
}

/// A client connection, ready for `serve` or `tunnel`.
#[derive(Debug)]
pub enum Connection {
    /// To be passed on byte for byte.
    Raw {
        /// The socket.
        stream: TcpStream,
        /// What was already read from it: goes to the upstream first.
        head: Bytes,
        /// Why.
        why: RawReason,
        /// The client.
        peer: SocketAddr,
        /// Counts the connection while it lives.
        slot: Slot,
    },
    /// TLS terminated.
    Tls(Box<TlsConnection>),
}

/// A client connection whose TLS ends here.
#[derive(Debug)]
pub struct TlsConnection {
    /// The stream.
    pub io: tokio_rustls::server::TlsStream<TcpStream>,
    /// The client.
    pub peer: SocketAddr,
    /// The address that the client reached.
    pub local: SocketAddr,
    /// `mvp-direct` from a foreign address: everything goes to local (design 4.4).
    pub decided: bool,
    /// Whether HTTP/2 was agreed.
    pub h2: bool,
    /// Counts the connection while it lives.
    pub slot: Slot,
}

impl TlsConnection {
    /// The certificate chain that the client presented, leaf first: for `identity::Presented`.
    pub fn chain(&self) -> Option<&[CertificateDer<'static>]> {
        self.io.get_ref().1.peer_certificates()
    }
}

/// How many client connections there are, against the bound. Shared with the steerer (reason *full*).
#[derive(Debug)]
pub struct Room {
    open: AtomicUsize,
}

/// One client connection, counted until it is dropped.
#[derive(Debug)]
pub struct Slot(Arc<Room>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What every accepting thread shares.
#[derive(Debug)]
pub struct Acceptor {
    _tls: Arc<Tls>,
    _table: Arc<Table>,
}

impl Acceptor {
    /// Accepts from `listeners` until `stop` is true and their queues are empty; each connection becomes a task of
    /// `handler` on this thread. Returns the connections still open; dropping them ends them.
    /// Must be called inside a `LocalSet`.
    pub async fn run<H, F>(
        self: Arc<Self>,
        _listeners: Vec<TcpListener>,
        _stop: tokio::sync::watch::Receiver<bool>,
        _handler: H,
    ) -> tokio::task::JoinSet<()>
    where
        H: Fn(Connection) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        tokio::task::JoinSet::new()
    }
}
