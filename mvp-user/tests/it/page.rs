//! `mvp ui` and the other verbs, as processes, beside an mvp that runs in front of stand-ins of two versions.

use std::time::Duration;

use bench::{
    pki::{ClusterPki, Leaf, Subject},
    standin::{Release, Standin, Store},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    node::{Events, Node, Ui, ask},
    plane,
};

/// Only a 1.36 serves it by default.
const NEW: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/top-secret?token=hunter2";

#[tokio::test]
async fn the_page_shows_what_happens_to_whoever_is_here_and_to_nobody_else() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let server = |release| {
        Standin::builder(&pki)
            .release(release)
            .store(&store)
            .start()
    };
    let old = server(Release::V1_34).await.unwrap();
    let new = server(Release::V1_36).await.unwrap();
    let mut node = Node::start(&pki, old.address(), &[new.address()]).await;
    let mut ui = Ui::start(&node.socket());
    let host = ui.address.to_string();

    // Everything is in the page itself, without a script.
    let page = ui.get("GET", "/", &host).await;
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    for wanted in [
        "v1.34",
        "v1.36",
        "mutatingadmissionpolicies",
        "http-equiv=\"refresh\"",
    ] {
        assert!(page.contains(wanted), "{wanted} is missing from {page}");
    }
    let head = page.split("\r\n\r\n").next().unwrap().to_lowercase();
    for wanted in [
        "content-security-policy: default-src 'none'",
        "x-frame-options: deny",
        "cache-control: no-store",
    ] {
        assert!(head.contains(wanted), "{head}");
    }
    assert!(!head.contains("access-control"), "{head}");
    let only_head = ui.get("HEAD", "/", &host).await;
    assert!(only_head.starts_with("HTTP/1.1 200") && !only_head.contains("<html"));

    // Nobody else is answered, and nothing can be changed.
    let port = ui.address.port();
    for (method, path, host, status) in [
        ("GET", "/", "evil.example".to_owned(), 421),
        ("GET", "/events", format!("evil.example:{port}"), 421),
        ("GET", "/", format!("localhost:{}", port ^ 1), 421),
        ("POST", "/", host.clone(), 405),
        ("POST", "/v1/steer", host.clone(), 405),
        ("GET", "/v1/status", host.clone(), 404),
        ("GET", "/", format!("localhost:{port}"), 200),
        ("GET", "/", format!("[::1]:{port}"), 200),
    ] {
        let answer = ui.get(method, path, &host).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{method} {path} {host}: {answer}"
        );
    }

    // What happens is told at once.
    let mut events = Events::open(&ui).await;
    let begin = events.until("\"id\":\"foot\"").await;
    assert!(
        begin.contains("retry: 2000") && begin.contains("text/event-stream"),
        "{begin}"
    );
    let admin = plane::user(&pki, "admin", &["system:masters"], true);
    assert_eq!(
        admin.once(node.address, "GET", NEW).await.unwrap().status,
        404
    );
    let change = events.until("mutatingadmissionpolicies</span>").await;
    assert!(change.contains("\"id\":\"rerouted\""), "{change}");
    for secret in ["hunter2", "top-secret", "admin\""] {
        assert!(!change.contains(secret), "{secret}: {change}");
    }
    new.kill().await;
    events.until(">down<").await;
    node.kill();
    events.until("No news for").await;
    let page = ui.get("GET", "/", &host).await;
    assert!(
        page.contains("No news for") && page.contains("v1.34"),
        "{page}"
    );

    // It ends cleanly, streams included.
    kill(
        Pid::from_raw(ui.process.id().try_into().unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    let rest = events.rest().await;
    assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
    assert!(ui.process.wait().unwrap().success());
    let nobody = ask(&node.socket(), &["ui"]);
    assert_eq!(nobody.status.code(), Some(1));
    let text = String::from_utf8(nobody.stderr).unwrap();
    assert!(text.contains("no mvp answers"), "{text}");
}

#[tokio::test]
async fn watchers_are_bounded() {
    let pki = ClusterPki::new().unwrap();
    let local = Standin::builder(&pki).start().await.unwrap();
    let peer = Standin::builder(&pki).start().await.unwrap();
    let node = Node::start(&pki, local.address(), &[peer.address()]).await;
    let ui = Ui::start(&node.socket());
    let mut watchers = Vec::new();
    for _ in 0..24 {
        let mut events = Events::open(&ui).await;
        events.until("\"id\":\"foot\"").await;
        watchers.push(events);
    }
    let host = ui.address.to_string();
    let answer = ui.get("GET", "/events", &host).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    // The page itself is still there, and whoever leaves makes room.
    assert!(ui.get("GET", "/", &host).await.starts_with("HTTP/1.1 200 "));
    watchers.pop();
    let mut last = String::new();
    for _ in 0..50 {
        let mut events = Events::open(&ui).await;
        last = events.until("\r\n\r\n").await;
        if last.starts_with("HTTP/1.1 200 ") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("no room was made: {last}");
}

#[tokio::test]
async fn a_client_cannot_flood_the_log() {
    let pki = ClusterPki::new().unwrap();
    let local = Standin::builder(&pki).start().await.unwrap();
    let peer = Standin::builder(&pki).start().await.unwrap();
    let node = Node::start(&pki, local.address(), &[peer.address()]).await;
    let nameless = pki
        .ca
        .issue(&Leaf::client(Subject::new().o("a\n{\"level\":\"ERROR\"}")))
        .unwrap();
    let client = plane::with_certificate(&pki, &nameless, true);
    for _ in 0..300 {
        let answer = client.once(node.address, "GET", "/api").await.unwrap();
        assert_eq!(answer.status, 401);
    }
    let log = node.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let told = lines
        .iter()
        .filter(|it| it["message"] == "Certificate without identity")
        .count();
    assert!((1..60).contains(&told), "{told} lines for 300 requests");
    assert!(lines.iter().all(|it| it["level"] != "ERROR"), "{log}");
}
