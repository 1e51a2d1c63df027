//! How the end of an upstream connection or stream reaches the client: 401, GOAWAY, refused streams, a drain; and whom it must
//! not reach.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bench::pki::ClusterPki;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http2, service::Service};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
    time::{sleep, timeout},
};

use tokio_rustls::server::TlsStream;

use super::kubernetes;
use crate::{
    client::{Bare, Wire, get},
    fake::{AnyBody, BoxError, Fake, Speaks},
    plane::{Plane, anonymous, token, user},
    streaming::eventually,
};

/// Serves an HTTP/2 connection; at `end` its client is sent away, and what runs may finish.
async fn serve_until<S>(end: &Notify, io: TlsStream<TcpStream>, service: S)
where
    S: Service<
            Request<Incoming>,
            Response = Response<AnyBody>,
            Error = BoxError,
            Future: Send + 'static,
        >,
{
    let connection =
        http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            () = end.notified() => connection.as_mut().graceful_shutdown(),
        }
    }
}

#[tokio::test]
async fn a_401_and_an_anonymous_answer_end_an_http2_connection_gracefully() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(&pki, Speaks::Both, |request| async move {
        Ok(kubernetes(&request))
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    for (client, status) in [
        (token(&pki, "expired", true), 401),
        (anonymous(&pki, true), 200),
    ] {
        let mut wire = Wire::open(&client, plane.address).await;
        let answer = wire.send(get(&client, "/api/v1/pods")).await.unwrap();
        assert_eq!(answer.status(), status);
        answer.into_body().collect().await.unwrap();
        eventually("the connection ends", || wire.is_closed()).await;
    }
    // HTTP/1.1 clients are not closed, as with kube-apiserver.
    let client = token(&pki, "expired", false);
    let mut wire = Wire::open(&client, plane.address).await;
    for _ in 0..2 {
        let answer = wire.send(get(&client, "/api/v1/pods")).await.unwrap();
        assert_eq!(answer.status(), 401);
        answer.into_body().collect().await.unwrap();
    }
    // A running watch survives the end of its connection, and gets its events.
    let good = token(&pki, "good", true);
    let mut wire = Wire::open(&good, plane.address).await;
    let mut watch = wire.send(get(&good, "/api/v1/pods?watch=1")).await.unwrap();
    let mut bad = get(&good, "/api/v1/pods");
    bad.headers_mut()
        .insert("authorization", "Bearer expired".parse().unwrap());
    assert_eq!(wire.send(bad).await.unwrap().status(), 401);
    for _ in 0..20 {
        watch.body_mut().frame().await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn expired_tokens_and_anonymous_clients_cut_nobody_off() {
    let pki = ClusterPki::new().unwrap();
    // As kube-apiserver: a 401 or an anonymous answer ends the whole connection.
    let local = Fake::raw(&pki, Speaks::Both, Arc::default(), |io, _| async move {
        let end = Arc::new(Notify::new());
        let ending = Arc::clone(&end);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let nobody = !request.headers().contains_key("authorization")
                && !request.headers().contains_key("x-remote-user");
            let answer = kubernetes(&request);
            if nobody || answer.status() == 401 {
                ending.notify_one();
            }
            async move { Ok::<_, std::io::Error>(answer) }
        });
        serve_until(&end, io, service).await;
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let broken = Arc::<AtomicBool>::default();
    let watching = Arc::<AtomicUsize>::default();
    let mut watchers = tokio::task::JoinSet::new();
    for n in 0..100 {
        let client = if n % 2 == 0 {
            user(&pki, &format!("u{n}"), &[], true)
        } else {
            token(&pki, &format!("t{n}"), true)
        };
        let (broken, watching) = (Arc::clone(&broken), Arc::clone(&watching));
        let to = plane.address;
        watchers.spawn(async move {
            let mut wire = Wire::open(&client, to).await;
            let mut watch = wire
                .send(get(&client, "/api/v1/pods?watch=1"))
                .await
                .unwrap();
            watching.fetch_add(1, Ordering::SeqCst);
            while let Some(frame) = watch.body_mut().frame().await {
                if frame.is_err() {
                    break;
                }
            }
            broken.store(true, Ordering::SeqCst);
        });
    }
    eventually("all watch", || watching.load(Ordering::SeqCst) == 100).await;
    let before = local.connections();
    for _ in 0..2 {
        for n in 0..10 {
            let expired = token(&pki, "expired", n % 2 == 0);
            assert_eq!(
                expired
                    .once(plane.address, "GET", "/api/v1/pods")
                    .await
                    .unwrap()
                    .status,
                401
            );
            let nobody = anonymous(&pki, n % 2 == 0);
            assert_eq!(
                nobody
                    .once(plane.address, "GET", "/api/v1/pods")
                    .await
                    .unwrap()
                    .status,
                200
            );
        }
        sleep(Duration::from_millis(500)).await;
    }
    assert!(!broken.load(Ordering::SeqCst), "a watch was cut off");
    // One connection for each of the 40 passing clients, and no other.
    assert_eq!(local.connections(), before + 40);
}

#[tokio::test]
async fn a_goaway_on_a_pair_reaches_its_client_and_running_streams_finish() {
    let pki = ClusterPki::new().unwrap();
    let stop = Arc::new(Notify::new());
    let stopping = Arc::clone(&stop);
    let local = Fake::raw(&pki, Speaks::Both, Arc::default(), move |io, _| {
        let stopping = Arc::clone(&stopping);
        async move {
            let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
                Ok::<_, std::io::Error>(kubernetes(&request))
            });
            serve_until(&stopping, io, service).await;
        }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = token(&pki, "t", true);
    let mut bare = Bare::open(&client, plane.address).await;
    let mut watch = bare.get(&client, "/api/v1/pods?watch=1").await;
    watch.body_mut().data().await.unwrap().unwrap();
    assert!(!bare.is_sent_away());
    stop.notify_waiters();
    // The client is told to open another connection, with no request needed to find out.
    eventually("the client is told", || bare.is_sent_away()).await;
    for _ in 0..20 {
        watch.body_mut().data().await.unwrap().unwrap();
    }
    // On a shared connection nobody is told: the next request takes another one.
    let client = user(&pki, "jane", &[], true);
    let mut wire = Wire::open(&client, plane.address).await;
    let mut watch = wire
        .send(get(&client, "/api/v1/pods?watch=1"))
        .await
        .unwrap();
    watch.body_mut().frame().await.unwrap().unwrap();
    let before = local.connections();
    stop.notify_waiters();
    for _ in 0..5 {
        assert_eq!(
            wire.send(get(&client, "/api/v1/pods"))
                .await
                .unwrap()
                .status(),
            200
        );
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(local.connections(), before + 1);
    for _ in 0..20 {
        watch.body_mut().frame().await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn refused_streams_and_those_beyond_goaway_are_sent_again_whatever_their_method() {
    let pki = ClusterPki::new().unwrap();
    for goaway in [false, true] {
        let worked = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&worked);
        let local = Fake::raw(&pki, Speaks::Both, Arc::default(), move |io, number| {
            let count = Arc::clone(&count);
            async move {
                let mut connection = h2::server::handshake(io).await.unwrap();
                if number == 0 && goaway {
                    // Takes the request's headers, and says that it will not look at them.
                    let (_request, respond) = connection.accept().await.unwrap().unwrap();
                    std::mem::forget(respond);
                    connection.abrupt_shutdown(h2::Reason::NO_ERROR);
                    std::future::poll_fn(|cx| connection.poll_closed(cx))
                        .await
                        .ok();
                    return;
                }
                let mut first = number == 0;
                while let Some(Ok((_request, mut respond))) = connection.accept().await {
                    if std::mem::take(&mut first) {
                        respond.send_reset(h2::Reason::REFUSED_STREAM);
                        continue;
                    }
                    count.fetch_add(1, Ordering::SeqCst);
                    respond
                        .send_response(Response::builder().status(201).body(()).unwrap(), true)
                        .unwrap();
                }
            }
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        let client = user(&pki, "jane", &[], true);
        let answer = client
            .once_with(plane.address, "POST", "/api/v1/pods", &[], "x")
            .await
            .unwrap();
        // An abrupt GOAWAY names the request's own stream as looked at, so only REFUSED_STREAM proves anything.
        let (status, times) = if goaway { (503, 0) } else { (201, 1) };
        assert_eq!(
            (answer.status.as_u16(), worked.load(Ordering::SeqCst)),
            (status, times)
        );
    }
}

/// Reads what an HTTP/2 client sends until its first request has come.
async fn until_headers(io: &mut (impl tokio::io::AsyncRead + Unpin)) {
    const HEADERS: u8 = 1;
    io.read_exact(&mut [0; 24]).await.unwrap();
    let mut kind = 0;
    while kind != HEADERS {
        let mut head = [0; 9];
        io.read_exact(&mut head).await.unwrap();
        kind = head[3];
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        io.read_exact(&mut payload).await.unwrap();
    }
}

#[tokio::test]
async fn a_write_beyond_the_last_stream_of_a_goaway_is_sent_again_and_runs_once() {
    let pki = ClusterPki::new().unwrap();
    let worked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&worked);
    let local = Fake::raw(&pki, Speaks::Both, Arc::default(), move |mut io, number| {
        let count = Arc::clone(&count);
        async move {
            if number == 0 {
                // SETTINGS; and when the request is there, a GOAWAY whose last stream is 0.
                io.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
                io.flush().await.unwrap();
                until_headers(&mut io).await;
                let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                io.write_all(&goaway).await.unwrap();
                io.shutdown().await.unwrap();
                // Until the client has gone, so that nothing is reset.
                drop(io.read_to_end(&mut Vec::new()).await);
                return;
            }
            let mut connection = h2::server::handshake(io).await.unwrap();
            while let Some(Ok((_request, mut respond))) = connection.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let created = Response::builder().status(201).body(()).unwrap();
                respond.send_response(created, true).unwrap();
            }
        }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let answer = client
        .once_with(plane.address, "POST", "/api/v1/pods", &[], "x")
        .await
        .unwrap();
    assert_eq!(answer.status, 201);
    assert_eq!(worked.load(Ordering::SeqCst), 1);
}

/// One HTTP/2 frame.
fn h2_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, flags][..], &stream[..], payload].concat()
}

#[tokio::test]
async fn frames_that_cross_a_cancellation_never_end_the_watches_of_others() {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    let pki = ClusterPki::new().unwrap();
    let local = Fake::raw(&pki, Speaks::Both, Arc::default(), |mut io, _| async move {
        io.read_exact(&mut [0; 24]).await.unwrap();
        let mut out = h2_frame(SETTINGS, 0, 0, &[]);
        loop {
            io.write_all(&out).await.unwrap();
            io.flush().await.unwrap();
            let mut head = [0; 9];
            if io.read_exact(&mut head).await.is_err() {
                return;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            io.read_exact(&mut payload).await.unwrap();
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            out = match (head[3], head[4]) {
                // `:status: 200`, and the first event.
                (HEADERS, _) => [
                    h2_frame(HEADERS, 4, stream, &[0x88]),
                    h2_frame(DATA, 0, stream, b"event"),
                ]
                .concat(),
                // What was on its way when the stream was cancelled.
                (RST_STREAM, _) if payload == [0, 0, 0, 8] => h2_frame(DATA, 0, stream, b"late"),
                (SETTINGS, 0) => h2_frame(SETTINGS, 1, 0, &[]),
                (PING, 0) => h2_frame(PING, 1, 0, &payload),
                _ => Vec::new(),
            };
        }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut wire = Wire::open(&client, plane.address).await;
    let path = "/api/v1/pods?watch=1";
    let mut watch = wire.send(get(&client, path)).await.unwrap();
    watch.body_mut().frame().await.unwrap().unwrap();
    // More than h2 forgives by default (1,024), beyond those that it remembers.
    for _ in 0..1_500 {
        let mut passing = wire.send(get(&client, path)).await.unwrap();
        passing.body_mut().frame().await.unwrap().unwrap();
    }
    let goes_on = timeout(Duration::from_millis(500), watch.body_mut().frame()).await;
    assert!(goes_on.is_err(), "the watch ended: {goes_on:?}");
    assert_eq!(local.connections(), 1);
}

#[tokio::test]
async fn drain_sends_clients_away_and_lets_their_requests_finish() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(&pki, Speaks::Both, |request| async move {
        Ok(kubernetes(&request))
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut bare = Bare::open(&client, plane.address).await;
    let mut watch = bare.get(&client, "/api/v1/pods?watch=1").await;
    let plain = user(&pki, "jane", &[], false);
    let mut idle = Wire::open(&plain, plane.address).await;
    idle.send(get(&plain, "/api/v1/pods"))
        .await
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap();
    plane.leave.send_modify(|epoch| *epoch += 1);
    eventually("both are sent away", || {
        bare.is_sent_away() && idle.is_closed()
    })
    .await;
    for _ in 0..20 {
        watch.body_mut().data().await.unwrap().unwrap();
    }
}
