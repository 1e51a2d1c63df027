//! Upstream connections that are shared or paired (design 4.3).

mod endings;

use std::time::Duration;

use bench::pki::ClusterPki;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::sleep;

use crate::{
    client::{Wire, get},
    fake::{Fake, Speaks, text},
    plane::{Plane, token, user},
    streaming::{eventually, fed},
};

/// Answers watches with an open stream, and everything else as kube-apiserver would a token.
fn kubernetes(request: &Request<Incoming>) -> Response<crate::fake::AnyBody> {
    if request.uri().query() == Some("watch=1") {
        let (feed, body) = fed();
        tokio::spawn(async move {
            feed.send(Ok("event".into())).await.ok();
            while feed.send(Ok(".".into())).await.is_ok() {
                sleep(Duration::from_millis(100)).await;
            }
        });
        return Response::new(body);
    }
    match request
        .headers()
        .get("authorization")
        .map(http::HeaderValue::as_bytes)
    {
        Some(b"Bearer expired") => text(401, "Unauthorized"),
        _ => text(200, "ok"),
    }
}

#[tokio::test]
async fn certificate_users_share_connections_and_tokens_have_their_own() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(&pki, Speaks::Both, |request| async move {
        Ok(kubernetes(&request))
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    for n in 0..10 {
        let client = user(&pki, &format!("user-{n}"), &[], n % 2 == 0);
        assert_eq!(
            client
                .once(plane.address, "GET", "/api/v1/pods")
                .await
                .unwrap()
                .status,
            200
        );
    }
    assert_eq!(local.connections(), 1);
    let mut wires = Vec::new();
    for n in 0..5 {
        let client = token(&pki, &format!("t{n}"), true);
        let mut wire = Wire::open(&client, plane.address).await;
        for _ in 0..3 {
            assert_eq!(
                wire.send(get(&client, "/api/v1/pods"))
                    .await
                    .unwrap()
                    .status(),
                200
            );
        }
        wires.push(wire);
    }
    assert_eq!(local.connections(), 6);
    for seen in local.seen() {
        assert_eq!(seen.certificate, seen.headers.contains_key("x-remote-user"));
    }
    assert_eq!(local.open(), 6);
    drop(wires);
    // The shared one stays.
    eventually("pairs are closed with their clients", || local.open() == 1).await;
}

#[tokio::test]
async fn a_user_whom_the_upstream_takes_for_nobody_does_not_share() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "ok").await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    for (name, groups) in [
        ("jane", vec![]),
        ("system:anonymous", vec![]),
        ("x", vec!["system:unauthenticated"]),
    ] {
        user(&pki, name, &groups, true)
            .once(plane.address, "GET", "/api/v1/pods")
            .await
            .unwrap();
    }
    assert_eq!(local.used(), [0, 1, 2]);
    assert!(local.seen().iter().all(|it| it.certificate));
}

#[tokio::test]
async fn a_new_front_proxy_certificate_is_presented_by_a_pair_too() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "ok").await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "system:anonymous", &[], true);
    let mut wire = Wire::open(&client, plane.address).await;
    for renewed in [false, true] {
        if renewed {
            let proxy = pki.front_proxy_client().unwrap();
            plane.replace("front-proxy-client.key", &proxy.key_pem());
            plane.replace("front-proxy-client.crt", &proxy.cert_pem());
            assert!(plane.shared.tls.reload());
        }
        for _ in 0..2 {
            let answer = wire.send(get(&client, "/api/v1/pods")).await.unwrap();
            assert_eq!(answer.status(), 200);
        }
    }
    assert_eq!(local.used(), [0, 0, 1, 1]);
    assert!(!wire.is_closed());
}

#[tokio::test]
async fn large_headers_go_over_a_connection_of_their_own() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "ok").await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut wire = Wire::open(&client, plane.address).await;
    for length in [1, 200_000, 1] {
        let mut request = get(&client, "/api/v1/pods");
        let value = "X".repeat(length).parse().unwrap();
        request.headers_mut().insert("x-large", value);
        assert_eq!(wire.send(request).await.unwrap().status(), 200);
    }
    assert_eq!(local.used(), [0, 1, 0]);
    assert!(local.seen().iter().all(|it| it.certificate));
}

#[tokio::test]
async fn trailers_pass_if_they_are_announced_and_then_go_over_a_connection_of_their_own() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(
        &pki,
        Speaks::Both,
        |request: Request<Incoming>| async move {
            let body = request.into_body().collect().await;
            let body = body.map_err(std::io::Error::other)?;
            let came = body.trailers().is_some_and(|it| it.contains_key("x-sum"));
            Ok(text(if came { 201 } else { 200 }, "ok"))
        },
    )
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let io = client.tls(plane.address).await.unwrap();
    let (mut send, connection) = h2::client::handshake(io).await.unwrap();
    tokio::spawn(async move {
        connection.await.ok();
    });
    for (announced, status) in [(false, 200), (true, 201), (false, 200)] {
        send = send.ready().await.unwrap();
        let mut request = Request::post("https://a/api/v1/pods");
        if announced {
            request = request.header("trailer", "x-sum");
        }
        let request = request.body(()).unwrap();
        let (answer, mut stream) = send.send_request(request, false).unwrap();
        stream.send_data("body".into(), false).unwrap();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-sum", "1".parse().unwrap());
        stream.send_trailers(trailers).unwrap();
        assert_eq!(answer.await.unwrap().status(), status, "{announced}");
    }
    assert_eq!(local.used(), [0, 1, 0]);
}

#[tokio::test]
async fn twenty_watches_and_fifty_gets_of_one_token_to_a_server_of_http_1_only() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(&pki, Speaks::Http1, |request| async move {
        Ok(kubernetes(&request))
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = token(&pki, "t", true);
    let mut wire = Wire::open(&client, plane.address).await;
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(
            wire.send(get(&client, "/api/v1/pods?watch=1"))
                .await
                .unwrap(),
        );
    }
    for _ in 0..50 {
        let answer = wire.send(get(&client, "/api/v1/pods")).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    }
    for watch in &mut watches {
        watch.body_mut().frame().await.unwrap().unwrap();
    }
    assert!(local.connections() <= 23, "{}", local.connections());
}
