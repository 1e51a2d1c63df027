//! Requests through the door against recorded servers: what goes upstream, what the client sees, and how often it is built.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use super::*;
use crate::{
    api::{
        discovery::GroupList,
        legacy::{Legacy, LegacyDocument},
        recorded::{self, Recorded},
        wire::Encoding,
    },
    table::{Catalogue, Documents, Freshness, Health, Membership},
};

mod consistency;
mod cost;
mod freshness;

pub(super) const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A kube-apiserver that answers as recorded.
pub(super) struct Node {
    pub(super) server: Arc<Server>,
    answers: Vec<Recorded>,
}

/// What a client saw, and what reached the server.
pub(super) struct Seen {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) upstream: HeaderMap,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

pub(super) fn documents(version: &str) -> Documents {
    let list = |name| {
        GroupList::parse("application/json", &recorded::answer(version, name).body)
            .unwrap()
            .1
    };
    Documents {
        core: list("api__v2-nopeer"),
        groups: list("apis__v2-nopeer"),
    }
}

pub(super) fn catalogue(documents: Documents, generation: u64) -> Arc<Catalogue> {
    let (documents, now) = (Arc::new(documents), Instant::now());
    let catalogue = Catalogue::new(documents, "".into(), Freshness::Fresh, now, generation);
    Arc::new(catalogue)
}

/// Servers of these versions, the first one local, all up and read.
pub(super) fn cluster(versions: &[&str]) -> (Discovery, Vec<Node>) {
    let nodes: Vec<Node> = versions
        .iter()
        .enumerate()
        .map(|(place, version)| {
            let address = SocketAddr::from(([10, 0, 0, 1 + u8::try_from(place).unwrap()], 6443));
            let id = if place == 0 {
                ServerId::Local
            } else {
                ServerId::Peer(address)
            };
            let server = Arc::new(Server::new(id, address));
            server.set_health(Health::Up);
            Node {
                server,
                answers: recorded::recorded(version),
            }
        })
        .collect();
    let table = Arc::new(Table::new(Arc::clone(&nodes[0].server)));
    table.set_peers(
        nodes
            .iter()
            .skip(1)
            .map(|node| Arc::clone(&node.server))
            .collect(),
    );
    for (node, version) in nodes.iter().zip(versions) {
        table.publish(node.server.id, catalogue(documents(version), 1));
    }
    table.set_ready(true);
    (Discovery::new(table, LocalDown::Failover), nodes)
}

pub(super) fn asker() -> Asker {
    Asker {
        kind: AskerKind::Token,
        marker: false,
        decided: false,
        client: [10, 0, 0, 9].into(),
    }
}

impl Node {
    /// The recorded answer to such a request: by method, path and Accept, and by the `ETag`.
    fn answer(&self, request: &Request<()>, admin: bool) -> Response<Body> {
        let accept = |headers: &HeaderMap| {
            headers
                .get(header::ACCEPT)
                .map_or("", |value| value.to_str().unwrap())
                .replace(";profile=nopeer", "")
                .replace(";profile=bogus", "")
                .replace(' ', "")
        };
        let found = self
            .answers
            .iter()
            .find(|known| {
                known.method == request.method().as_str()
                    && known.path == request.uri().to_string()
                    && accept(&known.request) == accept(request.headers())
                    && known.name.contains("anonymous") != admin
                    && !known.request.contains_key(header::IF_NONE_MATCH)
            })
            .unwrap_or_else(|| panic!("not recorded: {request:?}"));
        let mut response = Response::new(Body::full(found.body.clone()));
        *response.status_mut() = StatusCode::from_u16(found.status).unwrap();
        *response.headers_mut() = found.headers.clone();
        let etag = found.headers.get(header::ETAG);
        if etag.is_some() && etag == request.headers().get(header::IF_NONE_MATCH) {
            response.headers_mut().remove(header::CONTENT_TYPE);
            response.headers_mut().remove(header::CONTENT_LENGTH);
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            *response.body_mut() = Body::Empty;
        }
        response
    }
}

/// One request to `node`, through the door.
pub(super) async fn ask_as(
    discovery: &Discovery,
    node: &Node,
    request: Request<()>,
    asker: &Asker,
    admin: bool,
) -> Seen {
    let mut request = request;
    let info = RequestInfo::parse(request.method(), request.uri()).unwrap();
    let plan = discovery.prepare(&info, asker, &node.server, &mut request);
    let answer = node.answer(&request, admin);
    let answer = match plan {
        Some(plan) => discovery.complete(plan, &node.server, answer).await,
        None => answer,
    };
    let (parts, body) = answer.into_parts();
    Seen {
        status: parts.status,
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes(),
        upstream: request.into_parts().0.headers,
    }
}

pub(super) fn get(path: &str, accept: &str) -> Request<()> {
    let mut request = Request::get(path);
    if !accept.is_empty() {
        request = request.header(header::ACCEPT, accept);
    }
    request.body(()).unwrap()
}

pub(super) async fn ask(discovery: &Discovery, node: &Node, request: Request<()>) -> Seen {
    ask_as(discovery, node, request, &asker(), true).await
}

fn request_of(recorded: &Recorded) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = recorded.method.parse().unwrap();
    *request.uri_mut() = recorded.path.parse().unwrap();
    *request.headers_mut() = recorded.request.clone();
    request
}

#[tokio::test]
async fn alone_or_among_equals_every_recorded_answer_goes_through_byte_for_byte() {
    for servers in [1, 2] {
        let mut count = 0;
        for version in ["1.34", "1.36"] {
            let versions = vec![version; servers];
            let (discovery, nodes) = cluster(&versions);
            // Twice, cold and warm.
            for _ in 0..2 {
                for known in recorded::recorded(version) {
                    let admin = !known.name.contains("anonymous");
                    let seen =
                        ask_as(&discovery, &nodes[0], request_of(&known), &asker(), admin).await;
                    assert_eq!(
                        seen.status.as_u16(),
                        known.status,
                        "{version} {}",
                        known.name
                    );
                    // Of repeated documents only the headers were recorded.
                    let same =
                        known.body.is_empty() && known.status == 200 || seen.body == known.body;
                    assert!(same, "{version} {}: {:?}", known.name, seen.body);
                    for name in ["content-type", "etag", "vary", "cache-control"] {
                        assert_eq!(
                            seen.headers.get(name),
                            known.headers.get(name),
                            "{version} {} {name}",
                            known.name
                        );
                    }
                    count += 1;
                }
            }
        }
        assert!(count > 500);
    }
}

#[tokio::test]
async fn an_old_server_answers_as_the_newest_one_would() {
    // 1.36 serves whatever 1.34 serves by default, so the completed answers are exactly those of 1.36.
    let (discovery, nodes) = cluster(&["1.34", "1.36"]);
    let mut count = 0;
    for known in recorded::recorded("1.36") {
        let (path, accept) = (known.path.as_str(), known.request.get(header::ACCEPT));
        let aggregated = known
            .headers
            .get("content-type")
            .is_some_and(|value| value.to_str().unwrap().contains("as="));
        if known.status != 200
            || known.method != "GET"
            || !path.starts_with("/api")
            || known.body.is_empty()
        {
            continue;
        }
        let info = RequestInfo::parse(&Method::GET, &path.parse().unwrap()).unwrap();
        if !matches!(info.class(), Class::Discovery(_))
            || known.request.contains_key(header::IF_NONE_MATCH)
        {
            continue;
        }
        let nopeer = accept.is_some_and(|accept| {
            accept
                .to_str()
                .unwrap()
                .split(',')
                .next()
                .unwrap()
                .contains("nopeer")
        });
        let seen = ask(&discovery, &nodes[0], request_of(&known)).await;
        assert_eq!(seen.status, StatusCode::OK, "{}", known.name);
        let own = recorded::answer("1.34", &known.name);
        if nopeer {
            assert_eq!(seen.body, own.body, "{}", known.name);
            continue;
        }
        if aggregated {
            assert!(seen.body == known.body, "{}", known.name);
            assert_eq!(
                seen.headers[header::ETAG],
                known.headers[header::ETAG],
                "{}",
                known.name
            );
            assert_eq!(seen.header("vary"), "Accept");
            assert_eq!(seen.header("cache-control"), "public");
        } else {
            // Storage hashes are only in legacy lists, so they are unknown of what a peer adds; addresses are the own ones.
            let parse = |bytes: &Bytes| {
                let encoding =
                    Encoding::of(known.headers["content-type"].to_str().unwrap()).unwrap();
                let mut document = LegacyDocument::parse(encoding, bytes).unwrap();
                match &mut document.legacy {
                    Legacy::Resources(list) => {
                        list.resources
                            .iter_mut()
                            .for_each(|resource| resource.storage_version_hash.clear());
                    }
                    Legacy::Versions(versions) => versions.server_addresses.clear(),
                    _ => {}
                }
                document
            };
            assert_eq!(parse(&seen.body), parse(&known.body), "{}", known.name);
        }
        assert_eq!(
            seen.headers["content-type"], known.headers["content-type"],
            "{}",
            known.name
        );
        count += 1;
    }
    assert!(count > 70, "{count}");
}

#[tokio::test]
async fn nobody_gets_a_completed_document_without_the_servers_own_answer() {
    let (discovery, nodes) = cluster(&["1.34", "1.36"]);
    let etag = ask(&discovery, &nodes[0], get("/apis", V2)).await.headers[header::ETAG].clone();
    for warm in [false, true] {
        let mut request = get("/apis", V2);
        if warm {
            // Even with the right ETag.
            request
                .headers_mut()
                .insert(header::IF_NONE_MATCH, etag.clone());
        }
        let seen = ask_as(&discovery, &nodes[0], request, &asker(), false).await;
        assert_eq!(seen.status, StatusCode::FORBIDDEN);
        assert!(!String::from_utf8_lossy(&seen.body).contains("mutatingadmission"));
    }
}

#[tokio::test]
async fn front_proxies_other_mvps_and_nopeer_get_the_servers_own_document() {
    let (discovery, nodes) = cluster(&["1.34", "1.36"]);
    let own = recorded::answer("1.34", "apis__v2").body;
    let askers = [
        Asker {
            kind: AskerKind::FrontProxy,
            ..asker()
        },
        Asker {
            marker: true,
            ..asker()
        },
        Asker {
            decided: true,
            ..asker()
        },
    ];
    for asker in &askers {
        let seen = ask_as(&discovery, &nodes[0], get("/apis", V2), asker, true).await;
        assert_eq!(seen.body, own);
        assert_eq!(seen.upstream[header::ACCEPT], V2);
    }
    let seen = ask(
        &discovery,
        &nodes[0],
        get("/apis", &format!("{V2};profile=nopeer")),
    )
    .await;
    assert_eq!(seen.body, own);
    // mvp itself always asks for the own document.
    let seen = ask(&discovery, &nodes[0], get("/apis", V2)).await;
    assert_eq!(
        seen.upstream[header::ACCEPT],
        format!("{V2};profile=nopeer")
    );
    assert_ne!(seen.body, own);
}

#[tokio::test]
async fn a_legacy_group_prefers_a_version_that_can_be_had() {
    let (discovery, nodes) = cluster(&["1.36", "1.36"]);
    let mut old = documents("1.36");
    for group in &mut old.groups.items {
        if group.name() == "autoscaling" {
            group.versions.retain(|version| version.version == "v1");
        }
    }
    discovery.table.publish(ServerId::Local, catalogue(old, 2));
    let group = async || -> serde_json::Value {
        let seen = ask(
            &discovery,
            &nodes[0],
            get("/apis/autoscaling", "application/json"),
        );
        serde_json::from_slice(&seen.await.body).unwrap()
    };
    let up = group().await;
    assert_eq!(up["preferredVersion"]["version"], "v2");
    nodes[1].server.set_membership(Membership::Departed);
    let away = group().await;
    assert_eq!(away["preferredVersion"]["version"], "v1");
    assert_eq!(away["versions"], up["versions"], "it is still listed");
}

#[tokio::test(start_paused = true)]
async fn damaged_apiservices_neither_hide_nor_invent_groups() {
    let (discovery, nodes) = cluster(&["1.36", "1.36"]);
    let body = recorded::answer("1.36", "apis__json").body;
    let damage = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        change(&mut value);
        let mut response = Response::new(Body::full(serde_json::to_vec(&value).unwrap()));
        response
            .headers_mut()
            .insert("content-type", HeaderValue::from_static("application/json"));
        response
    };
    let through = async |answer: Response<Body>| {
        let mut request = get("/apis", "application/json");
        let info = RequestInfo::parse(request.method(), request.uri()).unwrap();
        let plan = discovery
            .prepare(&info, &asker(), &nodes[0].server, &mut request)
            .unwrap();
        let answer = discovery.complete(plan, &nodes[0].server, answer).await;
        answer.into_body().collect().await.unwrap().to_bytes()
    };
    // batch was deleted by a restarting server that lacks it, and not put back.
    let missing = damage(&|value| {
        value["groups"]
            .as_array_mut()
            .unwrap()
            .retain(|group| group["name"] != "batch");
    });
    assert_eq!(through(missing).await, body);
    // One that nobody serves: kept while it may be new, gone after the server was read again.
    let extra = || {
        damage(&|value| {
            value["groups"]
                .as_array_mut()
                .unwrap()
                .push(serde_json::json!({"name":"gone.io",
                "versions":[{"groupVersion":"gone.io/v1","version":"v1"}],
                "preferredVersion":{"groupVersion":"gone.io/v1","version":"v1"}}));
        })
    };
    assert!(String::from_utf8_lossy(&through(extra()).await).contains("gone.io"));
    assert!(String::from_utf8_lossy(&through(extra()).await).contains("gone.io"));
    tokio::time::advance(std::time::Duration::from_millis(2)).await;
    discovery
        .table
        .publish(ServerId::Local, catalogue(documents("1.36"), 1));
    assert_eq!(through(extra()).await, body);
}
