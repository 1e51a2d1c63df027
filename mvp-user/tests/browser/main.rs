//! The status page as people see it: in headless Chromium, 400 and 1400 pixels wide, light and dark, with and without
//! JavaScript. `cargo xtask test ui` runs it; the pictures are left in `target/tmp/ui`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::tests_outside_test_module,
    clippy::disallowed_methods,
    dead_code,
    reason = "test binary"
)]

mod chromium;
#[path = "../it/node.rs"]
mod node;

use std::{path::PathBuf, time::Duration};

use bench::{
    client::{Client, Who},
    pki::ClusterPki,
    standin::{Release, Standin, Store},
};
use chromium::Chromium;
use node::{Node, Ui};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const NEW: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const WIDTHS: [u32; 2] = [400, 1400];

/// Texts whose contrast with what is behind them is below WCAG 2's 4.5:1 (AA), with the ratio.
const FAINT: &str = r"(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = ([r, g, b]) => {
    const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    for (let it = element; it; it = it.parentElement) {
      const color = rgba(getComputedStyle(it).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const faint = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility() || element.closest('script, style, noscript')) continue;
    const [a, b] = [light(rgba(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.push([texts.currentNode.data, element.className, ratio]);
  }
  return faint;
})()";

/// Elements that reach out of the screen.
const WIDE: &str = "[...document.querySelectorAll('body *')].filter((it) => it.checkVisibility() \
    && it.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map((it) => it.outerHTML.slice(0, 200))";

/// Headings, in order, with no level left out.
const OUTLINE: &str =
    "[...document.querySelectorAll('h1, h2, h3')].map((it) => it.tagName + ' ' + it.innerText)";

fn pictures() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ui");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Shows the page on every screen, looks for what makes it hard to read, and takes pictures.
async fn look(browser: &mut Chromium, ui: &Ui, name: &str) {
    let url = format!("http://{}/", ui.address);
    for width in WIDTHS {
        for dark in [false, true] {
            for script in [true, false] {
                browser.screen(width, dark, script);
                browser.open(&url);
                if script {
                    browser
                        .until("document.getElementById('live').innerText === 'Live.'")
                        .await;
                } else {
                    let reloads = browser.eval("document.getElementById('live').innerText");
                    assert_eq!(reloads, "Reloads every 5 s.");
                }
                let words = [
                    if dark { "dark" } else { "light" },
                    if script { "script" } else { "plain" },
                ];
                let screen = format!("{name}-{width}-{}", words.join("-"));
                assert_eq!(
                    browser.eval(WIDE),
                    json!([]),
                    "{screen}: wider than the screen"
                );
                assert_eq!(
                    browser.eval(FAINT),
                    json!([]),
                    "{screen}: too little contrast"
                );
                browser.picture(&pictures().join(format!("{screen}.png")));
                // Unfolded, it must fit too.
                browser
                    .eval("document.querySelectorAll('details').forEach((it) => it.open = true)");
                assert_eq!(
                    browser.eval(WIDE),
                    json!([]),
                    "{screen}, unfolded: wider than the screen"
                );
                assert_eq!(
                    browser.eval(FAINT),
                    json!([]),
                    "{screen}, unfolded: too little contrast"
                );
            }
        }
    }
    assert_eq!(browser.complaints, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_in_the_middle_of_an_upgrade() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let server = |release| Standin::builder(&pki).release(release).store(&store);
    let old = server(Release::V1_34).start().await.unwrap();
    let new = server(Release::V1_36).all_apis().start().await.unwrap();
    let middle = server(Release::V1_35).start().await.unwrap();
    let node = Node::start(&pki, old.address(), &[new.address(), middle.address()]).await;
    let issued = pki.client("admin", &["system:masters"]).unwrap();
    let who = Who::Certificate(vec![issued.der.clone()], issued.private_key());
    let admin = Client::new(&pki.ca.certificate.der, who, true).unwrap();
    let to = node.address;
    let traffic = tokio::spawn({
        let admin = admin.clone();
        async move {
            for round in 0_u64.. {
                let path = [
                    "/api/v1/pods",
                    "/api/v1/nodes",
                    "/apis/apps/v1/deployments",
                    "/api/v1/nothing",
                ];
                let path = path[usize::try_from(round % 4).unwrap()];
                drop(admin.once(to, "GET", path).await);
                if round % 5 == 0 {
                    drop(admin.once(to, "GET", NEW).await);
                }
                if round % 9 == 0 {
                    drop(admin.once(to, "GET", "/bad%zzescape").await);
                }
                tokio::time::sleep(Duration::from_millis(20 + round % 7 * 30)).await;
            }
        }
    });
    let ui = Ui::start(&node.socket());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let mut browser = Chromium::start();
    look(&mut browser, &ui, "upgrade").await;

    // It stays as the reader has it while everything around changes.
    browser.screen(1400, false, true);
    browser.open(&format!("http://{}/", ui.address));
    browser
        .until("document.getElementById('live').innerText === 'Live.'")
        .await;
    let mark = "{ const it = [...document.querySelectorAll('#skew details')].at(-1); it.open = true; it.querySelector('summary').focus(); \
                window.marked = it; window.shift = 0; new PerformanceObserver((list) => list.getEntries().forEach((it) => \
                { if (!it.hadRecentInput) window.shift += it.value; })).observe({ type: 'layout-shift' }); }";
    browser.eval(mark);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let shift = browser.eval("window.shift").as_f64().unwrap();
    assert!(shift < 0.02, "the layout jumped by {shift}");
    new.kill().await;
    browser.until("[...document.querySelectorAll('#servers .word')].some((it) => it.innerText === 'down')").await;
    let kept = "window.marked.isConnected && window.marked.open && window.marked.contains(document.activeElement)";
    assert_eq!(
        browser.eval(kept),
        json!(true),
        "what was unfolded and focused"
    );
    browser.picture(&pictures().join("upgrade-1400-peer-down.png"));
    let outline = browser.eval(OUTLINE);
    assert!(
        outline[0].as_str().unwrap().starts_with("H1 mvp on"),
        "{outline}"
    );

    // mvp ends: what was known stays, and says how old it is.
    drop(node);
    browser
        .until("document.querySelector('.alarm')?.innerText.includes('No news') === true")
        .await;
    assert_eq!(browser.eval(FAINT), json!([]));
    browser.picture(&pictures().join("upgrade-1400-no-news.png"));
    traffic.abort();
}

/// An mvp that always says the same.
fn puppet(overview: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let listener = tokio::net::UnixListener::bind(folder.path().join("c.sock")).unwrap();
    let body = overview.to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            tokio::spawn(async move {
                drop(stream.read(&mut [0; 4096]).await);
                drop(stream.write_all(answer.as_bytes()).await);
            });
        }
    });
    folder
}

fn server(id: &str, name: &str, health: &str) -> Value {
    json!({
        "id": id, "address": if id == "local" { "10.0.0.1:6443" } else { id }, "name": name, "version": "v1.36.0", "health": health,
        "proof": "proven", "membership": "listed", "catalogue": "fresh", "age": 4, "resources": 411, "latency_us": 3800,
        "trouble": null, "forgotten_in": null,
    })
}

fn overview(servers: &[Value], differences: &[Value]) -> Value {
    json!({
        "status": {
            "version": "0.1.0", "pid": 4711, "node": "cp-1", "uptime": 93_784, "ready": true, "not_ready": [], "skew": differences.len(),
            "servers": servers, "beats_ms": [100], "connections": { "open": 12, "bound": 20000 },
            "steering": { "mode": "auto", "state": "off", "why": "no_skew", "since": 86_400, "percent": 100, "older_connections": 0,
                          "lookups": { "steered": 0, "off": 1_234_567, "exempt": 12_345 } },
        },
        "differences": differences,
        "traffic": { "bounds": [0.001, 0.01, 0.1, 1.0], "routes": [{ "server": "local", "answers": [0, 0, 0, 0, 0], "buckets": [0, 0, 0, 0, 0] }],
                     "rerouted": [], "refused": [] },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_calm_cluster() {
    let servers = [
        server("local", "cp-1", "up"),
        server("10.0.0.2:6443", "cp-2", "up"),
        server("10.0.0.3:6443", "cp-3", "up"),
    ];
    let folder = puppet(&overview(&servers, &[]));
    let ui = Ui::start(&folder.path().join("c.sock"));
    look(&mut Chromium::start(), &ui, "calm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_cluster_with_long_and_hostile_names() {
    let hostile = "<script>document.title='taken'</script><img src=x onerror=alert(1)>\"'&\u{202e}";
    let mut servers = vec![server(
        "local",
        "control-plane-0.rack-17.eu-central-1.example.internal",
        "up",
    )];
    for (at, health) in ["up", "starting", "draining", "down", "up", "up"]
        .into_iter()
        .enumerate()
    {
        let id = format!("[fd00:1234:5678:9abc:def0:1234:5678:{at:04x}]:6443");
        servers.push(server(
            &id,
            &format!(
                "control-plane-{}.rack-17.eu-central-1.example.internal",
                at + 1
            ),
            health,
        ));
    }
    servers[2]["name"] = json!(hostile);
    servers[2]["trouble"] = json!(hostile);
    servers[3]["proof"] = json!("refused");
    servers[4]["membership"] = json!("departed");
    servers[4]["forgotten_in"] = json!(400);
    servers[5]["catalogue"] = json!("stale");
    servers[6]["catalogue"] = Value::Null;
    servers[6]["version"] = Value::Null;
    let ids: Vec<Value> = servers.iter().map(|it| it["id"].clone()).collect();
    let mut differences = Vec::new();
    for at in 0..400 {
        let group = match at / 12 {
            3 => hostile.to_owned(),
            number => format!(
                "group-{number}.{}example.internal",
                "subdomain.".repeat(number % 4)
            ),
        };
        differences.push(json!({
            "group": group, "version": "v1beta1", "resource": format!("somewhatlongresources{at}"),
            "subresource": if at % 4 == 0 { json!("status") } else { Value::Null },
            "verbs": if at % 3 == 0 { json!(["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]) } else { json!(["get", "patch"]) },
            "served_by": ids[1 + at % 2..6], "lacked_by": ids[..=at % 2], "shared": at / 12 == 5,
        }));
    }
    let mut overview = overview(&servers, &differences);
    let status = &mut overview["status"];
    status["ready"] = json!(false);
    status["not_ready"] = json!([
        "identity forwarding: local refuses the front-proxy client certificate",
        hostile
    ]);
    status["steering"] = json!({
        "mode": "auto", "state": "full", "why": "full", "detail": hostile, "since": 61, "percent": 25, "older_connections": 31,
        "lookups": { "steered": 123_456_789, "full": 12 },
    });
    let event = |at: usize| {
        json!({ "method": "GET", "what": format!("group-{at}.example.internal/v1beta1 somewhatlongresources{at}/status"), "server": ids[at % 7],
                "why": "peer_serves", "status": if at == 2 { 503 } else { 200 }, "count": 1 + at * 1000, "ago": at * 7 })
    };
    let mut rerouted: Vec<Value> = (0..30).map(event).collect();
    rerouted[1]["what"] = json!(hostile.repeat(3));
    let refused: Vec<Value> = ["only_unavailable_serve", "unauthorized", "interrupted", "something_new"]
        .iter()
        .enumerate()
        .map(|(at, why)| json!({ "method": "PATCH", "what": "", "server": null, "why": why, "status": 503, "count": at + 1, "ago": at * 100 }))
        .collect();
    let routes: Vec<Value> = ids
        .iter()
        .map(|id| json!({ "server": id, "answers": [1, 123_456, 12, 345, 6], "buckets": [100_000, 20_000, 3000, 400, 40] }))
        .collect();
    overview["traffic"] = json!({ "bounds": [0.001, 0.01, 0.1, 1.0], "routes": routes, "rerouted": rerouted, "refused": refused });
    let folder = puppet(&overview);
    let ui = Ui::start(&folder.path().join("c.sock"));
    let mut browser = Chromium::start();
    look(&mut browser, &ui, "large").await;
    browser.open(&format!("http://{}/", ui.address));
    assert_eq!(browser.eval("document.title"), json!("mvp on cp-1"));
    assert_eq!(
        browser.eval("document.querySelectorAll('img, script').length"),
        json!(1),
        "only its own script"
    );
    assert_eq!(
        browser.eval("document.querySelectorAll('#skew .has').length > 400"),
        json!(true)
    );
}
