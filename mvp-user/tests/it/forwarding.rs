//! Requests of every kind of caller, over each protocol on each side.

mod malformed;

use std::time::Duration;

use bench::pki::ClusterPki;
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use crate::{
    fake::{Fake, Speaks, text},
    plane::{Plane, anonymous, token, user},
};

#[tokio::test]
async fn each_kind_of_caller_reaches_local_as_itself_over_each_protocol() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = Fake::named(&pki, speaks, "local").await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            let path = "/api/v1/namespaces/default/pods?limit=1";
            for client in [
                user(&pki, "jane", &["dev", "ops"], http2),
                token(&pki, "secret", http2),
                anonymous(&pki, http2),
            ] {
                let answer = client.once(plane.address, "GET", path).await.unwrap();
                assert_eq!(
                    (answer.status.as_u16(), answer.text()),
                    (200, "local".into())
                );
            }
            let seen = local.seen();
            let [jane, secret, nobody] = &seen[seen.len() - 3..] else {
                panic!("{seen:?}")
            };
            for request in [jane, secret, nobody] {
                assert_eq!(request.uri.path_and_query().unwrap(), path);
                assert_eq!(request.header("x-forwarded-for"), ["127.0.0.1"]);
            }
            assert!(jane.certificate && !secret.certificate && !nobody.certificate);
            assert_eq!(jane.header("x-remote-user"), ["jane"]);
            assert_eq!(jane.header("x-remote-group"), ["dev", "ops"]);
            assert_eq!(secret.header("authorization"), ["Bearer secret"]);
            assert_eq!(secret.header("x-remote-user"), [""; 0]);
            assert_eq!(nobody.header("x-remote-user"), [""; 0]);
            assert_eq!(nobody.header("authorization"), [""; 0]);
        }
    }
}

/// Sends raw bytes over HTTP/1.1 and reads until the connection ends or nothing comes for a while.
async fn raw(client: &bench::client::Client, to: std::net::SocketAddr, bytes: &[u8]) -> String {
    let mut io = client.tls(to).await.unwrap();
    io.write_all(bytes).await.unwrap();
    io.flush().await.unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    // The first byte takes as long as a busy machine needs; then silence is the end.
    let mut patience = Duration::from_secs(10);
    while let Ok(Ok(read)) = timeout(patience, io.read(&mut buffer)).await {
        patience = Duration::from_millis(300);
        if read == 0 {
            answer.extend_from_slice(b"<closed>");
            break;
        }
        answer.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn nobody_can_smuggle_an_identity_an_address_or_a_marker() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = Fake::named(&pki, speaks, "local").await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            let headers = [
                ("X-REMOTE-UID", "1"),
                ("X-Remote-User", "admin"),
                ("x-remote-group", "system:masters"),
                ("x-remote-extra-scopes", "a"),
                ("x-remote-extra-scopes", "b"),
                ("x_remote_user", "admin"),
                ("X-Auth-User", "admin"),
                ("X-Forwarded-For", "1.2.3.4"),
                ("X-Forwarded-For", "5.6.7.8, 9.9.9.9"),
                ("X-Real-Ip", "6.6.6.6"),
                ("x-kubernetes-peer-proxied", "true"),
                ("Impersonate-User", "jim"),
                ("Audit-Id", "chosen"),
            ];
            for client in [
                user(&pki, "jane", &["dev"], http2),
                token(&pki, "secret", http2),
                anonymous(&pki, http2),
            ] {
                let answer = client
                    .once_with(plane.address, "GET", "/api/v1/pods", &headers, "")
                    .await
                    .unwrap();
                assert_eq!(answer.status, 200);
            }
            let seen = local.seen();
            let requests = &seen[seen.len() - 3..];
            for request in requests {
                for name in [
                    "x-auth-user",
                    "x_remote_user",
                    "x-remote-extra-scopes",
                    "x-real-ip",
                    "x-kubernetes-peer-proxied",
                    "x-remote-uid",
                ] {
                    assert_eq!(request.header(name), [""; 0], "{name}");
                }
                assert_eq!(
                    request.header("x-forwarded-for"),
                    ["1.2.3.4, 5.6.7.8, 9.9.9.9, 127.0.0.1"]
                );
                assert_eq!(request.header("impersonate-user"), ["jim"]);
                assert_eq!(request.header("audit-id"), ["chosen"]);
            }
            assert_eq!(requests[0].header("x-remote-user"), ["jane"]);
            assert_eq!(requests[0].header("x-remote-group"), ["dev"]);
            assert_eq!(requests[1].header("x-remote-user"), [""; 0]);
        }
    }
}

#[tokio::test]
async fn headers_of_one_connection_stay_on_it() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = Fake::start(&pki, speaks, move |_| async move {
            let mut answer = text(200, "local");
            if speaks == Speaks::Http1 {
                for (name, value) in [
                    ("connection", "close, x-hop"),
                    ("x-hop", "1"),
                    ("keep-alive", "timeout=5"),
                    ("upgrade", "h2c"),
                ] {
                    answer.headers_mut().insert(name, value.parse().unwrap());
                }
            }
            answer.headers_mut().insert("x-end", "1".parse().unwrap());
            Ok(answer)
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        let client = user(&pki, "jane", &[], false);
        let request = "GET /api/v1/pods HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Mine\r\nConnection: x-other\r\nX-Mine: 1\r\nx-other: 2\r\n\
             Keep-Alive: 3\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nX-End: 1\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n\r\n";
        let answer = raw(&client, plane.address, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(
            answer.contains("x-end: 1")
                && !answer.contains("x-hop")
                && !answer.contains("keep-alive"),
            "{answer}"
        );
        assert!(
            !answer.contains("<closed>"),
            "the upstream's Connection: close is not the client's: {answer}"
        );
        let seen = local.seen().pop().unwrap();
        for name in [
            "x-mine",
            "x-other",
            "keep-alive",
            "proxy-connection",
            "te",
            "upgrade",
            "http2-settings",
            "connection",
        ] {
            assert_eq!(seen.header(name), [""; 0], "{name}");
        }
        assert_eq!(seen.header("x-end"), ["1"]);
        let authority = seen.uri.authority().map(ToString::to_string);
        assert_eq!(
            authority.unwrap_or_else(|| seen.header("host").join("|")),
            "a"
        );
        // The same answer over HTTP/2: a strict client sees no header of the upstream's connection.
        let answer = user(&pki, "jane", &[], true)
            .once(plane.address, "GET", "/api/v1/pods")
            .await
            .unwrap();
        assert_eq!(answer.status, 200);
        for name in [
            "connection",
            "x-hop",
            "keep-alive",
            "upgrade",
            "transfer-encoding",
        ] {
            assert!(!answer.headers.contains_key(name), "{name}");
        }
    }
}

#[tokio::test]
async fn path_and_query_arrive_byte_for_byte() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = Fake::named(&pki, speaks, "local").await;
        let plane = Plane::start(&pki, (local.address(), &["v1/services"]), &[]).await;
        for path in [
            "/api/v1/namespaces/d/services/s:80/proxy/a%2Fb//c/../d?x=1;y=2&command=b&command=a",
            "/apis/g%2Fx/v1/r",
            "/api/v1/namespaces/d/services/s/proxy/%41%7e!$&'()*+,;=:@~-._?a=%20b&&c==d?e/f",
            "/api/v1/services?labelSelector=a%3Db%2Cc+in+%28d%29&fieldSelector=metadata.name%3Dx&",
            "/api/v1/namespaces/d/services/s/proxy/?",
            "//api//v1/services/",
        ] {
            let client = user(&pki, "jane", &[], true);
            let answer = client.once(plane.address, "GET", path).await.unwrap();
            assert_eq!(answer.status, 200, "{path}");
            assert_eq!(
                local
                    .seen()
                    .pop()
                    .unwrap()
                    .uri
                    .path_and_query()
                    .unwrap()
                    .as_str(),
                path
            );
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            let answer = raw(
                &user(&pki, "jane", &[], false),
                plane.address,
                request.as_bytes(),
            )
            .await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
            assert_eq!(
                local
                    .seen()
                    .pop()
                    .unwrap()
                    .uri
                    .path_and_query()
                    .unwrap()
                    .as_str(),
                path
            );
        }
        for (bytes, what) in [
            ("GET /api/%zz HTTP/1.1\r\nHost: a\r\n\r\n", "bad escape"),
            ("GET /api HTTP/1.1\r\n\r\n", "no Host"),
            (
                "GET /api HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
                "two Hosts",
            ),
            ("GET /api HTTP/1.1\r\nHost: a/b\r\n\r\n", "bad Host"),
            ("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT"),
        ] {
            let count = local.seen().len();
            let answer = raw(
                &user(&pki, "jane", &[], false),
                plane.address,
                bytes.as_bytes(),
            )
            .await;
            assert!(answer.starts_with("HTTP/1.1 400"), "{what}: {answer}");
            assert_eq!(local.seen().len(), count, "{what}");
        }
    }
}

#[tokio::test]
async fn bodies_pass_whole_in_both_directions_with_trailers_and_lengths() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = Fake::start(&pki, speaks, |request: Request<Incoming>| async move {
            let length = request.headers().get("content-length").cloned();
            let body = request
                .into_body()
                .collect()
                .await
                .map_err(std::io::Error::other)?
                .to_bytes();
            let mut answer = text(200, body);
            if let Some(length) = length {
                answer.headers_mut().insert("x-length", length);
            }
            Ok(answer)
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            for size in [0, 1, 1000, 70_000, 5_000_000] {
                let body: Vec<u8> = (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect();
                for client in [user(&pki, "jane", &[], http2), token(&pki, "t", http2)] {
                    let answer = client
                        .once_with(plane.address, "POST", "/api/v1/pods", &[], body.clone())
                        .await
                        .unwrap();
                    assert_eq!(answer.status, 200);
                    assert!(answer.body == body, "{size} {http2} {speaks:?}");
                    if size > 0 {
                        assert_eq!(answer.headers["content-length"], size.to_string());
                        assert_eq!(answer.headers["x-length"], size.to_string());
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn trailers_of_a_request_pass_and_forbidden_ones_hold_it_up_for_nobody() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = Fake::start(&pki, speaks, |request: Request<Incoming>| async move {
            let whole = request.into_body().collect().await;
            let whole = whole.map_err(std::io::Error::other)?;
            let sum = whole.trailers().and_then(|trailers| trailers.get("x-sum"));
            let sum = sum.map_or("no sum", |sum| sum.to_str().unwrap()).to_owned();
            let body = String::from_utf8_lossy(&whole.to_bytes()).into_owned();
            Ok(text(200, format!("{body}, {sum}")))
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        let client = user(&pki, "jane", &[], false);
        for (trailer, expected) in [
            ("X-Sum: 7", "body, 7"),
            ("Connection: close", "body, no sum"),
        ] {
            let request = format!(
                "POST /api/v1/pods HTTP/1.1\r\nHost: a\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n{trailer}\r\n\r\n"
            );
            let answer = raw(&client, plane.address, request.as_bytes()).await;
            assert!(answer.ends_with(expected), "{speaks:?}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_verified_front_proxy_names_the_user_and_its_marker_keeps_the_request_at_local() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let peer = Fake::named(&pki, Speaks::Both, "peer").await;
    let peers: &[(std::net::SocketAddr, &[&str])] = &[(peer.address(), &["batch/v1/jobs"])];
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), peers).await;
    let proxy = crate::plane::with_certificate(&pki, &pki.front_proxy_client().unwrap(), true);
    let named = [
        ("x-remote-user", "jane"),
        ("x-remote-group", "dev"),
        ("x-remote-group", "ops"),
        ("x-remote-uid", "7"),
        ("x-remote-extra-a%2fb", "c"),
        ("x-real-ip", "6.6.6.6"),
    ];
    let marked: Vec<_> = named
        .iter()
        .copied()
        .chain([("x-kubernetes-peer-proxied", "true")])
        .collect();
    let jobs = "/apis/batch/v1/jobs";
    for (headers, at) in [(&named[..], &peer), (&marked[..], &local)] {
        let answer = proxy
            .once_with(plane.address, "GET", jobs, headers, "")
            .await
            .unwrap();
        assert_eq!(answer.status, 200);
        let seen = at.seen().pop().unwrap();
        assert!(seen.certificate);
        assert_eq!(seen.header("x-remote-user"), ["jane"]);
        // At local too: its own Mixed Version Proxy must not send it any further.
        assert_eq!(seen.header("x-kubernetes-peer-proxied"), ["true"]);
        assert_eq!(seen.header("x-remote-group"), ["dev", "ops"]);
        assert_eq!(seen.header("x-remote-uid"), ["7"]);
        assert_eq!(seen.header("x-remote-extra-a%2fb"), ["c"]);
        assert_eq!(seen.header("x-real-ip"), [""; 0]);
    }
    assert_eq!((local.seen().len(), peer.seen().len()), (1, 1));
    // A front-proxy certificate that names nobody is no user of the client CA: with a token the token counts, alone it is 401.
    let answer = proxy.once(plane.address, "GET", jobs).await.unwrap();
    assert_eq!(answer.status, 401);
    let bearer = [
        ("authorization", "Bearer t"),
        ("x-kubernetes-peer-proxied", "true"),
    ];
    let answer = proxy
        .once_with(plane.address, "GET", jobs, &bearer, "")
        .await
        .unwrap();
    assert_eq!(answer.text(), "peer");
    assert_eq!(
        peer.seen().pop().unwrap().header("authorization"),
        ["Bearer t"]
    );
}
