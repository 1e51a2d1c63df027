//! The neighbourhood (design 5.3): who the kube-apiservers are, what each of them serves, and which group-versions they
//! share. Everything that is learnt is published to the table; [`Learner`] is the handle of the other threads.
//!
//! Runs in the side room. Not for how the servers are (`health`), nor for what that means for a request (`route`).

use std::{
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use hashbrown::HashMap;
use prometheus_client::registry::Registry;
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    api::ServerId,
    config::Config,
    health::{
        Prober,
        link::{Link, Marker},
    },
    table::{Documents, Server, Table},
    upstream::Dialer,
};

pub(crate) mod cluster;
mod endpoints;
pub mod exclusions;
mod fetch;
mod hood;
mod memory;
mod metrics;
mod names;
pub(crate) mod nearest;
mod reader;
pub mod roster;
pub mod skew;

use endpoints::Endpoint;
use hood::Hood;

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
    inbox: Mutex<Option<mpsc::Receiver<Command>>>,
    generation: AtomicU64,
    metrics: metrics::Metrics,
}

/// What the side room needs for learning.
#[derive(Debug)]
pub struct Learning {
    /// Peers, intervals, the state file.
    pub config: Arc<Config>,
    /// Opens connections.
    pub dialer: Arc<Dialer>,
    /// Names of the headers that carry an identity.
    pub marker: Marker,
    /// Looks at a server at once when it is listed.
    pub prober: Prober,
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

/// What the readers tell the neighbourhood.
#[derive(Debug)]
enum Notice {
    /// A server was read; the kind of trouble, if the read was not complete.
    Read(ServerId, Option<&'static str>),
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
    /// Why the last read of a server was not complete (`connection`, `not_ready`, `status`, `document`).
    pub troubles: HashMap<ServerId, &'static str>,
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
                inbox: Mutex::new(Some(inbox)),
                generation: AtomicU64::new(0),
                metrics: metrics::Metrics::default(),
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

    /// Publishes what learning counts.
    pub fn register(&self, registry: &mut Registry) {
        self.shared.metrics.register(registry);
    }

    /// What is known about the peers beside the table.
    pub fn view(&self) -> Arc<View> {
        self.shared.view.load_full()
    }
}

/// Whether an address of the endpoints can be another node's kube-apiserver.
pub(crate) fn is_peer(address: SocketAddr, advertised: Option<IpAddr>) -> bool {
    endpoints::classify(address, &endpoints::own_addresses(advertised)) == Endpoint::Peer
}

/// What a server serves and its version, read once over `link`; the error is one sentence.
pub(crate) async fn read_once(
    link: &mut Link,
    table: &Table,
) -> Result<(Arc<Documents>, Arc<str>), String> {
    let mut memory = fetch::Memory::new(None, "".into());
    let reading = memory.read(link, table).await;
    let reading = reading.map_err(|error| error.to_string())?;
    Ok((reading.documents, reading.version))
}

impl Shared {
    /// Greater than every one before, of any server: a catalogue that was forgotten and comes back is told apart.
    fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn take_inbox(&self) -> Option<mpsc::Receiver<Command>> {
        self.inbox.lock().ok()?.take()
    }

    /// Has every server read at once.
    fn read_all(&self) {
        for desk in &self.desks {
            desk.wanted.notify_one();
        }
    }
}

/// Learns for ever. Runs in the side room, inside its `LocalSet`; dropping it stops everything. A second call returns.
pub async fn run(learner: Learner, learning: Learning) {
    let Some(mut inbox) = learner.shared.take_inbox() else {
        return;
    };
    let (notices, mut noticed) = mpsc::channel(64);
    let (news, mut heard) = mpsc::channel(64);
    let learning = Rc::new(learning);
    let mut hood = Hood::new(Arc::clone(&learner.shared), Rc::clone(&learning), notices);
    let find_peers = learning.config.peers.is_empty();
    // Static peers need no credentials; where there are some, what all servers share is known all the same.
    let watches = find_peers || nearest::has_credentials(&learning.config);
    hood.restore(watches);
    if !find_peers {
        hood.take_static(&learning.config.peers);
    }
    if watches {
        hood.watch(news.clone(), find_peers);
    }
    loop {
        hood.settle();
        tokio::select! {
            Some(news) = heard.recv() => hood.take(news),
            Some(notice) = noticed.recv() => hood.notice(&notice),
            Some(Command::Forget(address, answer)) = inbox.recv() => {
                if answer.send(hood.forget(address)).is_err() {
                    tracing::debug!(%address, "Whoever asked to forget a peer has left");
                }
            }
            () = sleep_until(hood.next()) => {}
        }
    }
}
