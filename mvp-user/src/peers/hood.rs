//! The neighbourhood loop's state: brings what was heard and read into the roster, and the roster into the table.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use hashbrown::HashMap;
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::Instant,
};
use tracing::{info, warn};

use super::{
    Desk, Learning, Notice, Shared, View,
    cluster::{self, Identity, News},
    endpoints::{self, Endpoint},
    exclusions::Exclusions,
    memory::Keeper,
    names, reader,
    roster::Roster,
};
use crate::{
    api::{GroupVersion, ServerId},
    table::Server,
};

/// How often time alone is looked at: deadlines, grace periods, the state file.
const TICK: Duration = Duration::from_secs(1);
/// Changes of CRDs and APIServices are gathered for this long before all servers are read again.
const GATHER: Duration = Duration::from_secs(1);
/// Complaints that are remembered.
const MAX_TOLD: usize = 1024;

/// Everything that the loop of `peers::run` holds.
pub(super) struct Hood {
    shared: Arc<Shared>,
    learning: Rc<Learning>,
    roster: Roster,
    exclusions: Exclusions,
    keeper: Keeper,
    readers: HashMap<ServerId, (Arc<Server>, AbortHandle)>,
    tasks: JoinSet<()>,
    notices: mpsc::Sender<Notice>,
    leases: BTreeMap<String, Identity>,
    naming: Option<AbortHandle>,
    /// When all servers are read again because of gathered changes.
    read_all_at: Option<Instant>,
    view: View,
    /// Addresses and late peers that were complained about.
    told: HashSet<SocketAddr>,
}

impl Hood {
    pub(super) fn new(
        shared: Arc<Shared>,
        learning: Rc<Learning>,
        notices: mpsc::Sender<Notice>,
    ) -> Self {
        let config = &learning.config;
        Self {
            roster: Roster::new(config.learn_deadline, config.peer_grace),
            exclusions: Exclusions::default(),
            keeper: Keeper::new(config.state_file.clone()),
            readers: HashMap::new(),
            tasks: JoinSet::new(),
            notices,
            leases: BTreeMap::new(),
            naming: None,
            read_all_at: None,
            view: View::default(),
            told: HashSet::new(),
            shared,
            learning,
        }
    }

    /// Takes in the state file; `watches`: and what it says of what all servers share, which the watches will correct.
    pub(super) fn restore(&mut self, watches: bool) {
        let now = Instant::now();
        let saved = self.keeper.restore(&self.shared, &mut self.roster, now);
        if watches {
            self.exclusions.restore(&saved);
            let shared = Arc::new(self.exclusions.shared());
            self.shared.table.shared.store(shared);
        }
    }

    /// Begins to watch the cluster: what all servers share, and who they are if `find_peers`.
    pub(super) fn watch(&mut self, news: mpsc::Sender<News>, find_peers: bool) {
        self.tasks.spawn_local(cluster::watch(
            Arc::clone(&self.learning.config),
            Arc::clone(&self.shared.table),
            Arc::clone(&self.learning.dialer),
            news,
            find_peers,
        ));
    }

    /// Takes in `--peer`: what the operator wrote is believed, loopback included. One list does for all nodes (a
    /// `DaemonSet` has no other way), so each takes its own address out.
    pub(super) fn take_static(&mut self, peers: &[SocketAddr]) {
        let config = &self.learning.config;
        let own = endpoints::own_addresses(config.advertise_address);
        let peers = peers
            .iter()
            .copied()
            .filter(|peer| !endpoints::is_local(*peer, config.local, config.secure_port, &own));
        let peers = peers.collect();
        self.list(&peers);
    }

    /// Takes in what a watch told.
    pub(super) fn take(&mut self, news: News) {
        let now = Instant::now();
        match news {
            // Whoever told it is one of those who ought to be listed: the slice is deleted and made anew.
            News::Addresses(addresses) if addresses.is_empty() && self.roster.is_listed() => {
                info!("The endpoints of default/kubernetes are empty; who was listed last is kept");
            }
            News::Addresses(addresses) => {
                let own = endpoints::own_addresses(self.learning.config.advertise_address);
                let mut peers = BTreeSet::new();
                for address in addresses {
                    match endpoints::classify(address, &own) {
                        Endpoint::Peer => {
                            peers.insert(address);
                        }
                        Endpoint::Own => {}
                        Endpoint::Impossible => {
                            if self.told.len() >= MAX_TOLD {
                                self.told.clear();
                            }
                            if self.told.insert(address) {
                                warn!(%address, "Ignoring an impossible address among the endpoints of default/kubernetes");
                            }
                        }
                    }
                }
                let table = Arc::clone(&self.shared.table);
                let ignored = endpoints::bound(&mut peers, |address| {
                    table.catalogue(ServerId::Peer(address)).is_some()
                });
                if ignored > 0 {
                    warn!(
                        ignored,
                        "Ignoring addresses: the endpoints of default/kubernetes have more than a control plane can have"
                    );
                }
                self.list(&peers);
                self.name_servers();
            }
            News::Leases(leases) => {
                let first = self.leases.is_empty();
                self.leases = leases;
                self.name_servers();
                // A server started, stopped or was replaced.
                if !first {
                    self.shared.read_all();
                }
            }
            News::Defined(defined) => {
                self.exclusions.set_defined(defined, now);
                self.share(now);
            }
            News::Aggregated(aggregated) => {
                self.exclusions.set_aggregated(aggregated, now);
                self.share(now);
            }
        }
    }

    /// Takes in what a reader told.
    pub(super) fn notice(&mut self, notice: &Notice) {
        match *notice {
            Notice::Read(id, None) => {
                self.shared.metrics.reads.inc();
                self.view.troubles.remove(&id);
                if self.roster.read(id) {
                    info!(server = %id, "Peer is back");
                    self.shared.table.touch();
                }
            }
            Notice::Read(id, Some(kind)) => {
                // A last word of a reader that was ended meanwhile is not kept.
                if self.readers.contains_key(&id) {
                    self.view.troubles.insert(id, kind);
                }
                self.shared.metrics.failed(kind);
            }
        }
    }

    /// Drops a departed peer now. False if it is listed or unknown.
    pub(super) fn forget(&mut self, address: SocketAddr) -> bool {
        let Some(server) = self.roster.forget(address) else {
            return false;
        };
        info!(server = %server.id, "Forgetting a departed peer as asked");
        self.shared.metrics.dropped.inc();
        self.drop_server(&server);
        true
    }

    /// When to come back though nothing happens.
    pub(super) fn next(&self) -> Instant {
        let tick = Instant::now() + TICK;
        self.read_all_at.map_or(tick, |at| at.min(tick))
    }

    /// Brings the roster into the table, and starts and ends readers accordingly.
    pub(super) fn settle(&mut self) {
        let now = Instant::now();
        for server in self.roster.expire(now) {
            warn!(server = %server.id, "Dropping a peer that has been away for the whole grace period");
            self.shared.metrics.dropped.inc();
            self.drop_server(&server);
        }
        let table = &self.shared.table;
        let is_remembered = |group_version: &GroupVersion, resource: Option<&str>, until| {
            table.is_remembered(group_version.as_ref(), resource, until)
        };
        if self.exclusions.expire(now, is_remembered) {
            self.share(now);
        }
        if self.read_all_at.is_some_and(|at| at <= now) {
            self.read_all_at = None;
            self.shared.read_all();
        }
        self.keep_readers();
        let ready = self.judge_ready(now);
        if ready {
            for (server, _) in self.roster.unread() {
                if self.told.insert(server.address) {
                    warn!(server = %server.id, "Peer could not be read in time; until it is, it counts as serving nothing new");
                }
            }
        }
        self.publish_view();
        self.keeper
            .keep(&self.shared, &self.roster, &self.exclusions, now);
    }

    /// Looks for names in a task of its own: name servers may be slow.
    fn name_servers(&mut self) {
        if let Some(before) = self.naming.take() {
            before.abort();
        }
        let hostnames = self.leases.values().filter_map(|it| it.hostname.clone());
        let naming = names::give(Arc::clone(&self.shared.table), hostnames.collect());
        self.naming = Some(self.tasks.spawn_local(naming));
    }

    fn judge_ready(&self, now: Instant) -> bool {
        let ready = self.roster.is_ready(now);
        if self.shared.table.is_ready() != ready {
            self.shared.table.set_ready(ready);
            info!(ready, "Whether what all servers serve is known has changed");
        }
        ready
    }

    fn list(&mut self, addresses: &BTreeSet<SocketAddr>) {
        let changes = self.roster.list(addresses, Instant::now());
        for server in &changes.left {
            info!(server = %server.id, "Peer has left; what it serves is kept for the grace period");
            if self.shared.table.catalogue(server.id).is_none() {
                // Nothing of it is known that would be worth keeping.
                self.roster.forget(server.address);
                self.drop_server(server);
            }
        }
        for server in &changes.new {
            info!(server = %server.id, "New peer");
        }
        if changes.is_empty() {
            return;
        }
        self.keep_readers();
        for server in changes.returned.iter().chain(&changes.new) {
            self.told.remove(&server.address);
            self.learning.prober.look(server.id);
            if let Some(desk) = self.shared.desks.get(&server.id) {
                desk.wanted.notify_one();
            }
        }
        self.shared.table.touch();
    }

    /// One reader for local and for every peer of the roster; the table's members follow.
    fn keep_readers(&mut self) {
        let table = Arc::clone(&self.shared.table);
        let peers: Vec<_> = self.roster.servers().map(Arc::clone).collect();
        let members = table.members();
        let same = members.peers.len() == peers.len()
            && members
                .peers
                .iter()
                .zip(&peers)
                .all(|(one, two)| Arc::ptr_eq(one, two));
        let local = Arc::clone(&members.local);
        drop(members);
        if !same {
            // First: whoever sees a new peer must not believe a 404 any more.
            self.judge_ready(Instant::now());
            table.set_peers(peers.clone());
        }
        for server in std::iter::once(local).chain(peers) {
            let stays = self
                .readers
                .get(&server.id)
                .is_some_and(|(kept, _)| Arc::ptr_eq(kept, &server));
            if stays {
                continue;
            }
            let desk = Arc::new(Desk::default());
            self.shared.desks.insert(server.id, Arc::clone(&desk));
            let reader = self.tasks.spawn_local(reader::read_for_ever(
                Arc::clone(&self.shared),
                Rc::clone(&self.learning),
                Arc::clone(&server),
                desk,
                self.notices.clone(),
            ));
            if let Some((_, old)) = self.readers.insert(server.id, (server, reader)) {
                old.abort();
            }
        }
        while self.tasks.try_join_next().is_some() {}
    }

    fn drop_server(&mut self, server: &Server) {
        if let Some((_, reader)) = self.readers.remove(&server.id) {
            reader.abort();
        }
        self.shared.desks.remove(&server.id);
        self.view.troubles.remove(&server.id);
        self.told.remove(&server.address);
        self.shared.table.forget(server.id);
        self.keep_readers();
    }

    fn share(&mut self, now: Instant) {
        self.shared
            .table
            .shared
            .store(Arc::new(self.exclusions.shared()));
        self.shared.table.touch();
        self.read_all_at.get_or_insert(now + GATHER);
    }

    fn publish_view(&mut self) {
        let view = View {
            listed: self.roster.is_listed(),
            unread: self
                .roster
                .unread()
                .filter(|(server, _)| self.shared.table.catalogue(server.id).is_none())
                .map(|(server, since)| (server.id, since))
                .collect(),
            departed: self
                .roster
                .departed()
                .map(|(server, since)| (server.id, self.roster.kept_until(since)))
                .collect(),
            ..self.view.clone()
        };
        let changed = view.unread != self.view.unread;
        self.view = view.clone();
        self.shared.view.store(Arc::new(view));
        if changed {
            self.shared.table.touch();
        }
    }
}
