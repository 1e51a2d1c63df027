//! A table of eight servers for benchmarks and for the allocation test: local and six peers are old, one is new.

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use mvp_user::{
    api::{GroupVersion, Gvr, ServerId, Verb, Verbs},
    config::LocalDown,
    request_info::RequestInfo,
    route::{Asker, AskerKind, Decision, Evidence, decide},
    table::{Catalogue, Freshness, Health, Proof, Served, Server, Table},
};
use tokio::time::Instant;

fn catalogue(groups: usize, new: bool) -> Catalogue {
    let verbs = Verb::ALL.into_iter().fold(Verbs::NONE, Verbs::with);
    let mut catalogue = Catalogue::new(
        Arc::default(),
        "v1.36.0".into(),
        Freshness::Fresh,
        Instant::now(),
        1,
    );
    let mut serve = |group: &str, resource: &str| {
        catalogue
            .group_versions
            .insert(GroupVersion::new(group, "v1"));
        let mut served = Served {
            verbs,
            ..Served::default()
        };
        served.subresources.insert("status".into(), verbs);
        catalogue
            .resources
            .insert(Gvr::new(group, "v1", resource), served);
    };
    for group in 0..groups {
        for resource in 0..5 {
            serve(
                &format!("group{group}.k8s.io"),
                &format!("resources{resource}"),
            );
        }
    }
    serve("", "pods");
    if new {
        serve("new.k8s.io", "things");
        let pods = catalogue.resources.get_mut(&Gvr::new("", "v1", "pods"));
        let subresources = &mut pods.expect("served").subresources;
        subresources.insert("resize".into(), verbs);
    }
    catalogue
}

/// The table of the questions: seven peers, 25 group-versions.
pub(crate) fn table() -> Table {
    table_of(25, 7)
}

/// A table of so many group-versions and peers; what is new is served by the peer in the middle.
pub(crate) fn table_of(groups: usize, peers: u8) -> Table {
    let local = Arc::new(Server::new(
        ServerId::Local,
        SocketAddr::from(([127, 0, 0, 1], 6443)),
    ));
    let middle = usize::from(peers).div_ceil(2);
    let peers: Vec<_> = (1..=peers)
        .map(|number| {
            let address = SocketAddr::from((Ipv4Addr::new(10, 0, 0, number), 6443));
            Arc::new(Server::new(ServerId::Peer(address), address))
        })
        .collect();
    let table = Table::new(Arc::clone(&local));
    for (number, server) in std::iter::once(&local).chain(&peers).enumerate() {
        server.set_health(Health::Up);
        server.set_proof(Proof::Proven);
        table.publish(server.id, Arc::new(catalogue(groups, number == middle)));
    }
    table.set_peers(peers);
    table.set_ready(true);
    table
}

/// A client with a certificate.
pub(crate) fn asker() -> Asker {
    Asker {
        kind: AskerKind::User,
        marker: false,
        decided: false,
        client: IpAddr::from([10, 1, 2, 3]),
    }
}

/// Name and URI of what is asked for.
pub(crate) const QUESTIONS: [(&str, &str); 7] = [
    (
        "local serves",
        "/api/v1/namespaces/default/pods/web-1?pretty=false",
    ),
    (
        "one of seven peers serves",
        "/apis/new.k8s.io/v1/namespaces/default/things/t-1",
    ),
    ("nobody serves", "/apis/new.k8s.io/v1/nopes"),
    (
        "a subresource of one peer",
        "/api/v1/namespaces/default/pods/web-1/resize",
    ),
    ("watch", "/api/v1/pods?resourceVersion=1&watch=true"),
    ("discovery", "/apis"),
    ("health", "/readyz"),
];

/// A URI as a connection yields it: a slice of a shared read buffer. (The first copy of an unshared one allocates the
/// counter that copies share.)
pub(crate) fn uri(text: &str) -> http::Uri {
    let shared = bytes::Bytes::copy_from_slice(text.as_bytes());
    let keep = shared.clone();
    let uri = http::Uri::from_maybe_shared(shared).expect("a URI");
    drop(keep);
    uri
}

/// Where a request of [`asker`]'s should go, as at its first attempt.
pub(crate) fn decision(info: &RequestInfo, table: &Table, asker: &Asker) -> Decision {
    let none = Evidence::default();
    decide(black_box(info), asker, &none, table, LocalDown::Failover)
}
