//! The accept loop: reads the ClientHello, decides whether a connection is passed raw, else does the TLS handshake.
//!
//! Not for requests (`serve`), nor for who the client is (`identity`).

use std::{
    collections::HashSet, future::poll_fn, io, net::SocketAddr, rc::Rc, sync::Arc, task::Poll,
    time::Duration,
};

use bytes::Bytes;
use prometheus_client::registry::Registry;
use rustls_pki_types::CertificateDer;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout_at},
};
use tokio_rustls::{StartHandshake, server::TlsStream};

use crate::{
    table::Table,
    tls::{RecordStream, Tls},
};

mod hello;
mod metrics;
mod node;
mod room;
mod seats;
#[cfg(test)]
mod tests;
mod watched;

use hello::{Hello, Verdict};
use metrics::Metrics;
pub use metrics::Outcome;
use node::NodeAddresses;
use room::Load;
pub use room::{Bound, Room, Slot};
use seats::{Arrival, Handed, Seats, TAKE_BACK};
pub use watched::Watched;

/// For the handshake as a whole: kube-apiserver's (its read header time-out), so that slow smart cards still get in.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(32);
/// As kube-apiserver's listener.
const KEEPALIVE: Duration = Duration::from_mins(3);
/// After a stop was asked for, connections already on their way are still accepted, for at least this long.
pub const LINGER: Duration = Duration::from_secs(3);
/// How soon an acceptor that has no room looks whether there is some.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// And for at most this long: half-open handshakes may be those of a SYN flood.
pub const LINGER_AT_MOST: Duration = Duration::from_secs(15);

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
    pub io: TlsStream<RecordStream>,
    /// The client; never an IPv4-mapped address.
    pub peer: SocketAddr,
    /// The address that the client reached; never an IPv4-mapped one.
    pub local: SocketAddr,
    /// `mvp-direct` from a foreign address: everything goes to local (design 4.4).
    pub decided: bool,
    /// Whether HTTP/2 was agreed.
    pub h2: bool,
    /// Counts the connection while it lives.
    pub slot: Slot,
}

impl TlsConnection {
    /// The certificate chain that the client presented, leaf first: for `identity::Presented`. A resumed session
    /// brings the chain of the first one.
    pub fn chain(&self) -> Option<&[CertificateDer<'static>]> {
        self.io.get_ref().1.peer_certificates()
    }
}

/// What every accepting thread shares.
#[derive(Debug)]
pub struct Acceptor {
    tls: Arc<Tls>,
    table: Arc<Table>,
    room: Arc<Room>,
    seats: Seats,
    node: NodeAddresses,
    metrics: Metrics,
    secure_port: u16,
}

impl Acceptor {
    /// Shared by all accepting threads. `bound` is how many connections there may be, and who sees to it; `secure_port`
    /// is the steered port, whose half-open handshakes are waited for at a stop.
    pub fn new(tls: Arc<Tls>, table: Arc<Table>, bound: Bound, secure_port: u16) -> Arc<Self> {
        Arc::new(Self {
            tls,
            table,
            room: Arc::new(Room::new(bound)),
            seats: Seats::default(),
            node: NodeAddresses::default(),
            metrics: Metrics::default(),
            secure_port,
        })
    }

    /// How full it is: the steerer stops steering before there is no room left.
    pub const fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Adds the families to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
        self.room.register(registry);
    }

    /// Accepts from `listeners`; each connection becomes a task of `handler` on this thread, or, if this one has far more,
    /// on that one of all that run this that has the fewest. When `stop` becomes true
    /// (steering is off by then), it goes on until what was on its way has been accepted, and closes the listeners.
    /// Returns the connections still open; dropping them ends them. Must be called inside a `LocalSet`.
    pub async fn run<H, F>(
        self: Arc<Self>,
        listeners: Vec<TcpListener>,
        mut stop: watch::Receiver<bool>,
        handler: H,
    ) -> JoinSet<()>
    where
        H: Fn(Connection) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let handler = Rc::new(handler);
        let mut tasks = JoinSet::new();
        let (load, mut inbox) = self.seats.sit();
        let mut ports: Vec<u16> = listeners
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .map(|address| address.port())
            .collect();
        ports.push(self.secure_port);
        let mut stopping: Option<Instant> = None;
        // Handshakes that may have begun with us: what begins after the stop is kube-apiserver's.
        let mut begun = HashSet::new();
        let mut waiting = false;
        let mut tick = interval(Duration::from_millis(200));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let full = self.room.refuses();
            if full && !waiting {
                tracing::warn!(
                    connections = self.room.max(),
                    "At --max-connections: further clients wait in the kernel's queue"
                );
            }
            waiting = full;
            tokio::select! {
                biased;
                _ = tick.tick(), if stopping.is_some() => {
                    let since = stopping.map_or(Duration::ZERO, |since| since.elapsed());
                    if since >= LINGER {
                        let still = room::half_open(&ports);
                        begun.retain(|ends| still.contains(ends));
                    }
                    if since >= LINGER_AT_MOST
                        || (since >= LINGER && begun.is_empty() && queues_are_empty(&listeners, &mut |accepted| {
                            self.place(accepted, &load, &mut tasks, &handler);
                        }).await)
                    {
                        break;
                    }
                }
                stopped = stop.wait_for(|stop| *stop), if stopping.is_none() => {
                    // A sender that is gone cannot stop us any more; that is a stop too.
                    drop(stopped);
                    stopping = Some(Instant::now());
                    begun = room::half_open(&ports);
                }
                Some(handed) = inbox.recv() => self.take(&handed, &mut tasks, &handler),
                // Connections of other threads end unseen here.
                () = sleep(LOOK_AGAIN), if full => {}
                accepted = accept(&listeners), if !full => match accepted {
                    Ok(accepted) => self.place(accepted, &load, &mut tasks, &handler),
                    Err(error) => self.accept_failed(&error).await,
                },
                Some(ended) = tasks.join_next() => {
                    if let Err(error) = ended && error.is_panic() {
                        tracing::error!(%error, "a connection's task failed");
                    }
                }
            }
        }
        inbox.close();
        while let Some(handed) = inbox.recv().await {
            self.take(&handed, &mut tasks, &handler);
        }
        tasks
    }

    /// Begins with a connection here, or has a thread begin with it that has far fewer.
    fn place<H, F>(
        self: &Arc<Self>,
        (stream, peer): (TcpStream, SocketAddr),
        load: &Load,
        tasks: &mut JoinSet<()>,
        handler: &Rc<H>,
    ) where
        H: Fn(Connection) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let mut slot = self.room.enter();
        let (acceptor, handler) = (Arc::clone(self), Rc::clone(handler));
        let Some(seat) = self.seats.elsewhere(load) else {
            slot.belongs_to(load);
            tasks.spawn_local(async move { acceptor.tend((stream, peer, slot), &*handler).await });
            return;
        };
        let handed = match seat.hand(stream, peer, slot) {
            Ok(handed) => handed,
            Err(error) => return self.lost(&error),
        };
        let load = load.clone();
        tasks.spawn_local(async move {
            sleep(TAKE_BACK).await;
            if let Some(mut arrival) = handed.take() {
                arrival.slot.belongs_to(&load);
                acceptor.begin(arrival, &*handler).await;
            }
        });
    }

    /// Begins with what another thread has accepted, unless it has taken it back.
    fn take<H, F>(self: &Arc<Self>, handed: &Handed, tasks: &mut JoinSet<()>, handler: &Rc<H>)
    where
        H: Fn(Connection) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        if let Some(arrival) = handed.take() {
            let (acceptor, handler) = (Arc::clone(self), Rc::clone(handler));
            tasks.spawn_local(async move { acceptor.begin(arrival, &*handler).await });
        }
    }

    async fn begin<H, F>(&self, arrival: Arrival, handler: &H)
    where
        H: Fn(Connection) -> F,
        F: Future<Output = ()>,
    {
        match arrival.begin() {
            Ok(arrived) => self.tend(arrived, handler).await,
            Err(error) => self.lost(&error),
        }
    }

    async fn tend<H, F>(&self, (stream, peer, slot): (TcpStream, SocketAddr, Slot), handler: &H)
    where
        H: Fn(Connection) -> F,
        F: Future<Output = ()>,
    {
        let peer = canonical(peer);
        match Box::pin(self.prepare(stream, peer, slot)).await {
            Ok((connection, outcome)) => {
                self.metrics.count(outcome);
                handler(connection).await;
            }
            Err(failure) => {
                tracing::debug!(%peer, why = %failure.detail, "no TLS connection with a client");
                self.metrics.count(failure.outcome);
            }
        }
    }

    /// An accepted connection that no event loop takes.
    fn lost(&self, error: &io::Error) {
        tracing::debug!(%error, "accept");
        self.metrics.count(Outcome::AcceptError);
    }

    /// Out of descriptors or memory: what is queued stays queued, the steerer is told, and the loop goes on.
    async fn accept_failed(&self, error: &io::Error) {
        if room::is_exhaustion(error) {
            if !self.room.exhausted_within(Duration::from_secs(1)) {
                tracing::error!(%error, "no room to accept a connection");
            }
            self.room.note_exhaustion();
            self.metrics.count(Outcome::Exhausted);
            sleep(Duration::from_millis(20)).await;
        } else {
            // The client was gone already, or the network said something about it (accept(2)).
            tracing::debug!(%error, "accept");
            self.metrics.count(Outcome::AcceptError);
            tokio::task::yield_now().await;
        }
    }

    async fn prepare(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
        slot: Slot,
    ) -> Result<(Connection, Outcome), metrics::Failure> {
        let start = Instant::now();
        tune(&stream)?;
        let local = canonical(stream.local_addr()?);
        let Hello { accepted, head } = hello::read(&mut stream).await?;
        let client_hello = accepted.client_hello();
        let sni = client_hello.server_name().map(str::to_owned);
        let verdict = hello::judge(&client_hello, peer.ip(), &self.node, &self.table);
        let decided = match verdict {
            Verdict::Raw(why) => {
                let outcome = Outcome::Raw(why);
                let head = head.freeze();
                return Ok((
                    Connection::Raw {
                        stream,
                        head,
                        why,
                        peer,
                        slot,
                    },
                    outcome,
                ));
            }
            Verdict::Terminate { decided } => decided,
        };
        let stream = RecordStream::after(stream, &head);
        drop(head);
        let config = self.tls.current().server_for(local.ip(), sni.as_deref());
        let handshake = StartHandshake::from_parts(accepted, stream).into_stream(config);
        let io = timeout_at(start + HANDSHAKE_TIMEOUT, handshake)
            .await
            .map_err(|_elapsed| {
                metrics::Failure::timeout("handshake not finished within 32 s")
            })??;
        let h2 = io.get_ref().1.alpn_protocol() == Some(b"h2");
        let connection = TlsConnection {
            io,
            peer,
            local,
            decided,
            h2,
            slot,
        };
        Ok((Connection::Tls(Box::new(connection)), Outcome::Terminated))
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(Duration::from_secs(15));
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The next connection of any listener. The first ready one wins; the others keep theirs in the kernel's queue.
async fn accept(listeners: &[TcpListener]) -> io::Result<(TcpStream, SocketAddr)> {
    poll_fn(|context| {
        for listener in listeners {
            if let Poll::Ready(accepted) = listener.poll_accept(context) {
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    })
    .await
}

/// Takes out what is queued; true if there was nothing.
async fn queues_are_empty(
    listeners: &[TcpListener],
    start: &mut impl FnMut((TcpStream, SocketAddr)),
) -> bool {
    let mut empty = true;
    poll_fn(|context| {
        for listener in listeners {
            // As many as a queue can hold, so that a flood cannot keep us here.
            for _ in 0..4096 {
                match listener.poll_accept(context) {
                    Poll::Ready(Ok(accepted)) => {
                        empty = false;
                        start(accepted);
                    }
                    Poll::Ready(Err(_)) => empty = false,
                    Poll::Pending => break,
                }
            }
        }
        Poll::Ready(())
    })
    .await;
    empty
}
