//! What is read of a client's trace context, what a span is in OTLP, and that a collector that is away or hangs costs spans only.

use tokio::{
    io::AsyncReadExt as _,
    net::TcpListener,
    task::{LocalSet, spawn_local},
};

use super::*;

const TRACED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn headers(traceparent: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", traceparent.parse().unwrap());
    headers
}

fn parent(text: &str) -> Option<Parent> {
    Parent::of(&headers(text))
}

#[test]
fn a_parent_is_read_as_the_recommendation_says() {
    let read = Parent {
        trace: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
        span: 0x00f0_67aa_0ba9_02b7,
    };
    for good in [
        TRACED.to_owned(),
        TRACED.replace("7-01", "7-ff"),
        // Versions to come: what is known of them, and whatever follows.
        TRACED.replace("00-4", "01-4"),
        TRACED.replace("00-4", "cc-4") + "-what-the-future-brings",
        TRACED.replace("00-4", "fe-4") + "-",
    ] {
        assert_eq!(parent(&good), Some(read), "{good}");
    }
}

#[test]
fn what_is_malformed_or_not_sampled_is_no_parent() {
    for bad in [
        "",
        "-",
        "00",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-+1",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b70-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ] {
        assert_eq!(parent(bad), None, "{bad}");
    }
    let mut twice = headers(TRACED);
    twice.append("traceparent", TRACED.parse().unwrap());
    assert_eq!(Parent::of(&twice), None);
    assert_eq!(Parent::of(&HeaderMap::new()), None);
}

#[test]
fn the_document_is_as_a_collector_reads_it() {
    let began = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let rerouted = Span {
        began,
        took: Duration::from_millis(2),
        path: "/apis/apps/v1/namespaces/d/deployments/web".into(),
        what: "apps/v1 deployments".into(),
        resource: Some(Gvr::new("apps", "v1", "deployments")),
        server: Some(ServerId::Peer(([10, 0, 0, 2], 6443).into())),
        reason: Some("peer_serves"),
        status: Some(StatusCode::SERVICE_UNAVAILABLE),
        ..Span::new(parent(TRACED).unwrap())
    };
    let left = Span {
        began,
        method: Method::from_bytes(b"BREW").unwrap(),
        path: "/pot".into(),
        ..Span::new(parent(TRACED).unwrap())
    };
    let mut ids = 0xab..;
    let made = document(&[rerouted, left], "cp1", || ids.next().unwrap());
    let version = env!("CARGO_PKG_VERSION");
    let wanted = json!({"resourceSpans": [{
        "resource": {"attributes": [
            {"key": "service.name", "value": {"stringValue": "mvp"}},
            {"key": "service.version", "value": {"stringValue": version}},
            {"key": "host.name", "value": {"stringValue": "cp1"}},
        ]},
        "scopeSpans": [{
            "scope": {"name": "mvp", "version": version},
            "spans": [
                {
                    "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
                    "spanId": "00000000000000ab",
                    "parentSpanId": "00f067aa0ba902b7",
                    "flags": 769,
                    "name": "GET apps/v1 deployments",
                    "kind": 2,
                    "startTimeUnixNano": "1700000000000000000",
                    "endTimeUnixNano": "1700000000002000000",
                    "attributes": [
                        {"key": "http.request.method", "value": {"stringValue": "GET"}},
                        {"key": "url.scheme", "value": {"stringValue": "https"}},
                        {"key": "url.path", "value": {"stringValue": "/apis/apps/v1/namespaces/d/deployments/web"}},
                        {"key": "mvp.server", "value": {"stringValue": "10.0.0.2:6443"}},
                        {"key": "mvp.reason", "value": {"stringValue": "peer_serves"}},
                        {"key": "k8s.group", "value": {"stringValue": "apps"}},
                        {"key": "k8s.version", "value": {"stringValue": "v1"}},
                        {"key": "k8s.resource", "value": {"stringValue": "deployments"}},
                        {"key": "http.response.status_code", "value": {"intValue": "503"}},
                        {"key": "error.type", "value": {"stringValue": "503"}},
                    ],
                    "status": {"code": 2},
                },
                {
                    "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
                    "spanId": "00000000000000ac",
                    "parentSpanId": "00f067aa0ba902b7",
                    "flags": 769,
                    "name": "HTTP",
                    "kind": 2,
                    "startTimeUnixNano": "1700000000000000000",
                    "endTimeUnixNano": "1700000000000000000",
                    "attributes": [
                        {"key": "http.request.method", "value": {"stringValue": "_OTHER"}},
                        {"key": "url.scheme", "value": {"stringValue": "https"}},
                        {"key": "url.path", "value": {"stringValue": "/pot"}},
                        {"key": "mvp.server", "value": {"stringValue": "mvp"}},
                        {"key": "mvp.reason", "value": {"stringValue": "client_left"}},
                    ],
                    "status": {},
                },
            ],
        }],
    }]});
    assert_eq!(made, wanted, "{made:#}");
}

#[test]
fn without_a_collector_or_a_sampled_trace_nothing_begins() {
    let off = Spans::new(None);
    assert!(off.open(&headers(TRACED)).0.is_none());
    let on = Spans::new(Some(([127, 0, 0, 1], 4318).into()));
    assert!(on.open(&HeaderMap::new()).0.is_none());
    assert!(on.open(&headers(&TRACED.replace("-01", "-00"))).0.is_none());
    let mut open = on.open(&headers(TRACED));
    open.tell(|span| span.reason = Some("here"));
    drop(open);
    let waiting = on.queue.unwrap().waiting.lock().unwrap().pop().unwrap();
    assert_eq!(waiting.reason, Some("here"));
}

#[tokio::test]
async fn while_a_collector_hangs_so_many_wait_and_no_more() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let spans = Spans::new(listener.local_addr().ok());
    let headers = headers(TRACED);
    let count = |end| spans.ended.get_or_create(&end).get();
    let sending = async {
        spawn_local(spans.clone().send());
        drop(spans.open(&headers));
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 64]).await.unwrap() > 0);
        // The first is on its way, and stays there.
        for _ in 0..WAITING + 10 {
            drop(spans.open(&headers));
        }
        assert_eq!(count(LEFT_OUT), 10);
        let queue = spans.queue.as_ref().unwrap();
        assert_eq!(queue.waiting.lock().unwrap().len(), WAITING);
        drop(stream);
        while count(LOST) == 0 {
            tokio::task::yield_now().await;
        }
    };
    LocalSet::new().run_until(sending).await;
    assert_eq!((count(LOST), count(SENT)), (1, 0));
}
