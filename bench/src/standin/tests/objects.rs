//! Objects: what is kept, what is refused and in which words, what watchers see.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::Cluster;
use crate::standin::key;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn job(name: &str) -> Value {
    json!({"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": name, "labels": {"app": name}}, "spec": {"x": 1}})
}

#[tokio::test]
async fn an_object_lives_from_create_to_delete() {
    let cluster = Cluster::new().await;
    let created = cluster.send("POST", JOBS, &job("one")).await;
    assert_eq!(created.status, 201);
    let created = created.json().unwrap();
    assert_eq!(created["metadata"]["namespace"], "default");
    let read = cluster.get(&format!("{JOBS}/one")).await.json().unwrap();
    assert_eq!(read, created);
    let list = cluster.get("/apis/batch/v1/jobs").await.json().unwrap();
    assert_eq!(list["kind"], "JobList");
    assert_eq!(
        list["items"][0]["metadata"]["uid"],
        created["metadata"]["uid"]
    );
    assert!(list["items"][0].get("kind").is_none());
    let deleted = cluster
        .send("DELETE", &format!("{JOBS}/one"), &json!({}))
        .await;
    assert_eq!(deleted.json().unwrap()["status"], "Success");
    let missing = cluster.get(&format!("{JOBS}/one")).await;
    assert_eq!(
        missing.json().unwrap()["message"],
        "jobs.batch \"one\" not found"
    );
    let writes = cluster
        .server
        .store()
        .writes(&key("batch", "jobs", "default", "one"))
        .await
        .unwrap();
    assert_eq!((writes.creates, writes.deletes), (1, 1));
}

#[tokio::test]
async fn refusals_have_kube_apiservers_words() {
    let cluster = Cluster::new().await;
    cluster.send("POST", JOBS, &job("one")).await;
    let again = cluster.send("POST", JOBS, &job("one")).await;
    assert_eq!(
        again.body,
        "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"jobs.batch \\\"one\\\" \
         already exists\",\"reason\":\"AlreadyExists\",\"details\":{\"name\":\"one\",\"group\":\"batch\",\"kind\":\"jobs\"},\
         \"code\":409}\n"
    );
    let mut stale = job("one");
    stale["metadata"]["resourceVersion"] = json!("1");
    let conflict = cluster.send("PUT", &format!("{JOBS}/one"), &stale).await;
    assert_eq!(
        (
            conflict.status.as_u16(),
            conflict.json().unwrap()["reason"].clone()
        ),
        (409, json!("Conflict"))
    );
    let nowhere = cluster
        .send("POST", "/apis/batch/v1/namespaces/nowhere/jobs", &job("x"))
        .await;
    assert_eq!(
        nowhere.json().unwrap()["message"],
        "namespaces \"nowhere\" not found"
    );
    let nameless = cluster
        .send(
            "POST",
            JOBS,
            &json!({"kind": "Job", "apiVersion": "batch/v1"}),
        )
        .await;
    assert_eq!(nameless.status, 422);
    let wrong = cluster
        .send("POST", JOBS, &json!({"kind": "Pod", "apiVersion": "v1"}))
        .await;
    assert_eq!(wrong.status, 400);
    let garbled = cluster
        .admin
        .send(cluster.server.address(), "POST", JOBS, &[], b"{not json")
        .await
        .unwrap();
    assert_eq!(garbled.status, 400);
    let large = vec![b' '; 4 << 20];
    let large = cluster
        .admin
        .send(cluster.server.address(), "POST", JOBS, &[], &large)
        .await
        .unwrap();
    assert_eq!(large.status, 413);
    assert_eq!(cluster.send("PUT", JOBS, &job("one")).await.status, 405);
}

#[tokio::test]
async fn updates_patches_and_status_keep_to_their_parts() {
    let cluster = Cluster::new().await;
    let created = cluster
        .send("POST", JOBS, &job("one"))
        .await
        .json()
        .unwrap();
    let one = format!("{JOBS}/one");
    let mut new = created.clone();
    new["spec"]["x"] = json!(2);
    new["status"] = json!({"active": 9});
    let updated = cluster.send("PUT", &one, &new).await.json().unwrap();
    assert_eq!(updated["metadata"]["generation"], 2);
    assert!(updated.get("status").is_none(), "{updated}");
    let change = json!({"metadata": {"name": "one"}, "status": {"active": 1}});
    let status = cluster.send("PUT", &format!("{one}/status"), &change).await;
    assert_eq!(status.json().unwrap()["spec"]["x"], 2);
    for (media_type, patch, wanted) in [
        (
            "application/merge-patch+json",
            r#"{"spec":{"x":3,"y":null}}"#,
            json!({"x": 3}),
        ),
        (
            "application/json-patch+json",
            r#"[{"op":"add","path":"/spec/z","value":[1]}]"#,
            json!({"x": 3, "z": [1]}),
        ),
        (
            "application/apply-patch+yaml",
            "spec:\n  x: 4\n",
            json!({"x": 4, "z": [1]}),
        ),
    ] {
        let target = format!("{one}?fieldManager=test");
        let headers = [("content-type", media_type)];
        let answer = cluster
            .admin
            .send(
                cluster.server.address(),
                "PATCH",
                &target,
                &headers,
                patch.as_bytes(),
            )
            .await
            .unwrap();
        assert_eq!(answer.json().unwrap()["spec"], wanted, "{media_type}");
    }
    let unknown = cluster.send("PATCH", &one, &json!({})).await;
    assert_eq!(unknown.status, 415);
}

#[tokio::test]
async fn finalizers_hold_an_object_until_they_are_gone() {
    let cluster = Cluster::new().await;
    let mut held = job("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.send("POST", JOBS, &held).await;
    let one = format!("{JOBS}/held");
    let waiting = cluster
        .send("DELETE", &one, &json!({}))
        .await
        .json()
        .unwrap();
    assert!(waiting["metadata"]["deletionTimestamp"].is_string());
    let mut released = waiting;
    released["metadata"]["finalizers"] = json!([]);
    assert_eq!(cluster.send("PUT", &one, &released).await.status, 200);
    assert_eq!(cluster.get(&one).await.status, 404);
}

#[tokio::test]
async fn lists_are_selected_paged_and_shaped() {
    let cluster = Cluster::new().await;
    for name in ["a", "b", "c"] {
        cluster.send("POST", JOBS, &job(name)).await;
    }
    let names = |list: &Value| -> Vec<String> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    for (query, wanted) in [
        ("labelSelector=app%3Da", vec!["a"]),
        ("labelSelector=app%20in%20(a,c)", vec!["a", "c"]),
        ("labelSelector=app!%3Da", vec!["b", "c"]),
        ("fieldSelector=metadata.name%3Db", vec!["b"]),
    ] {
        let list = cluster
            .get(&format!("{JOBS}?{query}"))
            .await
            .json()
            .unwrap();
        assert_eq!(names(&list), wanted, "{query}");
    }
    let first = cluster
        .get(&format!("{JOBS}?limit=2"))
        .await
        .json()
        .unwrap();
    assert_eq!(
        (
            names(&first),
            first["metadata"]["remainingItemCount"].clone()
        ),
        (vec!["a".into(), "b".into()], json!(1))
    );
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = cluster
        .get(&format!("{JOBS}?limit=2&continue={token}"))
        .await
        .json()
        .unwrap();
    assert_eq!(names(&rest), ["c"]);
    let accept = [(
        "accept",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
    )];
    let table = cluster
        .admin
        .send(cluster.server.address(), "GET", JOBS, &accept, b"")
        .await
        .unwrap()
        .json()
        .unwrap();
    assert_eq!(
        (
            table["kind"].clone(),
            table["rows"].as_array().unwrap().len()
        ),
        (json!("Table"), 3)
    );
}

/// The next line of a watch.
async fn event(body: &mut Incoming) -> Option<Value> {
    let frame = tokio::time::timeout(Duration::from_secs(5), body.frame())
        .await
        .expect("no event within 5 s")?;
    let data = frame.unwrap().into_data().unwrap();
    Some(serde_json::from_slice(&data).unwrap())
}

async fn watch(cluster: &Cluster, query: &str) -> Incoming {
    let mut connection = cluster
        .admin
        .connect(cluster.server.address())
        .await
        .unwrap();
    let request = cluster
        .admin
        .request("GET", &format!("{JOBS}?watch=true&{query}"), &[], b"")
        .unwrap();
    let response = connection.send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body()
}

#[tokio::test]
async fn a_watch_shows_what_is_there_and_then_every_change() {
    let cluster = Cluster::new().await;
    cluster.send("POST", JOBS, &job("old")).await;
    let mut events = watch(
        &cluster,
        "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan",
    )
    .await;
    let first = event(&mut events).await.unwrap();
    assert_eq!(
        (
            first["type"].clone(),
            first["object"]["metadata"]["name"].clone()
        ),
        (json!("ADDED"), json!("old"))
    );
    let mark = event(&mut events).await.unwrap();
    assert_eq!(
        mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    cluster.send("POST", JOBS, &job("new")).await;
    assert_eq!(event(&mut events).await.unwrap()["type"], "ADDED");
    cluster
        .send("DELETE", &format!("{JOBS}/new"), &json!({}))
        .await;
    assert_eq!(event(&mut events).await.unwrap()["type"], "DELETED");
}

#[tokio::test]
async fn a_watch_resumes_at_a_revision_ends_in_time_and_follows_selectors() {
    let cluster = Cluster::new().await;
    let created = cluster
        .send("POST", JOBS, &job("one"))
        .await
        .json()
        .unwrap();
    cluster.send("POST", JOBS, &job("two")).await;
    let revision = created["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = watch(
        &cluster,
        &format!("resourceVersion={revision}&timeoutSeconds=1"),
    )
    .await;
    assert_eq!(
        event(&mut events).await.unwrap()["object"]["metadata"]["name"],
        "two"
    );
    assert!(event(&mut events).await.is_none());
    let mut events = watch(
        &cluster,
        &format!("resourceVersion={revision}&labelSelector=app%3Done"),
    )
    .await;
    let mut moved = created.clone();
    moved["metadata"]["labels"] = json!({"app": "other"});
    cluster.send("PUT", &format!("{JOBS}/one"), &moved).await;
    assert_eq!(event(&mut events).await.unwrap()["type"], "DELETED");
}

#[tokio::test]
async fn a_custom_resource_is_served_once_defined_and_no_longer_once_deleted() {
    let cluster = Cluster::new().await;
    let definition = json!({
        "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "metadata": {"name": "foos.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}}],
        },
    });
    let foos = "/apis/example.com/v1/namespaces/default/foos";
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(cluster.get(foos).await.body, "404 page not found\n");
    cluster.send("POST", crds, &definition).await;
    until(|| async { cluster.get(foos).await.status == 200 }).await;
    let foo = json!({"kind": "Foo", "apiVersion": "example.com/v1", "metadata": {"name": "x"}});
    assert_eq!(cluster.send("POST", foos, &foo).await.status, 201);
    assert_eq!(
        cluster.get(foos).await.json().unwrap()["items"][0]["kind"],
        "Foo"
    );
    until(|| async {
        String::from_utf8_lossy(&cluster.get("/apis").await.body).contains("example.com")
    })
    .await;
    assert!(
        String::from_utf8_lossy(&cluster.get("/openapi/v3").await.body)
            .contains("apis/example.com/v1")
    );
    cluster
        .send("DELETE", &format!("{crds}/foos.example.com"), &json!({}))
        .await;
    until(|| async { cluster.get(foos).await.status == 404 }).await;
    until(|| async {
        !String::from_utf8_lossy(&cluster.get("/apis").await.body).contains("example.com")
    })
    .await;
}

/// Asks every 20 ms until it is so, for at most 5 s.
async fn until<F: Future<Output = bool>>(mut asked: impl FnMut() -> F) {
    for _ in 0..250 {
        if asked().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it did not become so within 5 s");
}

#[tokio::test]
async fn pods_have_their_subresources() {
    let cluster = Cluster::new().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}, "spec": {"containers": []}});
    cluster.send("POST", pods, &pod).await;
    assert_eq!(
        cluster.get(&format!("{pods}/p/log")).await.body,
        "log of p\n"
    );
    let binding = json!({"kind": "Binding", "apiVersion": "v1", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    assert_eq!(
        cluster
            .send("POST", &format!("{pods}/p/binding"), &binding)
            .await
            .status,
        201
    );
    assert_eq!(
        cluster.get(&format!("{pods}/p")).await.json().unwrap()["spec"]["nodeName"],
        "n"
    );
    let eviction =
        json!({"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "p"}});
    assert_eq!(
        cluster
            .send("POST", &format!("{pods}/p/eviction"), &eviction)
            .await
            .status,
        201
    );
    assert_eq!(cluster.get(&format!("{pods}/p")).await.status, 404);
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "d"}, "spec": {"replicas": 2}});
    cluster.send("POST", deployments, &deployment).await;
    let scale = cluster
        .get(&format!("{deployments}/d/scale"))
        .await
        .json()
        .unwrap();
    assert_eq!(
        (scale["kind"].clone(), scale["spec"]["replicas"].clone()),
        (json!("Scale"), json!(2))
    );
}

#[tokio::test]
async fn typed_clients_may_send_a_few_kinds_in_protobuf_and_read_json() {
    let cluster = Cluster::new().await;
    // Unknown{TypeMeta{v1, ConfigMap}, raw: ConfigMap{ObjectMeta{name: a}, data: {x: 1}}}
    let raw = b"\x0a\x03\x0a\x01a\x12\x06\x0a\x01x\x12\x011";
    let head = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x0d";
    let body = [head.as_slice(), raw].concat();
    let headers = [
        ("content-type", "application/vnd.kubernetes.protobuf"),
        (
            "accept",
            "application/vnd.kubernetes.protobuf,application/json",
        ),
    ];
    let maps = "/api/v1/namespaces/default/configmaps";
    let address = cluster.server.address();
    let created = cluster
        .admin
        .send(address, "POST", maps, &headers, &body)
        .await
        .unwrap();
    assert_eq!(
        (created.status.as_u16(), created.header("content-type")),
        (201, Some("application/json"))
    );
    assert_eq!(created.json().unwrap()["data"], json!({"x": "1"}));
    let unknown = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod";
    let refused = cluster
        .admin
        .send(
            address,
            "POST",
            "/api/v1/namespaces/default/pods",
            &headers,
            unknown,
        )
        .await
        .unwrap();
    assert_eq!(refused.status, 415);
}
