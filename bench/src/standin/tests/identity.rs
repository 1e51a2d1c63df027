//! Who is who, as measured on v1.34 and v1.36.

use serde_json::{Value, json};

use super::Cluster;
use crate::{
    pki::{ClusterPki, Leaf, Subject, Usage},
    standin::{
        Standin, User,
        client::{Answer, Client},
    },
};

const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

async fn whoami(cluster: &Cluster, client: &Client, headers: &[(&str, &str)]) -> Answer {
    let mut lines = vec![("content-type", "application/json")];
    lines.extend(headers);
    let body = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    client
        .send(
            cluster.server.address(),
            "POST",
            REVIEW,
            &lines,
            body.to_string().as_bytes(),
        )
        .await
        .unwrap()
}

async fn user(cluster: &Cluster, client: &Client, headers: &[(&str, &str)]) -> Value {
    let answer = whoami(cluster, client, headers).await;
    assert_eq!(
        answer.status,
        201,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    answer.json().unwrap()["status"]["userInfo"].clone()
}

fn plain(cluster: &Cluster) -> Client {
    cluster.anonymous.clone()
}

fn front_proxy(cluster: &Cluster) -> Client {
    plain(cluster).certificate(&cluster.pki.front_proxy_client().unwrap())
}

fn with_subject(cluster: &Cluster, subject: Subject) -> Client {
    plain(cluster).certificate(&cluster.pki.ca.issue(&Leaf::client(subject)).unwrap())
}

async fn cluster() -> Cluster {
    Cluster::with(|builder| builder.token("good", User::service_account("default", "app"))).await
}

#[tokio::test]
async fn a_certificate_gives_name_groups_and_credential_id_but_no_uid() {
    let cluster = cluster().await;
    let issued = cluster.pki.client("alice", &["dev", "qa"]).unwrap();
    let alice = user(&cluster, &plain(&cluster).certificate(&issued), &[]).await;
    let fingerprint = {
        use sha2::Digest as _;
        crate::standin::clock::hex(&sha2::Sha256::digest(&issued.der))
    };
    assert_eq!(
        alice,
        json!({
            "username": "alice", "groups": ["dev", "qa", "system:authenticated"],
            "extra": {"authentication.kubernetes.io/credential-id": [format!("X509SHA256={fingerprint}")]},
        })
    );
}

#[tokio::test]
async fn headers_of_the_front_proxy_give_exactly_what_they_say() {
    let cluster = cluster().await;
    let proxy = front_proxy(&cluster);
    let headers = [
        ("x-remote-user", "alice"),
        ("x-remote-uid", "42"),
        ("x-remote-group", "dev,qa"),
        ("x-remote-group", "ops"),
        (
            "x-remote-extra-authentication.kubernetes.io%2fCredential-Id",
            "a",
        ),
        (
            "x-remote-extra-authentication.kubernetes.io%2fcredential-id",
            "b",
        ),
    ];
    assert_eq!(
        user(&cluster, &proxy, &headers).await,
        json!({
            "username": "alice", "uid": "42", "groups": ["dev,qa", "ops", "system:authenticated"],
            "extra": {"authentication.kubernetes.io/credential-id": ["a", "b"]},
        })
    );
}

#[tokio::test]
async fn a_front_proxy_without_a_user_is_refused_and_not_anonymous() {
    let cluster = cluster().await;
    let proxy = front_proxy(&cluster);
    for headers in [
        vec![],
        vec![("x-remote-user", "")],
        vec![("x-remote-group", "system:masters")],
    ] {
        assert_eq!(whoami(&cluster, &proxy, &headers).await.status, 401);
    }
    // With a token it is the token's user; a header wins over any token.
    assert_eq!(
        user(&cluster, &proxy.clone().token("good"), &[]).await["username"],
        "system:serviceaccount:default:app"
    );
    assert_eq!(
        whoami(&cluster, &proxy.clone().token("bad"), &[])
            .await
            .status,
        401
    );
    assert_eq!(
        user(&cluster, &proxy.token("bad"), &[("x-remote-user", "alice")]).await["username"],
        "alice"
    );
}

#[tokio::test]
async fn wrong_front_proxies_are_refused() {
    let cluster = cluster().await;
    let wrong_name = cluster
        .pki
        .front_proxy_ca
        .issue(&Leaf::client(Subject::new().cn("somebody")))
        .unwrap();
    let stranger = ClusterPki::new().unwrap().front_proxy_client().unwrap();
    let expired = Leaf::client(Subject::new().cn("front-proxy-client")).expires_in(-60);
    let expired = cluster.pki.front_proxy_ca.issue(&expired).unwrap();
    for issued in [wrong_name, stranger, expired] {
        let client = plain(&cluster).certificate(&issued);
        let answer = whoami(&cluster, &client, &[("x-remote-user", "alice")]).await;
        assert_eq!(answer.status, 401);
        assert_eq!(
            answer.body,
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"Unauthorized\",\
             \"reason\":\"Unauthorized\",\"code\":401}\n"
        );
    }
}

#[tokio::test]
async fn headers_of_ordinary_clients_are_ignored() {
    let cluster = cluster().await;
    let alice = plain(&cluster).certificate(&cluster.pki.client("alice", &[]).unwrap());
    let forged = [
        ("x-remote-user", "root"),
        ("x-remote-group", "system:masters"),
    ];
    assert_eq!(user(&cluster, &alice, &forged).await["username"], "alice");
    assert_eq!(
        user(&cluster, &plain(&cluster).token("good"), &forged).await["username"],
        "system:serviceaccount:default:app"
    );
    assert_eq!(
        whoami(&cluster, &plain(&cluster), &forged).await.status,
        403
    );
}

#[tokio::test]
async fn a_certificate_beats_a_token_and_a_token_saves_a_bad_certificate() {
    let cluster = cluster().await;
    let alice = plain(&cluster)
        .certificate(&cluster.pki.client("alice", &[]).unwrap())
        .token("bad");
    assert_eq!(user(&cluster, &alice, &[]).await["username"], "alice");
    let stranger = ClusterPki::new().unwrap().client("alice", &[]).unwrap();
    let stranger = plain(&cluster).certificate(&stranger);
    assert_eq!(whoami(&cluster, &stranger, &[]).await.status, 401);
    assert_eq!(
        user(&cluster, &stranger.token("good"), &[]).await["username"],
        "system:serviceaccount:default:app"
    );
}

#[tokio::test]
async fn subjects_are_read_as_go_reads_them() {
    let cluster = cluster().await;
    let two = with_subject(
        &cluster,
        Subject::new().cn("first").o("b").o(" a").o("b").cn("last"),
    );
    let found = user(&cluster, &two, &[]).await;
    assert_eq!(found["username"], "last");
    assert_eq!(
        found["groups"],
        json!(["b", " a", "b", "system:authenticated"])
    );
    let uid = with_subject(&cluster, Subject::new().cn("alice").uid("u-1"));
    assert_eq!(user(&cluster, &uid, &[]).await["uid"], "u-1");
    for bad in [
        Subject::new().cn("alice").uid("a").uid("b"),
        Subject::new().cn("alice").uid(""),
        Subject::new().o("dev"),
        Subject::new().cn(""),
    ] {
        assert_eq!(
            whoami(&cluster, &with_subject(&cluster, bad), &[])
                .await
                .status,
            401
        );
    }
    let many = (0..150).fold(Subject::new().cn("many"), |subject, at| {
        subject.o(&format!("group-{at}"))
    });
    let found = user(&cluster, &with_subject(&cluster, many), &[]).await;
    assert_eq!(found["groups"].as_array().unwrap().len(), 151);
}

#[tokio::test]
async fn usage_validity_and_version_count_as_in_go() {
    let cluster = cluster().await;
    let issue = |leaf: &Leaf| plain(&cluster).certificate(&cluster.pki.ca.issue(leaf).unwrap());
    let leaf = || Leaf::client(Subject::new().cn("alice"));
    assert_eq!(
        whoami(&cluster, &issue(&leaf().usages(&[Usage::Server])), &[])
            .await
            .status,
        401
    );
    assert_eq!(
        whoami(&cluster, &issue(&leaf().expires_in(-1)), &[])
            .await
            .status,
        401
    );
    let mut unknown = leaf();
    unknown.unknown_critical = true;
    assert_eq!(whoami(&cluster, &issue(&unknown), &[]).await.status, 401);
    assert_eq!(
        user(&cluster, &issue(&leaf().usages(&[])), &[]).await["username"],
        "alice"
    );
    assert_eq!(
        user(&cluster, &issue(&leaf().version1()), &[]).await["username"],
        "alice"
    );
}

#[tokio::test]
async fn anonymous_may_read_health_and_version_only() {
    let cluster = cluster().await;
    for (path, status) in [
        ("/version", 200),
        ("/livez", 200),
        ("/readyz", 200),
        ("/healthz", 200),
        ("/apis", 403),
        ("/api", 403),
    ] {
        assert_eq!(
            cluster
                .anonymous
                .get(cluster.server.address(), path)
                .await
                .unwrap()
                .status,
            status,
            "{path}"
        );
    }
    cluster
        .server
        .set_authentication(|known| known.anonymous = false)
        .unwrap();
    assert_eq!(
        cluster
            .anonymous
            .get(cluster.server.address(), "/version")
            .await
            .unwrap()
            .status,
        401
    );
}

#[tokio::test]
async fn only_masters_may_impersonate() {
    let cluster = cluster().await;
    let headers = [
        ("impersonate-user", "bob"),
        ("impersonate-group", "dev"),
        ("impersonate-extra-scopes", "view"),
    ];
    let bob = user(&cluster, &cluster.admin, &headers).await;
    assert_eq!(
        bob,
        json!({"username": "bob", "groups": ["dev", "system:authenticated"], "extra": {"scopes": ["view"]}})
    );
    let refused = whoami(&cluster, &plain(&cluster).token("good"), &headers).await;
    assert_eq!(refused.status, 403);
    assert_eq!(
        refused.json().unwrap()["message"],
        "users \"bob\" is forbidden: User \"system:serviceaccount:default:app\" cannot impersonate resource \"users\" in API \
         group \"\" at the cluster scope"
    );
    let seen = cluster.server.requests();
    assert_eq!(seen[0].user.as_ref().unwrap().name, "admin");
    assert_eq!(seen[0].impersonated.as_ref().unwrap().name, "bob");
}

#[tokio::test]
async fn source_addresses_are_those_of_the_first_line_then_the_socket() {
    let cluster = Cluster::new().await;
    let lines = [
        ("x-forwarded-for", "10.0.0.1, 10.0.0.2"),
        ("x-forwarded-for", "10.9.9.9"),
        ("x-real-ip", "10.0.0.3"),
    ];
    cluster
        .admin
        .send(cluster.server.address(), "GET", "/version", &lines, b"")
        .await
        .unwrap();
    let seen = cluster.server.requests().pop().unwrap();
    assert_eq!(
        seen.source_ips,
        ["10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1"]
    );
    assert_eq!(
        seen.header("x-forwarded-for"),
        ["10.0.0.1, 10.0.0.2", "10.9.9.9"]
    );
}

#[tokio::test]
async fn a_bare_builder_needs_a_certificate_and_says_so() {
    let error = Standin::bare().start().await.unwrap_err();
    assert!(
        error.to_string().contains("no serving certificate"),
        "{error}"
    );
}
