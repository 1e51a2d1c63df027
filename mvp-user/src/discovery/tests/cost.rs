//! What is built and parsed how often, and what bad servers can do.

use futures_util::FutureExt as _;

use super::*;

#[tokio::test]
async fn ten_thousand_conditional_requests_build_and_parse_nothing() {
    let (discovery, nodes) = cluster(&["1.34", "1.36-all", "1.35"]);
    let mut etags = Vec::new();
    for path in ["/api", "/apis"] {
        let seen = ask(&discovery, &nodes[0], get(path, V2)).await;
        etags.push((path, seen.headers[header::ETAG].clone()));
    }
    let (builds, parses) = (discovery.counters.builds(), discovery.counters.parses());
    assert_eq!((builds, parses), (2, 2));
    let own = recorded::answer("1.34", "apis__v2").headers;
    let core = recorded::answer("1.34", "api__v2").headers;
    for round in 0..10_000 {
        let (path, etag) = &etags[round % 2];
        let mut request = get(path, V2);
        request
            .headers_mut()
            .insert(header::IF_NONE_MATCH, etag.clone());
        let info = RequestInfo::parse(request.method(), request.uri()).unwrap();
        let plan = discovery
            .prepare(&info, &asker(), &nodes[0].server, &mut request)
            .unwrap();
        let mut answer = Response::new(Body::Empty);
        let headers = if *path == "/api" { &core } else { &own };
        assert_eq!(
            request.headers().get(header::IF_NONE_MATCH),
            headers.get(header::ETAG).filter(
                |_| *path == "/apis" || request.headers().contains_key(header::IF_NONE_MATCH)
            )
        );
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        answer
            .headers_mut()
            .insert(header::ETAG, headers[header::ETAG].clone());
        let answer = discovery.complete(plan, &nodes[0].server, answer).await;
        assert_eq!(answer.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer.headers()[header::ETAG], *etag);
    }
    assert_eq!(
        (discovery.counters.builds(), discovery.counters.parses()),
        (builds, parses)
    );
    assert_eq!(discovery.counters.hits(), 10_000);
}

#[tokio::test]
async fn legacy_documents_are_built_once_for_the_same_answer() {
    let (discovery, nodes) = cluster(&["1.34", "1.36"]);
    for path in [
        "/apis",
        "/apis/batch",
        "/api/v1",
        "/apis/admissionregistration.k8s.io/v1",
    ] {
        let first = ask(&discovery, &nodes[0], get(path, "application/json")).await;
        let (builds, parses) = (discovery.counters.builds(), discovery.counters.parses());
        for _ in 0..100 {
            assert_eq!(
                ask(&discovery, &nodes[0], get(path, "application/json"))
                    .await
                    .body,
                first.body
            );
        }
        assert_eq!(
            (discovery.counters.builds(), discovery.counters.parses()),
            (builds, parses),
            "{path}"
        );
    }
}

#[tokio::test]
async fn many_at_once_build_it_once() {
    let (discovery, nodes) = cluster(&["1.34", "1.36-all"]);
    let (discovery, nodes) = (&discovery, &nodes);
    let all = futures_util::future::join_all(
        (0..50).map(|_| ask(discovery, &nodes[0], get("/apis", V2))),
    )
    .await;
    assert!(all.iter().all(|seen| seen.body == all[0].body));
    assert_eq!(discovery.counters.builds(), 1);
}

#[tokio::test]
async fn what_clients_begin_that_leave_is_built_once_as_well() {
    let (discovery, nodes) = cluster(&["1.34", "1.36"]);
    let table = &discovery.table;
    table.publish(nodes[1].server.id, catalogue(large(), 2));
    let leaves = || ask(&discovery, &nodes[0], get("/apis", V2)).now_or_never();
    assert!(leaves().is_none(), "it is merged on another thread");
    for _ in 0..5 {
        drop(leaves());
    }
    let seen = ask(&discovery, &nodes[0], get("/apis", V2)).await;
    assert!(seen.body.len() > 1 << 20);
    assert_eq!(discovery.counters.builds(), 1);
}

/// What a server with many groups serves.
fn large() -> Documents {
    let mut large = documents("1.36");
    for number in 0..500 {
        let mut group = large.groups.items[1].clone();
        group.metadata.name = format!("g{number}.example.com");
        large.groups.items.push(group);
    }
    large
}

#[test]
fn a_document_weighs_about_what_its_bytes_do() {
    for version in ["1.34", "1.36", "1.36-all"] {
        let documents = documents(version);
        for list in [&documents.core, &documents.groups] {
            let bytes = list.write(Form::V2, Encoding::Json).unwrap().len();
            let weight = aggregated::weight(list);
            assert!(
                (bytes / 2..bytes * 2).contains(&weight),
                "{version}: {weight} for {bytes}"
            );
        }
    }
    let names: Vec<String> = (0..1000).map(|number| format!("r{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let group = merge::tests::group("one.example", &[("v1", names.as_slice())]);
    assert!(aggregated::weight(&GroupList::new(vec![group])) > 64 << 10);
}

/// Sends an answer of the authority's through the door.
async fn through(
    discovery: &Discovery,
    node: &Node,
    path: &str,
    accept: &str,
    answer: Response<Body>,
) -> Seen {
    let mut request = get(path, accept);
    let info = RequestInfo::parse(request.method(), request.uri()).unwrap();
    let plan = discovery
        .prepare(&info, &asker(), &node.server, &mut request)
        .unwrap();
    let (parts, body) = discovery
        .complete(plan, &node.server, answer)
        .await
        .into_parts();
    let body = body
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    Seen {
        status: parts.status,
        headers: parts.headers,
        body,
        upstream: request.into_parts().0.headers,
    }
}

fn answer(content_type: &'static str, body: Vec<u8>) -> Response<Body> {
    let mut answer = Response::new(Body::full(body));
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

#[tokio::test]
async fn no_request_waits_while_a_large_legacy_document_is_built() {
    let (discovery, nodes) = cluster(&["1.34", "1.36"]);
    // What all serve is put together by now.
    let json = "application/json";
    ask(&discovery, &nodes[0], get("/apis/batch/v1", json)).await;
    let resources: Vec<String> = (0..2_000)
        .map(|number| format!(r#"{{"name":"r{number}","kind":"R","verbs":["get"]}}"#))
        .collect();
    let resources = resources.join(",");
    let body = format!(
        r#"{{"kind":"APIResourceList","groupVersion":"big.example/v1","resources":[{resources}]}}"#
    );
    assert!(body.len() > 64 << 10);
    let large = || {
        let answer = answer(json, body.clone().into_bytes());
        through(&discovery, &nodes[0], "/apis/big.example/v1", json, answer)
    };
    assert!(
        large().now_or_never().is_none(),
        "it is built on another thread"
    );
    assert!(large().await.body == body);
}

#[tokio::test]
async fn head_before_a_server_is_read_again_does_not_spoil_what_get_shows() {
    let (discovery, nodes) = cluster(&["1.34", "1.36"]);
    // Local has a group by now that was not there when it was read.
    let mut newer = documents("1.34").groups;
    let new = merge::tests::group("new.example", &[("v1", &["things"])]);
    newer.items.push(new);
    let body = newer.write(Form::V2, Encoding::Json).unwrap();
    let own = |body: Vec<u8>| {
        let mut own = answer(V2, body);
        let etag = HeaderValue::from_static("\"NEW\"");
        own.headers_mut().insert(header::ETAG, etag);
        own
    };
    let mut head = get("/apis", V2);
    *head.method_mut() = Method::HEAD;
    let info = RequestInfo::parse(head.method(), head.uri()).unwrap();
    let plan = discovery
        .prepare(&info, &asker(), &nodes[0].server, &mut head)
        .unwrap();
    let head = discovery
        .complete(plan, &nodes[0].server, own(Vec::new()))
        .await;
    assert_eq!(head.status(), StatusCode::OK);
    let seen = through(&discovery, &nodes[0], "/apis", V2, own(body)).await;
    assert!(String::from_utf8_lossy(&seen.body).contains("new.example"));
}

#[tokio::test]
async fn what_cannot_be_read_is_relayed_as_it_is_and_counted() {
    let (discovery, nodes) = cluster(&["1.34", "1.36"]);
    let mut truncated = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut truncated, &recorded::answer("1.34", "apis__v2").body).unwrap();
    let mut truncated = truncated.finish().unwrap();
    truncated.truncate(500);
    let mut count = 0;
    for (accept, content_type, body) in [
        (V2, V2, b"<html>no</html>".to_vec()),
        (V2, V2, Vec::new()),
        (
            V2,
            V2,
            br#"{"kind":"APIGroupList","apiVersion":"v1"}"#.to_vec(),
        ),
        (V2, V2, vec![b' '; 20 << 20]),
        (
            "application/json",
            "application/json",
            b"{\"kind\":\"Pod\"}".to_vec(),
        ),
        (
            "application/json",
            "application/vnd.kubernetes.protobuf",
            b"k8s\0garbage".to_vec(),
        ),
        ("application/yaml", "application/yaml", vec![0xff; 100]),
    ] {
        let seen = through(
            &discovery,
            &nodes[0],
            "/apis",
            accept,
            answer(content_type, body.clone()),
        )
        .await;
        count += 1;
        assert_eq!(seen.status, StatusCode::OK);
        assert_eq!(seen.body.len(), body.len());
        assert!(seen.body == body);
        assert_eq!(
            discovery.counters.unreadable_answers(),
            count,
            "{content_type}"
        );
    }
    let mut gzip = answer(V2, truncated.clone());
    gzip.headers_mut()
        .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    assert_eq!(
        through(&discovery, &nodes[0], "/apis", V2, gzip).await.body,
        truncated
    );
    // Another type altogether is none of mvp's business.
    let seen = through(
        &discovery,
        &nodes[0],
        "/apis",
        V2,
        answer("text/html", b"<html>".to_vec()),
    )
    .await;
    assert_eq!(
        (&seen.body[..], seen.header("content-type")),
        (&b"<html>"[..], "text/html")
    );
    // The next good answer is completed.
    assert_ne!(
        ask(&discovery, &nodes[0], get("/apis", V2)).await.body,
        recorded::answer("1.34", "apis__v2").body
    );
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_an_error_and_not_half_a_document() {
    struct Broken(Option<Bytes>);
    impl http_body::Body for Broken {
        type Data = Bytes;
        type Error = std::io::Error;
        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
            std::task::Poll::Ready(Some(match self.0.take() {
                Some(data) => Ok(http_body::Frame::data(data)),
                None => Err(std::io::Error::other("reset")),
            }))
        }
    }
    let (discovery, nodes) = cluster(&["1.34", "1.36"]);
    let mut broken = answer(V2, Vec::new());
    *broken.body_mut() = Body::boxed(Broken(Some(Bytes::from_static(b"{\"kind\":"))));
    let seen = through(&discovery, &nodes[0], "/apis", V2, broken).await;
    assert_eq!(seen.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(seen.headers.contains_key(header::RETRY_AFTER));
}

#[tokio::test]
async fn large_documents_are_compressed_for_those_who_take_it() {
    let (discovery, nodes) = cluster(&["1.34", "1.36"]);
    discovery
        .table
        .publish(nodes[1].server.id, catalogue(large(), 2));
    let plain = ask(&discovery, &nodes[0], get("/apis", V2)).await;
    assert!(plain.body.len() > 1 << 20 && !plain.headers.contains_key(header::CONTENT_ENCODING));
    let mut request = get("/apis", V2);
    request.headers_mut().insert(
        header::ACCEPT_ENCODING,
        HeaderValue::from_static("gzip, br"),
    );
    let packed = ask(&discovery, &nodes[0], request).await;
    assert_eq!(packed.upstream[header::ACCEPT_ENCODING], "gzip");
    assert_eq!(
        (
            packed.header("content-encoding"),
            &packed.headers[header::ETAG]
        ),
        ("gzip", &plain.headers[header::ETAG])
    );
    assert_eq!(
        packed
            .headers
            .get_all(header::VARY)
            .iter()
            .collect::<Vec<_>>(),
        ["Accept", "Accept-Encoding"]
    );
    assert!(packed.body.len() < plain.body.len() / 10);
    assert_eq!(
        crate::api::wire::decompress(Some("gzip"), &packed.body, 64 << 20).unwrap(),
        plain.body
    );
}

#[tokio::test]
async fn where_nothing_is_added_whoever_has_the_servers_document_gets_304_as_from_the_server() {
    let (discovery, nodes) = cluster(&["1.36", "1.36"]);
    let own = recorded::answer("1.36", "apis__v2").headers[header::ETAG].clone();
    // curl may be given indented JSON, so the server is asked without condition.
    for agent in ["kubectl/v1.36", "curl/8"] {
        let mut request = get("/apis", V2);
        let headers = request.headers_mut();
        headers.insert(header::IF_NONE_MATCH, own.clone());
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        let seen = ask(&discovery, &nodes[0], request).await;
        assert_eq!(
            (seen.status, seen.body.len()),
            (StatusCode::NOT_MODIFIED, 0)
        );
        assert_eq!(
            (&seen.headers[header::ETAG], seen.header("vary")),
            (&own, "Accept")
        );
    }
}
