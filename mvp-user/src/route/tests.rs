//! The ladder, rung by rung: each row builds a world, asks once, and names itself when it fails.

use std::net::{Ipv4Addr, SocketAddr};

use http::{Method, Uri};
use tokio::time::{Duration, Instant};

mod walks;

use super::*;
use crate::{
    api::{GroupVersion, Gvr, ServerId, Verb, Verbs},
    reply::Side,
    table::{Catalogue, Freshness, Served, SharedGroups},
};

const EVERYTHING: [Verb; 8] = [
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];

fn peer_id(number: u8) -> ServerId {
    ServerId::Peer(SocketAddr::from((Ipv4Addr::new(10, 0, 0, number), 6443)))
}

/// `resources`: `apps/v1/deployments`, `v1/pods/resize`; verbs behind `:` or all of them.
fn catalogue(resources: &[&str]) -> Catalogue {
    let mut catalogue = Catalogue::new(
        Arc::default(),
        "v1.36.0".into(),
        Freshness::Fresh,
        Instant::now(),
        1,
    );
    for line in resources {
        let (path, verbs) = line.split_once(':').unwrap_or((line, ""));
        let verbs = if verbs.is_empty() {
            EVERYTHING.into_iter().fold(Verbs::NONE, Verbs::with)
        } else {
            verbs.split(',').collect()
        };
        let mut parts: Vec<&str> = path.split('/').collect();
        if parts[0].starts_with('v') {
            parts.insert(0, "");
        }
        let (group, version) = (parts[0], parts[1]);
        catalogue
            .group_versions
            .insert(GroupVersion::new(group, version));
        if let Some(resource) = parts.get(2) {
            let served: &mut Served = catalogue
                .resources
                .entry(Gvr::new(group, version, resource))
                .or_default();
            match parts.get(3) {
                None => served.verbs = verbs,
                Some(name) => drop(served.subresources.insert((*name).into(), verbs)),
            }
        }
    }
    catalogue
}

/// Local and three peers, all up and proven; a table that is ready. Local and peer 1 are old, peers 2 and 3 are new.
struct World {
    table: Table,
    local: Arc<Server>,
    peers: Vec<Arc<Server>>,
    evidence: Evidence,
    asker: Asker,
    local_down: LocalDown,
    now: Instant,
}

const OLD: &[&str] = &[
    "v1/pods",
    "v1/pods/status",
    "apps/v1/deployments",
    "batch/v1/jobs:get,list",
];
const NEW: &[&str] = &[
    "v1/pods",
    "v1/pods/status",
    "v1/pods/resize:get,patch",
    "apps/v1/deployments",
    "apps/v1/rollouts",
    "batch/v1/jobs",
    "new.k8s.io/v1/things",
];

impl World {
    fn new() -> Self {
        let local = Arc::new(Server::new(
            ServerId::Local,
            SocketAddr::from(([127, 0, 0, 1], 6443)),
        ));
        let peers: Vec<_> = (1..=3)
            .map(|number| {
                let id = peer_id(number);
                let ServerId::Peer(address) = id else {
                    unreachable!()
                };
                Arc::new(Server::new(id, address))
            })
            .collect();
        let table = Table::new(Arc::clone(&local));
        for server in std::iter::once(&local).chain(&peers) {
            server.set_health(Health::Up);
            server.set_proof(Proof::Proven);
        }
        table.set_peers(peers.clone());
        table.set_ready(true);
        let world = Self {
            table,
            local,
            peers,
            evidence: Evidence::default(),
            asker: Asker {
                kind: AskerKind::User,
                marker: false,
                decided: false,
                client: IpAddr::from([10, 1, 2, 3]),
            },
            local_down: LocalDown::Failover,
            now: Instant::now(),
        };
        world.serve(0, OLD);
        world.serve(1, OLD);
        world.serve(2, NEW);
        world.serve(3, NEW);
        world
    }

    /// 0 is local.
    fn server(&self, number: usize) -> &Arc<Server> {
        if number == 0 {
            &self.local
        } else {
            &self.peers[number - 1]
        }
    }

    fn serve(&self, number: usize, resources: &[&str]) {
        self.table
            .publish(self.server(number).id, Arc::new(catalogue(resources)));
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut Catalogue)) {
        let id = self.server(number).id;
        let mut catalogue = catalogue(if number < 2 { OLD } else { NEW });
        change(&mut catalogue);
        self.table.publish(id, Arc::new(catalogue));
    }

    fn tried(&mut self, number: usize, outcome: Outcome) {
        let id = self.server(number).id;
        if outcome == Outcome::NotFound {
            self.evidence.not_found(id, self.now);
        } else {
            self.evidence.add(id, outcome);
        }
    }

    fn ask(&self, what: &str) -> Decision {
        let (method, uri) = what.split_once(' ').unwrap();
        let uri: Uri = uri.parse().unwrap();
        let info = RequestInfo::parse(&method.parse().unwrap(), &uri).unwrap();
        decide(
            &info,
            &self.asker,
            &self.evidence,
            &self.table,
            self.local_down,
        )
    }

    /// The decision in one word: `local`, `peer 2`, `refresh`, `relay`, or the refusal's.
    fn outcome(&self, what: &str) -> String {
        match self.ask(what).to {
            To::Server(server) if server.id == ServerId::Local => "local".to_owned(),
            To::Server(server) => {
                let number = self.peers.iter().position(|peer| peer.id == server.id);
                format!("peer {}", number.unwrap() + 1)
            }
            To::Refresh => "refresh".to_owned(),
            To::Relay => "relay".to_owned(),
            To::Refuse(refusal) => refusal.as_str().to_owned(),
        }
    }
}

struct Row {
    name: &'static str,
    world: fn(&mut World),
    ask: &'static str,
    to: &'static str,
    because: Because,
}

const PODS: &str = "GET /api/v1/namespaces/d/pods/p";
const THINGS: &str = "GET /apis/new.k8s.io/v1/things";
const RESIZE: &str = "PATCH /api/v1/namespaces/d/pods/p/resize";
const NOPES: &str = "GET /apis/batch/v1/nopes";

/// Only peer 2 is new.
fn one_new(w: &mut World) {
    w.serve(3, OLD);
}

#[rustfmt::skip]
const LADDER: &[Row] = &[
    // What is about local, or was decided before.
    Row { name: "a marked request is served by local even if only a peer serves it", world: |w| w.asker.marker = true, ask: THINGS, to: "local", because: Because::AlreadyProxied },
    Row { name: "a marked request is 503 when local failed", world: |w| { w.asker.marker = true; w.tried(0, Outcome::Unreachable); }, ask: PODS, to: "local_down", because: Because::AlreadyProxied },
    Row { name: "a 404 to a marked request is local's own word", world: |w| { w.asker.marker = true; w.tried(0, Outcome::NotFound); }, ask: THINGS, to: "relay", because: Because::AlreadyProxied },
    Row { name: "a decided connection is served by local", world: |w| w.asker.decided = true, ask: THINGS, to: "local", because: Because::AlreadyDecided },
    Row { name: "a decided connection does not fail over", world: |w| { w.asker.decided = true; w.local.set_health(Health::Down); }, ask: PODS, to: "local", because: Because::AlreadyDecided },
    Row { name: "health is about local", world: |_| {}, ask: "GET /readyz", to: "local", because: Because::AboutLocal },
    Row { name: "health is about local even when it is down", world: |w| { w.local.set_health(Health::Down); }, ask: "GET /livez", to: "local", because: Because::AboutLocal },
    Row { name: "metrics of a local that failed come from nobody", world: |w| w.tried(0, Outcome::Unreachable), ask: "GET /metrics", to: "local_down", because: Because::AboutLocal },
    // The authority.
    Row { name: "discovery goes to local", world: |_| {}, ask: "GET /apis", to: "local", because: Because::Discovery },
    Row { name: "discovery goes to the first proven peer while local is down", world: |w| { w.local.set_health(Health::Down); }, ask: "GET /apis", to: "peer 1", because: Because::Discovery },
    Row { name: "a starting local is not the authority", world: |w| { w.local.set_health(Health::Starting); }, ask: "GET /apis", to: "peer 1", because: Because::Discovery },
    Row { name: "a draining local is not the authority", world: |w| { w.local.set_health(Health::Draining); }, ask: PODS, to: "peer 1", because: Because::AuthorityServes },
    Row { name: "an unproven peer is not the authority", world: |w| { w.local.set_health(Health::Down); w.peers[0].set_proof(Proof::Unproven); }, ask: "GET /api", to: "peer 2", because: Because::Discovery },
    Row { name: "a peer whose proof was refused is not the authority", world: |w| { w.local.set_health(Health::Down); w.peers[0].set_proof(Proof::Refused); }, ask: "GET /api", to: "peer 2", because: Because::Discovery },
    Row { name: "a departed peer is not the authority", world: |w| { w.local.set_health(Health::Down); w.peers[0].set_membership(Membership::Departed); }, ask: "GET /api", to: "peer 2", because: Because::Discovery },
    Row { name: "without any peer up local gets everything in any state", world: |w| { w.local.set_health(Health::Down); w.peers.iter().for_each(|p| { p.set_health(Health::Down); }); }, ask: "GET /apis", to: "local", because: Because::Discovery },
    Row { name: "with refuse nothing fails over", world: |w| { w.local_down = LocalDown::Refuse; w.local.set_health(Health::Down); }, ask: PODS, to: "local", because: Because::AuthorityServes },
    Row { name: "with refuse a failed local is not replaced", world: |w| { w.local_down = LocalDown::Refuse; w.tried(0, Outcome::Unreachable); }, ask: PODS, to: "unreachable", because: Because::Failed },
    Row { name: "with refuse peers still serve what local lacks", world: |w| { w.local_down = LocalDown::Refuse; one_new(w); }, ask: THINGS, to: "peer 2", because: Because::PeerServes },
    Row { name: "other paths go to the authority", world: |_| {}, ask: "GET /nothing", to: "local", because: Because::NonResource },
    Row { name: "other paths fail over", world: |w| w.tried(0, Outcome::Unreachable), ask: "GET /nothing", to: "peer 1", because: Because::NonResource },
    Row { name: "a 404 for another path is relayed", world: |w| w.tried(0, Outcome::NotFound), ask: "GET /nothing", to: "relay", because: Because::NonResource },
    Row { name: "discovery fails over when local fails under the request", world: |w| w.tried(0, Outcome::Unprocessed), ask: "GET /apis", to: "peer 1", because: Because::Discovery },
    Row { name: "discovery is 503 when every server failed", world: |w| (0..4).for_each(|n| w.tried(n, Outcome::Unreachable)), ask: "GET /apis", to: "unreachable", because: Because::Failed },
    // Resources.
    Row { name: "what local serves stays at local", world: |_| {}, ask: PODS, to: "local", because: Because::AuthorityServes },
    Row { name: "what only a peer serves goes there", world: one_new, ask: THINGS, to: "peer 2", because: Because::PeerServes },
    Row { name: "a subresource that only a peer serves goes there", world: one_new, ask: RESIZE, to: "peer 2", because: Because::PeerServes },
    Row { name: "a verb that only a peer serves goes there", world: one_new, ask: "POST /apis/batch/v1/namespaces/d/jobs", to: "peer 2", because: Because::PeerServes },
    Row { name: "a verb that local serves stays", world: one_new, ask: "GET /apis/batch/v1/namespaces/d/jobs", to: "local", because: Because::AuthorityServes },
    Row { name: "a subresource that nobody serves is the authority's to deny", world: |_| {}, ask: "GET /api/v1/namespaces/d/pods/p/nosub", to: "local", because: Because::NobodyServes },
    Row { name: "OPTIONS goes to whoever has the resource", world: one_new, ask: "OPTIONS /apis/new.k8s.io/v1/things", to: "peer 2", because: Because::PeerServes },
    Row { name: "a local that was never read is asked", world: |w| w.table.forget(ServerId::Local), ask: THINGS, to: "local", because: Because::AuthorityUnread },
    Row { name: "a local that was never read and says 404 is not believed", world: |w| { one_new(w); w.table.forget(ServerId::Local); w.tried(0, Outcome::NotFound); }, ask: THINGS, to: "peer 2", because: Because::PeerServes },
    Row { name: "a new local serves what an old peer lacks", world: |w| { w.serve(0, NEW); }, ask: THINGS, to: "local", because: Because::AuthorityServes },
    Row { name: "local down: the authority lacks it, another peer serves it", world: |w| { one_new(w); w.local.set_health(Health::Down); }, ask: THINGS, to: "peer 2", because: Because::PeerServes },
    Row { name: "local down and alone in serving it: tried once", world: |w| { w.serve(0, &["only.local/v1/x"]); w.local.set_health(Health::Down); }, ask: "GET /apis/only.local/v1/x", to: "local", because: Because::LastResort },
    Row { name: "local down, alone in serving it, and tried: 503", world: |w| { w.serve(0, &["only.local/v1/x"]); w.local.set_health(Health::Down); w.tried(0, Outcome::Unreachable); }, ask: "GET /apis/only.local/v1/x", to: "unreachable", because: Because::Failed },
    // The next server.
    Row { name: "the only capable peer failed: 503, never 404", world: |w| { one_new(w); w.tried(2, Outcome::Unreachable); }, ask: THINGS, to: "only_unavailable_serve", because: Because::OnlyUnavailable },
    Row { name: "one of two capable peers failed: the other", world: |w| { w.tried(2, Outcome::Unprocessed); }, ask: THINGS, to: "peer 3", because: Because::PeerServes },
    Row { name: "the other of two capable peers failed: the one", world: |w| { w.tried(3, Outcome::Refused); }, ask: THINGS, to: "peer 2", because: Because::PeerServes },
    Row { name: "one of two capable peers is down: the other", world: |w| { w.peers[1].set_health(Health::Down); }, ask: THINGS, to: "peer 3", because: Because::PeerServes },
    Row { name: "a capable peer that looks unreachable is tried once", world: |w| { one_new(w); w.peers[1].set_health(Health::Down); }, ask: THINGS, to: "peer 2", because: Because::LastResort },
    Row { name: "local failed: the next authority that serves it", world: |w| w.tried(0, Outcome::Unreachable), ask: PODS, to: "peer 1", because: Because::AuthorityServes },
    Row { name: "local refused mvp: no other server, the client reconnects", world: |w| w.tried(0, Outcome::Refused), ask: PODS, to: "forwarding_refused", because: Because::Failed },
    // Departed.
    Row { name: "a departed server gets nothing, what only it serves is 503", world: |w| { one_new(w); w.peers[1].set_membership(Membership::Departed); }, ask: THINGS, to: "only_unavailable_serve", because: Because::OnlyUnavailable },
    Row { name: "a departed server that is up still gets nothing", world: |w| { w.peers[1].set_membership(Membership::Departed); }, ask: THINGS, to: "peer 3", because: Because::PeerServes },
    // Proof.
    Row { name: "a certificate user is not sent to an unproven peer", world: |w| { one_new(w); w.peers[1].set_proof(Proof::Unproven); }, ask: THINGS, to: "unproven", because: Because::OnlyUnproven },
    Row { name: "a forwarded user is not sent to a refused peer", world: |w| { one_new(w); w.asker.kind = AskerKind::FrontProxy; w.peers[1].set_proof(Proof::Refused); }, ask: THINGS, to: "unproven", because: Because::OnlyUnproven },
    Row { name: "a certificate user goes to the proven one of two", world: |w| { w.peers[2].set_proof(Proof::Unproven); }, ask: THINGS, to: "peer 2", because: Because::PeerServes },
    Row { name: "a token needs no proof", world: |w| { one_new(w); w.asker.kind = AskerKind::Token; w.peers[1].set_proof(Proof::Refused); }, ask: THINGS, to: "peer 2", because: Because::PeerServes },
    Row { name: "nobody needs no proof", world: |w| { one_new(w); w.asker.kind = AskerKind::Anonymous; w.peers[1].set_proof(Proof::Unproven); }, ask: THINGS, to: "peer 2", because: Because::PeerServes },
    Row { name: "an unproven peer that is down is no last resort for a user", world: |w| { one_new(w); w.peers[1].set_proof(Proof::Unproven); w.peers[1].set_health(Health::Down); }, ask: THINGS, to: "only_unavailable_serve", because: Because::OnlyUnavailable },
    // Nobody.
    Row { name: "nobody serves it: the authority says so", world: |_| {}, ask: NOPES, to: "local", because: Because::NobodyServes },
    Row { name: "not ready: the authority is asked", world: |w| w.table.set_ready(false), ask: NOPES, to: "local", because: Because::NotReady },
    Row { name: "not ready: its 404 is 503", world: |w| { w.table.set_ready(false); w.tried(0, Outcome::NotFound); }, ask: NOPES, to: "not_ready", because: Because::NotReady },
    Row { name: "not ready: what is known is used", world: |w| { one_new(w); w.table.set_ready(false); }, ask: THINGS, to: "peer 2", because: Because::PeerServes },
    // The double check.
    Row { name: "a 404 while all catalogues are young is true", world: |w| w.tried(0, Outcome::NotFound), ask: NOPES, to: "relay", because: Because::Confirmed },
    Row { name: "a 404 while a catalogue is old waits for a refresh", world: |w| { w.now += Duration::from_secs(5); w.tried(0, Outcome::NotFound); }, ask: NOPES, to: "refresh", because: Because::Unconfirmed },
    Row { name: "a 404 after the refresh is true", world: |w| { w.now += Duration::from_secs(5); w.tried(0, Outcome::NotFound); w.evidence.refreshed(true); }, ask: NOPES, to: "relay", because: Because::Confirmed },
    Row { name: "a 404 after a refresh that failed is 503", world: |w| { w.now += Duration::from_secs(5); w.tried(0, Outcome::NotFound); w.evidence.refreshed(false); }, ask: NOPES, to: "unconfirmed", because: Because::Unconfirmed },
    Row { name: "a catalogue that is newer now reroutes a 404", world: |w| { w.tried(0, Outcome::NotFound); w.serve(1, &["batch/v1/nopes"]); }, ask: NOPES, to: "peer 1", because: Because::PeerServes },
    Row { name: "the refresh looks whether a server that is down is back", world: |w| { w.now += Duration::from_secs(5); w.tried(0, Outcome::NotFound); w.peers.iter().for_each(|p| { p.set_health(Health::Down); }); }, ask: NOPES, to: "refresh", because: Because::Unconfirmed },
    Row { name: "local says 404 to what its catalogue lists: another that serves it", world: |w| { w.serve(1, &["v1/nodes"]); w.serve(3, OLD); w.tried(0, Outcome::NotFound); w.tried(3, Outcome::NotFound); }, ask: PODS, to: "peer 2", because: Because::PeerServes },
    Row { name: "everybody says 404 to what all list: it is true", world: |w| (0..4).for_each(|n| w.tried(n, Outcome::NotFound)), ask: PODS, to: "relay", because: Because::Confirmed },
    // Discovery of what the authority does not know.
    Row { name: "an unknown group is asked of the authority first", world: |_| {}, ask: "GET /apis/new.k8s.io", to: "local", because: Because::Discovery },
    Row { name: "an unknown group comes from a server that has it", world: |w| { one_new(w); w.tried(0, Outcome::NotFound); }, ask: "GET /apis/new.k8s.io", to: "peer 2", because: Because::DiscoveryByPeer },
    Row { name: "an unknown group-version comes from a server that has it", world: |w| { one_new(w); w.tried(0, Outcome::NotFound); }, ask: "GET /apis/new.k8s.io/v1", to: "peer 2", because: Because::DiscoveryByPeer },
    Row { name: "a group-version that only departed servers have is 503", world: |w| { one_new(w); w.peers[1].set_membership(Membership::Departed); w.tried(0, Outcome::NotFound); }, ask: "GET /apis/new.k8s.io/v1", to: "only_unavailable_serve", because: Because::OnlyUnavailable },
    Row { name: "a group-version that only an unreachable server has is 503", world: |w| { one_new(w); w.peers[1].set_health(Health::Down); w.tried(0, Outcome::NotFound); w.tried(2, Outcome::Unreachable); }, ask: "GET /apis/new.k8s.io/v1", to: "only_unavailable_serve", because: Because::OnlyUnavailable },
    Row { name: "a group-version that nobody has is not found", world: |w| w.tried(0, Outcome::NotFound), ask: "GET /apis/nope.example.com/v1", to: "relay", because: Because::Confirmed },
    Row { name: "a core version that nobody has is not found", world: |w| w.tried(0, Outcome::NotFound), ask: "GET /api/v2", to: "relay", because: Because::Confirmed },
    Row { name: "an OpenAPI document comes from a server that has the group-version", world: |w| { one_new(w); w.tried(0, Outcome::NotFound); }, ask: "GET /openapi/v3/apis/new.k8s.io/v1", to: "peer 2", because: Because::DiscoveryByPeer },
    Row { name: "an OpenAPI document of nobody is not found at once", world: |w| { w.now += Duration::from_secs(5); w.tried(0, Outcome::NotFound); }, ask: "GET /openapi/v3/apis/nope/v1", to: "relay", because: Because::NobodyServes },
    Row { name: "a 404 for the OpenAPI index is relayed", world: |w| w.tried(0, Outcome::NotFound), ask: "GET /openapi/v3", to: "relay", because: Because::Discovery },
    // Groups that all servers share.
    Row { name: "a deleted resource is not kept alive by a peer", world: |w| shared(w, &[], &[("new.k8s.io/v1", Some("things"))]), ask: THINGS, to: "local", because: Because::NobodyServes },
    Row { name: "a deleted group-version is not kept alive by a peer", world: |w| shared(w, &[], &[("new.k8s.io/v1", None)]), ask: THINGS, to: "local", because: Because::NobodyServes },
    Row { name: "a deleted group-version is not kept alive in discovery", world: |w| { shared(w, &[], &[("new.k8s.io/v1", None)]); w.tried(0, Outcome::NotFound); }, ask: "GET /apis/new.k8s.io/v1", to: "relay", because: Because::Confirmed },
    Row { name: "a group of which all was deleted is not kept alive in discovery", world: |w| { shared(w, &[], &[("new.k8s.io/v1", None)]); w.tried(0, Outcome::NotFound); }, ask: "GET /apis/new.k8s.io", to: "relay", because: Because::Confirmed },
    Row { name: "a group that only CRDs of a departed server make is gone, not 503", world: |w| { one_new(w); w.peers[1].set_membership(Membership::Departed); shared(w, &["new.k8s.io/v1"], &[]); w.tried(0, Outcome::NotFound); }, ask: "GET /apis/new.k8s.io", to: "relay", because: Because::Confirmed },
    Row { name: "a group that a CRD made at a peer first comes from it", world: |w| { one_new(w); shared(w, &["new.k8s.io/v1"], &[]); w.tried(0, Outcome::NotFound); }, ask: "GET /apis/new.k8s.io", to: "peer 2", because: Because::DiscoveryByPeer },
    Row { name: "another resource of the group-version stays", world: |w| { one_new(w); shared(w, &["new.k8s.io/v1"], &[("new.k8s.io/v1", Some("gone"))]); }, ask: THINGS, to: "peer 2", because: Because::PeerServes },
    Row { name: "a CRD that a peer has first is served by it", world: |w| { one_new(w); shared(w, &["new.k8s.io/v1"], &[]); }, ask: THINGS, to: "peer 2", because: Because::PeerServes },
    Row { name: "a CRD that only a stale catalogue lists is gone", world: |w| { one_new(w); w.change(2, |c| c.freshness = Freshness::Stale); shared(w, &["new.k8s.io/v1"], &[]); }, ask: THINGS, to: "local", because: Because::NobodyServes },
    Row { name: "a CRD that only a departed server lists is gone, not 503", world: |w| { one_new(w); w.peers[1].set_membership(Membership::Departed); shared(w, &["new.k8s.io/v1"], &[]); }, ask: THINGS, to: "local", because: Because::NobodyServes },
    Row { name: "a built-in that only a stale catalogue lists is there", world: |w| { one_new(w); w.change(2, |c| c.freshness = Freshness::Stale); }, ask: THINGS, to: "peer 2", because: Because::PeerServes },
];

fn shared(world: &World, owned: &[&str], deleted: &[(&str, Option<&str>)]) {
    let version = |text: &str| {
        let (group, version) = text.split_once('/').unwrap();
        GroupVersion::new(group, version)
    };
    let mut groups = SharedGroups::default();
    groups.owned.extend(owned.iter().map(|text| version(text)));
    for (text, resource) in deleted {
        groups
            .deleted
            .entry(version(text))
            .or_default()
            .push((resource.map(Into::into), Instant::now()));
    }
    world.table.shared.store(Arc::new(groups));
}

#[test]
fn the_ladder_is_climbed_in_order() {
    let mut failures = Vec::new();
    for row in LADDER {
        let mut world = World::new();
        (row.world)(&mut world);
        let (to, because) = (world.outcome(row.ask), world.ask(row.ask).because);
        if (to.as_str(), because) != (row.to, row.because) {
            failures.push(format!(
                "{}: {} went to {to} because {because}, wanted {} because {}",
                row.name, row.ask, row.to, row.because
            ));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn clients_stick_to_a_peer_and_spread_over_all() {
    let mut world = World::new();
    world.serve(1, NEW);
    let mut counts = [0; 3];
    for client in 0..240u8 {
        world.asker.client = IpAddr::from([10, 9, 8, client]);
        let first = world.outcome(THINGS);
        assert_eq!(
            first,
            world.outcome("GET /apis/new.k8s.io/v1/things?watch=1")
        );
        counts[usize::from(first.as_bytes()[5] - b'1')] += 1;
    }
    assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    // When one goes, only its own clients move.
    world.asker.client = IpAddr::from([10, 9, 8, 7]);
    let chosen = world.outcome(THINGS);
    for number in 1..=3 {
        if chosen != format!("peer {number}") {
            world.server(number).set_health(Health::Down);
            assert_eq!(world.outcome(THINGS), chosen);
            world.server(number).set_health(Health::Up);
        }
    }
}

#[test]
fn the_refusal_blames_the_right_side() {
    let mut world = World::new();
    world.local_down = LocalDown::Refuse;
    world.tried(0, Outcome::Unreachable);
    let To::Refuse(refusal) = world.ask(PODS).to else {
        panic!("not refused");
    };
    assert_eq!(refusal, Refusal::Unreachable(Side::Local));
}

#[test]
fn the_refresh_leaves_out_who_answered_and_who_is_young() {
    let mut world = World::new();
    world.change(1, |it| it.read_at += Duration::from_secs(5));
    world.now += Duration::from_secs(5);
    world.tried(0, Outcome::NotFound);
    let members = world.table.members();
    let servers: Vec<_> = to_refresh(&members, &world.table, &world.evidence)
        .map(|server| server.id)
        .collect();
    assert_eq!(servers, [peer_id(2), peer_id(3)]);
}

#[test]
fn a_server_that_starts_or_may_be_back_is_read_again_but_is_no_reason_to_doubt() {
    let mut world = World::new();
    world.now += Duration::from_secs(5);
    world.peers[0].set_health(Health::Starting);
    world.peers[1].set_health(Health::Down);
    world.peers[2].set_membership(Membership::Departed);
    world.tried(0, Outcome::NotFound);
    let members = world.table.members();
    let servers: Vec<_> = to_refresh(&members, &world.table, &world.evidence).collect();
    let ids: Vec<_> = servers.iter().map(|server| server.id).collect();
    assert_eq!(ids, [peer_id(1), peer_id(2), peer_id(3)]);
    assert!(servers.iter().all(|server| !must_be_sure(server)));
}

#[test]
fn the_methods_of_a_request_do_not_change_who_is_asked_for_discovery() {
    let world = World::new();
    for method in [Method::GET, Method::HEAD, Method::POST, Method::OPTIONS] {
        assert_eq!(world.outcome(&format!("{method} /apis")), "local");
    }
}
