//! Fetches other servers' OpenAPI in the side room, for the data threads that wait for it.
//!
//! The identity is mvp's own marker user, as for learning. A few at a time, each within a bound of time and bytes. Not for
//! requests of clients, which keep their own identity.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, mpsc},
    task::spawn_local,
};

use super::openapi::{Done, Fetch, FetchRequest, Fetched};
use crate::{
    health::link::{Link, LinkError, Marker},
    table::Server,
    upstream::Dialer,
};

/// Orders that may wait; each group-version of each server is ordered once, and what does not fit fails at once.
const MAX_WAITING: usize = 512;
/// Fetches at the same time: enough to hide latency, too few to disturb a server.
const AT_ONCE: usize = 4;
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
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        while let Some(order) = inbox.recv().await {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            let (dialer, marker) = (Arc::clone(&dialer), marker.clone());
            spawn_local(async move {
                let outcome = fetch(&dialer, &marker, &order.server, &order.request).await;
                (order.done)(outcome.map_err(|error| error.to_string()));
                drop(slot);
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
    use super::*;
    use crate::api::ServerId;

    #[test]
    fn what_cannot_be_delivered_fails_at_once() {
        let courier = Courier::new();
        let (sent, outcomes) = std::sync::mpsc::channel();
        let server = Arc::new(Server::new(ServerId::Local, ([127, 0, 0, 1], 1).into()));
        for _ in 0..=MAX_WAITING {
            let sent = sent.clone();
            let request = FetchRequest {
                path: "/".to_owned(),
                accept: "*/*",
                if_none_match: None,
                limit: 1,
            };
            courier.fetch(
                Arc::clone(&server),
                request,
                Box::new(move |outcome| sent.send(outcome).unwrap()),
            );
        }
        assert!(outcomes.try_recv().unwrap().is_err());
        assert!(outcomes.try_recv().is_err(), "the others wait");
    }
}
