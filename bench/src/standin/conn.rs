//! Connections: accepting them, TLS, HTTP/1.1 or HTTP/2 around each, and what can be done to one from outside (silence, reset,
//! GOAWAY, an orderly end).

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls_pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Notify, watch},
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{
    authn::Presented,
    frames::{Frames, GoAway},
    log::Connection,
    serve,
    server::Server,
};

/// kube-apiserver's own limits (apiserver `server/secure_serving.go`).
const HEADER_LIMIT: usize = 1 << 20;
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// How long Go waits between the last answer after a GOAWAY and closing the connection (`http2.goAwayTimeout`).
const AFTER_GOAWAY: Duration = Duration::from_secs(1);

/// SIGSTOP without the signal: while on, nothing is read, written or accepted.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    on: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
    resumed: Notify,
}

impl Silence {
    pub(crate) fn set(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
        if !on {
            for waker in self
                .wakers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .drain(..)
            {
                waker.wake();
            }
            self.resumed.notify_waiters();
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::SeqCst)
    }

    /// True while silent; the task is woken when it ends.
    fn holds(&self, cx: &Context<'_>) -> bool {
        if !self.is_on() {
            return false;
        }
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        drop(wakers);
        self.is_on()
    }

    pub(crate) async fn ended(&self) {
        loop {
            let resumed = self.resumed.notified();
            if !self.is_on() {
                return;
            }
            resumed.await;
        }
    }
}

/// One connection, as the rest of the stand-in reaches it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) id: u64,
    pub(crate) client: SocketAddr,
    silence: Arc<Silence>,
    reset: AtomicBool,
    /// Bytes that may still be written before the connection is reset; negative: no bound.
    budget: AtomicI64,
    end: watch::Sender<bool>,
    in_flight: AtomicUsize,
    idle: Notify,
    pub(crate) goaway: Arc<GoAway>,
    goaway_sent: Notify,
    http2: AtomicBool,
}

impl Wire {
    fn new(id: u64, client: SocketAddr, silence: Arc<Silence>, budget: i64) -> Arc<Self> {
        Arc::new(Self {
            id,
            client,
            silence,
            reset: AtomicBool::new(false),
            budget: AtomicI64::new(budget),
            end: watch::channel(false).0,
            in_flight: AtomicUsize::new(0),
            idle: Notify::new(),
            goaway: Arc::default(),
            goaway_sent: Notify::new(),
            http2: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Ends it with a TCP reset.
    pub(crate) fn reset(&self) {
        self.reset.store(true, Ordering::SeqCst);
        self.end.send_replace(true);
    }

    /// Ends it with a FIN, whatever is running.
    pub(crate) fn close(&self) {
        self.end.send_replace(true);
    }

    /// Resolves when it was ended from outside.
    pub(crate) async fn ended(&self) {
        let mut end = self.end.subscribe();
        // The sender lives as long as this does.
        drop(end.wait_for(|ended| *ended).await);
    }

    /// GOAWAY, then an orderly end once nothing runs; for HTTP/1.1: no further request.
    pub(crate) fn go_away(&self) {
        if self.is_http2() {
            self.goaway.send();
        }
        self.goaway_sent.notify_one();
    }

    pub(crate) fn request_began(&self) {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn request_ended(&self) {
        if self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.idle.notify_waiters();
        }
    }

    async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            if self.in_flight.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// The TCP stream under everything.
#[derive(Debug)]
pub(crate) struct Tcp {
    stream: TcpStream,
    wire: Arc<Wire>,
}

impl Tcp {
    fn gone(&self) -> bool {
        self.wire.reset.load(Ordering::SeqCst)
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        if self.gone() {
            // With linger 0 close() sends RST.
            drop(socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)));
        }
    }
}

impl AsyncRead for Tcp {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.gone() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if this.wire.silence.holds(cx) {
            return Poll::Pending;
        }
        Pin::new(&mut this.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let budget = this.wire.budget.load(Ordering::SeqCst);
        if budget == 0 {
            this.wire.reset();
        }
        if this.gone() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if this.wire.silence.holds(cx) {
            return Poll::Pending;
        }
        let limit = usize::try_from(budget).map_or(bytes.len(), |budget| budget.min(bytes.len()));
        let written =
            std::task::ready!(Pin::new(&mut this.stream).poll_write(cx, &bytes[..limit]))?;
        if budget > 0 {
            this.wire
                .budget
                .fetch_sub(i64::try_from(written).unwrap_or(i64::MAX), Ordering::SeqCst);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.wire.silence.holds(cx) {
            return Poll::Pending;
        }
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

/// What a request needs to know of its connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) wire: Arc<Wire>,
    pub(crate) presented: Arc<Presented>,
}

/// A listening socket with a backlog like kube-apiserver's (somaxconn). Must be called inside the server's runtime.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(4096)
}

/// Accepts connections from now on.
pub(crate) fn listen(server: &Arc<Server>, listener: TcpListener) {
    let (stop, mut stopped) = watch::channel(false);
    let accepting = Arc::clone(server);
    let (ended, closed) = tokio::sync::oneshot::channel();
    server.spawn(async move {
        tokio::select! {
            () = accept(accepting, &listener) => {}
            _ = stopped.wait_for(|stop| *stop) => {}
        }
        drop(listener);
        if ended.send(()).is_err() {
            tracing::debug!("Nobody waits for the listener's end");
        }
    });
    server.listening(Some(Listening { stop, closed }));
}

/// How to end listening.
#[derive(Debug)]
pub(crate) struct Listening {
    stop: watch::Sender<bool>,
    closed: tokio::sync::oneshot::Receiver<()>,
}

/// Closes the listener and waits until it is closed, or opens it again.
pub(crate) async fn refuse(server: &Arc<Server>, on: bool) -> io::Result<()> {
    let present = server.listening(None);
    match (present, on) {
        (Some(listening), true) => {
            listening.stop.send_replace(true);
            drop(listening.closed.await);
        }
        (None, false) => listen(server, bind(server.bind)?),
        (Some(listening), false) => drop(server.listening(Some(listening))),
        (None, true) => {}
    }
    Ok(())
}

#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
async fn accept(server: Arc<Server>, listener: &TcpListener) {
    loop {
        server.silence.ended().await;
        let accepted = listener.accept().await;
        // Accepted at the moment silence began: it waits with the rest.
        server.silence.ended().await;
        match accepted {
            Ok((stream, client)) => {
                let id = server.next_connection();
                // An IPv4 client of an IPv6 socket is an IPv4 client.
                let client = SocketAddr::new(client.ip().to_canonical(), client.port());
                let wire = Wire::new(id, client, Arc::clone(&server.silence), server.budget());
                server.track(&wire);
                let task = connection(Arc::clone(&server), stream, wire);
                server.spawn(task);
            }
            Err(error) => {
                tracing::warn!(%error, "Accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(server: Arc<Server>, stream: TcpStream, wire: Arc<Wire>) {
    drop(stream.set_nodelay(true));
    server.log.opened(Connection {
        id: wire.id,
        client: wire.client,
        server_name: None,
        alpn_offered: Vec::new(),
        alpn: None,
        certificate: None,
        closed: false,
        failure: None,
    });
    let tcp = Tcp {
        stream,
        wire: Arc::clone(&wire),
    };
    tokio::select! {
        served = handshake_and_serve(&server, tcp, &wire) => {
            if let Err(error) = served {
                tracing::debug!(connection = wire.id, %error, "Connection ended");
                server.log.change(wire.id, |found| found.failure = Some(error.to_string()));
            }
        }
        () = wire.ended() => {}
    }
    server.log.change(wire.id, |found| found.closed = true);
}

async fn handshake_and_serve(
    server: &Arc<Server>,
    tcp: Tcp,
    wire: &Arc<Wire>,
) -> anyhow::Result<()> {
    let started = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), tcp).await?;
    {
        let hello = started.client_hello();
        let offered: Vec<String> = hello
            .alpn()
            .into_iter()
            .flatten()
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        let name = hello.server_name().map(str::to_owned);
        server.log.change(wire.id, |found| {
            found.alpn_offered = offered;
            found.server_name = name;
        });
    }
    let tls = started.into_stream(server.tls()).await?;
    let session = tls.get_ref().1;
    let chain: Vec<CertificateDer<'static>> = session
        .peer_certificates()
        .unwrap_or_default()
        .iter()
        .map(|cert| cert.clone().into_owned())
        .collect();
    let alpn = session
        .alpn_protocol()
        .map(|name| String::from_utf8_lossy(name).into_owned());
    let http2 = alpn.as_deref() == Some("h2");
    server.log.change(wire.id, |found| {
        found.alpn = alpn;
        found.certificate = chain.first().map(|cert| {
            super::authn::subject(cert)
                .map(|subject| subject.common_name)
                .unwrap_or_default()
        });
    });
    let peer = Peer {
        wire: Arc::clone(wire),
        presented: Arc::new(Presented::new(chain)),
    };
    if http2 {
        wire.http2.store(true, Ordering::Relaxed);
        http2_connection(server, tls, peer).await
    } else {
        http1_connection(server, tls, peer).await
    }
}

async fn http1_connection(
    server: &Arc<Server>,
    tls: TlsStream<Tcp>,
    peer: Peer,
) -> anyhow::Result<()> {
    let wire = Arc::clone(&peer.wire);
    let service = service_fn(|request| serve::serve(Arc::clone(server), peer.clone(), request));
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(5000)
        // Go's slop above MaxHeaderBytes.
        .max_header_size(HEADER_LIMIT + 4096)
        .max_buf_size(2 * HEADER_LIMIT)
        .half_close(true);
    let mut connection = std::pin::pin!(
        builder
            .serve_connection(TokioIo::new(tls), service)
            .with_upgrades()
    );
    loop {
        tokio::select! {
            ended = connection.as_mut() => return Ok(ended?),
            () = wire.goaway_sent.notified() => connection.as_mut().graceful_shutdown(),
        }
    }
}

async fn http2_connection(
    server: &Arc<Server>,
    tls: TlsStream<Tcp>,
    peer: Peer,
) -> anyhow::Result<()> {
    let wire = Arc::clone(&peer.wire);
    if server.refuses_next_stream() {
        wire.goaway.refuse_next();
    }
    let service = service_fn(|request| serve::serve(Arc::clone(server), peer.clone(), request));
    let limits = server.limits();
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .initial_stream_window_size(limits.stream_window)
        .initial_connection_window_size(limits.connection_window)
        .max_frame_size(256 * 1024)
        .max_header_list_size(1 << 20)
        .max_pending_accept_reset_streams(1000);
    let io = TokioIo::new(Frames::new(tls, Arc::clone(&wire.goaway)));
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let closing = async {
        wire.goaway_sent.notified().await;
        loop {
            wire.drained().await;
            tokio::time::sleep(AFTER_GOAWAY).await;
            if wire.in_flight.load(Ordering::SeqCst) == 0 {
                break;
            }
        }
        wire.goaway.finish();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = connection.as_mut() => Ok(ended?),
        () = closing => Ok(()),
    }
}
