//! Reads of scripted servers over a pipe: every way in which an answer can be good, old, legacy, partial or hostile.

use std::{cell::RefCell, collections::HashMap, convert::Infallible, rc::Rc};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{task::LocalSet, time::Instant};

use super::*;
use crate::{
    api::{GvrRef, ServerId, Verb},
    table::{Catalogue, Freshness, Server},
};

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const JSON: &str = "application/json";

/// Status, content type, body, `ETag`.
type Scripted = (u16, &'static str, String, Option<&'static str>);

/// A server whose answers are written down by path.
#[derive(Clone, Default)]
struct Script {
    answers: Rc<RefCell<HashMap<String, Scripted>>>,
    asked: Rc<RefCell<Vec<String>>>,
    /// It answers everything compressed.
    encodes: Rc<RefCell<bool>>,
    /// It answers 406 wherever aggregated discovery is accepted.
    no_aggregated: Rc<RefCell<bool>>,
    /// Answers of `/readyz` beyond the first.
    then_ready: Rc<RefCell<Option<u16>>>,
}

impl Script {
    fn set(&self, path: &str, status: u16, content_type: &'static str, body: impl Into<String>) {
        self.set_tagged(path, status, content_type, body, None);
    }

    fn set_tagged(
        &self,
        path: &str,
        status: u16,
        content_type: &'static str,
        body: impl Into<String>,
        etag: Option<&'static str>,
    ) {
        self.answers
            .borrow_mut()
            .insert(path.to_owned(), (status, content_type, body.into(), etag));
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        let etag = request
            .headers()
            .get(header::IF_NONE_MATCH)
            .map(|etag| etag.to_str().unwrap().to_owned());
        self.asked.borrow_mut().push(match &etag {
            Some(etag) => format!("{path} if not {etag}"),
            None => path.clone(),
        });
        let not_found = (404, "text/plain", "404 page not found".to_owned(), None);
        let mut answers = self.answers.borrow_mut();
        let (status, content_type, body, tag) = answers.get(&path).cloned().unwrap_or(not_found);
        if path == "/readyz"
            && let Some(status) = *self.then_ready.borrow()
        {
            answers.insert(path, (status, "text/plain", String::new(), None));
        }
        let mut builder = Response::builder().header(header::CONTENT_TYPE, content_type);
        if let Some(tag) = tag {
            builder = builder.header(header::ETAG, tag);
            if etag.as_deref() == Some(tag) {
                return builder.status(304).body(Full::default()).unwrap();
            }
        }
        if *self.encodes.borrow() {
            builder = builder.header(header::CONTENT_ENCODING, "gzip");
        }
        let accept = request.headers()[header::ACCEPT].to_str().unwrap();
        if *self.no_aggregated.borrow() && accept.contains("as=") {
            return builder.status(406).body(Full::default()).unwrap();
        }
        builder.status(status).body(Full::from(body)).unwrap()
    }

    async fn link(&self) -> Link {
        let (client, server) = tokio::io::duplex(1 << 16);
        let script = self.clone();
        let service = service_fn(move |request| {
            let answer = script.answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        tokio::task::spawn_local(
            http1::Builder::new().serve_connection(TokioIo::new(server), service),
        );
        Link::over(client, None, Instant::now() + ANSWER_WITHIN)
            .await
            .unwrap()
    }

    async fn read(&self, memory: &mut Memory, table: &Table) -> Result<Reading, ReadError> {
        memory.read(&mut self.link().await, table).await
    }
}

fn aggregated(groups: &[(&str, &str, &[&str])]) -> String {
    let items: Vec<_> = groups
        .iter()
        .map(|(group, version, resources)| {
            let resources: Vec<_> = resources
                .iter()
                .map(|name| {
                    serde_json::json!({
                        "resource": name, "scope": "Namespaced", "singularResource": "", "verbs": ["get", "list"],
                        "responseKind": {"group": "", "version": "", "kind": "K"},
                    })
                })
                .collect();
            serde_json::json!({
                "metadata": {"name": group},
                "versions": [{"version": version, "resources": resources, "freshness": "Current"}],
            })
        })
        .collect();
    serde_json::json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    })
    .to_string()
}

fn legacy_resources(group_version: &str, names: &[&str]) -> String {
    let resources: Vec<_> = names
        .iter()
        .map(|name| serde_json::json!({"name": name, "singularName": "", "namespaced": true, "kind": "K", "verbs": ["get"]}))
        .collect();
    serde_json::json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": resources}).to_string()
}

/// A healthy server with core `pods` and `batch/v1 jobs`.
fn healthy() -> Script {
    let script = Script::default();
    script.set("/readyz", 200, "text/plain", "ok");
    script.set("/version", 200, JSON, r#"{"gitVersion":"v1.36.2"}"#);
    script.set_tagged(
        "/api",
        200,
        V2,
        aggregated(&[("", "v1", &["pods"])]),
        Some("\"core-1\""),
    );
    script.set_tagged(
        "/apis",
        200,
        V2,
        aggregated(&[("batch", "v1", &["jobs"])]),
        Some("\"groups-1\""),
    );
    script
}

fn table() -> Table {
    Table::new(Arc::new(Server::new(
        ServerId::Local,
        "127.0.0.1:6443".parse().unwrap(),
    )))
}

fn gets(reading: &Reading, group: &str, version: &str, resource: &str) -> bool {
    let (resources, _) = reading.documents.index();
    resources
        .get(&GvrRef {
            group,
            version,
            resource,
        })
        .is_some_and(|served| served.verbs.allow(Verb::Get))
}

async fn local<F: Future<Output = ()>>(test: F) {
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_read_asks_readyz_before_and_after_and_only_for_what_changed() {
    local(async {
        let (script, table, mut memory) = (healthy(), table(), Memory::default());
        let first = script.read(&mut memory, &table).await.unwrap();
        assert!(first.gap.is_none());
        assert_eq!(&*first.version, "v1.36.2");
        assert!(gets(&first, "", "v1", "pods") && gets(&first, "batch", "v1", "jobs"));
        assert_eq!(
            *script.asked.borrow(),
            ["/readyz", "/api", "/apis", "/version", "/readyz"]
        );
        script.asked.borrow_mut().clear();
        let second = script.read(&mut memory, &table).await.unwrap();
        assert!(Arc::ptr_eq(&first.documents, &second.documents));
        assert_eq!(
            *script.asked.borrow(),
            [
                "/readyz",
                "/api if not \"core-1\"",
                "/apis if not \"groups-1\"",
                "/version",
                "/readyz"
            ]
        );
        script.set(
            "/apis",
            200,
            V2,
            aggregated(&[("batch", "v1", &["cronjobs"])]),
        );
        let third = script.read(&mut memory, &table).await.unwrap();
        assert!(gets(&third, "", "v1", "pods"), "the other path is kept");
        assert!(gets(&third, "batch", "v1", "cronjobs"));
        assert!(!gets(&third, "batch", "v1", "jobs"));
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_ready_before_or_after_is_not_believed() {
    local(async {
        let (script, table, mut memory) = (healthy(), table(), Memory::default());
        *script.then_ready.borrow_mut() = Some(500);
        let error = script.read(&mut memory, &table).await.unwrap_err();
        assert!(matches!(error, ReadError::NotReady(_)), "{error}");
        script.asked.borrow_mut().clear();
        let error = script.read(&mut memory, &table).await.unwrap_err();
        assert!(matches!(error, ReadError::NotReady(_)), "{error}");
        assert_eq!(*script.asked.borrow(), ["/readyz"]);
        assert!(memory.documents.is_none());
    })
    .await;
}

#[tokio::test]
async fn one_bad_path_keeps_what_was_good_and_tells_the_gap() {
    local(async {
        let (script, table, mut memory) = (healthy(), table(), Memory::default());
        script.read(&mut memory, &table).await.unwrap();
        let bad = [
            (503, JSON, "{}".to_owned()),
            (429, JSON, "{}".to_owned()),
            (302, "text/html", "elsewhere".to_owned()),
            (200, "text/html", "<html>".to_owned()),
            (200, V2, "{\"kind\":\"APIGroupDiscoveryList\"".to_owned()),
            (200, V2, "{\"kind\":\"Status\"}".to_owned()),
            (200, V2, "[".repeat(100_000)),
        ];
        for (status, content_type, body) in bad {
            script.set("/apis", status, content_type, body);
            let reading = script.read(&mut memory, &table).await.unwrap();
            assert!(reading.gap.is_some(), "{status} {content_type}");
            assert!(
                gets(&reading, "batch", "v1", "jobs"),
                "{status} {content_type}"
            );
        }
        // Without anything good from before there is nothing to publish.
        let error = script
            .read(&mut Memory::default(), &table)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), "document");
    })
    .await;
}

#[tokio::test]
async fn a_not_modified_that_nobody_asked_for_is_no_answer() {
    local(async {
        let (script, table) = (healthy(), table());
        script.set("/api", 304, V2, "");
        let error = script
            .read(&mut Memory::default(), &table)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), "status");
    })
    .await;
}

#[tokio::test]
async fn answers_beyond_the_bound_and_unasked_compression_are_refused() {
    local(async {
        let (script, table, mut memory) = (healthy(), table(), Memory::default());
        script.set(
            "/apis",
            200,
            V2,
            " ".repeat(crate::health::link::BODY_LIMIT + 1),
        );
        let error = script.read(&mut memory, &table).await.unwrap_err();
        assert!(
            matches!(error, ReadError::Link(LinkError::TooLarge)),
            "{error}"
        );
        *script.encodes.borrow_mut() = true;
        let error = script.read(&mut memory, &table).await.unwrap_err();
        assert!(
            matches!(error, ReadError::Link(LinkError::Encoded)),
            "{error}"
        );
    })
    .await;
}

/// Case A6: the list is not believed, and one group-version's answer is not taken for another's.
#[tokio::test]
async fn a_legacy_server_is_asked_for_every_group_version_that_is_seen_anywhere() {
    local(async {
        for no_aggregated in [true, false] {
            let (script, table, mut memory) = (healthy(), table(), Memory::default());
            let peer_documents = Arc::new(Documents {
                core: GroupList::default(),
                groups: GroupList::parse(V2, aggregated(&[("apps", "v1", &["x"])]).as_bytes())
                    .unwrap()
                    .1,
            });
            let now = Instant::now();
            let catalogue = Catalogue::new(peer_documents, "".into(), Freshness::Fresh, now, 1);
            table.publish(ServerId::Local, Arc::new(catalogue));
            // Its own list names a group-version that it does not serve, and lacks one that it serves.
            let list = serde_json::json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                {"name": "batch", "versions": [
                    {"groupVersion": "batch/v1", "version": "v1"}, {"groupVersion": "batch/v2", "version": "v2"}]},
                {"name": "ghost", "versions": [{"groupVersion": "ghost/v1", "version": "v1"}]},
                {"name": "../../evil", "versions": [{"groupVersion": "x", "version": "v1"}]},
            ]});
            let versions = serde_json::json!({"kind": "APIVersions", "versions": ["v1"]});
            *script.no_aggregated.borrow_mut() = no_aggregated;
            script.set("/api", 200, JSON, versions.to_string());
            script.set("/apis", 200, JSON, list.to_string());
            script.set("/api/v1", 200, JSON, legacy_resources("v1", &["pods", "pods/log"]));
            script.set("/apis/apps/v1", 200, JSON, legacy_resources("apps/v1", &["deployments"]));
            script.set("/apis/batch/v1", 200, JSON, legacy_resources("batch/v1", &["jobs"]));
            script.set("/apis/batch/v2", 200, JSON, legacy_resources("batch/v2", &["works"]));
            let reading = script.read(&mut memory, &table).await.unwrap();
            assert!(gets(&reading, "", "v1", "pods"));
            assert!(gets(&reading, "apps", "v1", "deployments"), "seen at another server only");
            assert!(gets(&reading, "batch", "v1", "jobs"));
            assert!(gets(&reading, "batch", "v2", "works"));
            assert!(!gets(&reading, "batch", "v2", "jobs"));
            let (_, group_versions) = reading.documents.index();
            assert!(!group_versions.contains(&GvRef { group: "ghost", version: "v1" }));
            assert!(!script.asked.borrow().iter().any(|path| path.contains("evil")));
            // A backend that is away now keeps its group-version, marked.
            script.set("/apis/apps/v1", 503, JSON, "{}");
            let reading = script.read(&mut memory, &table).await.unwrap();
            assert!(gets(&reading, "apps", "v1", "deployments"));
            let apps = reading.documents.groups.items.iter().find(|group| group.name() == "apps");
            assert_eq!(apps.unwrap().versions[0].freshness, STALE);
        }
    })
    .await;
}

#[tokio::test]
async fn a_backend_that_is_away_is_listed_and_a_busy_server_is_not_half_read() {
    local(async {
        let (script, table) = (healthy(), table());
        *script.no_aggregated.borrow_mut() = true;
        let list = serde_json::json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [
            {"name": "away", "versions": [{"groupVersion": "away/v1", "version": "v1"}]},
            {"name": "batch", "versions": [{"groupVersion": "batch/v1", "version": "v1"}]},
        ]});
        let versions = serde_json::json!({"kind": "APIVersions", "versions": ["v1"]});
        script.set("/api", 200, JSON, versions.to_string());
        script.set("/apis", 200, JSON, list.to_string());
        script.set("/api/v1", 200, JSON, legacy_resources("v1", &["pods"]));
        script.set("/apis/away/v1", 503, "text/plain", "service unavailable");
        script.set("/apis/batch/v1", 429, JSON, "{}");
        let read = script.read(&mut Memory::default(), &table).await;
        let busy = read.unwrap_err();
        assert_eq!(busy.to_string(), "/apis answers 429 Too Many Requests");
        let jobs = legacy_resources("batch/v1", &["jobs"]);
        script.set("/apis/batch/v1", 200, JSON, jobs);
        let reading = script.read(&mut Memory::default(), &table).await.unwrap();
        assert!(gets(&reading, "batch", "v1", "jobs"));
        let away = &reading.documents.groups.items[0];
        assert_eq!((away.name(), &*away.versions[0].freshness), ("away", STALE));
    })
    .await;
}
