//! Who asks, and what they may: the same users, rights and objects on stand-ins and on real servers.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, bail};
use bench::{
    client::{Client, Who},
    pki::{ClusterPki, Issued},
};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use super::kinds;

/// The callers, each with its own way of proving who it is.
#[derive(Clone, Debug)]
pub(crate) struct People {
    /// A certificate of group `system:masters`.
    pub(crate) admin: Client,
    /// The same, over HTTP/1.1: for upgrades.
    pub(crate) admin_http1: Client,
    /// A certificate of an ordinary user, who may read the new kind and nothing beside it.
    pub(crate) alice: Client,
    /// A service account with the same rights.
    pub(crate) robot: Client,
    /// Nobody.
    pub(crate) anonymous: Client,
}

/// Tokens of service accounts.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// `default/robot`.
    pub(crate) robot: String,
    /// `kube-system/mvp`.
    pub(crate) mvp: String,
}

impl People {
    /// The service account is anonymous until its token is known.
    pub(crate) fn new(pki: &ClusterPki, admin: &Issued) -> Result<Self> {
        let authority = &pki.ca.certificate.der;
        let certificate =
            |issued: &Issued| Who::Certificate(vec![issued.der.clone()], issued.private_key());
        let alice = pki.client("alice", &["dev", "qa"])?;
        Ok(Self {
            admin: Client::new(authority, certificate(admin), true)?,
            admin_http1: Client::new(authority, certificate(admin), false)?,
            alice: Client::new(authority, certificate(&alice), true)?,
            robot: Client::new(authority, Who::Anonymous, true)?,
            anonymous: Client::new(authority, Who::Anonymous, true)?,
        })
    }
}

/// An administrator at one server.
#[derive(Debug)]
pub(crate) struct Desk<'a> {
    /// Who acts.
    pub(crate) admin: &'a Client,
    /// Where.
    pub(crate) server: SocketAddr,
}

/// Objects and rights that the checks rely on; `worker` is where the kubelet is.
pub(crate) async fn settle(desk: &Desk<'_>, worker: Ipv4Addr) -> Result<()> {
    for (namespace, name) in [
        ("default", "robot"),
        ("default", "default"),
        ("kube-system", "mvp"),
    ] {
        let object =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        make(
            desk,
            &format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
            &object,
        )
        .await?;
    }
    for (path, object) in rights().into_iter().chain(kinds::objects(worker)) {
        make(desk, path, &object).await?;
    }
    let node = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": worker.to_string()}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kinds::KUBELET_PORT}},
    }});
    patch(desk, "/api/v1/nodes/worker/status", &node).await
}

/// The token of a service account, as a pod would get it.
pub(crate) async fn token(desk: &Desk<'_>, namespace: &str, name: &str) -> Result<String> {
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": 86400}});
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let answer = make(desk, &path, &request).await?;
    let token = answer["status"]["token"].as_str();
    token
        .map(str::to_owned)
        .with_context(|| format!("no token in {answer}"))
}

/// Creates an object; one that is there already will do. A server that has just become ready may lack the namespace
/// `kube-system` for a moment, so it is tried for a while.
async fn make(desk: &Desk<'_>, path: &str, object: &Value) -> Result<Value> {
    let until = Instant::now() + Duration::from_secs(30);
    let json = [("content-type", "application/json")];
    loop {
        let sent = desk
            .admin
            .once_with(desk.server, "POST", path, &json, object.to_string())
            .await;
        match sent {
            Ok(answer) if answer.status.is_success() => return answer.json(),
            Ok(answer) if answer.status == StatusCode::CONFLICT => return Ok(object.clone()),
            _ if Instant::now() < until => sleep(Duration::from_millis(200)).await,
            Ok(answer) => bail!("POST {path}: {} {}", answer.status, answer.text()),
            Err(error) => return Err(error).with_context(|| format!("POST {path}")),
        }
    }
}

async fn patch(desk: &Desk<'_>, path: &str, object: &Value) -> Result<()> {
    let merge = [("content-type", "application/merge-patch+json")];
    let answer = desk
        .admin
        .once_with(desk.server, "PATCH", path, &merge, object.to_string())
        .await?;
    if !answer.status.is_success() {
        bail!("PATCH {path}: {} {}", answer.status, answer.text());
    }
    Ok(())
}

/// RBAC: of mvp what its chart gives it; of alice and the robot the new kind, read only.
fn rights() -> Vec<(&'static str, Value)> {
    const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    const GROUP: &str = "rbac.authorization.k8s.io";
    let role = |name: &str, rules: Value| json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    let binding = |name: &str, subjects: Value| {
        json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}, "subjects": subjects})
    };
    let account = |namespace: &str, name: &str| json!({"kind": "ServiceAccount", "namespace": namespace, "name": name});
    let read = |group: &str, resource: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": ["get", "list", "watch"]});
    vec![
        (
            ROLES,
            role(
                "mvp",
                json!([
                    read("apiextensions.k8s.io", "customresourcedefinitions"),
                    read("apiregistration.k8s.io", "apiservices"),
                    read("discovery.k8s.io", "endpointslices"),
                    read("coordination.k8s.io", "leases"),
                ]),
            ),
        ),
        (
            BINDINGS,
            binding("mvp", json!([account("kube-system", "mvp")])),
        ),
        (
            ROLES,
            role(
                "new-kind",
                json!([read(kinds::NEW_GROUP, kinds::NEW_RESOURCE)]),
            ),
        ),
        (
            BINDINGS,
            binding(
                "new-kind",
                json!([{"kind": "User", "apiGroup": GROUP, "name": "alice"}, account("default", "robot")]),
            ),
        ),
    ]
}
