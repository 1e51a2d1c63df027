//! The data path and the side room together, in front of stand-in kube-apiservers of different versions.

mod callers;

use std::time::Duration;

use bench::{
    client::Client,
    pki::ClusterPki,
    standin::{Handle, Release, Rule, Standin, Store, Timing, User},
};
use http_body_util::BodyExt as _;
use mvp_user::{
    api::ServerId,
    config::LocalDown,
    table::{Health, Proof},
};
use tokio::time::{Instant, sleep};

use crate::{
    client::{Wire, get},
    plane::{self, Plane, anonymous, token, user},
};

/// Only a 1.36 serves it by default.
const NEW: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn standin(pki: &ClusterPki, store: &Store, release: Release) -> Handle {
    Standin::builder(pki)
        .release(release)
        .store(store)
        .token("secret", User::service_account("default", "app"))
        .allow(Rule::everything("system:serviceaccount:default:app"))
        .start()
        .await
        .unwrap()
}

async fn old_and_new(pki: &ClusterPki) -> (Handle, Handle) {
    let store = Store::memory();
    (
        standin(pki, &store, Release::V1_34).await,
        standin(pki, &store, Release::V1_36).await,
    )
}

fn admin(pki: &ClusterPki, http2: bool) -> Client {
    user(pki, "admin", &["system:masters"], http2)
}

#[tokio::test]
async fn what_only_the_new_server_has_is_created_listed_and_watched_through_the_old_node() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let plane = Plane::live(&pki, old.address(), &[new.address()], |_| {}).await;
    for (client, name) in [(admin(&pki, true), "a"), (token(&pki, "secret", true), "b")] {
        let body = serde_json::json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": { "name": name },
        });
        let mut wire = Wire::open(&client, plane.address).await;
        let mut watch = wire
            .send(get(&client, &format!("{NEW}?watch=1")))
            .await
            .unwrap();
        assert_eq!(watch.status(), 200);
        let json = [("content-type", "application/json")];
        let answer = client
            .once_with(plane.address, "POST", NEW, &json, body.to_string())
            .await
            .unwrap();
        assert_eq!(answer.status, 201, "{}", answer.text());
        let mut seen = String::new();
        while !seen.contains(&format!("\"{name}\"")) {
            let frame = watch.body_mut().frame().await.unwrap().unwrap();
            seen += &String::from_utf8_lossy(frame.data_ref().unwrap());
        }
        let list = client.once(plane.address, "GET", NEW).await.unwrap();
        assert!(list.json().unwrap()["items"].as_array().unwrap().len() <= 2);
        let direct = client.once(old.address(), "GET", NEW).await.unwrap();
        assert_eq!(direct.status, 404);
    }
    // Each write reached the new server once, and the old one never.
    let writes = |server: &Handle| {
        let requests = server.requests();
        requests
            .iter()
            .filter(|it| it.method == "POST" && it.path() == NEW)
            .count()
    };
    assert_eq!((writes(&old), writes(&new)), (0, 2));
}

/// Polls every 10 ms until `while_` ends; the statuses that came, in order, without repetitions.
async fn poll(client: &Client, to: std::net::SocketAddr, path: &str, times: usize) -> Vec<u16> {
    let mut wire = Wire::open(client, to).await;
    let mut statuses = Vec::new();
    for _ in 0..times {
        let status = match wire.send(get(client, path)).await {
            Ok(answer) => {
                let status = answer.status().as_u16();
                answer.into_body().collect().await.unwrap();
                status
            }
            Err(_) => 0,
        };
        if statuses.last() != Some(&status) {
            statuses.push(status);
        }
        sleep(Duration::from_millis(10)).await;
    }
    statuses
}

#[tokio::test]
async fn while_the_only_capable_server_is_away_it_is_503_and_never_404() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let old = standin(&pki, &store, Release::V1_34).await;
    let new = Standin::builder(&pki)
        .release(Release::V1_36)
        .store(&store)
        .timing(Timing::real())
        .start()
        .await
        .unwrap();
    let plane = Plane::live(&pki, old.address(), &[new.address()], |_| {}).await;
    let client = admin(&pki, true);
    let polling = tokio::spawn({
        let (client, to) = (client.clone(), plane.address);
        async move { poll(&client, to, NEW, 900).await }
    });
    sleep(Duration::from_millis(200)).await;
    new.stop_gracefully().await;
    sleep(Duration::from_millis(300)).await;
    let new = new.restart().await.unwrap();
    sleep(Duration::from_millis(2500)).await;
    new.kill().await;
    sleep(Duration::from_millis(300)).await;
    let _new = new.restart().await.unwrap();
    let statuses = polling.await.unwrap();
    assert!(
        statuses
            .iter()
            .all(|status| [200, 503, 429].contains(status)),
        "{statuses:?}"
    );
    assert_eq!(statuses.first(), Some(&200));
    plane
        .until("the peer is up again", |table| {
            table.members().peers[0].health() == Health::Up
        })
        .await;
    assert_eq!(
        client.once(plane.address, "GET", NEW).await.unwrap().status,
        200
    );
}

#[tokio::test]
async fn what_a_replaced_server_brings_is_found_from_the_moment_it_is_ready() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let local = standin(&pki, &store, Release::V1_34).await;
    let peer = standin(&pki, &store, Release::V1_34).await;
    let plane = Plane::live(&pki, local.address(), &[peer.address()], |_| {}).await;
    let client = admin(&pki, true);
    assert_eq!(
        client.once(plane.address, "GET", NEW).await.unwrap().status,
        404,
        "nobody serves it"
    );
    peer.kill().await;
    plane
        .until("the peer is down", |table| {
            table.members().peers[0].health() == Health::Down
        })
        .await;
    // It answers itself at this moment, and mvp has not looked since.
    let _new = Standin::builder(&pki)
        .release(Release::V1_36)
        .store(&store)
        .bind(peer.address())
        .start()
        .await
        .unwrap();
    let answer = client.once(plane.address, "GET", NEW).await.unwrap();
    assert_ne!(answer.status, 404, "{}", answer.text());
}

#[tokio::test]
async fn a_404_is_true_while_a_server_stays_away() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let local = standin(&pki, &store, Release::V1_34).await;
    let peer = standin(&pki, &store, Release::V1_34).await;
    let plane = Plane::live(&pki, local.address(), &[peer.address()], |_| {}).await;
    peer.kill().await;
    plane
        .until("the peer is down", |table| {
            table.members().peers[0].health() == Health::Down
        })
        .await;
    let answer = admin(&pki, true)
        .once(plane.address, "GET", "/apis/batch/v1/nopes")
        .await
        .unwrap();
    assert_eq!(answer.status, 404, "{}", answer.text());
}

#[tokio::test]
async fn while_local_is_away_a_peer_answers_resources_and_discovery_as_itself() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let plane = Plane::live(&pki, old.address(), &[new.address()], |_| {}).await;
    old.kill().await;
    let nobody_s = user(&pki, "jane", &[], true);
    for (client, path, status) in [
        (admin(&pki, true), PODS, 200),
        (admin(&pki, true), "/apis", 200),
        (admin(&pki, true), NEW, 200),
        (token(&pki, "secret", true), PODS, 200),
        (token(&pki, "expired", true), PODS, 401),
        (token(&pki, "expired", true), "/apis", 401),
        (nobody_s, PODS, 403),
        (anonymous(&pki, true), "/apis", 403),
    ] {
        let answer = client.once(plane.address, "GET", path).await.unwrap();
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
    }
    assert_eq!(plane.local.health(), Health::Down);
    // Health is about this node.
    let answer = admin(&pki, true)
        .once(plane.address, "GET", "/readyz")
        .await
        .unwrap();
    assert_eq!(answer.status, 503);
    // Back, it is local's again.
    let old = old.restart().await.unwrap();
    plane
        .until("local is up again", |table| {
            table.members().local.health() == Health::Up
        })
        .await;
    old.take_requests();
    assert_eq!(
        admin(&pki, true)
            .once(plane.address, "GET", PODS)
            .await
            .unwrap()
            .status,
        200
    );
    assert!(old.requests().iter().any(|it| it.path() == PODS));
}

#[tokio::test]
async fn with_local_down_refuse_no_peer_answers_for_it() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let plane = Plane::live(&pki, old.address(), &[new.address()], |config| {
        config.local_down = LocalDown::Refuse;
    })
    .await;
    old.kill().await;
    new.take_requests();
    let answer = admin(&pki, true)
        .once(plane.address, "GET", PODS)
        .await
        .unwrap();
    assert_eq!(answer.status, 503);
    assert!(!new.requests().iter().any(|it| it.path() == PODS));
}

#[tokio::test]
async fn a_silent_local_is_passed_over_within_three_seconds() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let plane = Plane::live(&pki, old.address(), &[new.address()], |_| {}).await;
    let client = admin(&pki, true);
    assert_eq!(
        client
            .once(plane.address, "GET", PODS)
            .await
            .unwrap()
            .status,
        200
    );
    old.silence(true);
    let start = Instant::now();
    // The first may be on its way to the silent server; those that follow its detection are not.
    plane
        .until("local is known to be away", |table| {
            table.members().local.health() != Health::Up
        })
        .await;
    assert_eq!(
        client
            .once(plane.address, "GET", PODS)
            .await
            .unwrap()
            .status,
        200
    );
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    old.silence(false);
    plane
        .until("local is up again", |table| {
            table.members().local.health() == Health::Up
        })
        .await;
}

#[tokio::test]
async fn two_mvps_with_wrong_tables_show_no_server_a_request_twice() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    // Each has the other as peer, not the other's server.
    let sockets: Vec<_> = (0..2)
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addresses: Vec<_> = sockets.iter().map(|it| it.local_addr().unwrap()).collect();
    drop(sockets);
    let a = Plane::listening(&pki, addresses[0], old.address(), &[addresses[1]]);
    let b = Plane::listening(&pki, addresses[1], new.address(), &[addresses[0]]);
    for plane in [&a, &b] {
        plane
            .until("everything is known", |table| {
                let members = table.members();
                table.is_ready()
                    && members
                        .peers
                        .iter()
                        .all(|peer| peer.health() == Health::Up && peer.proof() == Proof::Proven)
            })
            .await;
    }
    // What A learnt of B is what B's server says, not what B's mvp would complete.
    let of_b = a.table.catalogue(ServerId::Peer(addresses[1])).unwrap();
    let of_a = b.table.catalogue(ServerId::Peer(addresses[0])).unwrap();
    let new_one = mvp_user::api::Gvr::new(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingadmissionpolicies",
    );
    assert!(of_b.resources.contains_key(&new_one));
    assert!(!of_a.resources.contains_key(&new_one));
    // Right tables: through A to B's server, once.
    for client in [admin(&pki, true), token(&pki, "secret", true)] {
        old.take_requests();
        new.take_requests();
        let answer = client.once(a.address, "GET", NEW).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let count = |server: &Handle| {
            server
                .requests()
                .iter()
                .filter(|it| it.path() == NEW)
                .count()
        };
        assert_eq!((count(&old), count(&new)), (0, 1));
    }
    // Wrong tables: each believes that only the other serves what nobody has.
    let nothing = "/apis/nobody.example.com/v1/things";
    a.table.publish(
        ServerId::Peer(addresses[1]),
        plane::catalogue(&["nobody.example.com/v1/things"]),
    );
    b.table.publish(
        ServerId::Peer(addresses[0]),
        plane::catalogue(&["nobody.example.com/v1/things"]),
    );
    for client in [admin(&pki, true), token(&pki, "secret", true)] {
        for plane in [&a, &b] {
            old.take_requests();
            new.take_requests();
            let answer = client.once(plane.address, "GET", nothing).await.unwrap();
            assert!(
                [404, 503].contains(&answer.status.as_u16()),
                "{}",
                answer.status
            );
            for server in [&old, &new] {
                let count = server
                    .requests()
                    .iter()
                    .filter(|it| it.path() == nothing)
                    .count();
                assert!(count <= 1, "a server saw the request {count} times");
            }
        }
    }
}

#[tokio::test]
async fn a_trace_goes_through_untouched_on_every_way() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let plane = Plane::live(&pki, old.address(), &[new.address()], |_| {}).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let state = "vendor=x,other=y";
    let headers = [
        ("traceparent", trace),
        ("tracestate", state),
        ("baggage", "k=v"),
    ];
    for client in [
        admin(&pki, true),
        admin(&pki, false),
        token(&pki, "secret", true),
    ] {
        for path in [PODS, NEW, "/apis"] {
            let answer = client
                .once_with(plane.address, "GET", path, &headers, "")
                .await;
            assert_eq!(answer.unwrap().status, 200, "{path}");
        }
    }
    for (server, path) in [(&old, PODS), (&new, NEW), (&old, "/apis")] {
        let requests = server.requests();
        let traced: Vec<_> = requests
            .iter()
            .filter(|it| it.path() == path && !it.header("traceparent").is_empty())
            .collect();
        assert_eq!(traced.len(), 3, "{path}");
        for request in traced {
            for (name, value) in headers {
                assert_eq!(request.header(name), [value], "{path}");
            }
        }
    }
}
