//! Bodies as streams: at once, cancelled with their client, truncated when they are, and gated by 100-continue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bench::pki::ClusterPki;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use crate::{
    client::{Wire, get, request},
    fake::{AnyBody, BoxError, Fake, Speaks, answer_size, text},
    plane::{Plane, token, user},
};

const SPEAKS: [Speaks; 2] = [Speaks::Both, Speaks::Http1];

/// A body fed by the test; an `Err` breaks it off.
pub(crate) fn fed() -> (mpsc::Sender<Result<Bytes, BoxError>>, AnyBody) {
    let (feed, mut fed) = mpsc::channel(1);
    let stream = futures_util::stream::poll_fn(move |cx| {
        fed.poll_recv(cx)
            .map(|item| item.map(|item: Result<Bytes, BoxError>| item.map(Frame::data)))
    });
    (feed, StreamBody::new(stream).boxed_unsync())
}

/// Tells when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn headers_and_each_event_are_seen_at_once() {
    let pki = ClusterPki::new().unwrap();
    for speaks in SPEAKS {
        let (hand_over, mut feeds) = mpsc::unbounded_channel();
        let local = Fake::start(&pki, speaks, move |_| {
            let (feed, body) = fed();
            hand_over.send(feed).unwrap();
            async move { Ok(Response::new(body)) }
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            let client = user(&pki, "jane", &[], http2);
            let mut wire = Wire::open(&client, plane.address).await;
            // The headers, with nothing behind them; each event, before there is another.
            let answer = wire.send(get(&client, "/api/v1/pods?watch=1"));
            let answer = timeout(Duration::from_secs(5), answer).await.unwrap();
            let mut body = answer.unwrap().into_body();
            let feed = feeds.recv().await.unwrap();
            let mut took = Vec::new();
            for _ in 0..11 {
                let start = Instant::now();
                feed.send(Ok("event".into())).await.unwrap();
                let frame = timeout(Duration::from_secs(5), body.frame()).await.unwrap();
                assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "event");
                took.push(start.elapsed());
            }
            // A busy machine may hold up some, not most.
            took.sort_unstable();
            assert!(took[5] < Duration::from_millis(100), "{took:?}");
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_upstream_stream() {
    let pki = ClusterPki::new().unwrap();
    for speaks in SPEAKS {
        let gone = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&gone);
        let started = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&started);
        let local = Fake::start(&pki, speaks, move |request: Request<Incoming>| {
            let dropped = Dropped(Arc::clone(&flag));
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                let _body = request;
                if _body.uri().path().ends_with("hang") {
                    sleep(Duration::from_mins(1)).await;
                }
                let (feed, body) = fed();
                tokio::spawn(async move {
                    feed.send(Ok("first".into())).await.unwrap();
                    feed.closed().await;
                    drop(dropped);
                });
                Ok(Response::new(body))
            }
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            for client in [user(&pki, "jane", &[], http2), token(&pki, "t", http2)] {
                // Before the answer.
                gone.store(false, Ordering::SeqCst);
                let before = started.load(Ordering::SeqCst);
                let mut wire = Wire::open(&client, plane.address).await;
                let call = timeout(
                    Duration::from_millis(300),
                    wire.send(get(&client, "/api/v1/namespaces/d/pods/hang")),
                );
                assert!(call.await.is_err());
                assert_eq!(started.load(Ordering::SeqCst), before + 1);
                drop(wire);
                eventually("the waiting request ends", || gone.load(Ordering::SeqCst)).await;
                // In the middle of it.
                gone.store(false, Ordering::SeqCst);
                let mut wire = Wire::open(&client, plane.address).await;
                let mut answer = wire
                    .send(get(&client, "/api/v1/pods?watch=1"))
                    .await
                    .unwrap();
                answer.body_mut().frame().await.unwrap().unwrap();
                drop(answer);
                if !http2 {
                    drop(wire);
                }
                eventually("the watch ends", || gone.load(Ordering::SeqCst)).await;
            }
        }
    }
}

#[tokio::test]
async fn a_truncated_answer_never_looks_complete() {
    let pki = ClusterPki::new().unwrap();
    for speaks in SPEAKS {
        let local = Fake::start(&pki, speaks, |_| async {
            let (feed, body) = fed();
            tokio::spawn(async move {
                feed.send(Ok("half".into())).await.unwrap();
                sleep(Duration::from_millis(50)).await;
                feed.send(Err(std::io::Error::other("broken")))
                    .await
                    .unwrap();
            });
            Ok(Response::new(body))
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            let client = user(&pki, "jane", &[], http2);
            let mut wire = Wire::open(&client, plane.address).await;
            let answer = wire.send(get(&client, "/api/v1/pods")).await.unwrap();
            let body = answer.into_body().collect().await;
            assert!(body.is_err(), "{speaks:?} {http2}: {body:?}");
        }
    }
}

#[tokio::test]
async fn a_truncated_upload_never_looks_complete() {
    let pki = ClusterPki::new().unwrap();
    for speaks in SPEAKS {
        let whole = Arc::<AtomicBool>::default();
        let ended = Arc::<AtomicUsize>::default();
        let (flag, count) = (Arc::clone(&whole), Arc::clone(&ended));
        let local = Fake::start(&pki, speaks, move |request: Request<Incoming>| {
            let (flag, count) = (Arc::clone(&flag), Arc::clone(&count));
            async move {
                let body = request.into_body().collect().await;
                count.fetch_add(1, Ordering::SeqCst);
                flag.fetch_or(body.is_ok(), Ordering::SeqCst);
                Ok(text(201, "created"))
            }
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        let mut expected = 0;
        for http2 in [true, false] {
            let client = user(&pki, "jane", &[], http2);
            let mut wire = Wire::open(&client, plane.address).await;
            let (feed, body) = fed();
            let call = tokio::spawn({
                let request = request(&client, "POST", "/api/v1/pods", body);
                async move { wire.send(request).await.map(|answer| answer.status()) }
            });
            feed.send(Ok("half".into())).await.unwrap();
            sleep(Duration::from_millis(100)).await;
            feed.send(Err(std::io::Error::other("gone"))).await.unwrap();
            assert!(call.await.unwrap().is_err());
            expected += 1;
            eventually("the upload ends", || {
                ended.load(Ordering::SeqCst) == expected
            })
            .await;
            assert!(!whole.load(Ordering::SeqCst), "{speaks:?} {http2}");
        }
    }
}

#[tokio::test]
async fn an_answer_may_come_before_the_request_is_complete() {
    let pki = ClusterPki::new().unwrap();
    for speaks in SPEAKS {
        let local = Fake::start(&pki, speaks, |request: Request<Incoming>| async move {
            // Echoes each frame as it comes.
            let (feed, body) = fed();
            let mut sent = request.into_body();
            tokio::spawn(async move {
                while let Some(Ok(frame)) = sent.frame().await {
                    feed.send(Ok(frame.into_data().unwrap())).await.unwrap();
                }
            });
            Ok(Response::new(body))
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            let client = user(&pki, "jane", &[], http2);
            let mut wire = Wire::open(&client, plane.address).await;
            let (feed, body) = fed();
            feed.send(Ok("0".into())).await.unwrap();
            let mut answer = wire
                .send(request(&client, "POST", "/api/v1/pods", body))
                .await
                .unwrap();
            for round in 0..5 {
                let frame = answer.body_mut().frame().await.unwrap().unwrap();
                assert_eq!(frame.into_data().unwrap(), round.to_string());
                feed.send(Ok((round + 1).to_string().into())).await.unwrap();
            }
            drop(feed);
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "5");
        }
    }
}

#[tokio::test]
async fn a_client_that_sends_without_waiting_for_100_continue_is_not_kept_waiting() {
    let pki = ClusterPki::new().unwrap();
    for speaks in SPEAKS {
        let local = Fake::echo(&pki, speaks, 200).await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        let client = user(&pki, "jane", &[], false);
        let sized = "PUT /api/v1/namespaces/d/pods/p HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
        let chunked = sized.replace("Content-Length: 4", "Transfer-Encoding: chunked");
        let old = sized.replace("HTTP/1.1", "HTTP/1.0");
        let other = sized.replace("100-continue", "something");
        for pieces in [
            vec![format!("{sized}body")],
            vec![sized.to_owned(), "body".to_owned()],
            vec![format!("{sized}b"), "ody".to_owned()],
            vec![format!("{chunked}4\r\nbody\r\n0\r\n\r\n")],
            vec![format!("{old}body")],
            vec![format!("{other}body")],
        ] {
            let mut io = client.tls(plane.address).await.unwrap();
            let start = Instant::now();
            for piece in &pieces {
                io.write_all(piece.as_bytes()).await.unwrap();
                io.flush().await.unwrap();
                sleep(Duration::from_millis(100)).await;
            }
            let mut answer = Vec::new();
            while !answer.ends_with(b"body") {
                let read = timeout(Duration::from_secs(5), io.read_buf(&mut answer)).await;
                assert!(read.unwrap().unwrap() > 0, "{pieces:?}");
            }
            let waited = start.elapsed();
            assert!(
                waited < Duration::from_millis(800),
                "{pieces:?}: {waited:?}"
            );
        }
    }
}

#[tokio::test]
async fn the_gate_of_100_continue_opens_at_100_at_an_answer_or_after_a_second() {
    let pki = ClusterPki::new().unwrap();
    for speaks in SPEAKS {
        // A hyper server says 100 when its body is read.
        let local = Fake::start(&pki, speaks, |request: Request<Incoming>| async move {
            match request.uri().path().rsplit('/').next() {
                Some("refuse") => return Ok(text(401, "no")),
                Some("late") => sleep(Duration::from_millis(400)).await,
                // Longer than the gate waits; hyper's HTTP/2 server never says 100 by itself.
                _ => sleep(Duration::from_millis(1500)).await,
            }
            let size = request
                .into_body()
                .collect()
                .await
                .map_err(std::io::Error::other)?
                .to_bytes()
                .len();
            Ok(text(200, size.to_string()))
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        let client = user(&pki, "jane", &[], false);
        for (name, opens) in [("late", true), ("silent", true), ("refuse", false)] {
            let mut io = client.tls(plane.address).await.unwrap();
            let head = format!(
                "PUT /api/v1/namespaces/d/pods/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
            );
            io.write_all(head.as_bytes()).await.unwrap();
            let start = Instant::now();
            let mut buffer = vec![0; 4096];
            let read = timeout(Duration::from_secs(5), io.read(&mut buffer))
                .await
                .unwrap()
                .unwrap();
            let first = String::from_utf8_lossy(&buffer[..read]).into_owned();
            let waited = start.elapsed();
            if !opens {
                assert!(first.starts_with("HTTP/1.1 401"), "{first}");
                continue;
            }
            assert!(first.starts_with("HTTP/1.1 100"), "{name}: {first}");
            // Over HTTP/1.1 the upstream's own 100 opens the gate; the fake's HTTP/2 side sends none.
            let at = if name == "late" && speaks == Speaks::Http1 {
                400
            } else {
                1000
            };
            let late = waited.saturating_sub(Duration::from_millis(at));
            assert!(
                waited >= Duration::from_millis(at - 50) && late < Duration::from_millis(300),
                "{name} {speaks:?}: {waited:?}"
            );
            io.write_all(b"abc").await.unwrap();
            let read = timeout(Duration::from_secs(5), io.read(&mut buffer))
                .await
                .unwrap()
                .unwrap();
            let answer = String::from_utf8_lossy(&buffer[..read]).into_owned();
            assert!(
                answer.starts_with("HTTP/1.1 200") && answer.ends_with('3'),
                "{answer}"
            );
        }
    }
}

#[tokio::test]
async fn an_http2_upstream_s_100_opens_the_gate_and_its_other_interim_answers_are_dropped() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::raw(&pki, Speaks::Both, Arc::default(), |io, _| async move {
        let mut connection = h2::server::handshake(io).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            tokio::spawn(async move {
                let interim = |status: u16| Response::builder().status(status).body(()).unwrap();
                respond.send_informational(interim(103)).unwrap();
                sleep(Duration::from_millis(400)).await;
                respond.send_informational(interim(100)).unwrap();
                answer_size(request, &mut respond).await;
            });
        }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], false);
    let mut io = client.tls(plane.address).await.unwrap();
    let head = "PUT /api/v1/namespaces/d/pods/p HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    io.write_all(head.as_bytes()).await.unwrap();
    let start = Instant::now();
    let mut answer = Vec::new();
    io.read_buf(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 100 "));
    let waited = start.elapsed();
    assert!(
        waited > Duration::from_millis(350) && waited < Duration::from_millis(900),
        "{waited:?}"
    );
    io.write_all(b"abc").await.unwrap();
    answer.clear();
    while !answer.ends_with(b"\r\n3\r\n0\r\n\r\n") {
        let read = timeout(Duration::from_secs(5), io.read_buf(&mut answer)).await;
        assert!(read.unwrap().unwrap() > 0);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
}
