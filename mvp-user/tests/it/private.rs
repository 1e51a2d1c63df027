//! Reads of HTTP/1.1 clients over HTTP/1.1 connections that each client connection has for itself: what goes over them, and
//! that their ends cost no client anything.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bench::{client::Client, pki::ClusterPki};
use http::{Request, Response, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use mvp_user::table::Health;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    client::{Wire, get, request},
    fake::{Fake, Seen, Speaks, full, text},
    plane::{Plane, token, user},
    streaming::{eventually, fed},
};

const ONE: &str = "/api/v1/namespaces/d/pods/one";
/// More reads than a connection is opened behind.
const MANY: usize = 300;

fn last(server: &Fake) -> Seen {
    server.seen().pop().unwrap()
}

/// One read; its body.
async fn read(wire: &mut Wire, client: &Client, path: &str) -> bytes::Bytes {
    let answer = wire.send(get(client, path)).await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    assert!(!answer.headers().contains_key("connection"), "{path}");
    answer.into_body().collect().await.unwrap().to_bytes()
}

/// Reads until `server` is asked over HTTP/1.1.
async fn settle(wire: &mut Wire, client: &Client, path: &str, server: &Fake) {
    for _ in 0..MANY {
        read(wire, client, path).await;
        if last(server).version == Version::HTTP_11 {
            return;
        }
        // The connection is opened meanwhile.
        sleep(Duration::from_millis(2)).await;
    }
    panic!("never over HTTP/1.1: {path}");
}

#[tokio::test]
async fn reads_of_one_object_go_over_a_connection_of_their_own_and_all_else_as_ever() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let mut wires = Vec::new();
    let mut connections = BTreeSet::new();
    for (client, certificate) in [
        (user(&pki, "jane", &["dev"], false), true),
        (user(&pki, "jane", &["dev"], false), true),
        (token(&pki, "secret", false), false),
        (token(&pki, "secret", false), false),
    ] {
        let mut wire = Wire::open(&client, plane.address).await;
        settle(&mut wire, &client, ONE, &local).await;
        let own = last(&local).connection;
        assert!(connections.insert(own), "nobody else's");
        for (method, path, over) in [
            ("GET", ONE, Version::HTTP_11),
            ("HEAD", ONE, Version::HTTP_11),
            (
                "GET",
                "/api/v1/namespaces/d/pods/one/status",
                Version::HTTP_11,
            ),
            ("GET", "/api/v1/namespaces/d/pods/one/log", Version::HTTP_2),
            ("GET", "/api/v1/namespaces/d/pods", Version::HTTP_2),
            ("GET", "/api/v1/pods?watch=1", Version::HTTP_2),
            ("GET", "/version", Version::HTTP_2),
            ("POST", "/api/v1/namespaces/d/pods", Version::HTTP_2),
            ("DELETE", ONE, Version::HTTP_2),
            ("GET", ONE, Version::HTTP_11),
        ] {
            let asked = request(&client, method, path, full(""));
            let answer = wire.send(asked).await.unwrap();
            assert_eq!(answer.status(), 200, "{method} {path}");
            answer.into_body().collect().await.unwrap();
            let seen = last(&local);
            assert_eq!(seen.version, over, "{method} {path}");
            assert_eq!(seen.connection == own, over == Version::HTTP_11);
            assert_eq!(seen.certificate, certificate);
            assert_eq!(seen.header("x-forwarded-for"), ["127.0.0.1"]);
            assert_eq!(seen.header("connection"), [""; 0]);
            if certificate {
                assert_eq!(seen.header("x-remote-user"), ["jane"]);
                assert_eq!(seen.header("authorization"), [""; 0]);
            } else {
                assert_eq!(seen.header("x-remote-user"), [""; 0]);
                assert_eq!(seen.header("authorization"), ["Bearer secret"]);
            }
        }
        wires.push(wire);
    }
    // A client of HTTP/2 has none, however much it reads.
    let client = user(&pki, "jane", &["dev"], true);
    let mut wire = Wire::open(&client, plane.address).await;
    for _ in 0..100 {
        read(&mut wire, &client, ONE).await;
        assert_eq!(last(&local).version, Version::HTTP_2);
    }
}

/// Reads a request without a body.
async fn take(io: &mut (impl tokio::io::AsyncRead + Unpin)) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await?);
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_closes_the_connection_as_a_read_goes_out_has_not_failed() {
    let pki = ClusterPki::new().unwrap();
    let lost = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&lost);
    let local = Fake::raw(&pki, Speaks::Both, Arc::default(), move |mut io, _| {
        let count = Arc::clone(&count);
        async move {
            if io.get_ref().1.alpn_protocol() == Some(b"h2") {
                let service = hyper::service::service_fn(|_: Request<Incoming>| async {
                    Ok::<_, std::io::Error>(text(200, "shared"))
                });
                let executor = hyper_util::rt::TokioExecutor::new();
                hyper::server::conn::http2::Builder::new(executor)
                    .serve_connection(hyper_util::rt::TokioIo::new(io), service)
                    .await
                    .ok();
                return;
            }
            // Answers one read, takes another, and is gone.
            if take(&mut io).await.is_ok() {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nown";
                io.write_all(answer).await.unwrap();
                io.flush().await.unwrap();
            }
            if take(&mut io).await.is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    for client in [user(&pki, "jane", &[], false), token(&pki, "t", false)] {
        lost.store(0, Ordering::SeqCst);
        let mut wire = Wire::open(&client, plane.address).await;
        let mut own = 0;
        for _ in 0..MANY {
            let body = read(&mut wire, &client, ONE).await;
            own += usize::from(body == "own");
            sleep(Duration::from_millis(1)).await;
        }
        assert!(own > 1, "{own}");
        assert!(lost.load(Ordering::SeqCst) > 1);
    }
    assert_eq!(plane.local.health(), Health::Up);
}

#[tokio::test]
async fn connection_close_of_the_server_is_not_the_client_s() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(
        &pki,
        Speaks::Both,
        |request: Request<Incoming>| async move {
            let mut answer = text(200, "local");
            if request.version() == Version::HTTP_11 {
                let close = "close".parse().unwrap();
                answer.headers_mut().insert("connection", close);
            }
            Ok(answer)
        },
    )
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], false);
    let mut wire = Wire::open(&client, plane.address).await;
    for _ in 0..MANY {
        read(&mut wire, &client, ONE).await;
        sleep(Duration::from_millis(1)).await;
    }
    assert!(!wire.is_closed());
    let seen = local.seen();
    let own = seen.iter().filter(|it| it.version == Version::HTTP_11);
    let own: Vec<usize> = own.map(|it| it.connection).collect();
    let each: BTreeSet<usize> = own.iter().copied().collect();
    assert!(each.len() > 1, "opened again");
    assert_eq!(each.len(), own.len(), "one read each");
}

#[tokio::test]
async fn bodies_come_as_they_are_sent_and_truncated_ones_never_look_complete() {
    let pki = ClusterPki::new().unwrap();
    let go = Arc::new(Notify::new());
    let going = Arc::clone(&go);
    let local = Fake::start(&pki, Speaks::Both, move |request: Request<Incoming>| {
        let going = Arc::clone(&going);
        async move {
            let Some(query) = request.uri().query().map(str::to_owned) else {
                return Ok(text(200, "local"));
            };
            let (feed, body) = fed();
            tokio::spawn(async move {
                feed.send(Ok("one".into())).await.unwrap();
                going.notified().await;
                let end = if query == "half" {
                    Err(std::io::Error::other("broken"))
                } else {
                    Ok("two".into())
                };
                feed.send(end).await.unwrap();
            });
            Ok(Response::new(body))
        }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], false);
    let mut wire = Wire::open(&client, plane.address).await;
    settle(&mut wire, &client, ONE, &local).await;
    for query in ["whole", "half"] {
        let asked = get(&client, &format!("{ONE}?{query}"));
        let mut answer = wire.send(asked).await.unwrap();
        assert_eq!(last(&local).version, Version::HTTP_11);
        let first = timeout(Duration::from_secs(5), answer.body_mut().frame()).await;
        let first = first.expect("held back").unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), "one");
        go.notify_one();
        let rest = answer.into_body().collect().await;
        if query == "whole" {
            assert_eq!(rest.unwrap().to_bytes(), "two");
        } else {
            assert!(rest.is_err(), "{rest:?}");
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_read_and_the_connection() {
    let pki = ClusterPki::new().unwrap();
    let held = Arc::new(());
    let holding = Arc::clone(&held);
    let local = Fake::start(&pki, Speaks::Both, move |request: Request<Incoming>| {
        let holds = Arc::clone(&holding);
        async move {
            if request.uri().query() == Some("hang") {
                std::future::pending::<()>().await;
            }
            drop(holds);
            Ok(text(200, "local"))
        }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = token(&pki, "t", false);
    let mut wire = Wire::open(&client, plane.address).await;
    settle(&mut wire, &client, ONE, &local).await;
    let hang = get(&client, &format!("{ONE}?hang"));
    let call = timeout(Duration::from_millis(300), wire.send(hang)).await;
    assert!(call.is_err());
    assert_eq!(last(&local).version, Version::HTTP_11);
    assert_eq!(Arc::strong_count(&held), 3);
    drop(wire);
    eventually("the read ends", || Arc::strong_count(&held) == 2).await;
}

#[tokio::test]
async fn a_read_that_waits_for_a_server_found_down_goes_to_another() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(
        &pki,
        Speaks::Both,
        |request: Request<Incoming>| async move {
            if request.uri().query() == Some("hang") {
                std::future::pending::<()>().await;
            }
            Ok(text(200, "local"))
        },
    )
    .await;
    let peer = Fake::named(&pki, Speaks::Both, "peer").await;
    let serves: &[&str] = &["v1/pods"];
    let plane = Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
    let client = user(&pki, "jane", &[], false);
    let mut wire = Wire::open(&client, plane.address).await;
    settle(&mut wire, &client, ONE, &local).await;
    let path = format!("{ONE}?hang");
    let (body, ()) = tokio::join!(
        timeout(Duration::from_secs(30), read(&mut wire, &client, &path)),
        async {
            eventually("it hangs", || last(&local).uri.query() == Some("hang")).await;
            assert_eq!(last(&local).version, Version::HTTP_11);
            plane.local.set_health(Health::Down);
        }
    );
    assert_eq!(body.expect("it hangs for ever"), "peer");
}

#[tokio::test]
async fn only_local_is_asked_over_it() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let peer = Fake::named(&pki, Speaks::Both, "peer").await;
    let peers: &[(SocketAddr, &[&str])] = &[(peer.address(), &["batch/v1/jobs"])];
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), peers).await;
    let client = user(&pki, "jane", &[], false);
    let mut wire = Wire::open(&client, plane.address).await;
    settle(&mut wire, &client, ONE, &local).await;
    let own = last(&local).connection;
    for _ in 0..100 {
        let job = "/apis/batch/v1/namespaces/d/jobs/one";
        assert_eq!(read(&mut wire, &client, job).await, "peer");
        assert_eq!(last(&peer).version, Version::HTTP_2);
        assert_eq!(read(&mut wire, &client, ONE).await, "local");
        assert_eq!(last(&local).connection, own, "it stays");
    }
}
