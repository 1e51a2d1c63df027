//! The routing table: what each kube-apiserver serves, who the servers are, and how they are.
//!
//! One `DashMap<ServerId, Arc<Catalogue>>` of immutable catalogues: a catalogue is published whole, so a reader sees
//! one server's knowledge atomically, and no guard outlives its lookup. [`Members`] carry what the map holds of each
//! server, so that a decision, which may look at all, takes one load and no lock; they are made anew whenever the map
//! changes. Membership and health are read by `route` for every request and written by `peers` and `health`. No IO here.

use std::{
    hash::{Hash as _, Hasher as _},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use dashmap::DashMap;
use hashbrown::{DefaultHashBuilder, HashMap};
use tokio::{sync::watch, time::Instant};

use crate::api::{GroupVersion, GvRef, Gvr, GvrRef, ServerId, Verb, Verbs};

mod lookup;

pub(crate) use lookup::Lookup;
pub use lookup::{ProcessSeed, Resources, Subresources};

/// How a server is, as traffic and probes see it (design 5.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Health {
    /// `/readyz` is 200 over verified TLS.
    Up,
    /// It connects but is not ready yet.
    Starting,
    /// It says that it is shutting down, or sent GOAWAY while `/readyz` is red.
    Draining,
    /// Refused, reset, or silent.
    Down,
}

/// Whether a server authenticates what mvp forwards (design 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Proof {
    /// Never proven in this run.
    Unproven,
    /// The last decided proof was echoed.
    Proven,
    /// A proof was refused: withdrawn.
    Refused,
}

/// Whether a server is expected to be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Membership {
    /// Listed by the endpoints of `default/kubernetes`, or a static peer, or local.
    Listed,
    /// Its endpoint has left: no requests, but its catalogue is kept for the grace period.
    Departed,
}

/// What is known about one kube-apiserver beside its catalogue. Shared; the fields change under readers.
#[derive(Debug)]
pub struct Server {
    /// Who it is.
    pub id: ServerId,
    /// Where it is reached.
    pub address: SocketAddr,
    /// Name for display, from its identity Lease.
    pub name: ArcSwapOption<String>,
    /// Fixed by the address: peers are ranked with it, alike in every run and on every node.
    pub(crate) rank: u64,
    health: AtomicU8,
    proof: AtomicU8,
    membership: AtomicU8,
    /// Microseconds that the last good probe took; 0: none did yet.
    latency: AtomicU64,
}

/// One resource of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Verbs of the resource itself; empty if only subresources are known.
    pub verbs: Verbs,
    /// Verbs by subresource name.
    pub subresources: Subresources,
}

/// How much a catalogue can be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freshness {
    /// Read whole from the server in this run, and the last try succeeded.
    Fresh,
    /// Kept from before a failed try, or read from the state file.
    Stale,
}

/// What one server serves: immutable, published whole.
#[derive(Debug)]
pub struct Catalogue {
    /// Each resource with its verbs and subresources.
    pub resources: Resources,
    /// Every group-version it lists, also those without resources.
    pub group_versions: hashbrown::HashSet<GroupVersion>,
    /// The documents from which it was made, for completing discovery.
    pub documents: Arc<Documents>,
    /// Kubernetes version (`gitVersion` of /version), for display.
    pub version: Arc<str>,
    /// Whether it is believed to be current.
    pub freshness: Freshness,
    /// When the last complete read began (monotonic); a stale one from the state file has the time of loading.
    pub read_at: Instant,
    /// Grows with every publication of this server that changed anything but times; inputs of caches are told apart by it.
    pub generation: u64,
}

/// A server's own aggregated discovery, as it gave it (`profile=nopeer`).
#[derive(Debug, Default)]
pub struct Documents {
    /// Groups of `/api` (the core group), aggregated discovery v2.
    pub core: crate::api::discovery::GroupList,
    /// Groups of `/apis`, aggregated discovery v2.
    pub groups: crate::api::discovery::GroupList,
}

/// The servers in a fixed order, local first, then peers by address, with what each of them serves: pointers only.
#[derive(Debug)]
pub struct Members {
    /// The node's own server.
    pub local: Arc<Server>,
    /// Listed and departed peers, by address.
    pub peers: Box<[Arc<Server>]>,
    /// All of them, in the same order.
    pub(crate) known: Box<[Known]>,
}

/// A server, and its catalogue unless it was never read.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) server: Arc<Server>,
    pub(crate) catalogue: Option<Arc<Catalogue>>,
}

/// The routing table. One per process; every thread reads it.
#[derive(Debug)]
pub struct Table {
    catalogues: DashMap<ServerId, Arc<Catalogue>, DefaultHashBuilder>,
    members: ArcSwap<Members>,
    /// Group-versions owned by CRDs or aggregated APIServices, with resources deleted lately: the local view decides.
    pub shared: ArcSwap<SharedGroups>,
    ready: AtomicBool,
    /// Woken at every change of a catalogue, of membership or of health.
    pub changed: watch::Sender<u64>,
}

/// No [`Health`] yet: nobody has looked.
const UNSEEN: u8 = u8::MAX;

/// What was deleted of a group-version: a resource, or (none) all of it; and when a peer's word for it counts again.
pub type Gone = Vec<(Option<Box<str>>, Instant)>;

/// Group-versions that all servers share through etcd (CRDs, aggregated APIServices), by design 5.3.
#[derive(Debug, Default)]
pub struct SharedGroups {
    /// Group-versions owned by CRDs or by aggregated APIServices, now.
    pub owned: hashbrown::HashSet<GroupVersion>,
    /// Resources and whole group-versions that a peer may still list although they were deleted, until the grace ends.
    pub deleted: HashMap<GroupVersion, Gone>,
}

impl Server {
    /// A server that nothing is known about: down and unproven, so that nothing is sent to it before it was seen.
    pub fn new(id: ServerId, address: SocketAddr) -> Self {
        Self {
            id,
            address,
            name: ArcSwapOption::empty(),
            rank: rank(id),
            health: AtomicU8::new(UNSEEN),
            proof: AtomicU8::new(Proof::Unproven as u8),
            membership: AtomicU8::new(Membership::Listed as u8),
            latency: AtomicU64::new(0),
        }
    }

    /// How it is.
    pub fn health(&self) -> Health {
        match self.health.load(Ordering::Acquire) {
            0 => Health::Up,
            1 => Health::Starting,
            2 => Health::Draining,
            _ => Health::Down,
        }
    }

    /// Whether its health was found out in this run; until then it counts as down.
    pub fn is_seen(&self) -> bool {
        self.health.load(Ordering::Acquire) != UNSEEN
    }

    /// Whether it authenticates what mvp forwards.
    pub fn proof(&self) -> Proof {
        match self.proof.load(Ordering::Acquire) {
            1 => Proof::Proven,
            2 => Proof::Refused,
            _ => Proof::Unproven,
        }
    }

    /// Whether it is expected to be there.
    pub fn membership(&self) -> Membership {
        if self.membership.load(Ordering::Acquire) == 0 {
            Membership::Listed
        } else {
            Membership::Departed
        }
    }

    /// Records how it is; returns the state before.
    pub fn set_health(&self, health: Health) -> Health {
        let before = self.health();
        self.health.store(health as u8, Ordering::Release);
        before
    }

    /// Records the proof; returns the one before.
    pub fn set_proof(&self, proof: Proof) -> Proof {
        let before = self.proof();
        self.proof.store(proof as u8, Ordering::Release);
        before
    }

    /// How long the last good probe took: connection, TLS handshake and `/readyz`.
    pub fn latency(&self) -> Option<Duration> {
        match self.latency.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    /// Records how long a good probe took.
    pub fn set_latency(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.latency.store(micros.max(1), Ordering::Relaxed);
    }

    /// Records its membership.
    pub fn set_membership(&self, membership: Membership) {
        self.membership.store(membership as u8, Ordering::Release);
    }
}

impl Documents {
    /// The documents as lookups: every resource with its verbs and subresources, and every group-version. A group-version
    /// without resources is listed too, as is one that the server itself calls stale (its backend is away).
    pub fn index(&self) -> (Resources, hashbrown::HashSet<GroupVersion>) {
        let mut resources = Resources::default();
        let mut group_versions = hashbrown::HashSet::new();
        for group in self.core.items.iter().chain(&self.groups.items) {
            for version in &group.versions {
                group_versions.insert(GroupVersion::new(group.name(), &version.version));
                for resource in &version.resources {
                    let served: &mut Served = resources
                        .entry(Gvr::new(group.name(), &version.version, &resource.resource))
                        .or_default();
                    served.verbs = served
                        .verbs
                        .union(resource.verbs.iter().map(String::as_str).collect());
                    for sub in &resource.subresources {
                        let verbs = sub.verbs.iter().map(String::as_str).collect();
                        let known = served.subresources.entry(sub.subresource.as_str().into());
                        let known = known.or_default();
                        *known = known.union(verbs);
                    }
                }
            }
        }
        (resources, group_versions)
    }
}

impl Catalogue {
    /// What `documents` say.
    pub fn new(
        documents: Arc<Documents>,
        version: Arc<str>,
        freshness: Freshness,
        read_at: Instant,
        generation: u64,
    ) -> Self {
        let (resources, group_versions) = documents.index();
        Self {
            resources,
            group_versions,
            documents,
            version,
            freshness,
            read_at,
            generation,
        }
    }

    /// Whether the server serves `verb` on the resource (or on its subresource, if one is asked for).
    pub fn serves(&self, resource: GvrRef<'_>, subresource: Option<&str>, verb: Verb) -> bool {
        self.has(&Lookup::new(resource, subresource, verb))
    }

    /// The same of what was hashed already.
    pub(crate) fn has(&self, lookup: &Lookup<'_>) -> bool {
        lookup.is_in(&self.resources)
    }

    /// Whether it lists the group-version.
    pub fn lists(&self, group_version: GvRef<'_>) -> bool {
        self.group_versions.contains(&group_version)
    }
}

impl SharedGroups {
    /// Whether a peer's word for the resource counts for nothing because its CRD or APIService was deleted lately. An
    /// entry counts as long as it is there: `peers` takes it out when its time is over.
    pub fn hides(&self, resource: GvrRef<'_>) -> bool {
        !self.deleted.is_empty()
            && self
                .deleted
                .get(&resource.group_version())
                .is_some_and(|gone| {
                    gone.iter().any(|(name, _)| {
                        name.as_deref().is_none_or(|name| name == resource.resource)
                    })
                })
    }

    /// Whether the whole group-version was deleted lately.
    pub fn hides_version(&self, group_version: GvRef<'_>) -> bool {
        !self.deleted.is_empty()
            && self
                .deleted
                .get(&group_version)
                .is_some_and(|gone| gone.iter().any(|(name, _)| name.is_none()))
    }
}

fn rank(id: ServerId) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

impl Members {
    fn new(
        local: Arc<Server>,
        peers: Box<[Arc<Server>]>,
        catalogue: impl Fn(ServerId) -> Option<Arc<Catalogue>>,
    ) -> Self {
        let known = std::iter::once(&local)
            .chain(&peers)
            .map(|server| Known {
                server: Arc::clone(server),
                catalogue: catalogue(server.id),
            })
            .collect();
        Self {
            local,
            peers,
            known,
        }
    }

    /// What a server serves, if it was ever read.
    pub(crate) fn catalogue(&self, id: ServerId) -> Option<&Catalogue> {
        let known = self.known.iter().find(|known| known.server.id == id)?;
        known.catalogue.as_deref()
    }
}

impl Table {
    /// A table that knows only where local is.
    pub fn new(local: Arc<Server>) -> Self {
        Self {
            catalogues: DashMap::default(),
            members: ArcSwap::from_pointee(Members::new(local, Box::default(), |_| None)),
            shared: ArcSwap::default(),
            ready: AtomicBool::new(false),
            changed: watch::Sender::new(0),
        }
    }

    /// The catalogue of one server. The map's guard is released before this returns.
    pub fn catalogue(&self, id: ServerId) -> Option<Arc<Catalogue>> {
        self.catalogues
            .get(&id)
            .map(|entry| Arc::clone(entry.value()))
    }

    /// Looks something up in a server's catalogue without touching its reference count. The guard is held for `look` only.
    pub(crate) fn look<T>(&self, id: ServerId, look: impl FnOnce(&Catalogue) -> T) -> Option<T> {
        self.catalogues.get(&id).map(|entry| look(entry.value()))
    }

    /// Whether a group-version, or that resource of it, is listed, but by nobody who was read at `until` or later.
    pub(crate) fn is_remembered(
        &self,
        group_version: GvRef<'_>,
        resource: Option<&str>,
        until: Instant,
    ) -> bool {
        let GvRef { group, version } = group_version;
        let last = self
            .catalogues
            .iter()
            .filter(|entry| match resource {
                None => entry.lists(group_version),
                Some(resource) => entry.resources.contains_key(&GvrRef {
                    group,
                    version,
                    resource,
                }),
            })
            .map(|entry| entry.read_at)
            .max();
        last.is_some_and(|last| last < until)
    }

    /// Publishes a catalogue whole; readers see the old one or the new one.
    pub fn publish(&self, id: ServerId, catalogue: Arc<Catalogue>) {
        self.catalogues.insert(id, catalogue);
        self.renew(None);
    }

    /// Forgets a server's catalogue.
    pub fn forget(&self, id: ServerId) {
        self.catalogues.remove(&id);
        self.renew(None);
    }

    /// The servers, with what each serves at this moment. Cheap: one atomic load, no lock.
    pub fn members(&self) -> arc_swap::Guard<Arc<Members>> {
        self.members.load()
    }

    /// The servers, to be kept over an await.
    pub fn members_now(&self) -> Arc<Members> {
        self.members.load_full()
    }

    /// Replaces the peers; sorts them by address, so that every order derived from it is fixed.
    pub fn set_peers(&self, mut peers: Vec<Arc<Server>>) {
        peers.sort_by_key(|server| server.id);
        self.renew(Some(&peers));
    }

    /// Makes the members anew, with other peers if some are given. A writer reads the map after it wrote there, and again
    /// if another one was faster: the last members carry what both wrote.
    fn renew(&self, peers: Option<&[Arc<Server>]>) {
        self.members.rcu(|now| {
            let peers = peers.unwrap_or(&now.peers);
            Members::new(Arc::clone(&now.local), peers.into(), |id| {
                self.catalogue(id)
            })
        });
        self.touch();
    }

    /// Whether the peers were learnt (design 5.3, *Ready*).
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Records whether the peers were learnt.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
        self.touch();
    }

    /// Wakes those who wait for a change.
    pub fn touch(&self) {
        self.changed
            .send_modify(|count| *count = count.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests;
