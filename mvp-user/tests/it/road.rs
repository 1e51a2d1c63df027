//! A server's own words on the way back, and which road a client is kept on.

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
use hyper::body::Incoming;
use mvp_user::table::Health;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy, sink, split},
    time::{sleep, timeout},
};

use crate::{
    client::{Wire, get},
    fake::{Fake, Speaks, full, text},
    plane::{Plane, anonymous, user},
    streaming::{eventually, fed},
};

/// kube-apiserver's, to a list whose resourceVersion its cache has not reached.
const TOO_LARGE: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: Too large resource version: 900, current: 800","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}
"#;

#[tokio::test]
async fn a_cache_that_lags_is_heard_word_for_word_and_a_client_stays_with_its_peer() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let lagging = |request: Request<Incoming>| async move {
        if request.uri().query().is_none() {
            return Ok(text(200, "list"));
        }
        let answer = Response::builder().status(504).header("retry-after", "1");
        let answer = answer.header("content-type", "application/json");
        Ok(answer.body(full(TOO_LARGE)).unwrap())
    };
    let one = Fake::start(&pki, Speaks::Both, lagging).await;
    let other = Fake::start(&pki, Speaks::Both, lagging).await;
    let jobs: &[&str] = &["batch/v1/jobs", "batch/v1/cronjobs"];
    let peers = [(one.address(), jobs), (other.address(), jobs)];
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &peers).await;
    for http2 in [true, false] {
        let client = user(&pki, "jane", &[], http2);
        let mut wire = Wire::open(&client, plane.address).await;
        for _ in 0..50 {
            let path = "/apis/batch/v1/jobs?resourceVersion=900";
            let answer = wire.send(get(&client, path)).await.unwrap();
            assert_eq!(answer.status(), 504);
            assert_eq!(answer.headers()["retry-after"], "1");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, TOO_LARGE);
            let list = wire.send(get(&client, "/apis/batch/v1/jobs")).await;
            assert_eq!(list.unwrap().status(), 200);
        }
    }
    let seen = [one.seen().len(), other.seen().len()];
    assert!(seen == [0, 200] || seen == [200, 0], "{seen:?}");
    assert!(local.seen().is_empty());
}

#[tokio::test]
async fn a_listed_server_that_looks_dead_is_tried_once_before_nobody_is() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let peer = Fake::named(&pki, Speaks::Both, "peer").await;
    let peers = [(peer.address(), &["batch/v1/jobs"][..])];
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &peers).await;
    // As probes under load may have found it.
    plane.table.members().peers[0].set_health(Health::Down);
    let client = user(&pki, "jane", &[], true);
    let answer = client.once(plane.address, "GET", "/apis/batch/v1/jobs");
    let answer = answer.await.unwrap();
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (200, "peer".into())
    );
}

#[tokio::test]
async fn headers_of_two_mebibytes_are_431_and_leave_the_connection_usable() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut wire = Wire::open(&client, plane.address).await;
    // `X` has eight bits in HPACK, so nothing is compressed.
    for length in [1_100_000, 2 * 1024 * 1024] {
        let mut huge = get(&client, "/api/v1/pods");
        huge.headers_mut()
            .insert("x-huge", "X".repeat(length).parse().unwrap());
        let answer = wire.send(huge).await.unwrap();
        assert_eq!(answer.status(), 431, "{length}");
        let answer = wire.send(get(&client, "/api/v1/pods")).await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    let mut large = get(&client, "/api/v1/pods");
    large
        .headers_mut()
        .insert("x-large", "X".repeat(900_000).parse().unwrap());
    assert_eq!(wire.send(large).await.unwrap().status(), 200);
    assert_eq!(local.seen().len(), 3, "what is too large goes nowhere");
}

#[tokio::test]
async fn more_header_names_than_can_be_forwarded_are_431_and_leave_the_connection_usable() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut wire = Wire::open(&client, plane.address).await;
    for (names, status) in [(4_000, 200), (5_000, 431), (0, 200)] {
        let mut request = get(&client, "/api/v1/pods");
        for number in 0..names {
            let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
            request.headers_mut().insert(name, "1".parse().unwrap());
        }
        let answer = wire.send(request).await.unwrap();
        assert_eq!(answer.status(), status, "{names} names");
    }
    assert_eq!(local.seen().len(), 2, "what is too much goes nowhere");
}

#[tokio::test]
async fn a_flood_of_resets_costs_the_upstream_little_and_others_nothing() {
    let pki = ClusterPki::new().unwrap();
    let reached = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&reached);
    let local = Fake::start(&pki, Speaks::Both, move |request: Request<Incoming>| {
        if request.uri().query().is_some() {
            count.fetch_add(1, Ordering::SeqCst);
        }
        async { Ok(text(200, "ok")) }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut io = client.tls(plane.address).await.unwrap();
    // By hand, as an attacker does: no library waits for anybody.
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // :method GET, :scheme https, :path /api/v1/pods?a, :authority a; without an index.
    let mut block = vec![0x82, 0x87, 0x04, 14];
    block.extend_from_slice(b"/api/v1/pods?a");
    block.extend_from_slice(&[0x01, 1, b'a']);
    let attack = tokio::spawn(async move {
        for number in 0..100_000_u32 {
            let stream = (2 * number + 1).to_be_bytes();
            let length = u8::try_from(block.len()).unwrap();
            bytes.extend_from_slice(&[0, 0, length, 1, 5]);
            bytes.extend_from_slice(&stream);
            bytes.extend_from_slice(&block);
            bytes.extend_from_slice(&[0, 0, 4, 3, 0]);
            bytes.extend_from_slice(&stream);
            bytes.extend_from_slice(&[0, 0, 0, 8]);
            if bytes.len() > 16_000 {
                if io.write_all(&bytes).await.is_err() {
                    return true;
                }
                bytes.clear();
            }
        }
        let mut answer = Vec::new();
        let end = timeout(Duration::from_secs(5), io.read_to_end(&mut answer)).await;
        end.is_ok()
    });
    let mut wire = Wire::open(&client, plane.address).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let start = tokio::time::Instant::now();
        let answer = wire.send(get(&client, "/api/v1/pods")).await.unwrap();
        assert_eq!(answer.status(), 200);
        slowest = slowest.max(start.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(attack.await.unwrap(), "the flood was not cut off");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let reached = reached.load(Ordering::SeqCst);
    assert!(reached < 500, "{reached} requests reached the upstream");
}

#[tokio::test]
async fn who_asks_on_after_goaway_is_cut_off() {
    let pki = ClusterPki::new().unwrap();
    let reached = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&reached);
    let local = Fake::start(&pki, Speaks::Both, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok(text(200, "ok")) }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let io = anonymous(&pki, true).tls(plane.address).await.unwrap();
    let (mut from, mut to) = split(io);
    let closed = Arc::<AtomicBool>::default();
    let flag = Arc::clone(&closed);
    // Neither the PING behind GOAWAY is answered nor anything else.
    tokio::spawn(async move {
        drop(copy(&mut from, &mut sink()).await);
        flag.store(true, Ordering::SeqCst);
    });
    let is_over = || closed.load(Ordering::SeqCst);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let mut block = vec![0x82, 0x87, 0x04, 12];
    block.extend_from_slice(b"/api/v1/pods");
    block.extend_from_slice(&[0x01, 1, b'a']);
    for number in 0..1000_u32 {
        let length = u8::try_from(block.len()).unwrap();
        bytes.extend_from_slice(&[0, 0, length, 1, 5]);
        bytes.extend_from_slice(&(2 * number + 1).to_be_bytes());
        bytes.extend_from_slice(&block);
        if to.write_all(&bytes).await.is_err() {
            break;
        }
        bytes.clear();
        let before = usize::try_from(number).unwrap();
        let served = || reached.load(Ordering::SeqCst) > before;
        eventually("it is served or cut off", || served() || is_over()).await;
    }
    eventually("it is cut off", is_over).await;
    let reached = reached.load(Ordering::SeqCst);
    assert!((100..500).contains(&reached), "{reached}");
}

#[tokio::test]
async fn a_few_bytes_are_never_a_mebibyte_for_the_upstream() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);
    let mut io = client.tls(plane.address).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let mut block = vec![0x82, 0x87, 0x04, 12];
    block.extend_from_slice(b"/api/v1/pods");
    block.extend_from_slice(&[0x01, 1, b'a']);
    // `x-pad` with 3000 bytes, which go into the decoder's table, and 250 references to that.
    block.extend_from_slice(b"\x40\x05x-pad\x7f\xb9\x16");
    block.resize(block.len() + 3000, b'a');
    block.resize(block.len() + 250, 0xbe);
    bytes.push(0);
    bytes.extend_from_slice(&u16::try_from(block.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(&[1, 5, 0, 0, 0, 1]);
    bytes.extend_from_slice(&block);
    io.write_all(&bytes).await.unwrap();
    let answered = async {
        let mut head = [0; 9];
        loop {
            io.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut frame = vec![0; usize::try_from(length).unwrap()];
            io.read_exact(&mut frame).await.unwrap();
            // HEADERS
            if head[3] == 1 {
                break;
            }
        }
    };
    timeout(Duration::from_secs(10), answered).await.unwrap();
    assert!(local.seen().is_empty(), "it was forwarded");
}

#[tokio::test]
#[ignore = "eleven minutes: cargo xtask test soak"]
async fn a_silent_watch_survives_eleven_minutes() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = Fake::start(&pki, speaks, |_| async {
            let (feed, body) = fed();
            tokio::spawn(async move {
                sleep(Duration::from_mins(11)).await;
                feed.send(Ok("late".into())).await
            });
            Ok(Response::new(body))
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        let watches = [true, false].map(async |http2| {
            let client = user(&pki, "jane", &[], http2);
            let mut wire = Wire::open(&client, plane.address).await;
            let answer = wire.send(get(&client, "/api/v1/pods?watch=1"));
            let mut body = answer.await.unwrap().into_body();
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), "late");
        });
        futures_util::future::join_all(watches).await;
    }
}
