//! Another server, another try, or a clear refusal: and never a write twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bench::pki::ClusterPki;
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use mvp_user::table::{Health, Membership, Proof};
use tokio::time::sleep;

use crate::{
    client::{Wire, get, request},
    fake::{AnyBody, Fake, Speaks, full, text},
    plane::{Plane, token, user},
    streaming::{eventually, fed},
};

const UNKNOWN: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}"#;

/// A port that nobody listens on.
async fn nobody() -> std::net::SocketAddr {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.local_addr().unwrap()
}

fn json(status: u16, body: &'static str) -> http::Response<AnyBody> {
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
async fn a_server_that_refuses_connections_is_passed_over_and_known_to_be_down() {
    let pki = ClusterPki::new().unwrap();
    let peer = Fake::start(
        &pki,
        Speaks::Both,
        |request: Request<Incoming>| async move {
            let body = request
                .into_body()
                .collect()
                .await
                .map_err(std::io::Error::other)?;
            Ok(text(200, body.to_bytes()))
        },
    )
    .await;
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
        let peer = Fake::start(
            &pki,
            Speaks::Both,
            |request: Request<Incoming>| async move {
                let body = request
                    .into_body()
                    .collect()
                    .await
                    .map_err(std::io::Error::other)?;
                Ok(text(201, body.to_bytes()))
            },
        )
        .await;
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
async fn a_server_that_says_it_is_shutting_down_or_starting_has_not_worked_on_the_request() {
    let pki = ClusterPki::new().unwrap();
    let cases: [(u16, &'static str, Health); 3] = [
        (
            429,
            "The apiserver is shutting down, please try again later.\n",
            Health::Draining,
        ),
        (
            503,
            r#"{"kind":"Status","message":"apiserver is shutting down","code":503}"#,
            Health::Draining,
        ),
        (
            503,
            r#"{"kind":"Status","message":"the request has been made before all known HTTP paths have been installed, please try again","code":503}"#,
            Health::Starting,
        ),
    ];
    let serves: &[&str] = &["v1/pods", "v1/services"];
    for (status, body, health) in cases {
        let local = Fake::start(&pki, Speaks::Both, move |_| async move {
            let mut answer = text(status, body);
            answer
                .headers_mut()
                .insert("retry-after", "5".parse().unwrap());
            Ok(answer)
        })
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
                Ok(text(201, body.to_bytes()))
            },
        )
        .await;
        let plane =
            Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
        let client = user(&pki, "jane", &[], true);
        let answer = client
            .once_with(plane.address, "POST", "/api/v1/pods", &[], "pod")
            .await
            .unwrap();
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "pod".into()));
        assert_eq!(plane.local.health(), health);
        // Alone, it speaks for itself.
        let alone = Plane::start(&pki, (local.address(), serves), &[]).await;
        let answer = client
            .once(alone.address, "GET", "/api/v1/pods")
            .await
            .unwrap();
        assert_eq!(
            (answer.status.as_u16(), answer.text()),
            (
                status,
                String::from_utf8_lossy(&body.as_bytes()[..body.len().min(200)]).into()
            )
        );
        assert_eq!(answer.headers["retry-after"], "5");
        // A backend that says so is no kube-apiserver.
        let other =
            Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
        let answer = client
            .once(
                other.address,
                "GET",
                "/api/v1/namespaces/d/services/s/proxy/",
            )
            .await
            .unwrap();
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!(other.local.health(), Health::Up);
    }
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
async fn a_write_that_may_have_run_is_never_sent_again_but_a_read_is() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let count = Arc::<AtomicUsize>::default();
        let counter = Arc::clone(&count);
        // The first connection breaks with the request on it.
        let local = Fake::raw(&pki, speaks, Arc::default(), move |io, connection| {
            let counter = Arc::clone(&counter);
            async move {
                let h2 = io.get_ref().1.alpn_protocol() == Some(b"h2");
                let (stop, mut stopped) = tokio::sync::mpsc::channel::<()>(1);
                let service = hyper::service::service_fn(move |_request: Request<Incoming>| {
                    counter.fetch_add(1, Ordering::SeqCst);
                    let stop = stop.clone();
                    async move {
                        if connection % 2 == 0 {
                            stop.send(()).await.unwrap();
                            std::future::pending::<()>().await;
                        }
                        Ok::<_, std::io::Error>(text(200, "second"))
                    }
                });
                let io = hyper_util::rt::TokioIo::new(io);
                if h2 {
                    let server = hyper::server::conn::http2::Builder::new(
                        hyper_util::rt::TokioExecutor::new(),
                    )
                    .serve_connection(io, service);
                    tokio::select! { _ = server => {}, _ = stopped.recv() => {} }
                } else {
                    let server =
                        hyper::server::conn::http1::Builder::new().serve_connection(io, service);
                    tokio::select! { _ = server => {}, _ = stopped.recv() => {} }
                }
            }
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            let client = token(&pki, "t", http2);
            let before = count.load(Ordering::SeqCst);
            let answer = client
                .once(plane.address, "GET", "/api/v1/pods")
                .await
                .unwrap();
            assert_eq!(answer.text(), "second");
            assert_eq!(count.load(Ordering::SeqCst), before + 2);
            let answer = client
                .once_with(plane.address, "POST", "/api/v1/pods", &[], "x")
                .await
                .unwrap();
            assert_eq!(answer.status, 503);
            assert_eq!(
                count.load(Ordering::SeqCst),
                before + 3,
                "a write was sent twice"
            );
            // Leaves the next round an even connection.
            let answer = client
                .once(plane.address, "GET", "/api/v1/pods")
                .await
                .unwrap();
            assert_eq!(answer.text(), "second");
        }
    }
}

#[tokio::test]
async fn connections_closed_between_requests_cost_no_read_and_no_second_write() {
    let pki = ClusterPki::new().unwrap();
    let writes = Arc::new(std::sync::Mutex::new(std::collections::HashMap::<
        String,
        usize,
    >::new()));
    let log = Arc::clone(&writes);
    // Closes each keep-alive connection right after its answer.
    let local = Fake::raw(&pki, Speaks::Http1, Arc::default(), move |io, _| {
        let log = Arc::clone(&log);
        async move {
            let (done, mut answered) = tokio::sync::mpsc::channel::<()>(1);
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                if let Some(id) = request.headers().get("x-id") {
                    *log.lock()
                        .unwrap()
                        .entry(id.to_str().unwrap().to_owned())
                        .or_default() += 1;
                }
                let done = done.clone();
                async move {
                    tokio::spawn(async move {
                        sleep(Duration::from_millis(1)).await;
                        drop(done.send(()).await);
                    });
                    Ok::<_, std::io::Error>(text(200, "ok"))
                }
            });
            let server = hyper::server::conn::http1::Builder::new()
                .serve_connection(hyper_util::rt::TokioIo::new(io), service);
            tokio::select! { _ = server => {}, _ = answered.recv() => {} }
        }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut wire = Wire::open(&client, plane.address).await;
    for id in 0..300 {
        let answer = wire.send(get(&client, "/api/v1/pods")).await.unwrap();
        assert_eq!(answer.status(), 200, "GET {id}");
        answer.into_body().collect().await.unwrap();
        let mut post = request(&client, "POST", "/api/v1/pods", full("body"));
        post.headers_mut()
            .insert("x-id", id.to_string().parse().unwrap());
        let answer = wire.send(post).await.unwrap();
        assert!(
            [200, 503].contains(&answer.status().as_u16()),
            "POST {id}: {}",
            answer.status()
        );
    }
    assert!(writes.lock().unwrap().values().all(|count| *count == 1));
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
async fn an_upload_that_waits_for_its_client_holds_up_no_other() {
    let pki = ClusterPki::new().unwrap();
    // An upstream whose connection window is 65,535 bytes and stays so until it is used up (hyperium/hyper#4003).
    let local = Fake::raw(&pki, Speaks::Both, Arc::default(), |io, _| async move {
        let mut connection = h2::server::Builder::new()
            .handshake::<_, bytes::Bytes>(io)
            .await
            .unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            tokio::spawn(async move {
                let mut body = request.into_body();
                let mut size = 0;
                while let Some(Ok(chunk)) = body.data().await {
                    // Window is not given back.
                    size += chunk.len();
                }
                let mut stream = respond
                    .send_response(http::Response::new(()), false)
                    .unwrap();
                stream.send_data(size.to_string().into(), true).unwrap();
            });
        }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut wire = Wire::open(&client, plane.address).await;
    let (feed, body) = fed();
    let first = tokio::spawn({
        let request = request(&client, "POST", "/api/v1/pods", body);
        async move { wire.send(request).await }
    });
    feed.send(Ok(vec![0; 65_534].into())).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    let second = client.once_with(plane.address, "POST", "/api/v1/pods", &[], "x");
    let answer = tokio::time::timeout(Duration::from_secs(2), second)
        .await
        .expect("held up")
        .unwrap();
    assert_eq!(answer.text(), "1");
    drop(feed);
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn one_connection_more_before_the_stream_limit_is_reached() {
    let pki = ClusterPki::new().unwrap();
    for limit in [1, 3, 100] {
        let local = Fake::raw(
            &pki,
            Speaks::Both,
            Arc::default(),
            move |io, _| async move {
                let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
                    if request.uri().query() == Some("watch=1") {
                        let (feed, body) = fed();
                        tokio::spawn(async move { feed.closed().await });
                        return Ok::<_, std::io::Error>(http::Response::new(body));
                    }
                    let body = request
                        .into_body()
                        .collect()
                        .await
                        .map_err(std::io::Error::other)?;
                    Ok(text(200, body.to_bytes()))
                });
                drop(
                    hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
                        .max_concurrent_streams(limit)
                        .serve_connection(hyper_util::rt::TokioIo::new(io), service)
                        .await,
                );
            },
        )
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        let client = user(&pki, "jane", &[], true);
        let watches = if limit == 100 { 100 } else { 10 };
        let mut wire = Wire::open(&client, plane.address).await;
        let mut open = Vec::new();
        for _ in 0..watches / 2 {
            open.push(
                wire.send(get(&client, "/api/v1/pods?watch=1"))
                    .await
                    .unwrap(),
            );
        }
        let mut other = Wire::open(&client, plane.address).await;
        for _ in 0..watches / 2 {
            open.push(
                other
                    .send(get(&client, "/api/v1/pods?watch=1"))
                    .await
                    .unwrap(),
            );
        }
        let calls = (0..3 * watches).map(|_| {
            let client = client.clone();
            let to = plane.address;
            async move {
                let body = vec![b'x'; 8192];
                client
                    .once_with(to, "POST", "/api/v1/pods", &[], body)
                    .await
                    .unwrap()
                    .status
                    .as_u16()
            }
        });
        let start = tokio::time::Instant::now();
        let statuses = tokio::time::timeout(
            Duration::from_secs(30),
            futures_util::future::join_all(calls),
        )
        .await
        .unwrap();
        assert!(
            statuses.iter().all(|status| *status == 200),
            "limit {limit}: {statuses:?}"
        );
        eprintln!(
            "limit {limit}: {:?}, {} connections",
            start.elapsed(),
            local.connections()
        );
        drop(open);
        eventually("all answered", || true).await;
    }
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
