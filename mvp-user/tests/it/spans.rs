//! Spans of traced requests, as a collector gets them; and that a collector never costs a request.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bench::{client::Client, pki::ClusterPki, standin::Standin};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    client::{Wire, get},
    fake::{Fake, Speaks},
    node::Node,
    plane::{Plane, anonymous, user},
    streaming::eventually,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// Whatever speaks HTTP/1.1 and takes OTLP; dropping it ends it.
struct Collector {
    address: SocketAddr,
    documents: Arc<Mutex<Vec<Value>>>,
    _task: JoinSet<()>,
}

impl Collector {
    /// Answers each document with `status`; none: never.
    async fn start(status: Option<u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let documents = Arc::<Mutex<Vec<Value>>>::default();
        let seen = Arc::clone(&documents);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let document = read(&mut stream).await;
                seen.lock().unwrap().push(document);
                let Some(status) = status else {
                    std::future::pending().await
                };
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Self {
            address,
            documents,
            _task: task,
        }
    }

    fn documents(&self) -> Vec<Value> {
        self.documents.lock().unwrap().clone()
    }

    /// All spans so far.
    fn spans(&self) -> Vec<Value> {
        let documents = self.documents();
        let spans = documents.iter().flat_map(|document| {
            let spans = &document["resourceSpans"][0]["scopeSpans"][0]["spans"];
            spans.as_array().unwrap().clone()
        });
        spans.collect()
    }

    /// The spans, once there are so many.
    async fn wait(&self, count: usize) -> Vec<Value> {
        let start = Instant::now();
        loop {
            let spans = self.spans();
            if spans.len() >= count {
                assert_eq!(spans.len(), count, "{spans:#?}");
                return spans;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{spans:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The body of one request, whose head is as it must be.
async fn read(stream: &mut TcpStream) -> Value {
    let mut came = Vec::new();
    let end = loop {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&came));
        came.extend_from_slice(&buffer[..count]);
        if let Some(end) = came.windows(4).position(|it| it == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8(came[..end].to_vec()).unwrap();
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
    let value = |name: &str| {
        let line = head.lines().find_map(|line| {
            let (known, value) = line.split_once(": ")?;
            known.eq_ignore_ascii_case(name).then(|| value.to_owned())
        });
        line.unwrap_or_else(|| panic!("no {name} in {head}"))
    };
    assert_eq!(value("content-type"), "application/json");
    assert_eq!(value("host"), stream.local_addr().unwrap().to_string());
    let length: usize = value("content-length").parse().unwrap();
    let mut body = came.split_off(end);
    let read = body.len();
    body.resize(length, 0);
    stream.read_exact(&mut body[read..]).await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// The value of an attribute.
fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a str> {
    let all = span["attributes"].as_array().unwrap();
    let value = &all.iter().find(|it| it["key"] == key)?["value"];
    value["stringValue"]
        .as_str()
        .or_else(|| value["intValue"].as_str())
}

/// The one span whose path is this.
fn of<'a>(spans: &'a [Value], path: &str) -> &'a Value {
    let mut found = spans
        .iter()
        .filter(|it| attribute(it, "url.path") == Some(path));
    match (found.next(), found.next()) {
        (Some(span), None) => span,
        _ => panic!("{path}: {spans:#?}"),
    }
}

async fn status(client: &Client, to: SocketAddr, path: &str, traceparent: &str) -> u16 {
    let headers = [
        ("traceparent", traceparent),
        ("tracestate", "vendor=secret"),
    ];
    let answer = client.once_with(to, "GET", path, &headers, "").await;
    answer.unwrap().status.as_u16()
}

#[tokio::test]
async fn each_sampled_request_is_one_span_below_that_of_its_client() {
    const LOCAL: &str = "/api/v1/namespaces/d/pods/web";
    const PEER: &str = "/apis/batch/v1/namespaces/d/jobs";
    const BAD: &str = "/api/v1/%zz";
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let peer = Fake::named(&pki, Speaks::Both, "peer").await;
    for http2 in [true, false] {
        let collector = Collector::start(Some(200)).await;
        let plane = Plane::with(
            &pki,
            (local.address(), &["v1/pods"]),
            &[(peer.address(), &["batch/v1/jobs"])],
            |config| config.trace_endpoint = Some(collector.address),
        )
        .await;
        let client = user(&pki, "jane-the-user", &[], http2);
        let query = format!("{PEER}?labelSelector=secret");
        for (path, wanted) in [(LOCAL, 200), (query.as_str(), 200), (BAD, 400)] {
            assert_eq!(status(&client, plane.address, path, SAMPLED).await, wanted);
        }
        let spans = collector.wait(3).await;
        let mut ids: Vec<_> = spans.iter().map(|it| it["spanId"].to_string()).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 3, "{spans:#?}");
        for span in &spans {
            assert_eq!(span["traceId"], TRACE);
            assert_eq!(span["parentSpanId"], PARENT);
            assert_eq!(span["spanId"].as_str().unwrap().len(), 16);
            assert_ne!(span["spanId"], PARENT);
            let nanos = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
            assert!(nanos("startTimeUnixNano") > 0);
            assert!(nanos("startTimeUnixNano") <= nanos("endTimeUnixNano"));
            for word in ["secret", "jane-the-user"] {
                assert!(!span.to_string().contains(word), "{word}: {span:#}");
            }
        }
        let span = of(&spans, LOCAL);
        assert_eq!(span["name"], "GET v1 pods");
        let address = peer.address().to_string();
        for (path, key, value) in [
            (LOCAL, "mvp.server", "local"),
            (LOCAL, "http.response.status_code", "200"),
            (LOCAL, "k8s.resource", "pods"),
            (PEER, "mvp.server", address.as_str()),
            (PEER, "k8s.group", "batch"),
            (BAD, "mvp.server", "mvp"),
            (BAD, "http.response.status_code", "400"),
            (BAD, "mvp.reason", "bad_request"),
        ] {
            let span = of(&spans, path);
            assert_eq!(attribute(span, key), Some(value), "{path} {key}: {span:#}");
        }
        // It goes on as it came.
        for server in [&local, &peer] {
            let last = server.seen().pop().unwrap();
            assert_eq!(last.header("traceparent"), [SAMPLED]);
            assert_eq!(last.header("tracestate"), ["vendor=secret"]);
        }
    }
}

#[tokio::test]
async fn what_is_not_sampled_is_not_sent() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let collector = Collector::start(Some(200)).await;
    let plane = Plane::with(&pki, (local.address(), &["v1/pods"]), &[], |config| {
        config.trace_endpoint = Some(collector.address);
    })
    .await;
    let client = anonymous(&pki, true);
    let path = "/api/v1/pods";
    for traceparent in [UNSAMPLED, "", "00-x", &SAMPLED.to_uppercase()] {
        assert_eq!(
            status(&client, plane.address, path, traceparent).await,
            200,
            "{traceparent}"
        );
    }
    client.once(plane.address, "GET", path).await.unwrap();
    // Behind all of them.
    let last = "/api/v1/pods/last";
    assert_eq!(status(&client, plane.address, last, SAMPLED).await, 200);
    let spans = collector.wait(1).await;
    of(&spans, last);
}

#[tokio::test]
async fn a_request_that_its_client_takes_back_is_a_span_as_well() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::start(&pki, Speaks::Both, |_| std::future::pending()).await;
    let collector = Collector::start(Some(200)).await;
    let plane = Plane::with(&pki, (local.address(), &["v1/pods"]), &[], |config| {
        config.trace_endpoint = Some(collector.address);
    })
    .await;
    let client = user(&pki, "jane", &[], true);
    let mut wire = Wire::open(&client, plane.address).await;
    let mut request = get(&client, "/api/v1/pods");
    let headers = request.headers_mut();
    headers.insert("traceparent", SAMPLED.parse().unwrap());
    let short = timeout(Duration::from_millis(500), wire.send(request)).await;
    assert!(short.is_err());
    let spans = collector.wait(1).await;
    assert_eq!(attribute(&spans[0], "mvp.reason"), Some("client_left"));
    assert_eq!(attribute(&spans[0], "http.response.status_code"), None);
}

#[tokio::test]
async fn a_collector_that_hangs_refuses_or_is_away_costs_no_request() {
    let pki = ClusterPki::new().unwrap();
    let local = Fake::named(&pki, Speaks::Both, "local").await;
    let (hangs, refuses) = (
        Collector::start(None).await,
        Collector::start(Some(503)).await,
    );
    // Bound, and nobody listens.
    let away = tokio::net::TcpSocket::new_v4().unwrap();
    away.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    for (address, collector) in [
        (hangs.address, Some(&hangs)),
        (refuses.address, Some(&refuses)),
        (away.local_addr().unwrap(), None),
    ] {
        let plane = Plane::with(&pki, (local.address(), &["v1/pods"]), &[], |config| {
            config.trace_endpoint = Some(address);
        })
        .await;
        let client = user(&pki, "jane", &[], true);
        let start = Instant::now();
        for _ in 0..20 {
            let status = status(&client, plane.address, "/api/v1/pods", SAMPLED).await;
            assert_eq!(status, 200);
        }
        // Less than a collector is waited for: no request was behind it.
        let took = start.elapsed();
        assert!(took < Duration::from_secs(5), "{address}: {took:?}");
        if let Some(collector) = collector {
            eventually("it was met", || !collector.spans().is_empty()).await;
        }
    }
}

#[tokio::test]
async fn a_node_sends_spans_to_the_collector_that_it_is_told() {
    let pki = ClusterPki::new().unwrap();
    let local = Standin::builder(&pki).start().await.unwrap();
    let peer = Standin::builder(&pki).start().await.unwrap();
    let collector = Collector::start(Some(200)).await;
    let flag = format!("--trace-endpoint={}", collector.address);
    let node = Node::with(&pki, local.address(), &[peer.address()], &[&flag]).await;
    let client = user(&pki, "admin", &["system:masters"], true);
    let path = "/api/v1/namespaces";
    assert_eq!(status(&client, node.address, path, SAMPLED).await, 200);
    let spans = collector.wait(1).await;
    assert_eq!(attribute(&spans[0], "mvp.server"), Some("local"));
    let documents = collector.documents();
    let resource = documents[0]["resourceSpans"][0]["resource"]["attributes"].to_string();
    for word in ["service.name", "\"mvp\"", "host.name"] {
        assert!(resource.contains(word), "{resource}");
    }
}
