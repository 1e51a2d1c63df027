//! Connections to API servers: how they are opened (`dial`), kept, shared or paired with a client's connection.
//!
//! One [`Pool`] per thread, used by that thread alone: no lock and no hop on the way of a request. Not for what a
//! request looks like (`forward`) nor for where it goes (`route`).

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{Arc, atomic::AtomicUsize},
};

use hashbrown::HashMap;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;

pub use self::dial::{
    CONNECT_TIMEOUT, DialError, Dialer, Exempt, HANDSHAKE_TIMEOUT, Stream, USER_TIMEOUT, tune,
};
use self::{
    lot::{Lot, Sent},
    private::Private,
};
use crate::{
    api::ServerId,
    body::{Body, BodyError},
    table::Server,
    tls::{Presenting, Protocol},
};

mod dial;
mod http1;
mod link;
mod lot;
mod private;
mod settling;
mod upload;

/// The upstream connections of one thread.
pub struct Pool {
    dialer: Arc<Dialer>,
    shared: RefCell<HashMap<ServerId, Rc<Lot>>>,
    nobody: Rc<dyn Fn()>,
    upgrades: Arc<AtomicUsize>,
    private: Arc<AtomicUsize>,
}

/// Which connections a request may use (design 4.3).
#[derive(Clone)]
pub enum Lane {
    /// Those of the thread, which present the front-proxy certificate.
    Shared,
    /// Those of one client connection.
    Pair(Rc<Pair>),
}

/// The upstream connections of one client connection: opened lazily, used by no other client, closed with it.
pub struct Pair {
    presenting: Presenting,
    /// Few servers, so a list.
    lots: RefCell<Vec<Rc<Lot>>>,
    /// Of the certificates and CAs when they were last used.
    generation: Cell<u64>,
    /// For reads of an HTTP/1.1 client.
    private: Private,
    ended: Rc<dyn Fn()>,
}

/// Why a request got no answer. Whether it can have been executed was decided where the error was born.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct SendError {
    /// What happened.
    pub cause: Cause,
    /// It was provably not executed: it may go to another server, whatever its method.
    pub unprocessed: bool,
    /// The request, if not a byte of it was sent.
    pub request: Option<Box<Request<Body>>>,
}

/// What went wrong with a request.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// No connection.
    #[error(transparent)]
    Dial(Rc<DialError>),
    /// The server said that it did not look at the request.
    #[error("the stream was refused: {0}")]
    Refused(h2::Error),
    /// Several connections in a row were closed by the server before the request was sent.
    #[error("connections are closed before a request is sent")]
    Closed,
    /// As many connections as allowed are busy.
    #[error("too many connections")]
    Busy,
    /// The client broke off while it sent the body.
    #[error("the client broke off: {0}")]
    ClientGone(BodyError),
    /// The client's own HTTP/1.1 connection ended before a read was answered, as its server may end it at any time.
    #[error("no answer over HTTP/1.1: {0}")]
    Unanswered(BodyError),
    /// The connection or the stream broke after the request was sent.
    #[error("the upstream broke off: {0}")]
    Broken(BodyError),
}

/// The size of a header list, counted as HTTP/2 does (RFC 9113, 10.5.1).
pub fn header_list_size(headers: &HeaderMap) -> usize {
    const OVERHEAD: usize = 32;
    let size =
        |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + OVERHEAD;
    headers.iter().map(size).sum()
}

impl SendError {
    const fn new(cause: Cause, unprocessed: bool) -> Self {
        Self {
            cause,
            unprocessed,
            request: None,
        }
    }

    fn unsent(cause: Cause, request: Request<Body>) -> Self {
        Self {
            cause,
            unprocessed: true,
            request: Some(Box::new(request)),
        }
    }
}

impl Pool {
    /// An empty pool.
    pub fn new(dialer: Arc<Dialer>) -> Self {
        Self {
            dialer,
            shared: RefCell::default(),
            nobody: Rc::new(|| {}),
            upgrades: Arc::default(),
            private: Arc::default(),
        }
    }

    /// What opens its connections.
    pub const fn dialer(&self) -> &Arc<Dialer> {
        &self.dialer
    }

    /// Sends one request and waits for the headers of its answer, without deadline. The request's URI is absolute, it
    /// has no Host header and none of a single connection; its version is the client's.
    pub async fn send(
        &self,
        server: &Arc<Server>,
        lane: &Lane,
        request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        let lot = match lane {
            Lane::Shared => self.shared_lot(server),
            Lane::Pair(pair) => {
                let generation = self.dialer.certificates().look().generation;
                pair.lot(server, generation)
            }
        };
        lot.send(&self.dialer, request).await
    }

    /// As [`Self::send`], of a read of one object, which goes over the HTTP/1.1 connection of `own` if there is one.
    pub async fn read(
        &self,
        server: &Arc<Server>,
        lane: &Lane,
        own: Rc<Pair>,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        if server.id == ServerId::Local
            && let Some(link) = own.private_link(&self.dialer, &self.private, server)
        {
            match link.send(request).await {
                Sent::Done(result) => return result,
                Sent::Again(back) => request = back,
            }
        }
        // Boxed: seldom needed, and large.
        Box::pin(self.send(server, lane, request)).await
    }

    /// Sends an upgrade over a fresh HTTP/1.1 connection, which is used for nothing else (design 7).
    pub async fn upgrade(
        &self,
        server: &Arc<Server>,
        presenting: Presenting,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, SendError> {
        let stream = match self.dialer.tls(server, presenting, Protocol::Http1).await {
            Ok(stream) => stream,
            Err(error) => return Err(SendError::unsent(Cause::Dial(Rc::new(error)), request)),
        };
        let mut connection = match http1::open(stream, &self.upgrades, true).await {
            Ok(connection) => connection,
            Err(error) => return Err(SendError::unsent(Cause::Broken(error.into()), request)),
        };
        connection.send(request).await.map_err(|mut error| {
            error.take_message().map(http1::absolute_form).map_or_else(
                || SendError::new(Cause::Broken("no answer to the upgrade".into()), false),
                |request| SendError::unsent(Cause::Closed, request),
            )
        })
    }

    /// Takes no more requests on the shared connections that are open now: a certificate or a CA has changed.
    pub fn retire(&self) {
        for lot in self.shared.borrow().values() {
            lot.retire();
        }
    }

    /// Forgets what is closed. Call it from time to time.
    pub fn sweep(&self) {
        self.shared.borrow_mut().retain(|_, lot| !lot.sweep());
    }

    fn shared_lot(&self, server: &Arc<Server>) -> Rc<Lot> {
        let mut shared = self.shared.borrow_mut();
        if let Some(lot) = shared.get(&server.id)
            && Arc::ptr_eq(lot.server(), server)
        {
            return Rc::clone(lot);
        }
        let lot = Lot::new(
            Arc::clone(server),
            Presenting::FrontProxy,
            true,
            Rc::clone(&self.nobody),
        );
        if let Some(old) = shared.insert(server.id, Rc::clone(&lot)) {
            old.retire();
        }
        lot
    }
}

impl Pair {
    /// No connection yet. `ended` is called whenever a server ends one of them (GOAWAY or worse).
    pub fn new(presenting: Presenting, ended: impl Fn() + 'static) -> Rc<Self> {
        Rc::new(Self {
            presenting,
            lots: RefCell::default(),
            generation: Cell::new(0),
            private: Private::default(),
            ended: Rc::new(ended),
        })
    }

    /// Its connections to `server`; those that were opened with other certificates or CAs take no more requests.
    fn lot(&self, server: &Arc<Server>, generation: u64) -> Rc<Lot> {
        let mut lots = self.lots.borrow_mut();
        if self.generation.replace(generation) != generation {
            for lot in &*lots {
                lot.retire();
            }
        }
        if let Some(lot) = lots.iter().find(|lot| Arc::ptr_eq(lot.server(), server)) {
            return Rc::clone(lot);
        }
        let lot = Lot::new(
            Arc::clone(server),
            self.presenting,
            false,
            Rc::clone(&self.ended),
        );
        lots.push(Rc::clone(&lot));
        lot
    }
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair")
            .field("presenting", &self.presenting)
            .finish_non_exhaustive()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for lot in self.lots.get_mut() {
            lot.close();
        }
    }
}
