//! Requests that break a rule or a limit: answered, or ended, and never two where the client sent one.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use bench::pki::ClusterPki;
use h2::Reason;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::raw;
use crate::{
    client::{Wire, get},
    fake::{Fake, Speaks, text},
    plane::{Plane, token, user},
    streaming::eventually,
};

#[tokio::test]
async fn a_request_with_two_lengths_is_one_request_and_the_last() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = Fake::echo(&pki, speaks, 200).await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        let inner = "GET /api/v1/secrets HTTP/1.1\r\nHost: a\r\n\r\n";
        let cases = [
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", true),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", true),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
                false,
            ),
            ("Transfer-Encoding: xchunked\r\n", false),
            ("Content-Length: 5\r\nContent-Length: 6\r\n", false),
            ("Content-Length: +5\r\n", false),
        ];
        for (lengths, served) in cases {
            let before = local.seen().len();
            let request = format!(
                "POST /api/v1/pods HTTP/1.1\r\nHost: a\r\n{lengths}\r\n5\r\nhello\r\n0\r\n\r\n{inner}"
            );
            let answer = raw(
                &user(&pki, "jane", &[], false),
                plane.address,
                request.as_bytes(),
            )
            .await;
            let seen = local.seen();
            assert!(answer.ends_with("<closed>"), "{lengths}: {answer}");
            assert_eq!(
                seen.len() - before,
                usize::from(served),
                "{lengths}: {seen:?}"
            );
            if served {
                let one = seen.last().unwrap();
                assert!(
                    one.header("content-length").is_empty()
                        || one.header("transfer-encoding").is_empty()
                );
                assert!(answer.contains("hello"), "{answer}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_of_another_length_than_said_ends_its_stream_and_no_other() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let whole = Arc::<AtomicBool>::default();
        let ended = Arc::<AtomicUsize>::default();
        let (flag, count) = (Arc::clone(&whole), Arc::clone(&ended));
        let local = Fake::start(&pki, speaks, move |request: Request<Incoming>| {
            let (flag, count) = (Arc::clone(&flag), Arc::clone(&count));
            async move {
                let upload = request.method() == Method::POST;
                let body = request.into_body().collect().await;
                flag.fetch_or(upload && body.is_ok(), Ordering::SeqCst);
                count.fetch_add(1, Ordering::SeqCst);
                Ok(text(200, "local"))
            }
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        let client = user(&pki, "jane", &[], true);
        let io = client.tls(plane.address).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let ask = |method: &str, length: &str| {
            let headers = [("content-length", length)];
            let request = client.request(method, "/api/v1/pods", &headers, "");
            let (parts, _) = request.unwrap().into_parts();
            Request::from_parts(parts, ())
        };
        for (said, sent) in [("5", "hel"), ("3", "hello")] {
            let before = local.seen().len();
            sender = sender.ready().await.unwrap();
            let (answer, mut body) = sender.send_request(ask("POST", said), false).unwrap();
            eventually("it arrives", || local.seen().len() > before).await;
            body.send_data(sent.into(), true).unwrap();
            let error = answer.await.unwrap_err();
            assert_eq!(error.reason(), Some(Reason::PROTOCOL_ERROR), "{said}");
            eventually("it ends", || ended.load(Ordering::SeqCst) > before).await;
        }
        // Without any body it does not get that far.
        sender = sender.ready().await.unwrap();
        let (answer, _) = sender.send_request(ask("POST", "5"), true).unwrap();
        let error = answer.await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::PROTOCOL_ERROR));
        assert!(!whole.load(Ordering::SeqCst), "{speaks:?}");
        sender = sender.ready().await.unwrap();
        let (answer, _) = sender.send_request(ask("GET", "0"), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);
        assert_eq!(local.seen().len(), 3);
    }
}

#[tokio::test]
async fn a_header_name_that_is_no_token_goes_nowhere() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut wire = Wire::open(&client, plane.address).await;
    let mut request = get(&client, "/api/v1/pods");
    // The http crate lets it pass.
    let name = http::HeaderName::from_lowercase(b"x\"y").unwrap();
    request.headers_mut().insert(name, "1".parse().unwrap());
    assert_eq!(wire.send(request).await.unwrap().status(), 400);
    assert!(local.seen().is_empty());
}

#[tokio::test]
async fn large_headers_pass_and_too_large_ones_are_431() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = Fake::start(&pki, speaks, |_| async {
            let mut answer = text(200, "local");
            for i in 0..25 {
                let name = http::HeaderName::try_from(format!("x-{i}")).unwrap();
                answer
                    .headers_mut()
                    .insert(name, "v".repeat(4000).parse().unwrap());
            }
            Ok(answer)
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            let groups: Vec<String> = (0..150).map(|i| format!("group-{i}")).collect();
            let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
            let client = user(&pki, "jane", &groups, http2);
            let mut wire = Wire::open(&client, plane.address).await;
            let answer = wire.send(get(&client, "/api/v1/pods")).await.unwrap();
            assert_eq!(
                (answer.status().as_u16(), answer.headers()["x-24"].len()),
                (200, 4000)
            );
            assert_eq!(local.seen().pop().unwrap().header("x-remote-group"), groups);
            let big = "t".repeat(64 * 1024);
            let client = token(&pki, &big, http2);
            let mut wire = Wire::open(&client, plane.address).await;
            assert_eq!(
                wire.send(get(&client, "/api/v1/pods"))
                    .await
                    .unwrap()
                    .status(),
                200
            );
            let client = user(&pki, "jane", &[], http2);
            let mut wire = Wire::open(&client, plane.address).await;
            let mut huge = get(&client, "/api/v1/pods");
            huge.headers_mut()
                .insert("x-huge", "h".repeat(1_100_000).parse().unwrap());
            assert_eq!(wire.send(huge).await.unwrap().status(), 431, "{http2}");
            if http2 {
                assert_eq!(
                    wire.send(get(&client, "/api/v1/pods"))
                        .await
                        .unwrap()
                        .status(),
                    200
                );
            }
        }
        // A URI is bounded by the http crate at 64 KiB; that much of a selector must pass.
        let selector = format!("/api/v1/pods?labelSelector={}", "a".repeat(60_000));
        let client = user(&pki, "jane", &[], true);
        let mut wire = Wire::open(&client, plane.address).await;
        assert_eq!(
            wire.send(get(&client, &selector)).await.unwrap().status(),
            200
        );
    }
}

#[tokio::test]
async fn what_cannot_be_read_as_a_request_is_answered_with_a_status() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], false);
    let selector = format!("labelSelector={}", "a".repeat(200_000));
    for (request, code) in [
        ("GET /api/v1/pods\r\n\r\n".to_owned(), 400),
        (
            "GET /api HTTP/1.1\r\nHost: a\r\nbad name: 1\r\n\r\n".to_owned(),
            400,
        ),
        (
            format!("GET /api/v1/pods?{selector} HTTP/1.1\r\nHost: a\r\n\r\n"),
            414,
        ),
        (
            format!(
                "GET /api HTTP/1.1\r\nHost: a\r\n{}\r\n",
                "x: y\r\n".repeat(2_001)
            ),
            431,
        ),
    ] {
        let answer = raw(&client, plane.address, request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("content-type: application/json"), "{head}");
        let body = body.strip_suffix("<closed>").unwrap();
        let status: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["code"], code);
    }
    assert!(local.seen().is_empty());
}
