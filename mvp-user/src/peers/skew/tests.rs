//! The rules of design 3 on tables made by hand.

use std::{net::SocketAddr, sync::Arc};

use super::*;
use crate::{
    api::{
        GroupVersion, Verb,
        discovery::{Group, GroupList, GroupMeta, Resource, Subresource, Version},
    },
    table::{Documents, Server, SharedGroups},
};

const SECOND: Duration = Duration::from_secs(1);
const OFF_DELAY: Duration = Duration::from_mins(1);

struct Cluster {
    table: Table,
    local: Arc<Server>,
    peer: Arc<Server>,
    policy: Policy,
    view: View,
    steering: bool,
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A server that serves `batch/v1 jobs` with the verbs, and the subresource `status` if it is asked for.
fn catalogue(verbs: &[&str], status: bool, freshness: Freshness) -> Arc<Catalogue> {
    let resource = Resource {
        resource: "jobs".into(),
        verbs: names(verbs),
        subresources: status
            .then(|| Subresource {
                subresource: "status".into(),
                verbs: names(&["get", "patch"]),
                ..Subresource::default()
            })
            .into_iter()
            .collect(),
        ..Resource::default()
    };
    let groups = GroupList::new(vec![Group {
        metadata: GroupMeta {
            name: "batch".into(),
            ..GroupMeta::default()
        },
        versions: vec![Version {
            version: "v1".into(),
            resources: vec![resource],
            ..Version::default()
        }],
    }]);
    let documents = Arc::new(Documents {
        groups,
        ..Documents::default()
    });
    let (version, now) = ("v1.36.2".into(), Instant::now());
    Arc::new(Catalogue::new(documents, version, freshness, now, 1))
}

/// Local and one peer, both up and alike.
fn cluster() -> Cluster {
    let address = SocketAddr::from(([10, 0, 0, 2], 6443));
    let local = Arc::new(Server::new(
        ServerId::Local,
        SocketAddr::from(([127, 0, 0, 1], 6443)),
    ));
    let peer = Arc::new(Server::new(ServerId::Peer(address), address));
    let table = Table::new(Arc::clone(&local));
    table.set_peers(vec![Arc::clone(&peer)]);
    for server in [&local, &peer] {
        server.set_health(Health::Up);
        table.publish(
            server.id,
            catalogue(&["get", "list"], true, Freshness::Fresh),
        );
    }
    Cluster {
        table,
        local,
        peer,
        policy: Policy::new(LocalDown::Failover, OFF_DELAY),
        view: View::default(),
        steering: true,
    }
}

impl Cluster {
    fn judge(&mut self, now: Instant) -> Option<Reason> {
        self.policy
            .judge(&self.table, &self.view, self.steering, now)
    }

    fn auto(&mut self, now: Instant) -> &'static str {
        self.judge(now).map_or("no_skew", |reason| reason.as_str())
    }

    fn peer_serves(&self, verbs: &[&str], status: bool, freshness: Freshness) {
        self.table
            .publish(self.peer.id, catalogue(verbs, status, freshness));
    }
}

#[test]
fn equal_servers_need_no_steering() {
    let mut cluster = cluster();
    assert_eq!(cluster.auto(Instant::now()), "no_skew");
    // What only local has is no reason: requests land on it.
    cluster.peer_serves(&["get"], false, Freshness::Fresh);
    assert_eq!(cluster.auto(Instant::now()), "no_skew");
}

#[test]
fn a_resource_a_verb_or_a_subresource_that_local_lacks_is_skew() {
    for (verbs, status, kept) in [
        (&["get", "list", "watch"][..], true, &["get", "list"][..]),
        (&["get", "list"], true, &["get"]),
    ] {
        let mut cluster = cluster();
        cluster.peer_serves(verbs, status, Freshness::Fresh);
        cluster
            .table
            .publish(ServerId::Local, catalogue(kept, true, Freshness::Fresh));
        assert_eq!(cluster.auto(Instant::now()), "skew");
    }
    let mut cluster = cluster();
    cluster.table.publish(
        ServerId::Local,
        catalogue(&["get", "list"], false, Freshness::Fresh),
    );
    let Some(Reason::Skew(missing)) = cluster.judge(Instant::now()) else {
        panic!("no skew")
    };
    assert_eq!(missing.subresource.as_deref(), Some("status"));
    assert!(missing.verbs.allow(Verb::Patch));
    assert_eq!(differences(&cluster.table, 10), [missing]);
}

#[test]
fn stale_and_departed_catalogues_count_too() {
    let mut cluster = cluster();
    cluster.peer_serves(&["get", "list", "watch"], true, Freshness::Stale);
    assert_eq!(cluster.auto(Instant::now()), "skew");
    cluster.peer.set_membership(Membership::Departed);
    cluster.peer.set_health(Health::Down);
    assert_eq!(cluster.auto(Instant::now()), "skew");
}

#[test]
fn what_all_servers_share_never_counts() {
    let batch = GroupVersion::new("batch", "v1");
    let mut shared = SharedGroups::default();
    shared.owned.insert(batch.clone());
    let mut cluster = cluster();
    cluster.peer_serves(&["get", "list", "watch"], true, Freshness::Fresh);
    cluster.table.shared.store(Arc::new(shared));
    assert_eq!(cluster.auto(Instant::now()), "no_skew");
    // Deleted lately: the peer's document may still have it.
    let mut shared = SharedGroups::default();
    shared
        .deleted
        .insert(batch, vec![(None, Instant::now() + SECOND)]);
    cluster.table.shared.store(Arc::new(shared));
    assert_eq!(cluster.auto(Instant::now()), "no_skew");
}

#[test]
fn steering_ends_only_after_a_quiet_period() {
    let t = Instant::now();
    let mut cluster = cluster();
    cluster.peer_serves(&["get", "list", "watch"], true, Freshness::Fresh);
    assert_eq!(cluster.auto(t), "skew");
    cluster.peer_serves(&["get", "list"], true, Freshness::Fresh);
    assert_eq!(cluster.auto(t + SECOND), "quiet");
    assert_eq!(cluster.policy.recheck(t + SECOND), Some(t + OFF_DELAY));
    assert_eq!(cluster.auto(t + OFF_DELAY), "no_skew");
    assert_eq!(cluster.policy.recheck(t + OFF_DELAY), None);
}

#[test]
fn nothing_is_waited_for_after_a_reason_that_nobody_was_steered_for() {
    let t = Instant::now();
    let mut cluster = cluster();
    // A start: local was not looked at yet, and nothing is proven.
    cluster.steering = false;
    cluster.local.set_health(Health::Down);
    assert_eq!(cluster.auto(t), "local_down");
    cluster.local.set_health(Health::Up);
    assert_eq!(cluster.auto(t + SECOND), "no_skew");
}

#[test]
fn a_local_that_is_not_up_is_a_reason_under_failover_alone() {
    let mut cluster = cluster();
    for health in [Health::Starting, Health::Draining, Health::Down] {
        cluster.local.set_health(health);
        assert_eq!(cluster.auto(Instant::now()), "local_down");
    }
    cluster.policy = Policy::new(LocalDown::Refuse, OFF_DELAY);
    assert_eq!(cluster.auto(Instant::now()), "no_skew");
}

#[test]
fn a_local_that_is_not_up_is_no_reason_where_nobody_can_stand_in_for_it() {
    let mut cluster = cluster();
    cluster.steering = false;
    cluster.local.set_health(Health::Down);
    cluster.peer.set_health(Health::Down);
    assert_eq!(cluster.auto(Instant::now()), "no_skew");
    cluster.peer.set_health(Health::Up);
    cluster.peer.set_membership(Membership::Departed);
    assert_eq!(cluster.auto(Instant::now()), "no_skew");
    cluster.table.set_peers(Vec::new());
    assert_eq!(cluster.auto(Instant::now()), "no_skew");
}

#[test]
fn a_start_is_no_reason_to_steer() {
    let t = Instant::now();
    let local = Arc::new(Server::new(
        ServerId::Local,
        SocketAddr::from(([127, 0, 0, 1], 6443)),
    ));
    let table = Table::new(Arc::clone(&local));
    let address = SocketAddr::from(([10, 0, 0, 2], 6443));
    let peer = Arc::new(Server::new(ServerId::Peer(address), address));
    peer.set_health(Health::Up);
    table.set_peers(vec![peer]);
    let mut policy = Policy::new(LocalDown::Failover, OFF_DELAY);
    let view = View::default();
    assert_eq!(policy.judge(&table, &view, false, t), None);
    local.set_health(Health::Up);
    assert_eq!(policy.judge(&table, &view, false, t + SECOND), None);
    local.set_health(Health::Down);
    let reason = policy.judge(&table, &view, false, t + SECOND);
    assert_eq!(reason, Some(Reason::LocalDown));
}

#[test]
fn a_peer_that_was_never_read_is_a_reason_for_ten_minutes() {
    let t = Instant::now();
    let mut cluster = cluster();
    cluster.table.forget(cluster.peer.id);
    cluster.view.unread = vec![(cluster.peer.id, t)];
    assert_eq!(cluster.auto(t), "unread");
    let end = t + UNREAD_FOR;
    assert_eq!(cluster.policy.recheck(t + SECOND), Some(end));
    assert_eq!(cluster.auto(end - SECOND), "unread");
    assert_eq!(cluster.auto(end), "no_skew");
}

#[test]
fn skew_is_proven_after_ten_seconds_of_fresh_difference_at_a_reachable_peer() {
    let t = Instant::now();
    let mut cluster = cluster();
    cluster.peer_serves(&["get", "list", "watch"], true, Freshness::Stale);
    cluster.auto(t);
    cluster.auto(t + 20 * SECOND);
    assert!(
        !cluster.policy.is_proven(t + 20 * SECOND),
        "stale knowledge proves nothing"
    );
    cluster.peer_serves(&["get", "list", "watch"], true, Freshness::Fresh);
    let seen = t + 21 * SECOND;
    cluster.auto(seen);
    assert!(!cluster.policy.is_proven(seen + 9 * SECOND));
    assert!(cluster.policy.is_proven(seen + PROVEN_AFTER));
    cluster.peer.set_health(Health::Down);
    cluster.auto(seen + PROVEN_AFTER);
    assert!(!cluster.policy.is_proven(seen + PROVEN_AFTER));
    cluster.peer.set_health(Health::Up);
    cluster.local.set_health(Health::Down);
    cluster.auto(seen + 11 * SECOND);
    cluster.auto(seen + 30 * SECOND);
    assert!(
        !cluster.policy.is_proven(seen + 30 * SECOND),
        "local is down"
    );
}
