//! The HTTP/1.1 connection to the local API server that an HTTP/1.1 client's connection has for itself, as part of its [`Pair`].
//!
//! Reads of single objects go over it: asked for one at a time they cost a server less over HTTP/1.1 than over HTTP/2, which
//! pays where streams share a connection or answers are long. It is opened beside reads that go the common way, so that none
//! waits for it, carries nobody else's, and ends with the client's connection or unused. What it cannot take, or leaves
//! unanswered, goes the common way, which alone has a word about the server. Not for what must not be sent twice, nor for
//! what lasts, nor for peers: packets to them may vanish, which HTTP/1.1, without a PING, finds out too late.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    pin::pin,
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use http::Request;
use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::{
    task::spawn_local,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{Cause, DialError, Dialer, Pair, SendError, http1, lot::Sent};
use crate::{
    body::{Body, Open},
    table::{Health, Server},
    tls::{Presenting, Protocol},
    wire::{Outlet, Wire, driven},
};

/// Reads that make a connection worth its handshake.
const READS: u32 = 32;
/// Connections of one thread; the reads of further clients share HTTP/2 connections.
const MAX_OPEN: usize = 256;
/// How often a connection is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// An unused connection is closed after so many looks; kube-apiserver closes it after 90 s.
const IDLE_LOOKS: u32 = 12;

type Driver = Connection<TokioIo<Wire>, Body>;

/// The connection, and what speaks for opening one.
#[derive(Default)]
pub(super) struct Private {
    link: RefCell<Option<Rc<Link>>>,
    /// Reads that went the common way since a connection was last opened.
    reads: Cell<u32>,
    opening: Cell<bool>,
}

/// One connection.
pub(super) struct Link {
    server: Arc<Server>,
    /// Of the certificates and CAs that it was opened with.
    generation: u64,
    sender: RefCell<SendRequest<Body>>,
    /// A read has no answer yet.
    waits: Cell<bool>,
    /// Looks since the last read.
    looks: Cell<u32>,
}

impl Pair {
    /// The connection to `server`, if there is one that takes a read now. If there is none, the read counts for opening
    /// one; `open` counts those of the thread.
    pub(super) fn private_link(
        self: &Rc<Self>,
        dialer: &Arc<Dialer>,
        open: &Arc<AtomicUsize>,
        server: &Arc<Server>,
    ) -> Option<Rc<Link>> {
        let private = &self.private;
        let link = private.link.borrow().clone();
        if let Some(link) = link {
            if link.is_over(dialer.certificates().look().generation) {
                private.link.take();
            } else if link.takes_reads() {
                return Some(link);
            }
        }
        if private.is_wanted() && open.load(Ordering::Relaxed) < MAX_OPEN {
            self.open_private_link(dialer, Open::new(open), server);
        }
        None
    }

    fn open_private_link(self: &Rc<Self>, dialer: &Arc<Dialer>, open: Open, server: &Arc<Server>) {
        self.private.opening.set(true);
        let (pair, presenting) = (Rc::downgrade(self), self.presenting);
        let (dialer, server) = (Arc::clone(dialer), Arc::clone(server));
        spawn_local(async move {
            // Boxed: the task lives as long as the connection.
            let dialed = Box::pin(dial(&dialer, server, presenting)).await;
            let Some(pair) = pair.upgrade() else {
                return;
            };
            pair.private.opening.set(false);
            match dialed {
                Ok((link, driver, outlet)) => {
                    let watched = Rc::downgrade(&link);
                    pair.private.link.replace(Some(link));
                    drop(pair);
                    drive(driver, outlet, watched).await;
                }
                Err(error) => tracing::debug!(%error, "No HTTP/1.1 connection for reads"),
            }
            drop(open);
        });
    }
}

impl Private {
    /// Counts a read that goes the common way; whether a connection is to be opened now.
    fn is_wanted(&self) -> bool {
        let reads = self.reads.get() + 1;
        let wanted = reads >= READS && !self.opening.get();
        self.reads.set(if wanted { 0 } else { reads.min(READS) });
        wanted
    }
}

impl Link {
    fn new(server: Arc<Server>, sender: SendRequest<Body>, generation: u64) -> Self {
        Self {
            server,
            generation,
            sender: RefCell::new(sender),
            waits: Cell::new(false),
            looks: Cell::new(0),
        }
    }

    /// Whether it takes no more requests: closed, or opened with other certificates or CAs.
    fn is_over(&self, generation: u64) -> bool {
        self.sender.borrow().is_closed() || self.generation != generation
    }

    fn takes_reads(&self) -> bool {
        self.server.health() != Health::Down && self.sender.borrow().is_ready()
    }

    /// One read, one answer. Nothing that goes wrong before the answer is held against the server: it may close an idle
    /// connection at any time.
    pub(super) async fn send(&self, request: Request<Body>) -> Sent {
        self.looks.set(0);
        self.waits.set(true);
        let sent = self
            .sender
            .borrow_mut()
            .try_send_request(http1::origin_form(request));
        let sent = sent.await;
        self.waits.set(false);
        match sent {
            Ok(answer) => Sent::Done(Ok(answer.map(Body::Incoming))),
            Err(mut error) => {
                if let Some(back) = error.take_message() {
                    return Sent::Again(http1::absolute_form(back));
                }
                let cause = Cause::Unanswered(error.into_error().into());
                Sent::Done(Err(SendError::new(cause, false)))
            }
        }
    }

    /// Looks at it; whether it is to end: unused for long, or waiting for a server that hangs. HTTP/1.1 has no PING that
    /// would find that out; the probes have.
    fn look(&self) -> bool {
        let looks = self.looks.get() + 1;
        self.looks.set(looks);
        if self.waits.get() {
            return looks > 1 && self.server.health() == Health::Down;
        }
        looks > IDLE_LOOKS && self.sender.borrow().is_ready()
    }
}

async fn dial(
    dialer: &Dialer,
    server: Arc<Server>,
    presenting: Presenting,
) -> Result<(Rc<Link>, Driver, Outlet), DialError> {
    // Before the handshake, so that a change during it counts.
    let generation = dialer.certificates().look().generation;
    let stream = dialer.tls(&server, presenting, Protocol::Http1).await?;
    let (tcp, tls) = stream.into_inner();
    let (wire, outlet) = Wire::new(tcp.into_stream(), tls);
    let (sender, driver) = http1::builder()
        .handshake(TokioIo::new(wire))
        .await
        .map_err(|error| DialError::Protocol {
            address: server.address,
            source: error.into(),
        })?;
    tracing::debug!(server = %server.id, ?presenting, "Connected to upstream for reads");
    let link = Rc::new(Link::new(server, sender, generation));
    Ok((link, driver, outlet))
}

/// Runs a connection until it ends: by itself, also when nobody can send over it any more, or because of a look.
async fn drive(driver: Driver, outlet: Outlet, link: Weak<Link>) {
    let mut driver = pin!(driver);
    let mut looks = interval_at(Instant::now() + LOOK, LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = poll_fn(|cx| {
        if let Poll::Ready(end) = driven(driver.as_mut(), &outlet, cx) {
            return Poll::Ready(end);
        }
        while looks.poll_tick(cx).is_ready() {
            if link.upgrade().is_some_and(|link| link.look()) {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    });
    if let Err(error) = end.await {
        tracing::debug!(%error, "Upstream HTTP/1.1 connection for reads ended");
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use tokio::{
        io::{DuplexStream, duplex},
        time::timeout,
    };

    use super::*;
    use crate::api::ServerId;

    type Near = Connection<TokioIo<DuplexStream>, Body>;

    /// A link that is ready, what drives it, and the other end.
    async fn link() -> (Link, Pin<Box<Near>>, DuplexStream) {
        let (near, far) = duplex(1024);
        let (sender, driver) = http1::builder()
            .handshake(TokioIo::new(near))
            .await
            .unwrap();
        let mut driver = Box::pin(driver);
        let polled = timeout(Duration::ZERO, driver.as_mut()).await;
        polled.expect_err("it waits for a request");
        let server = Server::new(ServerId::Local, "127.0.0.1:6443".parse().unwrap());
        server.set_health(Health::Up);
        (Link::new(Arc::new(server), sender, 1), driver, far)
    }

    #[test]
    fn many_reads_want_a_connection() {
        let private = Private::default();
        let wants = |reads: u32| (0..reads).filter(|_| private.is_wanted()).count();
        assert_eq!(wants(READS - 1), 0);
        assert_eq!(wants(1), 1);
        assert_eq!(wants(READS - 1), 0);
        private.opening.set(true);
        assert_eq!(wants(3 * READS), 0, "one is being opened");
        private.opening.set(false);
        assert_eq!(wants(1), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_connection_ends_and_so_does_one_that_waits_for_a_server_that_hangs() {
        let (link, _driver, _far) = link().await;
        for _ in 0..IDLE_LOOKS {
            assert!(!link.look());
        }
        assert!(link.look(), "unused");
        link.looks.set(0);
        link.waits.set(true);
        for _ in 0..3 * IDLE_LOOKS {
            assert!(!link.look(), "an answer takes as long as it takes");
        }
        link.looks.set(0);
        link.server.set_health(Health::Down);
        assert!(!link.look(), "it was asked just now");
        assert!(link.look());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_takes_nothing_once_it_is_closed_or_of_other_certificates() {
        let (link, driver, _far) = link().await;
        assert!(link.takes_reads());
        assert!(!link.is_over(1) && link.is_over(2));
        drop(driver);
        assert!(link.is_over(1));
    }
}
