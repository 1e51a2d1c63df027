//! Start, stop, kill: what clients and the store see of them.

use std::time::Duration;

use http_body_util::BodyExt as _;
use tokio::net::TcpStream;

use super::Cluster;
use crate::standin::{Phase, Store, Timing, key};

async fn addresses(store: &Store, port: u16) -> Vec<String> {
    let (slices, _) = store
        .list("discovery.k8s.io/endpointslices/default/")
        .await
        .unwrap();
    slices
        .iter()
        .filter(|slice| slice.value["ports"][0]["port"] == port)
        .flat_map(|slice| slice.value["endpoints"].as_array().unwrap().clone())
        .map(|endpoint| endpoint["addresses"][0].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_starting_server_says_503_then_shows_half_its_groups_then_is_ready() {
    let timing = Timing {
        starting: Duration::from_millis(300),
        incomplete: Duration::from_millis(500),
        ..Timing::prompt()
    };
    let mut cluster = Cluster::with(|builder| builder.timing(timing)).await;
    cluster.server.kill().await;
    assert!(
        TcpStream::connect(cluster.server.address()).await.is_err(),
        "a killed server refuses connections"
    );
    cluster.server = cluster.server.restart_without_waiting().await.unwrap();
    let early = cluster.get("/apis").await;
    assert_eq!(
        (early.status.as_u16(), early.header("retry-after")),
        (503, Some("5"))
    );
    assert_eq!(
        early.json().unwrap()["message"],
        "the request has been made before all known HTTP paths have been installed, please try again"
    );
    assert_eq!(cluster.get("/readyz").await.status, 500);
    while cluster.server.phase() == Phase::Starting {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let v2 = [(
        "accept",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    )];
    let groups = async || {
        let answer = cluster
            .admin
            .send(cluster.server.address(), "GET", "/apis", &v2, b"")
            .await
            .unwrap();
        assert_eq!(answer.status, 200);
        answer.json().unwrap()["items"].as_array().unwrap().len()
    };
    let few = groups().await;
    assert_eq!(cluster.get("/readyz").await.status, 500);
    assert!(
        addresses(cluster.server.store(), cluster.server.address().port())
            .await
            .is_empty()
    );
    cluster.server.ready().await;
    assert_eq!(cluster.get("/readyz").await.body, "ok");
    assert!(few < groups().await);
    assert_eq!(
        addresses(cluster.server.store(), cluster.server.address().port()).await,
        ["127.0.0.1"]
    );
    let lease = key(
        "coordination.k8s.io",
        "leases",
        "kube-system",
        cluster.server.identity(),
    );
    while cluster.server.store().get(&lease).await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_graceful_stop_takes_the_endpoint_away_refuses_kindly_and_ends_watches() {
    let timing = Timing {
        delaying: Duration::from_millis(400),
        refusing: Duration::from_millis(400),
        stopping: Duration::from_millis(400),
        ..Timing::prompt()
    };
    let cluster = Cluster::with(|builder| builder.timing(timing)).await;
    let http2 = cluster.admin.clone().http2();
    let mut connection = http2.connect(cluster.server.address()).await.unwrap();
    let request = http2
        .request("GET", "/api/v1/pods?watch=true", &[], b"")
        .unwrap();
    let watch = connection.send(request).await.unwrap().into_body();
    let watching = async {
        let whole = watch.collect().await;
        assert!(whole.is_ok(), "the watch ends cleanly: {whole:?}");
    };
    let port = cluster.server.address().port();
    let looking = async {
        let phase = async |wanted: Phase| {
            while cluster.server.phase() != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        phase(Phase::Delaying).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(addresses(cluster.server.store(), port).await.is_empty());
        assert_eq!(cluster.get("/readyz").await.status, 500);
        assert_eq!(cluster.get("/api/v1/pods").await.status, 200);
        phase(Phase::Refusing).await;
        let refused = cluster.get("/api/v1/pods").await;
        assert_eq!(
            (refused.status.as_u16(), refused.header("retry-after")),
            (429, Some("5"))
        );
        assert_eq!(
            (refused.header("connection"), &refused.body[..]),
            (
                Some("close"),
                &b"The apiserver is shutting down, please try again later.\n"[..]
            )
        );
        assert_eq!(cluster.get("/livez").await.status, 200);
        phase(Phase::Stopping).await;
        let refused = cluster.get("/api/v1/pods").await;
        assert_eq!(
            (refused.status.as_u16(), refused.header("retry-after")),
            (503, Some("1"))
        );
        assert_eq!(
            refused.json().unwrap()["message"],
            "apiserver is shutting down"
        );
    };
    tokio::join!(cluster.server.stop_gracefully(), watching, looking);
    assert!(TcpStream::connect(cluster.server.address()).await.is_err());
}

#[tokio::test]
async fn a_killed_servers_endpoint_stays_until_its_lease_ends_and_another_removes_it() {
    let timing = Timing {
        endpoint_ttl: Duration::from_millis(1500),
        endpoint_every: Duration::from_millis(300),
        ..Timing::prompt()
    };
    let cluster = Cluster::with(|builder| builder.timing(timing)).await;
    let port = cluster.server.address().port();
    let other = crate::standin::Standin::builder(&cluster.pki)
        .store(cluster.server.store())
        .bind("127.0.0.2:0".parse().unwrap())
        .advertise(format!("127.0.0.2:{port}").parse().unwrap())
        .timing(timing)
        .start()
        .await
        .unwrap();
    let store = other.store().clone();
    assert_eq!(addresses(&store, port).await, ["127.0.0.1", "127.0.0.2"]);
    cluster.server.kill().await;
    assert_eq!(addresses(&store, port).await, ["127.0.0.1", "127.0.0.2"]);
    tokio::time::timeout(Duration::from_secs(5), async {
        while addresses(&store, port).await != ["127.0.0.2"] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the dead server's endpoint goes within 5 s");
}
