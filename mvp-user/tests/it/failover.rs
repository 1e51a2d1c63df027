//! Another server, another try, or a clear refusal: and never a write twice.

mod backends;
mod stopping;

use bench::pki::ClusterPki;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use mvp_user::table::{Health, Membership, Proof};

use crate::{
    fake::{AnyBody, Fake, Speaks, text},
    plane::{Plane, token, user},
};

const UNKNOWN: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}"#;

/// Headers that kube-apiserver's own proxy doubles, and one that comes twice.
const SENT: [(&str, &[&str]); 6] = [
    ("audit-id", &["1"]),
    ("cache-control", &["no-cache, private"]),
    ("content-type", &["text/plain"]),
    ("warning", &["299 - \"a\"", "299 - \"b\""]),
    ("x-kubernetes-pf-flowschema-uid", &["2"]),
    ("x-kubernetes-pf-prioritylevel-uid", &["3"]),
];

/// A port that nobody listens on.
async fn nobody() -> std::net::SocketAddr {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.local_addr().unwrap()
}

fn json(status: u16, body: &'static str) -> Response<AnyBody> {
    let mut answer = text(status, body);
    answer
        .headers_mut()
        .insert("content-type", "application/json".parse().unwrap());
    answer
}

#[tokio::test]
async fn what_only_a_peer_serves_goes_there_with_one_marker_and_the_callers_identity() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = Fake::named(&pki, speaks, "local").await;
        let peer = Fake::named(&pki, speaks, "peer").await;
        let plane = Plane::start(
            &pki,
            (local.address(), &["v1/pods"]),
            &[(peer.address(), &["batch/v1/jobs"])],
        )
        .await;
        for http2 in [true, false] {
            for client in [
                user(&pki, "jane", &["dev"], http2),
                token(&pki, "secret", http2),
            ] {
                let spoof = [
                    ("x-kubernetes-peer-proxied", "true"),
                    ("x-kubernetes-peer-proxied", "true"),
                ];
                let answer = client
                    .once_with(
                        plane.address,
                        "POST",
                        "/apis/batch/v1/namespaces/d/jobs",
                        &spoof,
                        "{}",
                    )
                    .await
                    .unwrap();
                assert_eq!(answer.text(), "peer");
                assert_eq!(
                    peer.seen()
                        .pop()
                        .unwrap()
                        .header("x-kubernetes-peer-proxied"),
                    ["true"]
                );
            }
            let seen = peer.seen();
            assert_eq!(seen[seen.len() - 2].header("x-remote-user"), ["jane"]);
            assert_eq!(
                seen[seen.len() - 1].header("authorization"),
                ["Bearer secret"]
            );
        }
        assert!(local.seen().is_empty());
    }
}

#[tokio::test]
async fn headers_of_a_peer_s_answer_come_as_they_were_sent_and_no_others() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = Fake::named(&pki, speaks, "local").await;
        let peer = Fake::start(&pki, speaks, |_| async {
            let mut answer = text(200, "peer");
            for (name, values) in SENT {
                for value in values {
                    answer.headers_mut().append(name, value.parse().unwrap());
                }
            }
            Ok(answer)
        })
        .await;
        let peers: &[(std::net::SocketAddr, &[&str])] = &[(peer.address(), &["batch/v1/jobs"])];
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), peers).await;
        for http2 in [true, false] {
            let chosen = [("audit-id", "chosen")];
            let answer = user(&pki, "jane", &[], http2)
                .once_with(plane.address, "GET", "/apis/batch/v1/jobs", &chosen, "")
                .await
                .unwrap();
            let mut headers = answer.headers.clone();
            for (name, values) in SENT {
                assert!(headers.get_all(name).iter().eq(values), "{headers:?}");
                headers.remove(name);
            }
            // The fake's own.
            headers.remove("content-length").unwrap();
            headers.remove("date").unwrap();
            assert!(headers.is_empty(), "{headers:?}");
        }
    }
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_passed_over_and_known_to_be_down() {
    let pki = ClusterPki::new().unwrap();
    let peer = Fake::echo(&pki, Speaks::Both, 200).await;
    let serves: &[&str] = &["v1/pods"];
    let plane = Plane::start(&pki, (nobody().await, serves), &[(peer.address(), serves)]).await;
    let client = user(&pki, "jane", &[], true);
    // Nothing was sent to local, so a write may go on.
    let answer = client
        .once_with(plane.address, "POST", "/api/v1/pods", &[], "body")
        .await
        .unwrap();
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (200, "body".into())
    );
    assert_eq!(plane.local.health(), Health::Down);
    // A health path is about this node.
    let answer = client.once(plane.address, "GET", "/readyz").await.unwrap();
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(peer.seen().len(), 1);
}

#[tokio::test]
async fn what_only_unavailable_servers_serve_is_503_and_never_404() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(&pki, Speaks::Both, |_| async { Ok(json(404, UNKNOWN)) }).await;
    let gone = nobody().await;
    let plane = Plane::start(
        &pki,
        (local.address(), &["v1/pods"]),
        &[(gone, &["batch/v1/jobs"])],
    )
    .await;
    let client = user(&pki, "jane", &[], true);
    for departed in [false, true] {
        if departed {
            plane.table.members().peers[0].set_membership(Membership::Departed);
        }
        let answer = client
            .once(plane.address, "GET", "/apis/batch/v1/jobs")
            .await
            .unwrap();
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.headers.contains_key("retry-after"));
        assert_eq!(answer.json().unwrap()["reason"], "ServiceUnavailable");
    }
    assert!(local.seen().is_empty());
    // What nobody serves is local's own 404, to the byte.
    let answer = client
        .once(plane.address, "GET", "/apis/batch/v1/nopes")
        .await
        .unwrap();
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (404, UNKNOWN.into())
    );
    // Unless not everybody is known.
    plane.table.set_ready(false);
    let answer = client
        .once(plane.address, "GET", "/apis/batch/v1/nopes")
        .await
        .unwrap();
    assert_eq!(answer.status, 503);
}

#[tokio::test]
async fn an_unknown_resource_404_goes_on_to_a_peer_that_serves_it() {
    let pki = ClusterPki::new().unwrap();
    let bodies: [(&str, &'static str); 2] = [
        ("application/json", UNKNOWN),
        ("text/plain; charset=utf-8", "404 page not found\n"),
    ];
    for (kind, body) in bodies {
        // Local was replaced by an older one: its catalogue is not true any more.
        let local = Fake::start(&pki, Speaks::Both, move |_| async move {
            let mut answer = text(404, body);
            answer
                .headers_mut()
                .insert("content-type", kind.parse().unwrap());
            Ok(answer)
        })
        .await;
        let peer = Fake::echo(&pki, Speaks::Both, 201).await;
        let serves: &[&str] = &["batch/v1/jobs"];
        let plane =
            Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
        let client = user(&pki, "jane", &[], true);
        let answer = client
            .once_with(
                plane.address,
                "POST",
                "/apis/batch/v1/namespaces/d/jobs",
                &[],
                "job",
            )
            .await
            .unwrap();
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "job".into()));
    }
}

#[tokio::test]
async fn a_missing_object_is_local_s_own_404() {
    let pki = ClusterPki::new().unwrap();
    const MISSING: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"missing\" not found","reason":"NotFound","details":{"name":"missing","kind":"pods"},"code":404}"#;
    let local = Fake::start(&pki, Speaks::Both, |_| async { Ok(json(404, MISSING)) }).await;
    let peer = Fake::named(&pki, Speaks::Both, "peer").await;
    let serves: &[&str] = &["v1/pods"];
    let plane = Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
    let answer = user(&pki, "jane", &[], true)
        .once(plane.address, "GET", "/api/v1/namespaces/d/pods/missing")
        .await
        .unwrap();
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (404, MISSING.into())
    );
    assert!(peer.seen().is_empty());
}

#[tokio::test]
async fn priority_and_fairness_and_other_errors_are_relayed_untouched() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(
        &pki,
        Speaks::Both,
        |request: Request<Incoming>| async move {
            let status = request.headers()["x-status"]
                .to_str()
                .unwrap()
                .parse()
                .unwrap();
            let mut answer = text(status, "Too many requests, please try again later.\n");
            answer
                .headers_mut()
                .insert("retry-after", "7".parse().unwrap());
            Ok(answer)
        },
    )
    .await;
    let peer = Fake::named(&pki, Speaks::Both, "peer").await;
    let serves: &[&str] = &["v1/pods"];
    let plane = Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
    let client = user(&pki, "jane", &[], true);
    for status in ["401", "403", "404", "409", "429", "500", "503", "504"] {
        let answer = client
            .once_with(
                plane.address,
                "GET",
                "/api/v1/pods",
                &[("x-status", status)],
                "",
            )
            .await
            .unwrap();
        assert_eq!(answer.status.as_str(), status);
        assert_eq!(
            (
                answer.headers["retry-after"].to_str().unwrap(),
                answer.text().len()
            ),
            ("7", 43)
        );
    }
    assert!(peer.seen().is_empty());
    assert_eq!(plane.local.health(), Health::Up);
}

#[tokio::test]
async fn a_body_too_large_to_be_kept_is_not_sent_a_second_time() {
    let pki = ClusterPki::new().unwrap();
    let serves: &[&str] = &["v1/pods"];
    let local = Fake::start(
        &pki,
        Speaks::Both,
        |request: Request<Incoming>| async move {
            request
                .into_body()
                .collect()
                .await
                .map_err(std::io::Error::other)?;
            Ok(text(
                429,
                "The apiserver is shutting down, please try again later.\n",
            ))
        },
    )
    .await;
    let peer = Fake::start(
        &pki,
        Speaks::Both,
        |request: Request<Incoming>| async move {
            let body = request
                .into_body()
                .collect()
                .await
                .map_err(std::io::Error::other)?;
            Ok(text(200, body.to_bytes().len().to_string()))
        },
    )
    .await;
    let client = user(&pki, "jane", &[], true);
    for (size, status) in [(60_000, 200), (70_000, 503)] {
        let plane =
            Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
        let answer = client
            .once_with(plane.address, "POST", "/api/v1/pods", &[], vec![b'x'; size])
            .await
            .unwrap();
        assert_eq!(answer.status, status);
        if status == 200 {
            assert_eq!(answer.text(), size.to_string());
        } else {
            assert_eq!(answer.headers["retry-after"], "1");
        }
    }
    assert_eq!(peer.seen().len(), 1);
}

#[tokio::test]
async fn an_unproven_peer_gets_no_certificate_users() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(&pki, Speaks::Both, |_| async { Ok(json(404, UNKNOWN)) }).await;
    let peer = Fake::named(&pki, Speaks::Both, "peer").await;
    let plane = Plane::start(
        &pki,
        (local.address(), &["v1/pods"]),
        &[(peer.address(), &["batch/v1/jobs"])],
    )
    .await;
    plane.table.members().peers[0].set_proof(Proof::Unproven);
    let answer = user(&pki, "jane", &[], true)
        .once(plane.address, "GET", "/apis/batch/v1/jobs")
        .await
        .unwrap();
    assert_eq!(answer.status, 503);
    let answer = token(&pki, "t", true)
        .once(plane.address, "GET", "/apis/batch/v1/jobs")
        .await
        .unwrap();
    assert_eq!(answer.text(), "peer");
}

#[tokio::test]
async fn a_404_that_may_be_false_is_not_relayed_when_the_server_that_knows_cannot_be_reached() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(&pki, Speaks::Both, |_| async { Ok(json(404, UNKNOWN)) }).await;
    let serves: &[&str] = &["batch/v1/jobs"];
    let plane = Plane::start(&pki, (local.address(), serves), &[(nobody().await, serves)]).await;
    let answer = user(&pki, "jane", &[], true)
        .once(plane.address, "GET", "/apis/batch/v1/jobs")
        .await
        .unwrap();
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.headers.contains_key("retry-after"));
}
