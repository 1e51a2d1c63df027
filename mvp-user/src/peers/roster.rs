//! Who the peers are and whether enough of them is known: a pure book of listed, departed and returned servers.
//!
//! kube-apiserver removes its own endpoint on every graceful stop (`kubernetes.md` 37), so a peer that leaves the list
//! is most often one that restarts: it is *departed*, and kept for a grace period.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    api::ServerId,
    table::{Membership, Server},
};

/// Addresses whose time without a read is remembered; beyond, all are forgotten.
const MAX_WAITED: usize = 1024;

/// The book.
#[derive(Debug)]
pub struct Roster {
    peers: BTreeMap<SocketAddr, Entry>,
    /// Of peers that left unread: how long they were waited for in all, and when they left. One that comes and goes
    /// holds up readiness no longer than one that stays.
    waited: BTreeMap<SocketAddr, (Duration, Instant)>,
    /// When the list was first read in this run.
    listed_at: Option<Instant>,
    local_read: bool,
    learn_deadline: Duration,
    grace: Duration,
}

#[derive(Debug)]
struct Entry {
    server: Arc<Server>,
    /// Whether the newest list has it; before the first one, whether the state file had.
    listed: bool,
    /// Since when this run knows it as a listed peer; as much earlier as it was waited for before.
    appeared: Instant,
    /// When it left; none while its membership is [`Membership::Listed`].
    departed_at: Option<Instant>,
    /// Read completely in this run.
    read: bool,
}

/// What a new list changed.
#[derive(Debug, Default)]
pub struct Changes {
    /// Peers that were not known.
    pub new: Vec<Arc<Server>>,
    /// Peers that had left.
    pub returned: Vec<Arc<Server>>,
    /// Peers that left now.
    pub left: Vec<Arc<Server>>,
}

impl Changes {
    /// Whether nothing changed.
    pub const fn is_empty(&self) -> bool {
        self.new.is_empty() && self.returned.is_empty() && self.left.is_empty()
    }
}

impl Roster {
    /// An empty book: `learn_deadline` is how long an unread peer holds up readiness, `grace` how long a departed one
    /// is kept.
    pub const fn new(learn_deadline: Duration, grace: Duration) -> Self {
        Self {
            peers: BTreeMap::new(),
            waited: BTreeMap::new(),
            listed_at: None,
            local_read: false,
            learn_deadline,
            grace,
        }
    }

    /// Takes in a peer of the state file, which departed `departed_for` ago or was listed.
    pub fn restore(
        &mut self,
        address: SocketAddr,
        departed_for: Option<Duration>,
        now: Instant,
    ) -> Arc<Server> {
        let server = Arc::new(Server::new(ServerId::Peer(address), address));
        if departed_for.is_some() {
            server.set_membership(Membership::Departed);
        }
        self.peers.insert(
            address,
            Entry {
                server: Arc::clone(&server),
                listed: departed_for.is_none(),
                appeared: now,
                // A time before this machine's boot cannot be written down; it is long past the grace period anyway.
                departed_at: departed_for.map(|age| now.checked_sub(age).unwrap_or(now)),
                read: false,
            },
        );
        server
    }

    /// Takes in a complete list of peers.
    pub fn list(&mut self, addresses: &BTreeSet<SocketAddr>, now: Instant) -> Changes {
        let first = self.listed_at.is_none();
        self.listed_at.get_or_insert(now);
        let mut changes = Changes::default();
        let appeared = |waited: Option<(Duration, Instant)>| {
            waited.map_or(now, |(waited, _)| now.checked_sub(waited).unwrap_or(now))
        };
        if self.waited.len() > MAX_WAITED {
            self.waited.clear();
        }
        for (address, entry) in &mut self.peers {
            let listed = addresses.contains(address);
            match (entry.listed, listed) {
                (true, false) => {
                    if !entry.read {
                        self.waited.insert(*address, (now - entry.appeared, now));
                    }
                    entry.server.set_membership(Membership::Departed);
                    // One that came back but was never read again has been away since it left first.
                    entry.departed_at.get_or_insert(now);
                    changes.left.push(Arc::clone(&entry.server));
                }
                (false, true) => {
                    entry.appeared = appeared(self.waited.remove(address));
                    changes.returned.push(Arc::clone(&entry.server));
                }
                // It was in the state file: only now it is known to be there in this run.
                (true, true) if first => entry.appeared = now,
                _ => {}
            }
            entry.listed = listed;
        }
        for &address in addresses {
            self.peers.entry(address).or_insert_with(|| {
                let server = Arc::new(Server::new(ServerId::Peer(address), address));
                changes.new.push(Arc::clone(&server));
                Entry {
                    server,
                    listed: true,
                    appeared: appeared(self.waited.remove(&address)),
                    departed_at: None,
                    read: false,
                }
            });
        }
        changes
    }

    /// A server was read completely. True if that brought a departed one back.
    pub fn read(&mut self, id: ServerId) -> bool {
        let ServerId::Peer(address) = id else {
            self.local_read = true;
            return false;
        };
        let Some(entry) = self.peers.get_mut(&address) else {
            return false;
        };
        entry.read = true;
        // One that answers but is not in the list has been taken out of service; it stays departed.
        let back = entry.listed && entry.departed_at.take().is_some();
        if back {
            entry.server.set_membership(Membership::Listed);
        }
        back
    }

    /// Takes out those whose grace period is over.
    pub fn expire(&mut self, now: Instant) -> Vec<Arc<Server>> {
        let grace = self.grace;
        self.waited.retain(|_, (_, left)| now - *left < grace);
        let gone: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, entry)| {
                !entry.listed && entry.departed_at.is_some_and(|at| now - at >= grace)
            })
            .map(|(address, _)| *address)
            .collect();
        gone.iter()
            .filter_map(|address| self.peers.remove(address))
            .map(|entry| entry.server)
            .collect()
    }

    /// Takes out one that is not listed.
    pub fn forget(&mut self, address: SocketAddr) -> Option<Arc<Server>> {
        if self.peers.get(&address)?.listed {
            return None;
        }
        self.peers.remove(&address).map(|entry| entry.server)
    }

    /// The known peers, by address.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.peers.values().map(|entry| &entry.server)
    }

    /// Whether the list was read in this run.
    pub const fn is_listed(&self) -> bool {
        self.listed_at.is_some()
    }

    /// Whether a 404 can be believed (design 5.3, *Ready*): the list was read in this run, and local and every listed
    /// peer were read once or had their time.
    pub fn is_ready(&self, now: Instant) -> bool {
        let Some(listed_at) = self.listed_at else {
            return false;
        };
        let late = |since: Instant| now - since >= self.learn_deadline;
        (self.local_read || late(listed_at))
            && self
                .peers
                .values()
                .all(|entry| !entry.listed || entry.read || late(entry.appeared))
    }

    /// Listed peers that were never read in this run, and since when they are known.
    pub fn unread(&self) -> impl Iterator<Item = (&Arc<Server>, Instant)> {
        self.peers
            .values()
            .filter(|entry| entry.listed && !entry.read)
            .map(|entry| (&entry.server, entry.appeared))
    }

    /// Departed peers, and since when.
    pub fn departed(&self) -> impl Iterator<Item = (&Arc<Server>, Instant)> {
        self.peers
            .values()
            .filter_map(|entry| entry.departed_at.map(|at| (&entry.server, at)))
    }

    /// When a departed peer that stays away will be dropped.
    pub fn kept_until(&self, departed_at: Instant) -> Instant {
        departed_at + self.grace
    }
}

#[cfg(test)]
mod tests;
