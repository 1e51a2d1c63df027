//! mvp as a process: how it ends, and what never stands in its log.

use std::{net::SocketAddr, time::Duration};

use bench::{client::Client, pki::ClusterPki, standin::Standin};
use http::Response;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};

use crate::{
    client::{Wire, get},
    node::Node,
    plane::{anonymous, token, user},
    streaming::eventually,
};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Longer than a stop without clients takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A watch through a node, from which nothing comes; with the connection that it is on.
async fn watch(client: &Client, to: SocketAddr) -> (Wire, Response<Incoming>) {
    let mut wire = Wire::open(client, to).await;
    let path = format!("{PODS}?watch=1");
    let watch = wire.send(get(client, &path)).await.unwrap();
    assert_eq!(watch.status(), 200);
    (wire, watch)
}

/// Waits for the end of a node that was told to stop; `meanwhile` is done again and again.
async fn ended(node: &mut Node, meanwhile: impl Fn(&Node)) -> Duration {
    let start = Instant::now();
    loop {
        if let Some(status) = node.ended() {
            assert!(status.success(), "{status}: {}", node.log());
            return start.elapsed();
        }
        assert!(start.elapsed() < PATIENCE, "it runs: {}", node.log());
        meanwhile(node);
        sleep(Duration::from_millis(100)).await;
    }
}

async fn breaks_off(watch: Response<Incoming>) {
    let end = timeout(PATIENCE, watch.into_body().collect()).await;
    assert!(end.unwrap().is_err(), "a watch that is cut looks complete");
}

#[tokio::test]
async fn a_stop_waits_for_open_requests_until_the_drain_timeout_and_no_longer() {
    let pki = ClusterPki::new().unwrap();
    let local = Standin::builder(&pki).start().await.unwrap();
    let peer = Standin::builder(&pki).start().await.unwrap();
    let short = ["--drain-timeout=5s"];
    let mut node = Node::with(&pki, local.address(), &[peer.address()], &short).await;
    let admin = user(&pki, "admin", &["system:masters"], true);
    let (_wire, watch) = watch(&admin, node.address).await;
    node.signal(Signal::SIGTERM);
    let took = ended(&mut node, |_| {}).await;
    assert!(took > Duration::from_secs(4), "{took:?}");
    assert!(node.log().contains("at the end of --drain-timeout"));
    breaks_off(watch).await;
}

#[tokio::test]
async fn a_second_signal_ends_the_wait() {
    let pki = ClusterPki::new().unwrap();
    let local = Standin::builder(&pki).start().await.unwrap();
    let peer = Standin::builder(&pki).start().await.unwrap();
    // The drain timeout is the default, a quarter of an hour.
    let mut node = Node::start(&pki, local.address(), &[peer.address()]).await;
    let admin = user(&pki, "admin", &["system:masters"], true);
    let (_wire, watch) = watch(&admin, node.address).await;
    node.signal(Signal::SIGTERM);
    eventually("it stops", || node.log().contains("Stopping")).await;
    assert!(node.ended().is_none(), "{}", node.log());
    ended(&mut node, |node| node.signal(Signal::SIGTERM)).await;
    assert!(
        node.log().contains("a second signal came"),
        "{}",
        node.log()
    );
    breaks_off(watch).await;
}

/// Sends an HTTP/1.1 request as it is, and reads what comes first.
async fn say(client: &Client, to: SocketAddr, request: &str) -> String {
    let mut io = client.tls(to).await.unwrap();
    io.write_all(request.as_bytes()).await.unwrap();
    io.flush().await.unwrap();
    let mut answer = vec![0; 4096];
    let read = timeout(PATIENCE, io.read(&mut answer)).await;
    String::from_utf8_lossy(&answer[..read.unwrap().unwrap()]).into_owned()
}

#[tokio::test]
async fn no_token_stands_in_the_log_whatever_its_level() {
    const SECRET: &str = "s3cr3t-of-jane";
    // `s3cr3t-of-jane` as a subprotocol has it.
    const PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.czNjcjN0LW9mLWphbmU";
    let pki = ClusterPki::new().unwrap();
    let local = Standin::builder(&pki).start().await.unwrap();
    let peer = Standin::builder(&pki).start().await.unwrap();
    let node = Node::logging(&pki, local.address(), &[peer.address()], &[], "trace").await;
    let jane = user(&pki, "jane", &[], false);
    for http2 in [true, false] {
        // Nobody's: it is refused as well.
        let nobody = token(&pki, SECRET, http2);
        let answer = nobody.once(node.address, "GET", PODS).await;
        assert_eq!(answer.unwrap().status, 401);
        let path = format!("{PODS}?token={SECRET}");
        let bearer = format!("Bearer {SECRET}");
        let also = [("authorization", bearer.as_str())];
        let both = user(&pki, "jane", &[], http2);
        let answer = both.once_with(node.address, "GET", &path, &also, "").await;
        assert_eq!(answer.unwrap().status, 403);
    }
    for client in [&jane, &anonymous(&pki, false)] {
        let answer = say(
            client,
            node.address,
            &format!(
                "GET {PODS}/p/exec?command=sh HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Protocol: {PROTOCOL}, v5.channel.k8s.io\r\n\r\n"
            ),
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 40"), "{answer}");
        // What cannot be read as a request.
        let request = format!(
            "GET {PODS} HTTP/1.1\r\nHost: a\r\nHost: b\r\nAuthorization: Bearer {SECRET}\r\n\r\n"
        );
        let answer = say(client, node.address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    let log = node.log();
    assert!(log.contains("\"level\":\"TRACE\""), "it logs everything");
    assert!(log.contains(PODS), "paths among it");
    for secret in [SECRET, PROTOCOL] {
        let line = log.lines().find(|line| line.contains(secret));
        assert_eq!(line, None);
    }
}
