//! Fetches other servers' OpenAPI in the side room, for the data threads that wait for it.
//!
//! The identity is mvp's own marker user, as for learning. A few of each server at a time, each within a bound of time and
//! bytes. Not for requests of clients, which keep their own identity.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, mpsc},
    task::spawn_local,
};

use super::openapi::{Done, Fetch, FetchRequest, Fetched};
use crate::{
    api::ServerId,
    health::link::{Link, LinkError, Marker},
    table::Server,
    upstream::Dialer,
};

/// Orders that may wait for their server, and as many again to be taken in; each group-version of each server is ordered
/// once, and what does not fit fails at once.
const MAX_WAITING: usize = 512;
/// Fetches of one server at the same time: enough to hide latency, too few to disturb it. A server that is slow holds up its
/// own documents, not those of others.
const AT_ONCE: usize = 2;
/// Servers that are remembered; more than there are at once.
const MAX_SERVERS: usize = 128;
/// A large v2 document over a slow link, and a server that builds it first.
const WITHIN: Duration = Duration::from_secs(30);

struct Order {
    server: Arc<Server>,
    request: FetchRequest,
    done: Done,
}

/// Takes orders from any thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Courier {
    orders: mpsc::Sender<Order>,
    inbox: Arc<Mutex<Option<mpsc::Receiver<Order>>>>,
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Order")
            .field("server", &self.server.id)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

impl Courier {
    /// Takes orders; [`Self::run`] delivers.
    pub fn new() -> Self {
        let (orders, inbox) = mpsc::channel(MAX_WAITING);
        Self {
            orders,
            inbox: Arc::new(Mutex::new(Some(inbox))),
        }
    }

    /// Delivers, in the side room, until nobody can order any more. Only the first call does anything.
    pub async fn run(self, dialer: Arc<Dialer>, marker: Marker) {
        let inbox = self
            .inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(self);
        let Some(mut inbox) = inbox else { return };
        let waiting = Arc::new(Semaphore::new(MAX_WAITING));
        let mut servers: HashMap<ServerId, Arc<Semaphore>> = HashMap::new();
        while let Some(order) = inbox.recv().await {
            let Ok(place) = Arc::clone(&waiting).acquire_owned().await else {
                return;
            };
            if servers.len() >= MAX_SERVERS {
                servers.retain(|_, slots| slots.available_permits() < AT_ONCE);
            }
            let slots = servers
                .entry(order.server.id)
                .or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE)));
            let (slots, dialer, marker) = (Arc::clone(slots), Arc::clone(&dialer), marker.clone());
            spawn_local(async move {
                let slot = slots.acquire().await;
                let outcome = fetch(&dialer, &marker, &order.server, &order.request).await;
                (order.done)(outcome.map_err(|error| error.to_string()));
                drop((slot, place));
            });
        }
    }
}

impl Default for Courier {
    fn default() -> Self {
        Self::new()
    }
}

impl Fetch for Courier {
    fn fetch(&self, server: Arc<Server>, request: FetchRequest, done: Done) {
        if let Err(refused) = self.orders.try_send(Order {
            server,
            request,
            done,
        }) {
            let (mpsc::error::TrySendError::Full(order) | mpsc::error::TrySendError::Closed(order)) =
                refused;
            (order.done)(Err("too many documents are being fetched".to_owned()));
        }
    }
}

async fn fetch(
    dialer: &Dialer,
    marker: &Marker,
    server: &Server,
    request: &FetchRequest,
) -> Result<Fetched, LinkError> {
    let mut link = Link::open(dialer, server, marker, WITHIN).await?;
    link.allow(request.limit);
    let answer = link
        .get(
            &request.path,
            request.accept,
            request.if_none_match.as_ref(),
        )
        .await?;
    Ok(Fetched {
        status: answer.status,
        headers: answer.headers,
        body: answer.body,
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::{sync::oneshot, task::LocalSet, time::timeout};

    use super::*;
    use crate::{config::RequestHeaders, tls::fixtures::Pki};

    fn request() -> FetchRequest {
        FetchRequest {
            path: "/".to_owned(),
            accept: "*/*",
            if_none_match: None,
            limit: 1,
        }
    }

    #[tokio::test]
    async fn a_server_that_is_slow_holds_up_its_own_documents_alone() {
        let pki = Pki::new();
        let dialer = Arc::new(Dialer::new(Ipv4Addr::LOCALHOST, pki.load(), None));
        let marker = Marker::new(&RequestHeaders::default());
        // One takes connections and says nothing, at the other nobody listens.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = |address: SocketAddr| Arc::new(Server::new(ServerId::Peer(address), address));
        let slow = at(silent.local_addr().unwrap());
        let other = at(([127, 0, 0, 1], 1).into());
        let courier = Courier::new();
        for _ in 0..20 {
            courier.fetch(Arc::clone(&slow), request(), Box::new(|_| ()));
        }
        let (sent, outcome) = oneshot::channel();
        let done = move |outcome: Result<Fetched, String>| sent.send(outcome.is_err()).unwrap();
        courier.fetch(other, request(), Box::new(done));
        let delivered = async {
            spawn_local(courier.clone().run(dialer, marker));
            timeout(Duration::from_secs(2), outcome).await
        };
        let delivered = LocalSet::new().run_until(delivered).await;
        assert_eq!(delivered, Ok(Ok(true)));
    }

    #[test]
    fn what_cannot_be_delivered_fails_at_once() {
        let courier = Courier::new();
        let (sent, outcomes) = std::sync::mpsc::channel();
        let server = Arc::new(Server::new(ServerId::Local, ([127, 0, 0, 1], 1).into()));
        for _ in 0..=MAX_WAITING {
            let sent = sent.clone();
            courier.fetch(
                Arc::clone(&server),
                request(),
                Box::new(move |outcome| sent.send(outcome).unwrap()),
            );
        }
        assert!(outcomes.try_recv().unwrap().is_err());
        assert!(outcomes.try_recv().is_err(), "the others wait");
    }
}
