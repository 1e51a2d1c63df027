//! Discovery with real documents and 0 to 500 groups of CRDs: parsing, merging, serving from memory, OpenAPI v2.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

use std::{hint::black_box, io::Read as _, sync::Arc, time::Duration};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use mvp_user::{
    api::{
        ServerId,
        discovery::{Form, Group, GroupList},
        wire::Encoding,
    },
    body::Body,
    config::LocalDown,
    discovery::{
        Discovery, Done, Fetch, FetchRequest, Fetched,
        merge::{Source, merge},
    },
    request_info::RequestInfo,
    route::{Asker, AskerKind},
    table::{Catalogue, Documents, Freshness, Health, Server, SharedGroups, Table},
};
use tokio::{runtime::Runtime, time::Instant};

#[path = "instructions/recorded.rs"]
mod recorded;

use recorded::{list, recorded};

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Groups of CRDs beside the recorded ones; each of one version with one kind, as most are.
const CRDS: [usize; 4] = [0, 20, 100, 500];

/// The document of a version with so many CRDs, which all servers share.
fn groups(version: &str, crds: usize) -> GroupList {
    let mut list = list(version, "apis__v2-nopeer");
    let apps = list
        .items
        .iter()
        .find(|group| group.name() == "apps")
        .unwrap()
        .clone();
    for number in 0..crds {
        let mut group: Group = apps.clone();
        group.metadata.name = format!("group{number}.example.com");
        group.versions[0].resources.truncate(2);
        list.items.push(group);
    }
    list
}

fn parse(c: &mut Criterion) {
    let mut bench = c.benchmark_group("discovery/parse");
    for crds in CRDS {
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            let bytes = groups("1.36", crds).write(Form::V2, encoding).unwrap();
            bench.throughput(Throughput::Bytes(bytes.len() as u64));
            bench.bench_with_input(
                BenchmarkId::new(format!("{encoding:?}"), crds),
                &bytes,
                |b, bytes| {
                    b.iter(|| GroupList::parse(encoding.media_type(), black_box(bytes)).unwrap());
                },
            );
        }
    }
}

fn merging(c: &mut Criterion) {
    let mut bench = c.benchmark_group("discovery/merge");
    for crds in CRDS {
        let (base, one, two) = (
            groups("1.34", crds),
            groups("1.36-all", crds),
            groups("1.35", crds),
        );
        let shared = SharedGroups::default();
        bench.bench_function(BenchmarkId::new("three_servers", crds), |b| {
            let others = [
                Source {
                    groups: &one,
                    live: true,
                    fresh: true,
                },
                Source {
                    groups: &two,
                    live: true,
                    fresh: true,
                },
            ];
            b.iter(|| merge(black_box(&base), &others, &shared));
        });
    }
}

/// A local 1.34 and two peers.
struct World {
    discovery: Discovery,
    table: Arc<Table>,
    local: Arc<Server>,
    peer: Arc<Server>,
}

fn world(crds: usize) -> World {
    let server = |id, last| {
        let server = Arc::new(Server::new(id, ([10, 0, 0, last], 6443).into()));
        server.set_health(Health::Up);
        server
    };
    let local = server(ServerId::Local, 1);
    let peers: Vec<Arc<Server>> = [2, 3]
        .into_iter()
        .map(|last| server(ServerId::Peer(([10, 0, 0, last], 6443).into()), last))
        .collect();
    let table = Arc::new(Table::new(Arc::clone(&local)));
    table.set_peers(peers.clone());
    for (server, version) in [&local, &peers[0], &peers[1]]
        .into_iter()
        .zip(["1.34", "1.36-all", "1.35"])
    {
        publish(&table, server.id, version, crds, 1);
    }
    table.set_ready(true);
    World {
        discovery: Discovery::new(Arc::clone(&table), LocalDown::Failover),
        table,
        local,
        peer: Arc::clone(&peers[0]),
    }
}

fn publish(table: &Table, id: ServerId, version: &str, crds: usize, generation: u64) {
    let documents = Documents {
        core: list(version, "api__v2-nopeer"),
        groups: groups(version, crds),
    };
    let (documents, now) = (Arc::new(documents), Instant::now());
    let version = version.into();
    let catalogue = Catalogue::new(documents, version, Freshness::Fresh, now, generation);
    table.publish(id, Arc::new(catalogue));
}

impl World {
    /// One request through the door; `own` is what the server answers.
    async fn ask(&self, path: &str, headers: &HeaderMap, own: &Response<Bytes>) -> Response<Body> {
        let mut request = Request::get(path).body(()).unwrap();
        *request.headers_mut() = headers.clone();
        let info = RequestInfo::parse(request.method(), request.uri()).unwrap();
        let asker = Asker {
            kind: AskerKind::Token,
            marker: false,
            decided: false,
            client: [10, 0, 0, 9].into(),
        };
        let plan = self
            .discovery
            .prepare(&info, &asker, &self.local, &mut request)
            .unwrap();
        let same = own.headers().get(header::ETAG);
        let mut answer = if same.is_some() && same == request.headers().get(header::IF_NONE_MATCH) {
            let mut answer = Response::new(Body::Empty);
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            answer
        } else {
            Response::new(Body::full(own.body().clone()))
        };
        *answer.headers_mut() = own.headers().clone();
        self.discovery.complete(plan, &self.local, answer).await
    }
}

fn own(body: Bytes, content_type: &'static str, etag: &'static str) -> Response<Bytes> {
    let mut own = Response::new(body);
    own.headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if !etag.is_empty() {
        own.headers_mut()
            .insert(header::ETAG, HeaderValue::from_static(etag));
    }
    own
}

fn serving(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let mut bench = c.benchmark_group("discovery/serve");
    for crds in CRDS {
        let world = world(crds);
        let answer = own(
            groups("1.34", crds)
                .write(Form::V2, Encoding::Json)
                .unwrap()
                .into(),
            V2,
            "\"own\"",
        );
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(V2));
        let first = runtime.block_on(world.ask("/apis", &headers, &answer));
        bench.bench_function(BenchmarkId::new("aggregated_200", crds), |b| {
            b.iter(|| runtime.block_on(world.ask("/apis", &headers, &answer)));
        });
        headers.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        assert_eq!(
            runtime
                .block_on(world.ask("/apis", &headers, &answer))
                .status(),
            StatusCode::NOT_MODIFIED
        );
        bench.bench_function(BenchmarkId::new("aggregated_304", crds), |b| {
            b.iter(|| runtime.block_on(world.ask("/apis", &headers, &answer)));
        });
        let legacy = own(recorded("1.34", "apis__json"), "application/json", "");
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        bench.bench_function(BenchmarkId::new("legacy_200", crds), |b| {
            b.iter(|| runtime.block_on(world.ask("/apis", &headers, &legacy)));
        });
        assert_eq!(
            world.discovery.counters.builds(),
            3,
            "built while measuring"
        );
        let (mut generation, mut headers) = (1, HeaderMap::new());
        headers.insert(header::ACCEPT, HeaderValue::from_static(V2));
        bench.bench_function(BenchmarkId::new("aggregated_rebuilt", crds), |b| {
            b.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    generation += 1;
                    publish(&world.table, world.peer.id, "1.36-all", crds, generation);
                    let begun = Instant::now();
                    runtime.block_on(world.ask("/apis", &headers, &answer));
                    spent += begun.elapsed();
                }
                spent
            });
        });
    }
}

/// The peers' OpenAPI v2.
#[derive(Debug)]
struct Shelf(Bytes);

impl Fetch for Shelf {
    fn fetch(&self, server: Arc<Server>, _: FetchRequest, done: Done) {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::ETAG,
            HeaderValue::try_from(format!("\"{}\"", server.id)).unwrap(),
        );
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        done(Ok(Fetched {
            status: StatusCode::OK,
            headers,
            body: self.0.clone(),
        }));
    }
}

fn openapi(version: &str, crds: usize) -> Bytes {
    let packed = std::fs::File::open(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../bench/fixtures/openapi.tar.zst"
    ))
    .unwrap();
    let mut plain = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(packed)
        .unwrap()
        .read_to_end(&mut plain)
        .unwrap();
    let mut archive = tar::Archive::new(plain.as_slice());
    let name = format!("{version}/v2.json");
    let mut entry = archive
        .entries()
        .unwrap()
        .map(Result::unwrap)
        .find(|entry| entry.path().unwrap().to_str() == Some(&name))
        .unwrap();
    let mut json = Vec::new();
    entry.read_to_end(&mut json).unwrap();
    let mut document: serde_json::Value = serde_json::from_slice(&json).unwrap();
    // The size of a common CRD's schema, inlined as CRDs' are.
    let pod = document["definitions"]["io.k8s.api.core.v1.PodSpec"].clone();
    for number in 0..crds {
        document["definitions"][format!("com.example.group{number}.v1.Kind")] = pod.clone();
        document["paths"][format!("/apis/group{number}.example.com/v1/kinds")] =
            document["paths"]["/apis/apps/v1/deployments"].clone();
    }
    serde_json::to_vec(&document).unwrap().into()
}

fn completing_openapi(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let mut bench = c.benchmark_group("discovery/openapi_v2_rebuilt");
    bench.sample_size(10);
    for crds in [0, 500] {
        let mut world = world(crds);
        world.discovery = world
            .discovery
            .with_fetch(Arc::new(Shelf(openapi("1.36", crds))));
        let answer = openapi("1.34", crds);
        bench.throughput(Throughput::Bytes(answer.len() as u64));
        let mut round = 0;
        bench.bench_function(BenchmarkId::new("json", crds), |b| {
            b.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    round += 1;
                    // Another ETag each time, so that it is built each time.
                    let mut own = own(answer.clone(), "application/json", "");
                    own.headers_mut().insert(
                        header::ETAG,
                        HeaderValue::try_from(format!("\"{round}\"")).unwrap(),
                    );
                    let begun = Instant::now();
                    let completed =
                        runtime.block_on(world.ask("/openapi/v2", &HeaderMap::new(), &own));
                    let body = runtime
                        .block_on(completed.into_body().collect())
                        .unwrap()
                        .to_bytes();
                    spent += begun.elapsed();
                    assert!(body.len() > answer.len(), "not completed");
                }
                spent
            });
        });
    }
}

criterion_group!(benches, parse, merging, serving, completing_openapi);
criterion_main!(benches);
