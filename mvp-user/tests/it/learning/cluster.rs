//! Peers and shared groups as the cluster tells them, through the watches of a kubeconfig.
//!
//! The advertised addresses are of the documentation range, which no route leads to: who is listed is what is tested.

use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use bench::{
    pki::ClusterPki,
    standin::{Handle, Standin, Store, key},
};
use mvp_user::{
    api::{GroupVersion, GvrRef, ServerId},
    table::Health,
};

use super::{
    SECOND,
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

fn watch(pki: &ClusterPki, local: &Handle) -> Working {
    let room = Room::new(pki, local, &[]);
    let path = room.files().path().join("admin.conf");
    std::fs::write(&path, kubeconfig(pki)).unwrap();
    room.with(|config| {
        config.kubeconfig = Some(path);
        config.advertise_address = Some(advertised(1).ip());
        config.learn_deadline = 3 * SECOND;
    })
    .start()
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
    let room = Room::new(&pki, &one, &[&two]);
    let path = room.files().path().join("admin.conf");
    std::fs::write(&path, kubeconfig(&pki)).unwrap();
    let room = room.with(|config| config.kubeconfig = Some(path)).start();
    room.until_local(Health::Up).await;
    define_foos(&store).await;
    let example = GroupVersion::new("example.com", "v1");
    room.until("it is shared", |table| {
        table.shared.load().owned.contains(&example)
    })
    .await;
    assert_eq!(peers(room.table()), [ServerId::Peer(two.address())]);
}
