//! The connections of one server within one lane of one thread: picks one with room, opens another in time.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::LocalBoxFuture, future::Shared};
use http::{Request, Response};
use tokio::{task::spawn_local, time::Instant};

use super::{
    Cause, DialError, Dialer, SendError,
    http1::{self, Http1},
    link::{Keeping, Link, LinkError},
};
use crate::{
    api::ServerId,
    body::Body,
    table::{Health, Server},
    tls::{Presenting, Protocol},
};

/// mvp's own connections to peers are raw at the peer's mvp and hold up its replacement (design 2), so they are renewed.
pub(super) const MAX_AGE: Duration = Duration::from_mins(10);
/// An unused HTTP/1.1 connection is not used again after this; kube-apiserver closes it after 90 s.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// HTTP/2 connections of one lot: room for 25,600 streams.
const MAX_LINKS: usize = 256;
/// HTTP/1.1 connections of one lot.
const MAX_HTTP1: usize = 1024;
/// How often a request may meet a connection that was just closed; each comes back unsent.
const MAX_UNSENT: usize = 4;
/// A server that is believed down is not asked over a connection that has been silent for this long.
const SILENCE: Duration = Duration::from_secs(1);

type Opening = Shared<LocalBoxFuture<'static, Result<(), Rc<DialError>>>>;

/// Connections of one server, all alike.
pub(super) struct Lot {
    server: Arc<Server>,
    presenting: Presenting,
    keeping: Keeping,
    links: RefCell<Vec<Rc<Link>>>,
    /// The server's newest connection agreed on HTTP/1.1.
    http1: Cell<bool>,
    idle: RefCell<Vec<(Http1, Instant)>>,
    http1_open: Arc<AtomicUsize>,
    /// One connection is opened at a time; all who need one wait for it.
    opening: RefCell<Option<Opening>>,
    /// Called when the server ends a connection.
    ended: Rc<dyn Fn()>,
    /// Whoever used it has left; a connection that is being opened still is not kept.
    closed: Cell<bool>,
    /// Counts [`Lot::retire`]: an HTTP/1.1 connection that was busy meanwhile does not become idle again.
    epoch: Cell<u32>,
}

impl Lot {
    pub(super) fn new(
        server: Arc<Server>,
        presenting: Presenting,
        shared: bool,
        ended: Rc<dyn Fn()>,
    ) -> Rc<Self> {
        let peer = server.id != ServerId::Local;
        Rc::new(Self {
            server,
            presenting,
            keeping: Keeping {
                ping_idle: shared,
                max_age: peer.then_some(MAX_AGE),
            },
            links: RefCell::default(),
            http1: Cell::new(false),
            idle: RefCell::default(),
            http1_open: Arc::default(),
            opening: RefCell::default(),
            ended,
            closed: Cell::new(false),
            epoch: Cell::new(0),
        })
    }

    pub(super) const fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Takes no more requests on what is open now.
    pub(super) fn retire(&self) {
        self.epoch.set(self.epoch.get().wrapping_add(1));
        for link in self.links.take() {
            link.retire();
        }
        self.idle.take();
    }

    /// As [`Self::retire`], for good.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.retire();
    }

    /// Forgets what is closed or unused for long; whether nothing is left.
    pub(super) fn sweep(&self) -> bool {
        self.links.borrow_mut().retain(|link| !link.is_retired());
        self.idle
            .borrow_mut()
            .retain(|(connection, since)| self.keeps(connection, *since));
        self.links.borrow().is_empty()
            && self.http1_open.load(Ordering::Relaxed) == 0
            && self.opening.borrow().is_none()
    }

    pub(super) async fn send(
        self: &Rc<Self>,
        dialer: &Arc<Dialer>,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        let mut unsent = 0;
        loop {
            if self.http1.get() {
                // Boxed: kube-apiserver speaks HTTP/2, so this is rare, and it is large.
                match Box::pin(self.send_http1(dialer, request)).await {
                    Sent::Done(result) => return result,
                    Sent::Again(back) => request = back,
                }
            } else if let Some(link) = self.choose() {
                match link.send(request).await {
                    Ok(response) => return Ok(response),
                    Err(LinkError::NotSent(back)) => {
                        link.retire();
                        request = *back;
                    }
                    Err(LinkError::Refused(error)) => {
                        return Err(SendError::new(Cause::Refused(error), true));
                    }
                    Err(LinkError::ClientGone(gone)) => {
                        return Err(SendError::new(Cause::ClientGone(gone.0), false));
                    }
                    Err(LinkError::Broken(error)) => {
                        return Err(SendError::new(Cause::Broken(error.into()), false));
                    }
                }
            } else {
                if self.links.borrow().len() >= MAX_LINKS {
                    return Err(SendError::unsent(Cause::Busy, request));
                }
                if let Err(error) = self.grow(dialer).await {
                    return Err(SendError::unsent(Cause::Dial(error), request));
                }
                continue;
            }
            unsent += 1;
            if unsent > MAX_UNSENT {
                return Err(SendError::unsent(Cause::Closed, request));
            }
        }
    }

    /// The first with room: later ones become idle and are closed. A shared one that owes a sign of life gets no more for
    /// now: whether the server is there, a fresh connection shows within a second, and PING only later. Nor does one whose
    /// clients have just taken much back: the server might end it, with the watches of all others.
    fn choose(&self) -> Option<Rc<Link>> {
        let links = self.links.borrow();
        let down = self.server.health() == Health::Down;
        links
            .iter()
            .find(|link| {
                let dead = || down && link.silence() > SILENCE;
                let shared = self.keeping.ping_idle;
                let doubtful = || shared && (link.owes() > SILENCE || link.is_crowded());
                link.has_room() && !dead() && !doubtful()
            })
            .map(Rc::clone)
    }

    /// Opens one more connection, or waits for the one that is being opened.
    async fn grow(self: &Rc<Self>, dialer: &Arc<Dialer>) -> Result<(), Rc<DialError>> {
        self.links.borrow_mut().retain(|link| !link.is_retired());
        let opening = self.opening.borrow().clone();
        let opening = opening.unwrap_or_else(|| {
            let lot = Rc::clone(self);
            let dialer = Arc::clone(dialer);
            let opening = async move {
                let result = lot.open(&dialer).await.map_err(Rc::new);
                lot.opening.take();
                result
            }
            .boxed_local()
            .shared();
            *self.opening.borrow_mut() = Some(opening.clone());
            // Whoever waits may leave; the others still want it.
            spawn_local(opening.clone().map(drop));
            opening
        });
        opening.await
    }

    async fn open(&self, dialer: &Dialer) -> Result<(), DialError> {
        let stream = dialer
            .tls(&self.server, self.presenting, Protocol::Any)
            .await?;
        let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        tracing::debug!(server = %self.server.id, h2, presenting = ?self.presenting, "Connected to upstream");
        self.http1.set(!h2);
        let address = self.server.address;
        if h2 {
            let ended = Rc::clone(&self.ended);
            let link = Link::open(stream, self.keeping, move || ended())
                .await
                .map_err(|error| DialError::Protocol {
                    address,
                    source: error.into(),
                })?;
            if !link.has_room() {
                link.retire();
                return Err(DialError::Protocol {
                    address,
                    source: "the server allows no streams".into(),
                });
            }
            if self.closed.get() {
                link.retire();
            }
            self.links.borrow_mut().push(link);
        } else {
            let connection =
                http1::open(stream, &self.http1_open, false)
                    .await
                    .map_err(|error| DialError::Protocol {
                        address,
                        source: error.into(),
                    })?;
            self.idle.borrow_mut().push((connection, Instant::now()));
        }
        Ok(())
    }

    /// Whether an HTTP/1.1 connection that is idle since then may be used again.
    fn keeps(&self, connection: &Http1, idle_since: Instant) -> bool {
        !connection.is_closed()
            && !self.keeping.is_over(connection.opened)
            && idle_since.elapsed() < IDLE_TIMEOUT
    }

    async fn send_http1(self: &Rc<Self>, dialer: &Dialer, request: Request<Body>) -> Sent {
        let mut connection = loop {
            let idle = self.idle.borrow_mut().pop();
            match idle {
                Some((connection, since)) if self.keeps(&connection, since) => break connection,
                Some(_) => {}
                None if self.http1_open.load(Ordering::Relaxed) >= MAX_HTTP1 => {
                    return Sent::Done(Err(SendError::unsent(Cause::Busy, request)));
                }
                None => {
                    if let Err(error) = self.open(dialer).await {
                        let cause = Cause::Dial(Rc::new(error));
                        return Sent::Done(Err(SendError::unsent(cause, request)));
                    }
                    if !self.http1.get() {
                        return Sent::Again(request);
                    }
                }
            }
        };
        let epoch = self.epoch.get();
        match connection.send(request).await {
            Ok(response) => {
                let lot = Rc::downgrade(self);
                spawn_local(async move {
                    // Ready again once the answer was read to its end.
                    if connection.sender.ready().await.is_ok()
                        && let Some(lot) = lot.upgrade()
                        && lot.epoch.get() == epoch
                    {
                        lot.idle.borrow_mut().push((connection, Instant::now()));
                    }
                });
                Sent::Done(Ok(response.map(Body::Incoming)))
            }
            Err(mut error) => {
                if let Some(back) = error.take_message() {
                    return Sent::Again(http1::absolute_form(back));
                }
                let error = error.into_error();
                let cause = if error.is_user() || error.is_body_write_aborted() {
                    Cause::ClientGone(error.into())
                } else {
                    Cause::Broken(error.into())
                };
                Sent::Done(Err(SendError::new(cause, false)))
            }
        }
    }
}

/// What became of a request on an HTTP/1.1 connection.
pub(super) enum Sent {
    Done(Result<Response<Body>, SendError>),
    /// It comes back unsent.
    Again(Request<Body>),
}
