//! One connection as the rest of the stand-in reaches it, and the TCP stream under it: what can be done to it from outside (silence,
//! reset, GOAWAY, an orderly end).

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

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{Notify, watch},
};

use super::{authn::Presented, frames::GoAway};

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
    pub(super) in_flight: AtomicUsize,
    idle: Notify,
    pub(crate) goaway: Arc<GoAway>,
    pub(super) goaway_sent: Notify,
    pub(super) http2: AtomicBool,
}

impl Wire {
    pub(super) fn new(
        id: u64,
        client: SocketAddr,
        silence: Arc<Silence>,
        budget: i64,
    ) -> Arc<Self> {
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

    pub(super) async fn drained(&self) {
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
    pub(super) stream: TcpStream,
    pub(super) wire: Arc<Wire>,
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

/// How to end listening.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(super) stop: watch::Sender<bool>,
    pub(super) closed: tokio::sync::oneshot::Receiver<()>,
}
