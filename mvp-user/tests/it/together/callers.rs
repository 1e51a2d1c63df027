//! Whom the servers take a caller for, and whose a 401 is.

use std::{net::SocketAddr, time::Duration};

use bench::{
    client::Client,
    pki::{ClusterPki, Leaf, Subject},
    standin::{Action, Fault, On},
};
use http_body_util::BodyExt as _;
use mvp_user::table::Proof;
use tokio::time::{Instant, sleep};

use super::{PODS, admin, old_and_new};
use crate::{
    client::{Wire, get},
    plane::{self, Plane, anonymous, token},
};

async fn who_am_i(client: &Client, to: SocketAddr) -> serde_json::Value {
    let review = r#"{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}"#;
    let json = [("content-type", "application/json")];
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = client
        .once_with(to, "POST", path, &json, review)
        .await
        .unwrap();
    serde_json::json!({ "status": answer.status.as_u16(), "user": answer.json().unwrap()["status"]["userInfo"] })
}

#[tokio::test]
async fn each_caller_is_the_same_user_through_mvp_as_directly() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let plane = Plane::live(&pki, old.address(), &[new.address()], |_| {}).await;
    let subject = Subject::new()
        .o("dev")
        .o("ops, and more")
        .cn("jürgen")
        .uid("u-1");
    let odd = pki.ca.issue(&Leaf::client(subject)).unwrap();
    for http2 in [true, false] {
        for client in [
            admin(&pki, http2),
            plane::with_certificate(&pki, &odd, http2),
            token(&pki, "secret", http2),
            token(&pki, "expired", http2),
            anonymous(&pki, http2),
        ] {
            let direct = who_am_i(&client, old.address()).await;
            assert_eq!(who_am_i(&client, plane.address).await, direct);
        }
    }
}

#[tokio::test]
async fn where_one_ca_issues_users_and_front_proxies_nobody_becomes_the_front_proxy() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    for server in [&old, &new] {
        server
            .set_authentication(|authentication| {
                if let Some(proxy) = &mut authentication.request_header {
                    proxy.ca = vec![pki.ca.certificate.der.clone()];
                }
            })
            .unwrap();
    }
    let plane = Plane::live(&pki, old.address(), &[new.address()], |config| {
        let tls = &mut config.tls;
        tls.requestheader_client_ca_file
            .clone_from(&tls.client_ca_file);
        let proxy = pki.client("front-proxy-client", &[]).unwrap();
        for (file, text) in [
            (&tls.proxy_client_cert_file, proxy.cert_pem()),
            (&tls.proxy_client_key_file, proxy.key_pem()),
        ] {
            std::fs::write(file.as_ref().unwrap(), text).unwrap();
        }
    })
    .await;
    for http2 in [true, false] {
        for client in [
            admin(&pki, http2),
            token(&pki, "secret", http2),
            token(&pki, "expired", http2),
            anonymous(&pki, http2),
        ] {
            // A token on a connection that shows the front proxy's certificate would be a user of that name.
            let direct = who_am_i(&client, old.address()).await;
            assert_eq!(who_am_i(&client, plane.address).await, direct);
            let mut versions = Vec::new();
            for to in [old.address(), plane.address] {
                let answer = client.once(to, "GET", "/version").await.unwrap();
                versions.push(answer.status);
            }
            assert_eq!(versions[0], versions[1]);
        }
    }
}

#[tokio::test]
async fn a_backend_s_own_401_is_the_client_s_and_withdraws_nothing() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let plane = Plane::live(&pki, old.address(), &[new.address()], |_| {}).await;
    // Behind kube-apiserver, which took the caller for who it is.
    let behind = "/api/v1/namespaces/default/services/web/proxy/";
    old.fault(Fault {
        on: On::path(behind),
        action: Action::Answer {
            code: 401,
            headers: vec![("www-authenticate".into(), "Basic realm=\"web\"".into())],
            body: "who are you?".into(),
        },
        times: None,
    });
    for http2 in [true, false] {
        let client = admin(&pki, http2);
        let answer = client.once(plane.address, "GET", behind).await.unwrap();
        assert_eq!(
            (answer.status.as_u16(), answer.text()),
            (401, "who are you?".into())
        );
        assert_eq!(answer.headers["www-authenticate"], "Basic realm=\"web\"");
        assert_eq!(plane.local.proof(), Proof::Proven);
        let answer = client.once(plane.address, "GET", PODS).await.unwrap();
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test]
async fn mvp_s_own_rejection_is_never_the_client_s_401() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let plane = Plane::live(&pki, old.address(), &[new.address()], |_| {}).await;
    let client = admin(&pki, true);
    // Both servers trust another front-proxy CA from now on: mvp's certificate is worth nothing to them.
    let other = ClusterPki::new().unwrap();
    for server in [&old, &new] {
        server
            .set_authentication(|authentication| {
                if let Some(proxy) = &mut authentication.request_header {
                    proxy.ca = vec![other.front_proxy_ca.certificate.der.clone()];
                }
            })
            .unwrap();
    }
    let mut statuses = Vec::new();
    for _ in 0..20 {
        let answer = client.once(plane.address, "GET", PODS).await.unwrap();
        statuses.push(answer.status.as_u16());
        if answer.status == 503 {
            assert!(answer.headers.contains_key("retry-after"));
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert!(statuses.iter().all(|status| *status == 503), "{statuses:?}");
    assert_eq!(plane.local.proof(), Proof::Refused);
    // A token's own 401 is its own.
    let answer = token(&pki, "expired", true)
        .once(plane.address, "GET", PODS)
        .await
        .unwrap();
    assert_eq!(answer.status, 401);
    // The other CA's certificate arrives: forwarding works again.
    let proxy = other.front_proxy_client().unwrap();
    plane.replace("front-proxy-client.key", &proxy.key_pem());
    plane.replace("front-proxy-client.crt", &proxy.cert_pem());
    plane
        .until("forwarding is proven", |table| {
            table.members().local.proof() == Proof::Proven
        })
        .await;
    let mut wire = Wire::open(&client, plane.address).await;
    assert_eq!(wire.send(get(&client, PODS)).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_certificate_that_ends_ends_on_the_open_connection_too() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let plane = Plane::live(&pki, old.address(), &[new.address()], |_| {}).await;
    let subject = Subject::new().o("system:masters").cn("short");
    for http2 in [true, false] {
        let short = pki
            .ca
            .issue(&Leaf::client(subject.clone()).expires_in(3))
            .unwrap();
        let client = plane::with_certificate(&pki, &short, http2);
        let mut wire = Wire::open(&client, plane.address).await;
        let answer = wire.send(get(&client, PODS)).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
        sleep(Duration::from_millis(4200)).await;
        let answer = wire.send(get(&client, PODS)).await.unwrap();
        assert_eq!(answer.status(), 401);
    }
    // A CA that is removed: the next request of an open connection.
    let client = admin(&pki, false);
    let mut wire = Wire::open(&client, plane.address).await;
    let answer = wire.send(get(&client, PODS)).await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.into_body().collect().await.unwrap();
    let other = ClusterPki::new().unwrap();
    plane.replace("client-ca.crt", &other.ca.pem());
    let start = Instant::now();
    loop {
        let answer = wire.send(get(&client, PODS)).await.unwrap();
        let status = answer.status();
        answer.into_body().collect().await.unwrap();
        if status == 401 {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "the removed CA still counts"
        );
        sleep(Duration::from_millis(100)).await;
    }
}
