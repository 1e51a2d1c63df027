//! Upstream connections at their limits: broken, closed, full or stalled.

mod floods;
mod unread;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bench::pki::ClusterPki;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::sleep,
};

use crate::{
    client::{Wire, get, request},
    fake::{Fake, Speaks, answer_size, full, text},
    plane::{Plane, token, user},
    streaming::fed,
};

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
                        done.send(()).await.ok();
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
async fn an_upload_that_waits_for_its_client_holds_up_no_other() {
    let pki = ClusterPki::new().unwrap();
    // An upstream whose connection window is 65,535 bytes and stays so until it is used up (hyperium/hyper#4003).
    let local = Fake::raw(&pki, Speaks::Both, Arc::default(), |io, _| async move {
        let mut connection = h2::server::Builder::new()
            .handshake::<_, bytes::Bytes>(io)
            .await
            .unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            tokio::spawn(async move { answer_size(request, &mut respond).await });
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
                        return Ok::<_, std::io::Error>(Response::new(body));
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
    }
}

#[tokio::test]
async fn a_connection_that_owes_an_answer_and_is_silent_gets_no_further_requests() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(
        &pki,
        Speaks::Both,
        |request: Request<Incoming>| async move {
            if request.uri().query().is_some() {
                std::future::pending::<()>().await;
            }
            Ok(text(200, "ok"))
        },
    )
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut wire = Wire::open(&client, plane.address).await;
    let mut hanging = Wire::open(&client, plane.address).await;
    let (hangs, other) = tokio::join!(
        tokio::time::timeout(
            Duration::from_millis(1_500),
            hanging.send(get(&client, "/api/v1/pods?hangs"))
        ),
        async {
            sleep(Duration::from_millis(1_200)).await;
            wire.send(get(&client, "/api/v1/pods")).await
        }
    );
    assert!(hangs.is_err());
    assert_eq!(other.unwrap().status(), 200);
    assert_eq!(local.connections(), 2);
}

#[tokio::test]
async fn stalled_readers_do_not_stop_others() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(
        &pki,
        Speaks::Both,
        |request: Request<Incoming>| async move {
            if request.uri().query() == Some("big") {
                let (feed, body) = fed();
                tokio::spawn(async move {
                    for _ in 0..800 {
                        if feed.send(Ok(vec![b'x'; 65_536].into())).await.is_err() {
                            break;
                        }
                    }
                });
                return Ok(Response::new(body));
            }
            Ok(text(200, "ok"))
        },
    )
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let mut wire = Wire::open(&client, plane.address).await;
        let answer = wire.send(get(&client, "/api/v1/pods?big")).await.unwrap();
        stalled.push((wire, answer));
    }
    sleep(Duration::from_millis(300)).await;
    let mut wire = Wire::open(&client, plane.address).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..100 {
        let start = tokio::time::Instant::now();
        let answer = wire.send(get(&client, "/api/v1/pods")).await.unwrap();
        answer.into_body().collect().await.unwrap();
        slowest = slowest.max(start.elapsed());
    }
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
}

#[tokio::test]
async fn an_early_refusal_of_an_upload_reaches_the_client() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        // As kube-apiserver with a body beyond its limit: it answers without having read it.
        let local = Fake::start(&pki, speaks, |_| async {
            Ok(text(413, "limit is 3145728"))
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            // The fake's HTTP/1.1 side resets a connection whose request it did not read, and the reset may overtake
            // the answer; Go's lingers. So what it gets must fit into its first read.
            let large = if speaks == Speaks::Http1 {
                1_000
            } else {
                4_000_000
            };
            for size in [1_000, large] {
                let client = user(&pki, "jane", &[], http2);
                let answer = client
                    .once_with(plane.address, "POST", "/api/v1/pods", &[], vec![b'x'; size])
                    .await;
                let what = format!("{speaks:?}, HTTP/2 {http2}, {size} bytes");
                let answer = answer.unwrap_or_else(|error| panic!("{what}: {error:#}"));
                assert_eq!(
                    (answer.status.as_u16(), answer.text()),
                    (413, "limit is 3145728".into()),
                    "{what}"
                );
            }
        }
    }
}

#[tokio::test]
async fn an_early_refusal_is_not_overtaken_by_a_reset_while_the_client_still_sends() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(&pki, Speaks::Both, |_| async { Ok(text(413, "too much")) }).await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], false);
    let mut io = client.tls(plane.address).await.unwrap();
    let head = "POST /api/v1/pods HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
    io.write_all(head.as_bytes()).await.unwrap();
    // In pieces with pauses: the answer has been sent long before the last.
    for _ in 0..10 {
        io.write_all(&vec![b'x'; 100_000]).await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 413") && answer.ends_with("too much"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_watch_on_a_connection_gone_silent_ends_and_the_next_request_takes_another() {
    let pki = ClusterPki::new().unwrap();
    let local = bench::standin::Standin::builder(&pki)
        .start()
        .await
        .unwrap();
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "admin", &["system:masters"], true);
    let mut wire = Wire::open(&client, plane.address).await;
    let watch = wire
        .send(get(&client, "/api/v1/pods?watch=1"))
        .await
        .unwrap();
    local.silence(true);
    let start = tokio::time::Instant::now();
    let end = tokio::time::timeout(Duration::from_mins(1), watch.into_body().collect()).await;
    assert!(end.expect("the watch hangs").is_err(), "it looks complete");
    assert!(
        start.elapsed() > Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    local.silence(false);
    let answer = client
        .once(plane.address, "GET", "/api/v1/pods")
        .await
        .unwrap();
    assert_eq!(answer.status, 200);
}
