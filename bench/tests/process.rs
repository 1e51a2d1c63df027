//! `standin-apiserver` as processes: one store, two servers, a control socket, SIGTERM and SIGKILL.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::tests_outside_test_module,
    reason = "test binary"
)]

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use bench::{
    pki::ClusterPki,
    standin::{
        Store,
        client::{Answer, Client},
        control::{self, Answer as Said, Command as Order},
    },
};
use serde_json::json;

/// A process that does not outlive its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

struct Cluster {
    directory: tempfile::TempDir,
    admin: Client,
    token: Client,
}

impl Cluster {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pki = ClusterPki::new().unwrap();
        pki.write(directory.path(), &["127.0.0.1".parse().unwrap()])
            .unwrap();
        std::fs::write(
            directory.path().join("tokens"),
            "secret,app,u-1,\"system:masters,dev\"\n",
        )
        .unwrap();
        let anonymous = Client::new(&pki.ca.certificate.der);
        let admin = anonymous
            .clone()
            .certificate(&pki.client("admin", &["system:masters"]).unwrap());
        Self {
            directory,
            admin,
            token: anonymous.token("secret"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn spawn(arguments: &[String]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_standin-apiserver"));
        Process(
            command
                .args(arguments)
                .stdin(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    fn server(&self, name: &str, version: &str, address: SocketAddr) -> Process {
        let flag = |flag: &str, value: &Path| format!("--{flag}={}", value.display());
        Self::spawn(&[
            flag("store", &self.path("store")),
            flag("control", &self.path(name)),
            flag("tls-cert-file", &self.path("apiserver.crt")),
            flag("tls-private-key-file", &self.path("apiserver.key")),
            flag("client-ca-file", &self.path("ca.crt")),
            flag(
                "requestheader-client-ca-file",
                &self.path("front-proxy-ca.crt"),
            ),
            flag("token-auth-file", &self.path("tokens")),
            format!("--version={version}"),
            format!("--bind-address={}", address.ip()),
            format!("--secure-port={}", address.port()),
            format!("--hostname={name}"),
            "--endpoint-ttl=2".to_owned(),
        ])
    }

    async fn until_ready(&self, address: SocketAddr) {
        eventually(async || {
            self.ask(address, "/readyz")
                .await
                .is_ok_and(|answer| answer.status == 200)
        })
        .await;
    }

    async fn ask(&self, address: SocketAddr, path: &str) -> anyhow::Result<Answer> {
        self.admin.get(address, path).await
    }
}

#[track_caller]
fn eventually(asked: impl AsyncFn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        for _ in 0..400 {
            if asked().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("it did not become so within 10 s: {caller}");
    }
}

/// A port that was free a moment ago.
fn free(ip: &str) -> SocketAddr {
    std::net::TcpListener::bind((ip, 0))
        .unwrap()
        .local_addr()
        .unwrap()
}

async fn endpoints(store: &Store) -> Vec<String> {
    let (slices, _) = store
        .list("discovery.k8s.io/endpointslices/default/")
        .await
        .unwrap();
    let mut found: Vec<String> = slices
        .iter()
        .flat_map(|slice| slice.value["endpoints"].as_array().unwrap().clone())
        .map(|endpoint| endpoint["addresses"][0].as_str().unwrap().to_owned())
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn two_servers_share_a_store_and_die_in_two_ways() {
    let cluster = Cluster::new();
    let _store = Cluster::spawn(&[format!("--serve-store={}", cluster.path("store").display())]);
    eventually(async || cluster.path("store").exists()).await;
    let (old, new) = (free("127.0.0.1"), free("127.0.0.2"));
    let mut first = cluster.server("old", "v1.34", old);
    let mut second = cluster.server("new", "v1.36", new);
    cluster.until_ready(old).await;
    cluster.until_ready(new).await;
    let store = Store::connect(&cluster.path("store"));
    eventually(async || endpoints(&store).await == ["127.0.0.1", "127.0.0.2"]).await;

    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}}).to_string();
    let headers = [("content-type", "application/json")];
    let created = cluster
        .token
        .send(old, "POST", pods, &headers, pod.as_bytes())
        .await
        .unwrap();
    assert_eq!(created.status, 201);
    let read = cluster.ask(new, &format!("{pods}/p")).await.unwrap();
    assert_eq!(read.json().unwrap(), created.json().unwrap());
    let policies = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
    assert_eq!(cluster.ask(old, policies).await.unwrap().status, 404);
    assert_eq!(cluster.ask(new, policies).await.unwrap().status, 200);

    let Said::Requests(seen) = control::command(&cluster.path("old"), &Order::Requests)
        .await
        .unwrap()
    else {
        panic!("no requests");
    };
    let post = seen
        .iter()
        .find(|request| request.method == "POST")
        .unwrap();
    assert_eq!(post.user.as_ref().unwrap().uid, "u-1");
    let fault = r#"{"fault":{"on":{"path":"/version"},"action":{"answer":{"code":500,"headers":[],"body":""}},"times":1}}"#;
    let order = control::command(&cluster.path("old"), &serde_json::from_str(fault).unwrap())
        .await
        .unwrap();
    assert!(matches!(order, Said::Done));
    assert_eq!(cluster.ask(old, "/version").await.unwrap().status, 500);
    let Said::Loopback(answers, failures) =
        control::command(&cluster.path("old"), &Order::Loopback)
            .await
            .unwrap()
    else {
        panic!("no counts");
    };
    assert!(answers > 0 && failures == 0, "{answers} {failures}");

    // kill -9: refused at once, the endpoint stays for its lease.
    second.0.kill().unwrap();
    second.0.wait().unwrap();
    assert!(cluster.ask(new, "/livez").await.is_err());
    assert_eq!(endpoints(&store).await, ["127.0.0.1", "127.0.0.2"]);
    eventually(async || endpoints(&store).await == ["127.0.0.1"]).await;

    // SIGTERM: the endpoint goes at once, then 429, then it ends by itself.
    let pid = nix::unistd::Pid::from_raw(i32::try_from(first.0.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    eventually(async || endpoints(&store).await.is_empty()).await;
    eventually(async || {
        cluster
            .ask(old, "/api/v1/pods")
            .await
            .is_ok_and(|answer| answer.status == 429)
    })
    .await;
    eventually(async || cluster.ask(old, "/livez").await.is_err()).await;
    let ended = tokio::task::spawn_blocking(move || first.0.wait())
        .await
        .unwrap()
        .unwrap();
    assert!(ended.success(), "{ended}");
}

#[test]
fn bad_flags_are_named() {
    for (arguments, wanted) in [
        (vec![], "--tls-cert-file"),
        (
            vec![
                "--tls-cert-file=/nowhere.crt",
                "--tls-private-key-file=/nowhere.key",
            ],
            "/nowhere.crt",
        ),
        (vec!["--version=v1.20"], "v1.20"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_standin-apiserver"))
            .args(&arguments)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(wanted),
            "{arguments:?}: {said}"
        );
    }
}
