//! Who stands behind a kube-apiserver (aggregated API servers, kubelets) and speaks in its words.

use std::sync::Arc;

use bench::pki::ClusterPki;
use mvp_user::{
    api::GroupVersion,
    table::{Health, SharedGroups},
};

use super::{UNKNOWN, json};
use crate::{
    fake::{Fake, Speaks, text},
    plane::{Plane, user},
};

#[tokio::test]
async fn what_flow_control_let_in_is_not_sent_again_whoever_says_that_it_shuts_down() {
    let pki = ClusterPki::new().unwrap();
    let serves: &[&str] = &["apps.example.com/v1/builds"];
    for (status, words) in [
        (
            429,
            "The apiserver is shutting down, please try again later.\n",
        ),
        (
            503,
            r#"{"kind":"Status","message":"apiserver is shutting down","code":503}"#,
        ),
    ] {
        let local = Fake::start(&pki, Speaks::Both, move |_| async move {
            let mut answer = text(status, words);
            let headers = answer.headers_mut();
            headers.insert("x-kubernetes-pf-flowschema-uid", "1".parse().unwrap());
            headers.insert("retry-after", "5".parse().unwrap());
            Ok(answer)
        })
        .await;
        let peer = Fake::named(&pki, Speaks::Both, "peer").await;
        let plane =
            Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
        for method in ["POST", "GET"] {
            let path = "/apis/apps.example.com/v1/namespaces/d/builds";
            let answer = user(&pki, "jane", &[], true)
                .once(plane.address, method, path)
                .await
                .unwrap();
            assert_eq!(
                (answer.status.as_u16(), answer.text()),
                (status, words.into())
            );
            assert_eq!(answer.headers["retry-after"], "5");
        }
        assert!(peer.seen().is_empty());
        assert_eq!(plane.local.health(), Health::Up);
    }
}

#[tokio::test]
async fn a_write_that_a_backend_answers_404_in_kube_apiserver_s_words_is_not_sent_again() {
    let pki = ClusterPki::new().unwrap();
    let serves: &[&str] = &["apps.example.com/v1/builds", "batch/v1/jobs"];
    let local = Fake::start(&pki, Speaks::Both, |_| async { Ok(json(404, UNKNOWN)) }).await;
    let peer = Fake::named(&pki, Speaks::Both, "peer").await;
    let plane = Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
    let shared = SharedGroups {
        owned: std::iter::once(GroupVersion::new("apps.example.com", "v1")).collect(),
        ..SharedGroups::default()
    };
    plane.table.shared.store(Arc::new(shared));
    let client = user(&pki, "jane", &[], true);
    let ask = async |method: &str, path: &str| {
        let answer = client.once(plane.address, method, path).await.unwrap();
        (answer.status.as_u16(), answer.text())
    };
    let builds = "/apis/apps.example.com/v1/namespaces/d/builds";
    assert_eq!(ask("POST", builds).await, (404, UNKNOWN.into()));
    assert!(peer.seen().is_empty());
    // Reading does no harm, and what kube-apiservers serve themselves, one of them may lack by now.
    for (method, path) in [
        ("GET", builds),
        ("POST", "/apis/batch/v1/namespaces/d/jobs"),
    ] {
        assert_eq!(ask(method, path).await, (200, "peer".into()), "{path}");
    }
}
