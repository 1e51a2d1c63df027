//! Peers and shared groups as the cluster tells them, through the watches of a kubeconfig.
//!
//! The advertised addresses are of the documentation range, which no route leads to: who is listed is what is tested.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use base64::Engine as _;
use bench::{
    pki::ClusterPki,
    standin::{Action, Handle, On, Standin, Store, key},
};
use mvp_user::{
    api::{GroupVersion, GvrRef, ServerId},
    table::{Health, Membership, Server},
};

use super::{
    SECOND, fault,
    room::{Room, Working},
};

fn kubeconfig(pki: &ClusterPki) -> String {
    let admin = pki.client("kubernetes-admin", &["system:masters"]).unwrap();
    let data = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
    serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        // Never dialled: the watches go to local.
        "clusters": [{"name": "it", "cluster": {
            "server": "https://192.0.2.1:6443", "certificate-authority-data": data(pki.ca.pem())}}],
        "users": [{"name": "it", "user": {
            "client-certificate-data": data(admin.cert_pem()), "client-key-data": data(admin.key_pem())}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    })
    .to_string()
}

fn advertised(last: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]), 6443)
}

async fn server(pki: &ClusterPki, store: &Store, last: u16) -> Handle {
    let builder = Standin::builder(pki)
        .store(store)
        .advertise(advertised(last));
    builder.name(&format!("cp{last}")).start().await.unwrap()
}

fn watching(pki: &ClusterPki, local: &Handle) -> Room {
    let room = Room::new(pki, local, &[]);
    let path = room.files().path().join("admin.conf");
    std::fs::write(&path, kubeconfig(pki)).unwrap();
    room.with(|config| {
        config.kubeconfig = Some(path);
        config.advertise_address = Some(advertised(1).ip());
        config.learn_deadline = 3 * SECOND;
    })
}

fn watch(pki: &ClusterPki, local: &Handle) -> Working {
    watching(pki, local).start()
}

/// Creates the definition of a custom resource, `foos.example.com`; returns its key.
async fn define_foos(store: &Store) -> String {
    let crd = serde_json::json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    let place = key(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "",
        "foos.example.com",
    );
    store.create(&place, crd).await.unwrap();
    place
}

fn peers(table: &mvp_user::table::Table) -> Vec<ServerId> {
    table.members().peers.iter().map(|peer| peer.id).collect()
}

#[tokio::test]
async fn peers_come_and_go_with_the_endpoints_of_the_service() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let one = server(&pki, &store, 1).await;
    let room = watch(&pki, &one);
    // Alone: the own address is no peer.
    room.until("the table is ready", mvp_user::table::Table::is_ready)
        .await;
    assert_eq!(peers(room.table()), []);
    let two = server(&pki, &store, 2).await;
    let id = ServerId::Peer(advertised(2));
    room.until("the peer is listed", |table| peers(table) == [id])
        .await;
    // It cannot be read, so a 404 cannot be believed until the deadline of new peers is over.
    assert!(!room.table().is_ready());
    room.until("the deadline is over", mvp_user::table::Table::is_ready)
        .await;
    assert_eq!(room.learner().view().unread.len(), 1);
    two.stop_gracefully().await;
    // Nothing is known of it that would be worth keeping.
    room.until("the peer has left", |table| peers(table).is_empty())
        .await;
    // The watches went to local, as the kubeconfig's user, marked as decided, from the exempt address.
    let watches: Vec<_> = one
        .requests()
        .into_iter()
        .filter(|seen| seen.target.contains("endpointslices"))
        .collect();
    assert!(!watches.is_empty());
    for seen in watches {
        assert_eq!(seen.user.unwrap().name, "kubernetes-admin");
        assert_eq!(seen.client.ip(), IpAddr::from([127, 77, 86, 80]));
    }
    assert!(one.connections().iter().all(|it| {
        it.alpn_offered
            .last()
            .is_some_and(|last| last == "mvp-direct")
    }));
}

#[tokio::test]
async fn endpoints_that_are_deleted_and_made_anew_send_no_peer_away() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let one = server(&pki, &store, 1).await;
    let _two = server(&pki, &store, 2).await;
    let room = watch(&pki, &one);
    let id = ServerId::Peer(advertised(2));
    room.until("the peer is listed", |table| peers(table) == [id])
        .await;
    let peer = Arc::clone(&room.table().members().peers[0]);
    let slice = key(
        "discovery.k8s.io",
        "endpointslices",
        "default",
        "kubernetes",
    );
    store.delete(&slice, None, None).await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(peer.membership(), Membership::Listed);
    let stays = |it: &Arc<Server>| Arc::ptr_eq(it, &peer);
    assert!(room.table().members().peers.iter().any(stays));
}

#[tokio::test]
async fn a_custom_resource_belongs_to_all_and_is_hidden_for_a_while_when_it_goes() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let one = server(&pki, &store, 1).await;
    let room = watch(&pki, &one);
    let example = GroupVersion::new("example.com", "v1");
    let foos = GvrRef {
        group: "example.com",
        version: "v1",
        resource: "foos",
    };
    room.until_local(Health::Up).await;
    let place = define_foos(&store).await;
    room.until("it is shared", |table| {
        table.shared.load().owned.contains(&example)
    })
    .await;
    room.until("local was read again", |table| {
        let catalogue = table.catalogue(ServerId::Local);
        catalogue.is_some_and(|catalogue| catalogue.lists(example.as_ref()))
    })
    .await;
    assert!(!room.table().shared.load().hides(foos));
    store.delete(&place, None, None).await.unwrap();
    room.until("it is hidden", |table| table.shared.load().hides(foos))
        .await;
    assert!(!room.table().shared.load().owned.contains(&example));
}

#[tokio::test]
async fn all_are_read_again_when_an_identity_lease_changes_hands_but_not_at_its_renewals() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let one = server(&pki, &store, 1).await;
    let room = watching(&pki, &one)
        .with(|config| config.discovery_interval = 600 * SECOND)
        .start();
    room.until("the table is ready", mvp_user::table::Table::is_ready)
        .await;
    let reads = || {
        let requests = one.requests();
        requests.iter().filter(|it| it.target == "/apis").count()
    };
    // The first lists of what is shared have all read again too.
    let mut before = 0;
    while reads() > before {
        before = reads();
        tokio::time::sleep(3 * SECOND).await;
    }
    let place = key(
        "coordination.k8s.io",
        "leases",
        "kube-system",
        one.identity(),
    );
    let stored = store.get(&place).await.unwrap().unwrap();
    let mut lease = stored.value.clone();
    lease["spec"]["renewTime"] = "2040-01-01T00:00:00.000000Z".into();
    store.update(&place, lease.clone(), None).await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert_eq!(reads(), before);
    lease["spec"]["holderIdentity"] = "another".into();
    store.update(&place, lease, None).await.unwrap();
    let again = async {
        while reads() == before {
            tokio::time::sleep(SECOND / 20).await;
        }
    };
    tokio::time::timeout(10 * SECOND, again).await.unwrap();
}

#[tokio::test]
async fn the_watches_go_on_at_another_server_when_local_stops() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let one = server(&pki, &store, 1).await;
    let room = watch(&pki, &one);
    room.until("the table is ready", mvp_user::table::Table::is_ready)
        .await;
    one.kill().await;
    let back = one.restart().await.unwrap();
    let _two = server(&pki, &store, 2).await;
    room.until("the new peer is listed", |table| !peers(table).is_empty())
        .await;
    assert!(
        back.requests()
            .iter()
            .any(|seen| seen.target.contains("endpointslices"))
    );
}

#[tokio::test]
async fn what_all_servers_share_is_known_with_static_peers_too() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let one = server(&pki, &store, 1).await;
    let two = server(&pki, &store, 2).await;
    let room = with_static(&pki, &one, &two);
    room.until_local(Health::Up).await;
    define_foos(&store).await;
    until_foos_are_shared(&room).await;
    assert_eq!(peers(room.table()), [ServerId::Peer(two.address())]);
}

/// With a peer that can be reached; it is static, because nobody advertises a loopback address.
fn with_static(pki: &ClusterPki, local: &Handle, peer: &Handle) -> Working {
    let room = Room::new(pki, local, &[peer]);
    let path = room.files().path().join("admin.conf");
    std::fs::write(&path, kubeconfig(pki)).unwrap();
    room.with(|config| config.kubeconfig = Some(path)).start()
}

async fn until_foos_are_shared(room: &Working) {
    let example = GroupVersion::new("example.com", "v1");
    room.until("it is shared", |table| {
        table.shared.load().owned.contains(&example)
    })
    .await;
}

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

#[tokio::test]
async fn what_was_deleted_while_mvp_was_not_there_is_hidden_all_the_same() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let one = server(&pki, &store, 1).await;
    let two = server(&pki, &store, 2).await;
    let place = define_foos(&store).await;
    let room = with_static(&pki, &one, &two);
    until_foos_are_shared(&room).await;
    let peer = ServerId::Peer(two.address());
    let example = GroupVersion::new("example.com", "v1");
    room.until("the peer lists it", |table| {
        let catalogue = table.catalogue(peer);
        catalogue.is_some_and(|catalogue| catalogue.lists(example.as_ref()))
    })
    .await;
    let both = |text: &str| text.matches(r#""resource":"foos""#).count() == 2;
    room.until_file(both).await;
    let files = room.files();
    drop(room);
    // It is away, and its old word is all that is left.
    two.kill().await;
    store.delete(&place, None, None).await.unwrap();
    let path = files.path().join("admin.conf");
    let room = Room::again(&one, &[&two], files);
    let room = room.with(|config| config.kubeconfig = Some(path)).start();
    room.until("it is hidden", |table| {
        table.shared.load().hides_version(example.as_ref())
    })
    .await;
    let catalogue = room.table().catalogue(peer);
    assert!(catalogue.is_some_and(|catalogue| catalogue.lists(example.as_ref())));
}

#[tokio::test]
async fn where_local_refuses_the_account_of_the_watches_a_peer_is_asked() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let one = server(&pki, &store, 1).await;
    let two = server(&pki, &store, 2).await;
    let unauthorized = Action::Answer {
        code: 401,
        headers: vec![("content-type".into(), "application/json".into())],
        body: r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#.into(),
    };
    fault(&one, On::path(CRDS), unauthorized);
    let room = with_static(&pki, &one, &two);
    room.until_local(Health::Up).await;
    define_foos(&store).await;
    until_foos_are_shared(&room).await;
    assert_eq!(room.table().members().local.health(), Health::Up);
}

#[tokio::test]
async fn a_watch_that_is_silent_because_local_is_not_ready_goes_on_at_a_peer() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let one = server(&pki, &store, 1).await;
    let two = server(&pki, &store, 2).await;
    // What is left of a server that is cut off from etcd.
    let unwell = Action::Answer {
        code: 500,
        headers: Vec::new(),
        body: "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n".into(),
    };
    fault(&one, On::path(CRDS), Action::HangBody(0));
    // So that the watches begin at local.
    fault(&two, On::path("/readyz"), unwell.clone());
    let room = with_static(&pki, &one, &two);
    room.until_local(Health::Up).await;
    let listed = || one.requests().iter().any(|it| it.target.starts_with(CRDS));
    let asked = async {
        while !listed() {
            tokio::time::sleep(SECOND / 20).await;
        }
    };
    tokio::time::timeout(10 * SECOND, asked).await.unwrap();
    two.clear_faults();
    room.until("the peer is up", |table| {
        table.members().peers[0].health() == Health::Up
    })
    .await;
    fault(&one, On::path("/readyz"), unwell);
    room.until_local(Health::Starting).await;
    define_foos(&store).await;
    until_foos_are_shared(&room).await;
    assert_eq!(room.table().members().local.health(), Health::Starting);
}
