//! TLS, ALPN, GOAWAY and what can be done to connections.

use std::time::Duration;

use http_body_util::BodyExt as _;
use tokio::io::AsyncReadExt as _;

use super::Cluster;
use crate::standin::{
    Action, Fault, Limits, On, Protocols, User,
    client::{Client, finish},
};

#[tokio::test]
async fn unknown_alpn_entries_are_ignored_unless_they_are_alone() {
    let cluster = Cluster::new().await;
    let address = cluster.server.address();
    for (offered, chosen) in [
        (vec!["mvp-direct", "h2"], "h2"),
        (vec!["mvp-direct", "http/1.1"], "http/1.1"),
        (vec!["http/1.1", "h2"], "h2"),
    ] {
        let tls = cluster
            .admin
            .clone()
            .alpn(&offered)
            .tls(address)
            .await
            .unwrap();
        assert_eq!(
            tls.get_ref().1.alpn_protocol(),
            Some(chosen.as_bytes()),
            "{offered:?}"
        );
    }
    let error = cluster
        .admin
        .clone()
        .alpn(&["mvp-direct"])
        .tls(address)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("NoApplicationProtocol"),
        "{error}"
    );
    let seen = cluster.server.connections();
    assert_eq!(seen[0].alpn_offered, ["mvp-direct", "h2"]);
    assert_eq!(seen[0].certificate.as_deref(), Some("admin"));
    cluster.server.set_protocols(Protocols::Http1).unwrap();
    let tls = cluster
        .admin
        .clone()
        .alpn(&["h2", "http/1.1"])
        .tls(address)
        .await
        .unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[tokio::test]
async fn the_loopback_name_gets_a_certificate_of_its_own() {
    let cluster = Cluster::new().await;
    let name = "apiserver-loopback-client";
    let outsider = cluster
        .admin
        .clone()
        .server_name(name)
        .tls(cluster.server.address())
        .await;
    assert!(outsider.is_err(), "the cluster's authority did not sign it");
    let tls = cluster.admin.tls(cluster.server.address()).await.unwrap();
    let shown = tls.get_ref().1.peer_certificates().unwrap()[0].clone();
    assert_ne!(shown, cluster.server.loopback_certificate());
}

#[tokio::test]
async fn a_401_over_http2_ends_the_connection_and_over_http1_does_not() {
    let cluster =
        Cluster::with(|builder| builder.token("good", User::new("u", &["system:masters"]))).await;
    let address = cluster.server.address();
    let good = cluster.anonymous.clone().http2().token("good");
    let mut connection = good.connect(address).await.unwrap();
    let watch = connection
        .send(
            good.request("GET", "/api/v1/pods?watch=1", &[], b"")
                .unwrap(),
        )
        .await
        .unwrap();
    let mut watch = watch.into_body();
    let bad = cluster.anonymous.clone().token("bad");
    let refused = connection
        .send(bad.request("GET", "/api", &[], b"").unwrap())
        .await
        .unwrap();
    assert_eq!(refused.status(), 401);
    assert!(refused.headers().get("connection").is_none());
    finish(refused).await.unwrap();
    // No new stream is taken, but the watch goes on.
    tokio::time::timeout(Duration::from_secs(2), async {
        while let Ok(answer) = connection
            .send(good.request("GET", "/version", &[], b"").unwrap())
            .await
        {
            finish(answer).await.unwrap();
        }
    })
    .await
    .expect("the connection takes no more requests");
    let pod = serde_json::json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}});
    cluster
        .send("POST", "/api/v1/namespaces/default/pods", &pod)
        .await;
    let event = tokio::time::timeout(Duration::from_secs(5), watch.frame())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(
        event
            .into_data()
            .unwrap()
            .starts_with(b"{\"type\":\"ADDED\"")
    );
    drop(watch);
    tokio::time::timeout(Duration::from_secs(5), async {
        while cluster.server.open_connections() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the connection closes once nothing runs on it");
    let mut connection = bad.connect(address).await.unwrap();
    for _ in 0..2 {
        let refused = connection
            .send(bad.request("GET", "/api", &[], b"").unwrap())
            .await
            .unwrap();
        assert_eq!(finish(refused).await.unwrap().status, 401);
    }
}

#[tokio::test]
async fn anonymous_answers_end_an_http2_connection_too() {
    let cluster = Cluster::new().await;
    let client = cluster.anonymous.clone().http2();
    let mut connection = client.connect(cluster.server.address()).await.unwrap();
    let answer = connection
        .send(client.request("GET", "/version", &[], b"").unwrap())
        .await
        .unwrap();
    assert_eq!(finish(answer).await.unwrap().status, 200);
    tokio::time::timeout(Duration::from_secs(2), async {
        while let Ok(answer) = connection
            .send(client.request("GET", "/version", &[], b"").unwrap())
            .await
        {
            finish(answer).await.unwrap();
        }
    })
    .await
    .expect("the connection takes no more requests");
}

#[tokio::test]
async fn a_refused_stream_is_beyond_the_goaways_last_and_never_processed() {
    let cluster = Cluster::new().await;
    let client = cluster.admin.clone().http2();
    let mut connection = client.connect(cluster.server.address()).await.unwrap();
    let first = connection
        .send(client.request("GET", "/version", &[], b"").unwrap())
        .await
        .unwrap();
    finish(first).await.unwrap();
    cluster.server.refuse_next_stream(true);
    let error = connection
        .send(client.request("GET", "/livez", &[], b"").unwrap())
        .await
        .unwrap_err();
    let cause = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<hyper::Error>())
        .expect("hyper's error");
    assert!(
        cause.is_canceled()
            || format!("{cause:?}").contains("GoAway")
            || format!("{cause:?}").contains("Reset"),
        "{cause:?}"
    );
    cluster.server.refuse_next_stream(false);
    assert_eq!(
        cluster.server.requests().len(),
        1,
        "the second request never reached the server"
    );
    assert_eq!(
        client
            .get(cluster.server.address(), "/livez")
            .await
            .unwrap()
            .status,
        200
    );
}

#[tokio::test]
async fn silence_answers_nothing_and_ends_without_loss() {
    let cluster = Cluster::new().await;
    let mut connection = cluster
        .admin
        .connect(cluster.server.address())
        .await
        .unwrap();
    cluster.server.silence(true);
    let late = async {
        let answer = connection
            .send(cluster.admin.request("GET", "/version", &[], b"").unwrap())
            .await
            .unwrap();
        finish(answer).await.unwrap().status
    };
    let mut late = std::pin::pin!(late);
    assert!(
        tokio::time::timeout(Duration::from_millis(300), late.as_mut())
            .await
            .is_err()
    );
    // The kernel accepts, the handshake gets no answer.
    let address = cluster.server.address();
    let handshake = cluster.admin.tls(address);
    assert!(
        tokio::time::timeout(Duration::from_millis(300), handshake)
            .await
            .is_err()
    );
    cluster.server.silence(false);
    assert_eq!(late.await, 200);
    assert_eq!(cluster.get("/version").await.status, 200);
}

#[tokio::test]
async fn refusal_is_the_kernels_and_ends_on_command() {
    let cluster = Cluster::new().await;
    cluster.server.refuse(true).await.unwrap();
    let error = tokio::net::TcpStream::connect(cluster.server.address())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    cluster.server.refuse(false).await.unwrap();
    assert_eq!(cluster.get("/version").await.status, 200);
}

#[tokio::test]
async fn connections_are_reset_on_command_and_after_so_many_bytes() {
    let cluster = Cluster::new().await;
    let mut tls = cluster.admin.tls(cluster.server.address()).await.unwrap();
    while cluster.server.connections()[0].alpn.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.server.reset_connections();
    let error = tls.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    cluster.server.cut_after(Some(50_000));
    let error = cluster
        .admin
        .get(cluster.server.address(), "/debug/bytes?n=1000000")
        .await
        .unwrap_err();
    assert!(
        format!("{error:#}").to_lowercase().contains("reset")
            || format!("{error:?}").contains("reset"),
        "{error:?}"
    );
    cluster.server.cut_after(None);
    let whole = cluster.get("/debug/bytes?n=100001").await;
    assert_eq!(whole.body.len(), 100_001);
    assert!(
        whole
            .body
            .starts_with(b"000000000000000\n000000000000010\n")
    );
}

#[tokio::test]
async fn limits_of_http2_are_announced() {
    let limits = Limits {
        max_streams: 2,
        ..Limits::default()
    };
    let cluster = Cluster::with(|builder| builder.limits(limits)).await;
    let client = cluster.admin.clone().http2();
    let mut connection = client.connect(cluster.server.address()).await.unwrap();
    finish(
        connection
            .send(client.request("GET", "/version", &[], b"").unwrap())
            .await
            .unwrap(),
    )
    .await
    .unwrap();
    let crate::standin::client::Connection::Http2(sender) = &connection else {
        panic!("not HTTP/2")
    };
    let mut watches = Vec::new();
    for _ in 0..2 {
        let mut sender = sender.clone();
        sender.ready().await.unwrap();
        watches.push(
            sender
                .send_request(
                    client
                        .request("GET", "/api/v1/pods?watch=1", &[], b"")
                        .unwrap(),
                )
                .await
                .unwrap(),
        );
    }
    let third = connection.send(client.request("GET", "/version", &[], b"").unwrap());
    let mut third = std::pin::pin!(third);
    assert!(
        tokio::time::timeout(Duration::from_millis(200), third.as_mut())
            .await
            .is_err()
    );
    watches.pop();
    assert_eq!(third.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_certificate_can_be_changed_for_new_connections() {
    let cluster = Cluster::new().await;
    let other = crate::pki::ClusterPki::new().unwrap();
    let issued = other.serving(&[]).unwrap();
    cluster.server.set_certificate(&issued).unwrap();
    assert!(
        cluster
            .admin
            .get(cluster.server.address(), "/version")
            .await
            .is_err()
    );
    let trusting = Client::new(&other.ca.certificate.der);
    assert_eq!(
        trusting
            .get(cluster.server.address(), "/version")
            .await
            .unwrap()
            .status,
        200
    );
}

#[tokio::test]
async fn a_wildcard_of_ipv6_takes_ipv4_clients_too_and_knows_them_as_such() {
    let cluster = Cluster::with(|builder| builder.bind("[::]:0".parse().unwrap())).await;
    let port = cluster.server.address().port();
    for address in ["127.0.0.1", "::1"] {
        let target = std::net::SocketAddr::new(address.parse().unwrap(), port);
        assert_eq!(
            cluster.admin.get(target, "/version").await.unwrap().status,
            200,
            "{address}"
        );
        assert_eq!(
            cluster
                .server
                .requests()
                .pop()
                .unwrap()
                .client
                .ip()
                .to_string(),
            address
        );
    }
}

#[tokio::test]
async fn a_server_that_asks_itself_is_ready_only_while_it_gets_its_own_answer() {
    let cluster = Cluster::with(|builder| builder.loopback_client(true)).await;
    let (answers, failures) = cluster.server.loopback_counts();
    assert!(answers >= 1 && failures == 0, "{answers} {failures}");
    let seen = cluster.server.connections();
    assert_eq!(
        seen[0].server_name.as_deref(),
        Some("apiserver-loopback-client")
    );
    let answer = Action::Answer {
        code: 500,
        headers: vec![],
        body: String::new(),
    };
    cluster.server.fault(Fault {
        on: On::path("/livez"),
        action: answer,
        times: None,
    });
    tokio::time::timeout(Duration::from_secs(5), async {
        while cluster.get("/readyz").await.status == 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("/readyz turns red");
}

#[tokio::test]
async fn a_frozen_server_does_not_notice_new_custom_resources() {
    let cluster = Cluster::new().await;
    cluster.server.freeze_custom_resources(true);
    let definition = serde_json::json!({
        "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "metadata": {"name": "foos.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true}],
        },
    });
    cluster
        .send(
            "POST",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &definition,
        )
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(cluster.get("/apis/example.com/v1/foos").await.status, 404);
    cluster.server.freeze_custom_resources(false);
    tokio::time::timeout(Duration::from_secs(5), async {
        while cluster.get("/apis/example.com/v1/foos").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("it is served once the server has noticed");
}
