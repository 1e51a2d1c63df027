//! What is known, put into the words of the control socket. Reads the table and the other rooms; changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{
    State,
    wire::{Difference, Event, Overview, RouteTraffic, Server, Status, Traffic},
};
use crate::{
    api::{Gvr, ServerId, Verb, Verbs},
    route::AskerKind,
    serve::{Entry, traffic},
    table::{Catalogue, Freshness, Health, Membership, Proof, SharedGroups, Table},
};

mod explain;

/// A thread that gave no sign of life for so long is wedged: the kernel has stopped steering long before.
const DEAD: Duration = Duration::from_secs(10);
/// The kernel stops steering after this.
const LATE: Duration = Duration::from_secs(2);

pub(super) const fn health(health: Health) -> &'static str {
    match health {
        Health::Up => "up",
        Health::Starting => "starting",
        Health::Draining => "draining",
        Health::Down => "down",
    }
}

pub(super) const fn proof(proof: Proof) -> &'static str {
    match proof {
        Proof::Proven => "proven",
        Proof::Unproven => "unproven",
        Proof::Refused => "refused",
    }
}

const fn membership(membership: Membership) -> &'static str {
    match membership {
        Membership::Listed => "listed",
        Membership::Departed => "departed",
    }
}

impl State {
    /// What keeps mvp from being live: wedged threads, which a restart helps. Not the self-request: it fails as well where a
    /// certificate has expired, and then a restart only cuts off who is connected. While mvp drains, threads end one after
    /// the other: that is no reason to kill what still runs.
    pub fn dead(&self) -> Vec<String> {
        if self.daemon.is_draining() {
            return Vec::new();
        }
        late(&self.daemon.beats(), DEAD)
    }

    /// What keeps mvp from being ready, one sentence each.
    pub fn not_ready(&self) -> Vec<String> {
        let mut problems = if self.daemon.is_draining() {
            // Threads that have ended are no news then.
            vec!["draining: a stop was asked for".to_owned()]
        } else {
            let mut problems = late(&self.daemon.beats(), LATE);
            problems.extend(self.not_answering());
            problems
        };
        if !self.table.is_ready() {
            problems.push(self.not_learnt());
        }
        problems.extend(self.not_forwarding());
        problems
    }

    /// That mvp does not answer its request to itself, without which the kernel steers nothing.
    fn not_answering(&self) -> Option<String> {
        let since = self.daemon.answered_itself().filter(|it| *it > LATE)?;
        Some(format!(
            "self-request: no answer for {:.1} s; the log says why",
            since.as_secs_f64()
        ))
    }

    fn not_learnt(&self) -> String {
        let view = self.learner.view();
        if !view.listed {
            return "peers: their list was not read yet".to_owned();
        }
        let local = match self.table.catalogue(ServerId::Local) {
            Some(_) => None,
            None => Some("local".to_owned()),
        };
        let unread = view.unread.iter().map(|(id, _)| id.to_string());
        let unread: Vec<String> = local.into_iter().chain(unread).collect();
        format!("peers: not read yet: {}", unread.join(", "))
    }

    /// Why identities cannot be forwarded (design 4.3).
    fn not_forwarding(&self) -> Option<String> {
        let members = self.table.members();
        let failover = members.local.health() != Health::Up
            && self.config.local_down == crate::config::LocalDown::Failover;
        let by_peer = failover
            && members.peers.iter().any(|peer| {
                peer.health() == Health::Up
                    && peer.proof() == Proof::Proven
                    && peer.membership() == Membership::Listed
            });
        if by_peer {
            return None;
        }
        let why = match members.local.proof() {
            Proof::Proven => return None,
            _ if !self.tls.current().can_forward() => {
                "there is no front-proxy client certificate (--proxy-client-cert-file)"
            }
            Proof::Refused => "local refuses the front-proxy client certificate",
            Proof::Unproven => "local has not accepted the front-proxy client certificate yet",
        };
        Some(format!("identity forwarding: {why}"))
    }

    /// `mvp status`.
    pub fn status(&self) -> Status {
        let not_ready = self.not_ready();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            node: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            uptime: self.process.started.elapsed().as_secs(),
            ready: not_ready.is_empty(),
            not_ready,
            steering: self.daemon.steering(),
            connections: self.daemon.connections(),
            beats_ms: self
                .daemon
                .beats()
                .iter()
                .map(|beat| u64::try_from(beat.as_millis()).unwrap_or(u64::MAX))
                .collect(),
            servers: self.servers(),
            skew: self.known_differences().len(),
        }
    }

    /// All servers, local first.
    pub fn servers(&self) -> Vec<Server> {
        let view = self.learner.view();
        let members = self.table.members();
        std::iter::once(&members.local)
            .chain(members.peers.iter())
            .map(|server| {
                let catalogue = self.table.catalogue(server.id);
                let leaves = view.departed.iter().find(|(id, _)| *id == server.id);
                Server {
                    id: server.id.to_string(),
                    address: server.address.to_string(),
                    name: server.name.load().as_deref().cloned(),
                    version: catalogue.as_ref().map(|it| it.version.to_string()),
                    health: health(server.health()).to_owned(),
                    proof: proof(server.proof()).to_owned(),
                    membership: membership(server.membership()).to_owned(),
                    catalogue: catalogue.as_ref().map(|it| {
                        match it.freshness {
                            Freshness::Fresh => "fresh",
                            Freshness::Stale => "stale",
                        }
                        .to_owned()
                    }),
                    age: catalogue.as_ref().map(|it| it.read_at.elapsed().as_secs()),
                    resources: catalogue.as_deref().map_or(0, count),
                    latency_us: server
                        .latency()
                        .map(|it| u64::try_from(it.as_micros()).unwrap_or(u64::MAX)),
                    trouble: view.troubles.get(&server.id).map(ToString::to_string),
                    forgotten_in: leaves
                        .map(|(_, at)| at.saturating_duration_since(Instant::now()).as_secs()),
                }
            })
            .collect()
    }

    /// Everything that the status page shows.
    pub fn overview(&self) -> Overview {
        Overview {
            status: self.status(),
            differences: self.differences(),
            traffic: self.traffic(),
        }
    }

    fn traffic(&self) -> Traffic {
        let route = |server: String, count: traffic::Count| RouteTraffic {
            server,
            answers: count.answers.to_vec(),
            buckets: count.buckets.to_vec(),
        };
        let (peers, former) = self.traffic.peers(&self.table);
        let mut routes = vec![route("local".to_owned(), self.traffic.local())];
        routes.extend(peers.into_iter().map(|(id, it)| route(id.to_string(), it)));
        if former != traffic::Count::default() {
            routes.push(route("former".to_owned(), former));
        }
        let recent = &self.traffic.recent;
        let events = |entries: Vec<Entry>| entries.into_iter().map(event).collect();
        Traffic {
            bounds: traffic::BOUNDS.to_vec(),
            routes,
            rerouted: events(recent.last_rerouted()),
            refused: events(recent.last_refused()),
        }
    }

    /// `mvp skew`: everything that not all servers that were read serve alike.
    pub fn differences(&self) -> Vec<Difference> {
        self.known_differences().to_vec()
    }

    /// The same, made once for each change of what is known.
    fn known_differences(&self) -> Arc<[Difference]> {
        let shared = self.table.shared.load_full();
        let catalogues = catalogues(&self.table);
        let mut remembered = self
            .process
            .differences
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((of, groups, differences)) = &*remembered
            && Arc::ptr_eq(groups, &shared)
            && of.len() == catalogues.len()
            && of
                .iter()
                .zip(&catalogues)
                .all(|(one, other)| one.0 == other.0 && Arc::ptr_eq(&one.1, &other.1))
        {
            return Arc::clone(differences);
        }
        let differences: Arc<[Difference]> = compare(&catalogues, &shared).into();
        *remembered = Some((catalogues, shared, Arc::clone(&differences)));
        differences
    }
}

/// Everything that not all of `catalogues` serve alike.
fn compare(catalogues: &Catalogues, shared: &SharedGroups) -> Vec<Difference> {
    let everyone: BTreeSet<&str> = catalogues.iter().map(|(id, _)| id.as_str()).collect();
    let mut rows = Vec::new();
    for (resource, subresource) in everything(catalogues) {
        for (servers, verbs) in by_servers(catalogues, &resource, subresource.as_deref()) {
            if servers == everyone {
                continue;
            }
            let own = |names: &mut dyn Iterator<Item = &&str>| {
                names.map(|name| (*name).to_owned()).collect()
            };
            rows.push(Difference {
                group: resource.group.to_string(),
                version: resource.version.to_string(),
                resource: resource.resource.to_string(),
                subresource: subresource.as_deref().map(ToOwned::to_owned),
                verbs: verbs.iter().map(|verb| verb.as_str().to_owned()).collect(),
                served_by: own(&mut servers.iter()),
                lacked_by: own(&mut everyone.difference(&servers)),
                shared: shared.owned.contains(&resource.as_ref().group_version()),
            });
        }
    }
    rows
}

fn late(beats: &[Duration], bound: Duration) -> Vec<String> {
    beats
        .iter()
        .enumerate()
        .filter(|(_, beat)| **beat > bound)
        .map(|(thread, beat)| {
            format!(
                "threads: {thread} gave no sign of life for {:.1} s",
                beat.as_secs_f64()
            )
        })
        .collect()
}

/// A word for the kind of caller, as `mvp explain --as` takes it.
pub(super) const fn kind(kind: AskerKind) -> &'static str {
    match kind {
        AskerKind::FrontProxy => "front-proxy",
        AskerKind::User => "user",
        AskerKind::Token => "token",
        AskerKind::Anonymous => "anonymous",
    }
}

fn event(entry: Entry) -> Event {
    let ago = SystemTime::now().duration_since(entry.last);
    Event {
        method: entry.method.to_owned(),
        what: entry.what.into(),
        server: entry.server.map(|it| it.to_string()),
        why: entry.why.to_owned(),
        status: entry.status,
        count: entry.count,
        ago: ago.unwrap_or_default().as_secs(),
    }
}

/// Every server that was read, and its catalogue.
type Catalogues = Vec<(String, Arc<Catalogue>)>;

/// The last differences, and of what they are.
#[derive(Default)]
pub(super) struct Remembered(Mutex<Option<Compared>>);

type Compared = (Catalogues, Arc<SharedGroups>, Arc<[Difference]>);

fn catalogues(table: &Table) -> Catalogues {
    let members = table.members();
    std::iter::once(&members.local)
        .chain(members.peers.iter())
        .filter_map(|server| Some((server.id.to_string(), table.catalogue(server.id)?)))
        .collect()
}

/// Every resource and subresource of any server, in order.
fn everything(catalogues: &Catalogues) -> BTreeSet<(Gvr, Option<Box<str>>)> {
    let mut all = BTreeSet::new();
    for (_, catalogue) in catalogues {
        for (resource, served) in &catalogue.resources {
            if served.verbs != Verbs::NONE {
                all.insert((resource.clone(), None));
            }
            for subresource in served.subresources.keys() {
                all.insert((resource.clone(), Some(subresource.clone())));
            }
        }
    }
    all
}

/// Verbs by who serves them.
fn by_servers<'a>(
    catalogues: &'a Catalogues,
    resource: &Gvr,
    subresource: Option<&str>,
) -> BTreeMap<BTreeSet<&'a str>, Verbs> {
    let mut sets: BTreeMap<BTreeSet<&str>, Verbs> = BTreeMap::new();
    for verb in Verb::ALL {
        let servers: BTreeSet<&str> = catalogues
            .iter()
            .filter(|(_, catalogue)| catalogue.serves(resource.as_ref(), subresource, verb))
            .map(|(id, _)| id.as_str())
            .collect();
        if !servers.is_empty() {
            let verbs = sets.entry(servers).or_default();
            *verbs = verbs.with(verb);
        }
    }
    sets
}

fn count(catalogue: &Catalogue) -> usize {
    catalogue
        .resources
        .values()
        .map(|served| usize::from(served.verbs != Verbs::NONE) + served.subresources.len())
        .sum()
}
