//! HEAD, If-None-Match and what else Go's `http.ServeContent` and kube-openapi do with a request, for completed documents.

use super::*;

#[tokio::test(start_paused = true)]
async fn if_none_match_is_read_as_go_reads_it() {
    let world = World::new();
    let (parts, _, _) = world.get(GV, &[]).await.unwrap();
    let etag = parts.headers["etag"].to_str().unwrap();
    let own = own_index("1.34").paths["apis/admissionregistration.k8s.io/v1"]
        .hash()
        .unwrap()
        .to_owned();
    for (named, unchanged) in [
        (etag.to_owned(), true),
        (format!("W/{etag}"), true),
        ("*".to_owned(), true),
        (format!("\"x\", {etag}"), true),
        (format!("{etag}, \"y\""), true),
        (format!(",, W/\"\" ,{etag}"), true),
        (format!("\"x,y\",{etag}"), true),
        (String::new(), false),
        ("\"x\"".to_owned(), false),
        (format!("\"{own}\""), false),
        (etag.to_lowercase(), false),
        (etag.trim_matches('"').to_owned(), false),
        // What follows the first thing that is no tag is not read.
        (format!("x, {etag}"), false),
        (format!("\"x, {etag}"), false),
        (format!("w/{etag}"), false),
    ] {
        for method in [Method::GET, Method::HEAD] {
            let (parts, body, _) = world
                .ask(method, GV, &[("if-none-match", &named)])
                .await
                .unwrap();
            let expected = if unchanged {
                StatusCode::NOT_MODIFIED
            } else {
                StatusCode::OK
            };
            assert_eq!(parts.status, expected, "{named}");
            assert_eq!(parts.headers["etag"], etag);
            assert!(!unchanged || body.is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_the_servers_own_document_gets_the_completed_one_cold_and_warm() {
    let own = own_index("1.34").paths["apis/admissionregistration.k8s.io/v1"]
        .hash()
        .unwrap()
        .to_owned();
    for named in [format!("\"{own}\""), "*".to_owned()] {
        let world = World::new();
        for _ in 0..2 {
            let (parts, body, _) = world.get(GV, &[("if-none-match", &named)]).await.unwrap();
            if named == "*" {
                assert_eq!(parts.status, StatusCode::NOT_MODIFIED);
            } else {
                assert_eq!(parts.status, StatusCode::OK);
                assert!(!body.is_empty());
            }
            assert_ne!(parts.headers["etag"], format!("\"{own}\""));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn head_says_what_get_would_and_builds_nothing() {
    let world = World::new();
    let (first, body, _) = world.ask(Method::HEAD, GV, &[]).await.unwrap();
    assert_eq!((first.status, body.len()), (StatusCode::OK, 0));
    // Nobody has built it yet: its length is not known, and the server's own would be wrong.
    assert!(!first.headers.contains_key("content-length"));
    assert_eq!(world.discovery.counters.builds(), 0);
    let (get, body, _) = world.get(GV, &[]).await.unwrap();
    let (second, none, _) = world.ask(Method::HEAD, GV, &[]).await.unwrap();
    assert_eq!(none.len(), 0);
    assert_eq!(second.headers["content-length"], body.len().to_string());
    for head in [&first, &second] {
        for name in ["etag", "content-type", "cache-control", "vary"] {
            assert_eq!(head.headers[name], get.headers[name], "{name}");
        }
    }
    let packed = [("accept-encoding", "gzip")];
    let (get, body, _) = world.get(GV, &packed).await.unwrap();
    let (head, _, _) = world.ask(Method::HEAD, GV, &packed).await.unwrap();
    assert_eq!(head.headers["content-encoding"], "gzip");
    assert_eq!(head.headers["content-length"], body.len().to_string());
    assert_eq!(get.headers, head.headers);
    // Hashes are judged as for GET.
    let hash = hash_of(&get.headers["etag"]);
    for (asked, status) in [
        (hash.as_str(), StatusCode::OK),
        ("0", StatusCode::MOVED_PERMANENTLY),
    ] {
        let uri = format!("{GV}?hash={asked}");
        let (get, _, _) = world.get(&uri, &[]).await.unwrap();
        let (head, _, upstream) = world.ask(Method::HEAD, &uri, &[]).await.unwrap();
        assert_eq!((get.status, head.status), (status, status));
        assert_eq!(get.headers.get("location"), head.headers.get("location"));
        assert_eq!(upstream.method(), Method::HEAD);
    }
    // The index has no tag; nothing is said of its length.
    let (head, _, _) = world.ask(Method::HEAD, "/openapi/v3", &[]).await.unwrap();
    assert_eq!(head.status, StatusCode::OK);
    assert!(!head.headers.contains_key("content-length"));
    assert_eq!(world.discovery.counters.openapi_fallbacks(), 0);
}

#[tokio::test(start_paused = true)]
async fn caches_are_told_once_that_the_encoding_matters() {
    let world = World::new();
    let gzip = [("accept-encoding", "gzip")];
    let (parts, _, _) = world.get(GV, &gzip).await.unwrap();
    let vary: Vec<_> = parts.headers.get_all("vary").iter().collect();
    assert_eq!(vary, ["Accept", "Accept-Encoding"]);
    // v2 says it by itself.
    let mut request = Request::get("/openapi/v2").header("accept-encoding", "gzip");
    request = request.header("accept", "application/json");
    let mut request = request.body(()).unwrap();
    let info = RequestInfo::parse(request.method(), request.uri()).unwrap();
    let plan = world
        .discovery
        .prepare(&info, &asker(), &world.local, &mut request)
        .unwrap();
    let mut answer = answer("1.34", "/openapi/v2", "application/json");
    answer
        .headers_mut()
        .insert("vary", HeaderValue::from_static("accept-encoding, Accept"));
    let response = world.discovery.complete(plan, &world.local, answer).await;
    assert_eq!(response.headers()["content-encoding"], "gzip");
    assert_eq!(response.headers().get_all("vary").iter().count(), 1);
}

/// Counts the documents that somebody begins to read.
struct Watched {
    bytes: Option<Bytes>,
    begun: Arc<AtomicUsize>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let bytes = self.bytes.take();
        if bytes.is_some() {
            self.begun.fetch_add(1, Ordering::Relaxed);
        }
        std::task::Poll::Ready(bytes.map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

#[tokio::test(start_paused = true)]
async fn of_many_at_once_one_reads_the_servers_document_and_the_others_hold_none() {
    let world = World::new();
    let begun = Arc::new(AtomicUsize::new(0));
    let requests = (0..50).map(async |_| {
        let mut request = Request::get(GV).body(()).unwrap();
        let info = RequestInfo::parse(request.method(), request.uri()).unwrap();
        let plan = world
            .discovery
            .prepare(&info, &asker(), &world.local, &mut request)
            .unwrap();
        let (parts, body) = answer("1.34", GV, "application/json").into_parts();
        let body = Body::boxed(Watched {
            bytes: Some(body.collect().await.unwrap().to_bytes()),
            begun: Arc::clone(&begun),
        });
        let answer = Response::from_parts(parts, body);
        world.discovery.complete(plan, &world.local, answer).await
    });
    let answers = futures_util::future::join_all(requests).await;
    assert!(
        answers
            .iter()
            .all(|answer| answer.headers()["etag"] == answers[0].headers()["etag"])
    );
    assert_eq!(begun.load(Ordering::Relaxed), 1);
    assert_eq!(world.discovery.counters.builds(), 1);
}
