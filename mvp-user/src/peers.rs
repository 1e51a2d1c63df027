//! The neighbourhood (design 5.3): who the kube-apiservers are, what each of them serves, and which group-versions they
//! share. Everything that is learnt is published to the table; [`Learner`] is the handle of the other threads.
//!
//! Runs in the side room. Not for how the servers are (`health`), nor for what that means for a request (`route`).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Instant, timeout},
};

use crate::{
    api::ServerId,
    table::{Server, Table},
};

pub mod roster;

/// How long [`Learner::refresh`] waits at most: the spacing of two reads, and one read.
const REFRESH_WITHIN: Duration = Duration::from_secs(10);

/// The handle of the other threads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Learner {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    table: Arc<Table>,
    desks: DashMap<ServerId, Arc<Desk>>,
    view: ArcSwap<View>,
    commands: mpsc::Sender<Command>,
    /// Taken by [`run`].
    inbox: std::sync::Mutex<Option<mpsc::Receiver<Command>>>,
}

/// Where the reader of one server and those who wait for it meet.
#[derive(Debug, Default)]
struct Desk {
    wanted: Notify,
    rounds: watch::Sender<Round>,
}

/// One try to read a server.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// When it began; none: never tried.
    began: Option<Instant>,
    /// Whether it was complete.
    complete: bool,
}

#[derive(Debug)]
enum Command {
    Forget(SocketAddr, oneshot::Sender<bool>),
}

/// What is known about the peers beside the table; replaced whole.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Whether the list of peers was read in this run.
    pub listed: bool,
    /// Listed peers that were never read, neither in this run nor before, and since when they are known.
    pub unread: Vec<(ServerId, Instant)>,
    /// Departed peers, and when they will be dropped.
    pub departed: Vec<(ServerId, Instant)>,
}

/// The server could not be read again (design 5.2, double check).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the kube-apiserver could not be read again")]
pub struct NotRefreshed;

impl Learner {
    /// A handle for the servers of `table`; [`run`] makes it work.
    pub fn new(table: Arc<Table>) -> Self {
        let (commands, inbox) = mpsc::channel(16);
        Self {
            shared: Arc::new(Shared {
                table,
                desks: DashMap::new(),
                view: ArcSwap::default(),
                commands,
                inbox: std::sync::Mutex::new(Some(inbox)),
            }),
        }
    }

    /// Waits for one complete read of `server` that began at `after` or later, shared by all who wait. Reads of one
    /// server begin at most once a second, so a scan of random paths costs one per server and second. The caller bounds
    /// the wait (2 s by design 5.2); 10 s bound it in any case.
    pub async fn refresh(&self, server: &Server, after: Instant) -> Result<(), NotRefreshed> {
        let desk = self
            .shared
            .desks
            .get(&server.id)
            .map(|desk| Arc::clone(desk.value()))
            .ok_or(NotRefreshed)?;
        let mut rounds = desk.rounds.subscribe();
        let shared = async {
            loop {
                let round = *rounds.borrow_and_update();
                if round.began.is_some_and(|began| began >= after) {
                    return if round.complete {
                        Ok(())
                    } else {
                        Err(NotRefreshed)
                    };
                }
                desk.wanted.notify_one();
                rounds.changed().await.map_err(|_closed| NotRefreshed)?;
            }
        };
        timeout(REFRESH_WITHIN, shared)
            .await
            .unwrap_or(Err(NotRefreshed))
    }

    /// Drops a departed peer before its grace period is over. False if it is listed or unknown.
    pub async fn forget(&self, address: SocketAddr) -> bool {
        let (answer, answered) = oneshot::channel();
        let sent = self
            .shared
            .commands
            .send(Command::Forget(address, answer))
            .await;
        sent.is_ok() && answered.await.unwrap_or(false)
    }

    /// What is known about the peers beside the table.
    pub fn view(&self) -> Arc<View> {
        self.shared.view.load_full()
    }
}
