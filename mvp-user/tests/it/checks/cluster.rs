//! What is asked of the cluster: rights, the ConfigMap, APIServices, endpoints.

use std::{net::SocketAddr, time::Duration};

use bench::standin::{Rule, Standin, Store, User, key};
use mvp_user::{
    admin::wire::Grade,
    config::published::{self, Access},
};

use super::{Site, USER, serving};

#[tokio::test]
async fn missing_rights_are_named() {
    let site = Site::new().await;
    site.login("nobody");
    let report = site.alone().await;
    let grant = "kubectl apply -f deploy/manifests/rbac.yaml";
    report.names("RBAC endpointslices", Grade::Fail, "cannot list", grant);
    report.names("RBAC leases", Grade::Warn, "cannot list", grant);
    report.names(
        "RBAC customresourcedefinitions",
        Grade::Fail,
        "cannot list",
        grant,
    );
    report.names("RBAC apiservices", Grade::Fail, "cannot list", grant);
    // May list, but not watch.
    site.local.set_rules(vec![Rule::new(
        "system:serviceaccount:kube-system:nobody",
        &["list"],
        &["*"],
    )]);
    let report = site.alone().await;
    report.names("RBAC leases", Grade::Fail, "not watched", grant);
    // Nobody at all.
    site.login("wrong");
    let report = site.alone().await;
    report.names(
        "credentials",
        Grade::Fail,
        "Unauthorized",
        "renew the kubeconfig",
    );
}

#[tokio::test]
async fn a_local_server_that_hangs_does_not_keep_the_config_map_from_being_asked_for() {
    let site = Site::new().await;
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let access = Access {
        kubeconfig: Some(site.path("kubeconfig")),
        local: Some(hangs.local_addr().unwrap()),
        server_name: "kubernetes.default.svc".to_owned(),
    };
    let read = tokio::task::spawn_blocking(move || published::fetch(&access));
    // The server of the kubeconfig was reached: it says that this account may not read it.
    let error = read.await.unwrap().unwrap_err();
    assert!(error.contains("cannot get"), "{error}");
}

#[tokio::test]
async fn broken_api_services_are_named() {
    let site = Site::new().await;
    let store = site.local.store();
    let name = |name: &str| key("apiregistration.k8s.io", "apiservices", "", name);
    let metrics = serde_json::json!({
        "kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1",
        "metadata": {"name": "v1beta1.metrics.k8s.io", "uid": "u"},
        "spec": {"group": "metrics.k8s.io", "version": "v1beta1",
            "service": {"name": "metrics-server", "namespace": "kube-system"}},
        "status": {"conditions": [{"type": "Available", "status": "False",
            "reason": "MissingEndpoints", "message": "no endpoints"}]},
    });
    store
        .create(&name("v1beta1.metrics.k8s.io"), metrics)
        .await
        .unwrap();
    // What a restarting server does that lacks the group-version.
    store.delete(&name("v1.batch"), None, None).await.unwrap();
    let old = serde_json::json!({
        "kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1",
        "metadata": {"name": "v1beta1.gone.k8s.io", "uid": "v",
            "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
        "spec": {"group": "gone.k8s.io", "version": "v1beta1"},
    });
    store
        .create(&name("v1beta1.gone.k8s.io"), old)
        .await
        .unwrap();
    let report = site.alone().await;
    let unavailable = "APIService v1beta1.metrics.k8s.io";
    report.names(
        unavailable,
        Grade::Warn,
        "MissingEndpoints",
        "pods behind its Service",
    );
    report.names("APIService v1.batch", Grade::Warn, "missing", "restarted");
    report.names(
        "APIService v1beta1.gone.k8s.io",
        Grade::Warn,
        "stale",
        "kubectl delete",
    );
}

#[tokio::test]
async fn servers_that_share_an_advertised_address_are_named() {
    let site = Site::new().await;
    let store = Store::memory();
    let shows = site.pki.ca.issue(&serving()).unwrap();
    let address = SocketAddr::from(([192, 0, 2, 1], 6443));
    let start = async |name: &str| {
        Standin::builder(&site.pki)
            .store(&store)
            .name(name)
            .certificate(&shows)
            .advertise(address)
            .token("mvp", User::service_account("kube-system", "mvp"))
            .allow(Rule::everything(USER))
            .start()
            .await
            .unwrap()
    };
    let (first, _second) = (start("a").await, start("b").await);
    let local = format!("--local={}", first.url());
    // The identity Leases come a moment after the servers are ready.
    for _ in 0..100 {
        let (leases, _) = store
            .list("coordination.k8s.io/leases/kube-system/")
            .await
            .unwrap();
        if leases.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let report = site.check(&["--offline", &local]).await;
    let found = "1 for 2 live identity Leases";
    report.names(
        "endpoint addresses",
        Grade::Warn,
        found,
        "--advertise-address",
    );
}
