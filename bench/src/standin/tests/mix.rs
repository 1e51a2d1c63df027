//! Several servers on one store: what the mix does to each.

use serde_json::json;

use crate::{
    pki::ClusterPki,
    standin::{Release, Resource, Standin, Store, client::Client},
};

#[tokio::test]
async fn a_server_without_a_group_version_answers_as_if_it_never_was_and_damages_the_shared_list() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let full = Standin::builder(&pki).store(&store).start().await.unwrap();
    let admin = Client::new(&pki.ca.certificate.der)
        .certificate(&pki.client("admin", &["system:masters"]).unwrap());
    let has_batch = |body: &[u8]| String::from_utf8_lossy(body).contains("\"batch\"");
    assert!(has_batch(
        &admin.get(full.address(), "/apis").await.unwrap().body
    ));
    let old = Standin::builder(&pki)
        .store(&store)
        .off("batch/v1")
        .start()
        .await
        .unwrap();
    // The automanaged APIService is gone, so the full server's own legacy list lacks it; its aggregated one does not.
    assert!(!has_batch(
        &admin.get(full.address(), "/apis").await.unwrap().body
    ));
    let v2 = [(
        "accept",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    )];
    assert!(has_batch(
        &admin
            .send(full.address(), "GET", "/apis", &v2, b"")
            .await
            .unwrap()
            .body
    ));
    assert!(!has_batch(
        &admin
            .send(old.address(), "GET", "/apis", &v2, b"")
            .await
            .unwrap()
            .body
    ));
    assert_eq!(
        admin
            .get(full.address(), "/apis/batch")
            .await
            .unwrap()
            .status,
        200
    );
    assert_eq!(
        admin
            .get(full.address(), "/apis/batch/v1/jobs")
            .await
            .unwrap()
            .status,
        200
    );
    for path in [
        "/apis/batch/v1",
        "/apis/batch/v1/jobs",
        "/apis/batch/v1/namespaces/default/jobs/x",
    ] {
        let answer = admin.get(old.address(), path).await.unwrap();
        assert_eq!(
            (answer.status.as_u16(), &answer.body[..]),
            (404, &b"404 page not found\n"[..]),
            "{path}"
        );
    }
    let index = admin.get(old.address(), "/openapi/v3").await.unwrap();
    assert!(!String::from_utf8_lossy(&index.body).contains("apis/batch"));
}

#[tokio::test]
async fn resources_subresources_and_verbs_can_be_switched_off_and_resources_on() {
    let pki = ClusterPki::new().unwrap();
    let server = Standin::builder(&pki)
        .off("batch/v1/cronjobs")
        .off("v1/pods/resize")
        .off("apps/v1/deployments:deletecollection")
        .on("apps/v1", Resource::new("gadgets", "Gadget", true))
        .on(
            "new.example.com/v1",
            Resource::new("things", "Thing", false),
        )
        .start()
        .await
        .unwrap();
    let admin = Client::new(&pki.ca.certificate.der)
        .certificate(&pki.client("admin", &["system:masters"]).unwrap());
    let get = async |path: &str| admin.get(server.address(), path).await.unwrap();
    let lost = "the server could not find the requested resource";
    assert_eq!(
        get("/apis/batch/v1/cronjobs").await.json().unwrap()["message"],
        lost
    );
    assert_eq!(
        get("/api/v1/namespaces/default/pods/p/resize")
            .await
            .json()
            .unwrap()["message"],
        lost
    );
    let refused = admin
        .send(
            server.address(),
            "DELETE",
            "/apis/apps/v1/namespaces/default/deployments",
            &[],
            b"",
        )
        .await;
    assert_eq!(refused.unwrap().status, 405);
    assert_eq!(
        get("/apis/apps/v1/gadgets").await.json().unwrap()["kind"],
        "GadgetList"
    );
    assert_eq!(get("/apis/new.example.com/v1/things").await.status, 200);
    let list = get("/apis/batch/v1").await.json().unwrap();
    let names: Vec<&str> = list["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["jobs", "jobs/status"]);
    let batch = get("/openapi/v3/apis/batch/v1").await;
    let paths = batch.json().unwrap()["paths"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect::<Vec<_>>();
    assert!(
        paths.iter().any(|path| path.ends_with("/jobs"))
            && !paths.iter().any(|path| path.contains("cronjobs"))
    );
    let index = get("/openapi/v3").await.json().unwrap();
    let url = index["paths"]["apis/batch/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        get(&url).await.header("cache-control"),
        Some("public, immutable")
    );
    let moved = get("/openapi/v3/apis/batch/v1?hash=OTHER").await;
    assert_eq!(
        (moved.status.as_u16(), moved.header("location")),
        (301, Some(url.as_str()))
    );
    let error = Standin::builder(&pki)
        .off("batch/v7")
        .start()
        .await
        .unwrap_err();
    assert!(format!("{error:#}").contains("batch/v7"), "{error:#}");
}

#[tokio::test]
async fn objects_written_through_one_server_are_read_through_another() {
    let pki = ClusterPki::new().unwrap();
    let store = Store::memory();
    let old = Standin::builder(&pki)
        .release(Release::V1_34)
        .store(&store)
        .start()
        .await
        .unwrap();
    let new = Standin::builder(&pki)
        .release(Release::V1_36)
        .store(&store)
        .start()
        .await
        .unwrap();
    let admin = Client::new(&pki.ca.certificate.der)
        .certificate(&pki.client("admin", &["system:masters"]).unwrap());
    let hpas = |version: &str| {
        format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers")
    };
    let hpa = json!({"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "metadata": {"name": "h"}});
    let created = admin
        .send(
            new.address(),
            "POST",
            &hpas("v2"),
            &[("content-type", "application/json")],
            hpa.to_string().as_bytes(),
        )
        .await
        .unwrap();
    assert_eq!(created.status, 201);
    let read = admin
        .get(old.address(), &format!("{}/h", hpas("v1")))
        .await
        .unwrap()
        .json()
        .unwrap();
    assert_eq!(read["apiVersion"], "autoscaling/v1");
    assert_eq!(
        read["metadata"]["uid"],
        created.json().unwrap()["metadata"]["uid"]
    );
}
