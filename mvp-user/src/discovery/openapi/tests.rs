//! OpenAPI through the door: an old local server beside a new peer, with documents as recorded.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use http::{Method, StatusCode};
use http_body_util::BodyExt as _;

mod bad;
mod conditions;
mod failures;

use super::{archive::file, format::Dialect, hash::hash_of, library::MAX_DOCUMENT, *};
use crate::{
    api::wire::decompress,
    discovery::{
        Discovery,
        tests::{asker, catalogue, cluster, documents},
    },
};

const GV: &str = "/openapi/v3/apis/admissionregistration.k8s.io/v1";
const PROTO: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// What kube-apiserver of this version answers, as far as these tests ask.
fn answer(version: &str, path: &str, accept: &str) -> Response<Body> {
    let (name, content_type) = match path {
        "/openapi/v3" => ("v3-index.json".to_owned(), "text/plain; charset=utf-8"),
        "/openapi/v2" if accept.contains("protobuf") => (
            "v2.pb".to_owned(),
            "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
        ),
        "/openapi/v2" => ("v2.json".to_owned(), "application/json"),
        _ => {
            let stem = path.trim_start_matches("/openapi/v3/").replace('/', "_");
            let (ending, content_type) = if accept.contains("protobuf") {
                ("pb", PROTO)
            } else {
                ("json", "application/json")
            };
            (format!("v3__{stem}.{ending}"), content_type)
        }
    };
    let headers = match name.as_str() {
        "v3-index.json" => "v3-index".to_owned(),
        name => name.trim_end_matches(".json").to_owned(),
    };
    let mut response = Response::new(Body::full(file(&format!("{version}/{name}"))));
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static(content_type));
    let headers = file(&format!("{version}/{headers}.headers"));
    let etag = std::str::from_utf8(&headers)
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix("etag: "));
    if let Some(etag) = etag {
        response
            .headers_mut()
            .insert("etag", etag.trim().parse().unwrap());
        response
            .headers_mut()
            .insert("vary", HeaderValue::from_static("Accept"));
    }
    response.headers_mut().insert(
        "cache-control",
        HeaderValue::from_static("no-cache, private"),
    );
    response
}

/// How the peer behaves.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Good,
    Fails,
    Silent,
    Garbage,
    Missing,
}

#[derive(Debug)]
struct Peer {
    version: &'static str,
    mode: Mutex<Mode>,
    fetched: AtomicUsize,
    /// Outcomes that nobody will ever tell.
    held: Mutex<Vec<Held>>,
}

struct Held(#[expect(dead_code, reason = "only kept")] Done);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

impl Fetch for Peer {
    fn fetch(&self, _: Arc<Server>, request: FetchRequest, done: Done) {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        let mode = *self.mode.lock().unwrap();
        let (parts, _) = answer(self.version, &request.path, request.accept).into_parts();
        let fetched = |status, body| Fetched {
            status,
            headers: parts.headers.clone(),
            body,
        };
        match mode {
            Mode::Silent => self.held.lock().unwrap().push(Held(done)),
            Mode::Fails => done(Err("connection refused".to_owned())),
            Mode::Missing => done(Ok(fetched(StatusCode::NOT_FOUND, Bytes::new()))),
            Mode::Garbage => done(Ok(fetched(StatusCode::OK, Bytes::from_static(b"<html>")))),
            Mode::Good
                if request.if_none_match.is_some()
                    && request.if_none_match.as_ref() == parts.headers.get("etag") =>
            {
                done(Ok(fetched(StatusCode::NOT_MODIFIED, Bytes::new())));
            }
            Mode::Good => {
                let body = answer(self.version, &request.path, request.accept).into_body();
                let body = futures_util::FutureExt::now_or_never(body.collect())
                    .unwrap()
                    .unwrap()
                    .to_bytes();
                done(Ok(fetched(StatusCode::OK, body)));
            }
        }
    }
}

struct World {
    discovery: Discovery,
    local: Arc<Server>,
    other: Arc<Server>,
    peer: Arc<Peer>,
}

impl World {
    fn new() -> Self {
        let (discovery, nodes) = cluster(&["1.34", "1.36"]);
        let peer = Arc::new(Peer {
            version: "1.36",
            mode: Mutex::new(Mode::Good),
            fetched: AtomicUsize::new(0),
            held: Mutex::default(),
        });
        let discovery = discovery.with_fetch(Arc::clone(&peer) as Arc<dyn Fetch>);
        Self {
            discovery,
            local: Arc::clone(&nodes[0].server),
            other: Arc::clone(&nodes[1].server),
            peer,
        }
    }

    fn be(&self, mode: Mode) {
        *self.peer.mode.lock().unwrap() = mode;
    }

    fn changed(&self, generation: u64) {
        self.discovery
            .table
            .publish(self.other.id, catalogue(documents("1.36"), generation));
    }

    /// A request through the door; `None` if the door does not concern itself with it.
    async fn get(
        &self,
        uri: &str,
        headers: &[(&str, &str)],
    ) -> Option<(http::response::Parts, Bytes, Request<()>)> {
        self.ask(Method::GET, uri, headers).await
    }

    async fn ask(
        &self,
        method: Method,
        uri: &str,
        headers: &[(&str, &str)],
    ) -> Option<(http::response::Parts, Bytes, Request<()>)> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(()).unwrap();
        let info = RequestInfo::parse(request.method(), request.uri()).unwrap();
        let plan = self
            .discovery
            .prepare(&info, &asker(), &self.local, &mut request)?;
        let accept = request
            .headers()
            .get("accept")
            .map_or("", |value| value.to_str().unwrap());
        let mut answer = answer("1.34", request.uri().path(), accept);
        let etag = answer.headers().get("etag").cloned();
        if etag.is_some() && etag.as_ref() == request.headers().get("if-none-match") {
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            answer.headers_mut().remove("content-type");
            *answer.body_mut() = Body::Empty;
        }
        if request.method() == Method::HEAD {
            answer
                .headers_mut()
                .insert("content-length", HeaderValue::from_static("1"));
            *answer.body_mut() = Body::Empty;
        }
        let (parts, body) = self
            .discovery
            .complete(plan, &self.local, answer)
            .await
            .into_parts();
        Some((parts, body.collect().await.unwrap().to_bytes(), request))
    }

    async fn index(&self) -> Index {
        let (parts, body, _) = self.get("/openapi/v3", &[]).await.unwrap();
        assert_eq!(
            (parts.status, &parts.headers["content-type"]),
            (
                StatusCode::OK,
                &HeaderValue::from_static("text/plain; charset=utf-8")
            )
        );
        serde_json::from_slice(&body).unwrap()
    }
}

fn own_index(version: &str) -> Index {
    serde_json::from_slice(&file(&format!("{version}/v3-index.json"))).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_index_names_what_was_completed_and_its_urls_are_good() {
    let world = World::new();
    let (own, index) = (own_index("1.34"), world.index().await);
    let changed: Vec<&String> = index
        .paths
        .iter()
        .filter(|(name, entry)| own.paths.get(*name) != Some(entry))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(changed, ["apis/admissionregistration.k8s.io/v1"]);
    let url = &index.paths["apis/admissionregistration.k8s.io/v1"].url;
    let (parts, body, upstream) = world.get(url, &[]).await.unwrap();
    assert_eq!(upstream.uri(), GV, "the hash is not the server's business");
    assert_eq!(parts.status, StatusCode::OK);
    assert_eq!(parts.headers["cache-control"], "public, immutable");
    assert!(parts.headers.contains_key("expires"));
    assert!(url.ends_with(parts.headers["etag"].to_str().unwrap().trim_matches('"')));
    assert!(
        std::str::from_utf8(&body)
            .unwrap()
            .contains("\"io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicy\"")
    );
    // Whatever is fetched, the hash of the index stays, and so do the bytes.
    for _ in 0..50 {
        assert_eq!(world.index().await, index);
        assert_eq!(world.get(url, &[]).await.unwrap().1, body);
    }
    // One index and one document of the peer, one merge.
    assert_eq!(world.peer.fetched.load(Ordering::Relaxed), 2);
    assert_eq!(world.discovery.counters.builds(), 1);
}

#[tokio::test(start_paused = true)]
async fn hashes_are_judged_by_mvp() {
    let world = World::new();
    let (plain, body, _) = world.get(GV, &[]).await.unwrap();
    assert_eq!(
        (plain.status, &plain.headers["cache-control"]),
        (
            StatusCode::OK,
            &HeaderValue::from_static("no-cache, private")
        )
    );
    let hash = hash_of(&plain.headers["etag"]);
    let own = own_index("1.34").paths["apis/admissionregistration.k8s.io/v1"]
        .hash()
        .unwrap()
        .to_owned();
    assert_ne!(hash, own);
    // The server's own hash, and any other, lead to the completed document, which leads nowhere else.
    for wrong in [own.as_str(), "0"] {
        let (parts, _, _) = world
            .get(&format!("{GV}?timeout=32s&hash={wrong}"), &[])
            .await
            .unwrap();
        assert_eq!(parts.status, StatusCode::MOVED_PERMANENTLY);
        let to = parts.headers["location"].to_str().unwrap();
        assert_eq!(to, format!("{GV}?hash={hash}"));
        let (parts, again, _) = world.get(to, &[]).await.unwrap();
        assert_eq!((parts.status, &again), (StatusCode::OK, &body));
    }
    // 304 for who has it; the server is asked about its own.
    let (parts, none, upstream) = world
        .get(
            GV,
            &[("if-none-match", plain.headers["etag"].to_str().unwrap())],
        )
        .await
        .unwrap();
    assert_eq!((parts.status, none.len()), (StatusCode::NOT_MODIFIED, 0));
    assert_eq!(upstream.headers()["if-none-match"], format!("\"{own}\""));
    let (parts, whole, _) = world
        .get(GV, &[("if-none-match", &format!("\"{own}\""))])
        .await
        .unwrap();
    assert_eq!((parts.status, whole), (StatusCode::OK, body));
}

#[tokio::test(start_paused = true)]
async fn accept_headers_of_clients_do_not_fill_the_memory() {
    let world = World::new();
    for number in 0..=MAX_KEPT {
        let accept = format!("application/json, x/{number}");
        world.get(GV, &[("accept", &accept)]).await.unwrap();
    }
    let recent = &world.discovery.openapi.recent;
    assert!((1..=MAX_KEPT).contains(&recent.len()), "{}", recent.len());
    let kept = recent.len();
    let long = format!("application/json, x/{}", "x".repeat(MAX_ACCEPT));
    let (parts, ..) = world.get(GV, &[("accept", &long)]).await.unwrap();
    assert_eq!((parts.status, recent.len()), (StatusCode::OK, kept));
}

#[tokio::test(start_paused = true)]
async fn protobuf_and_gzip_are_of_the_same_document() {
    let world = World::new();
    let (json, _, _) = world
        .get(GV, &[("accept", "application/json")])
        .await
        .unwrap();
    let (parts, body, _) = world.get(GV, &[("accept", PROTO)]).await.unwrap();
    assert_eq!(
        (&parts.headers["content-type"], &parts.headers["etag"]),
        (&HeaderValue::from_static(PROTO), &json.headers["etag"])
    );
    let format = Format {
        dialect: Dialect::V3,
        protobuf: true,
    };
    assert!(
        format
            .parse(&body)
            .unwrap()
            .paths
            .contains_key("/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies")
    );
    let (parts, packed, _) = world
        .get(GV, &[("accept", PROTO), ("accept-encoding", "gzip")])
        .await
        .unwrap();
    assert_eq!(parts.headers["content-encoding"], "gzip");
    assert_eq!(
        decompress(Some("gzip"), &packed, MAX_DOCUMENT).unwrap(),
        body
    );
}

// Paused, so that an unoptimised merge is never late.
#[tokio::test(start_paused = true)]
async fn v2_explains_new_kinds_in_both_forms() {
    let world = World::new();
    for (accept, protobuf) in [
        ("application/json", false),
        (
            "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
            true,
        ),
    ] {
        let (parts, body, _) = world
            .get("/openapi/v2?timeout=32s", &[("accept", accept)])
            .await
            .unwrap();
        assert_eq!(parts.status, StatusCode::OK);
        let format = Format {
            dialect: Dialect::V2,
            protobuf,
        };
        let (own, all) = (
            answer("1.34", "/openapi/v2", accept),
            format.parse(&body).unwrap(),
        );
        let own = own.into_body().collect().await.unwrap().to_bytes();
        let own = format.parse(&own).unwrap();
        assert!(all.paths.len() > own.paths.len());
        assert!(
            own.paths
                .iter()
                .all(|(path, item)| all.paths.get(path) == Some(item))
        );
        assert!(all.definitions.contains_key(
            "#/definitions/io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicy"
        ));
        let etag = parts.headers["etag"].to_str().unwrap();
        let (parts, _, _) = world
            .get(
                "/openapi/v2?timeout=32s",
                &[("accept", accept), ("if-none-match", etag)],
            )
            .await
            .unwrap();
        assert_eq!(parts.status, StatusCode::NOT_MODIFIED);
    }
    assert_eq!(world.discovery.counters.builds(), 2);
}

#[tokio::test(start_paused = true)]
async fn documents_that_need_nothing_from_others_are_left_alone() {
    let world = World::new();
    for uri in [
        "/openapi/v3/apis/batch/v1?hash=x",
        "/openapi/v3/api/v1",
        "/openapi/v3/apis/apps",
        "/openapi/v3/version",
        "/openapi/v3/apis/nope/v1",
    ] {
        assert!(world.get(uri, &[]).await.is_none(), "{uri}");
    }
    // Nor is anything if nobody adds anything.
    world
        .discovery
        .table
        .publish(world.other.id, catalogue(documents("1.34"), 2));
    for uri in ["/openapi/v3", "/openapi/v2", GV] {
        assert!(world.get(uri, &[]).await.is_none(), "{uri}");
    }
    assert_eq!(world.peer.fetched.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn without_the_servers_own_answer_there_is_no_document() {
    let world = World::new();
    world.get(GV, &[]).await.unwrap();
    let mut request = Request::get(GV).body(()).unwrap();
    let info = RequestInfo::parse(request.method(), request.uri()).unwrap();
    let plan = world
        .discovery
        .prepare(&info, &asker(), &world.local, &mut request)
        .unwrap();
    let mut forbidden = Response::new(Body::full("no"));
    *forbidden.status_mut() = StatusCode::FORBIDDEN;
    let response = world
        .discovery
        .complete(plan, &world.local, forbidden)
        .await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "no"
    );
}
