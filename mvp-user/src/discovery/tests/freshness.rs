//! `ETags` and conditions of completed documents, and what a change of a peer does to them.

use super::*;

#[tokio::test]
async fn conditional_requests_are_about_the_completed_document() {
    let (discovery, nodes) = cluster(&["1.34", "1.36"]);
    let own = recorded::answer("1.34", "apis__v2").headers[header::ETAG].clone();
    let conditional = |etag: &HeaderValue| {
        let mut request = get("/apis", V2);
        request
            .headers_mut()
            .insert(header::IF_NONE_MATCH, etag.clone());
        request
    };
    // Cold: the server is asked without condition.
    let first = ask(&discovery, &nodes[0], conditional(&own)).await;
    assert!(!first.upstream.contains_key(header::IF_NONE_MATCH));
    assert_eq!(
        first.status,
        StatusCode::OK,
        "the own document's ETag is not the completed one's"
    );
    let completed = first.headers[header::ETAG].clone();
    assert_ne!(completed, own);
    // Warm: the server is asked about its own document.
    let second = ask(&discovery, &nodes[0], conditional(&completed)).await;
    assert_eq!(second.upstream[header::IF_NONE_MATCH], own);
    assert_eq!(
        (second.status, second.body.len()),
        (StatusCode::NOT_MODIFIED, 0)
    );
    assert_eq!(second.headers[header::ETAG], completed);
    assert_eq!(second.header("vary"), "Accept");
    // A client without it gets the whole from the server's 304.
    for etag in [
        &own,
        &HeaderValue::from_static("*"),
        &HeaderValue::from_static("\"0\""),
    ] {
        let third = ask(&discovery, &nodes[0], conditional(etag)).await;
        assert_eq!(third.status, StatusCode::OK);
        assert_eq!(third.body, first.body);
        assert_eq!(third.header("content-type"), V2);
    }
    let proto =
        "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let fourth = ask(&discovery, &nodes[0], get("/apis", proto)).await;
    assert_eq!(
        (fourth.header("content-type"), &fourth.headers[header::ETAG]),
        (proto, &completed)
    );
    // HEAD shows the completed document's headers.
    let mut head = get("/apis", V2);
    *head.method_mut() = Method::HEAD;
    let head = ask(&discovery, &nodes[0], head).await;
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
    assert_eq!(head.headers[header::ETAG], completed);
    assert_eq!(head.header("content-length"), first.body.len().to_string());
    // Built once for all of these.
    assert_eq!(
        (discovery.counters.builds(), discovery.counters.parses()),
        (1, 1)
    );
}

#[tokio::test]
async fn a_change_of_a_peer_changes_the_document_and_its_departure_makes_it_stale() {
    let (discovery, nodes) = cluster(&["1.36", "1.36-all"]);
    let first = ask(&discovery, &nodes[0], get("/apis", V2)).await;
    nodes[1].server.set_membership(Membership::Departed);
    let mut request = get("/apis", V2);
    request
        .headers_mut()
        .insert(header::IF_NONE_MATCH, first.headers[header::ETAG].clone());
    let second = ask(&discovery, &nodes[0], request).await;
    assert_eq!(second.status, StatusCode::OK);
    let stale = |seen: &Seen| -> Vec<String> {
        let (_, list) = GroupList::parse("application/json", &seen.body).unwrap();
        list.items
            .iter()
            .flat_map(|group| group.versions.iter().map(move |version| (group, version)))
            .filter(|(_, version)| version.freshness == "Stale")
            .map(|(group, version)| format!("{}/{}", group.name(), version.version))
            .collect()
    };
    assert_eq!(stale(&first), Vec::<String>::new());
    assert!(
        stale(&second).contains(&"internal.apiserver.k8s.io/v1alpha1".to_owned()),
        "{:?}",
        stale(&second)
    );
    // Dropped: as if it had never been there, and the server's own 304 is enough.
    discovery.table.set_peers(Vec::new());
    let own = recorded::answer("1.36", "apis__v2");
    let third = ask(&discovery, &nodes[0], get("/apis", V2)).await;
    assert_eq!(
        (third.body, &third.headers[header::ETAG]),
        (own.body, &own.headers[header::ETAG])
    );
}

#[tokio::test]
async fn a_peer_that_is_up_is_not_stale_because_it_could_not_be_read_again() {
    let (discovery, nodes) = cluster(&["1.36", "1.36-all"]);
    let before = ask(&discovery, &nodes[0], get("/apis", V2)).await;
    // It had no time for mvp: 429.
    let mut kept = Arc::into_inner(catalogue(documents("1.36-all"), 2)).unwrap();
    kept.freshness = Freshness::Stale;
    discovery.table.publish(nodes[1].server.id, Arc::new(kept));
    let after = ask(&discovery, &nodes[0], get("/apis", V2)).await;
    assert_eq!(after.body, before.body);
}
