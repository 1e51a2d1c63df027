//! `mvp check` as a process, without a running mvp and with one, in front of stand-ins that are broken in one way each:
//! every break is named, and its hint says what to do.

use std::{net::SocketAddr, path::PathBuf, process::Command, time::Duration};

use bench::{
    pki::{Authority, ClusterPki, Issued, KubeconfigUser, Leaf, Subject, kubeconfig},
    standin::{Action, Fault, Handle, On, Release, Rule, Standin, Store, User},
};
use mvp_user::{
    admin::wire::{Finding, Grade},
    steer::privileges::{Needs, drop_capabilities},
};

mod cluster;
mod running;

/// Longer than `mvp check` warns of.
const LONG: i64 = 90 * 24 * 3600;
const USER: &str = "system:serviceaccount:kube-system:mvp";

/// Two kube-apiservers and the files of the first one's node.
struct Site {
    pki: ClusterPki,
    files: tempfile::TempDir,
    local: Handle,
    peer: Handle,
}

fn serving() -> Leaf {
    let names = ["kubernetes", "kubernetes.default.svc", "localhost"];
    let subject = Subject::new().cn("kube-apiserver");
    Leaf::server(subject, &names, &["127.0.0.1".parse().unwrap()]).expires_in(LONG)
}

async fn standin(pki: &ClusterPki, store: &Store, name: &str, shows: &Issued) -> Handle {
    Standin::builder(pki)
        .release(Release::V1_36)
        .store(store)
        .name(name)
        .certificate(shows)
        // As deploy/ grants it.
        .token("mvp", User::service_account("kube-system", "mvp"))
        .allow(Rule::new(
            USER,
            &["list", "watch"],
            &[
                "endpointslices.discovery.k8s.io",
                "leases.coordination.k8s.io",
                "customresourcedefinitions.apiextensions.k8s.io",
                "apiservices.apiregistration.k8s.io",
            ],
        ))
        .token("nobody", User::service_account("kube-system", "nobody"))
        .start()
        .await
        .unwrap()
}

impl Site {
    async fn new() -> Self {
        let pki = ClusterPki::new().unwrap();
        let files = tempfile::tempdir().unwrap();
        let shows = pki.ca.issue(&serving()).unwrap();
        let store = Store::memory();
        let local = standin(&pki, &store, "cp1", &shows).await;
        let peer = standin(&pki, &store, "cp2", &shows).await;
        let site = Self {
            pki,
            files,
            local,
            peer,
        };
        let proxy = Leaf::client(Subject::new().cn("front-proxy-client")).expires_in(LONG);
        let proxy = site.pki.front_proxy_ca.issue(&proxy).unwrap();
        site.put("apiserver.crt", &shows.cert_pem());
        site.put("apiserver.key", &shows.key_pem());
        site.put("front-proxy-client.crt", &proxy.cert_pem());
        site.put("front-proxy-client.key", &proxy.key_pem());
        site.put("ca.crt", &site.pki.ca.pem());
        site.put("peer-ca.crt", &site.pki.ca.pem());
        site.put("front-proxy-ca.crt", &site.pki.front_proxy_ca.pem());
        site.login("mvp");
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn login(&self, token: &str) {
        let user = KubeconfigUser::Token(token);
        let text = kubeconfig(&self.local.url(), &self.pki.ca.pem(), user);
        self.put("kubeconfig", &text);
    }

    fn flags(&self) -> Vec<String> {
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.path(name).display());
        vec![
            "--kubeadm-manifest=".to_owned(),
            format!("--local={}", self.local.url()),
            format!("--peer={}", self.peer.url()),
            file("tls-cert-file", "apiserver.crt"),
            file("tls-private-key-file", "apiserver.key"),
            file("client-ca-file", "ca.crt"),
            file("peer-ca-file", "peer-ca.crt"),
            file("requestheader-client-ca-file", "front-proxy-ca.crt"),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            file("proxy-client-cert-file", "front-proxy-client.crt"),
            file("proxy-client-key-file", "front-proxy-client.key"),
            file("kubeconfig", "kubeconfig"),
            file("state-file", "state.json"),
        ]
    }

    fn command(&self, verb: &str, more: &[&str]) -> Command {
        // What is given here goes before what the site says.
        let flags = self.flags().into_iter().filter(|flag| {
            let name = flag.split_inclusive('=').next().unwrap();
            !more.iter().any(|it| it.starts_with(name))
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_mvp"));
        command.arg(verb).args(flags).args(more);
        command
    }

    async fn check(&self, more: &[&str]) -> Report {
        let mut all = vec!["-o", "json"];
        all.extend(more);
        Report::of(self.command("check", &all)).await
    }

    /// Without a running mvp.
    async fn alone(&self) -> Report {
        self.check(&["--offline"]).await
    }
}

/// What `mvp check` said.
#[derive(Debug)]
struct Report {
    code: i32,
    findings: Vec<Finding>,
}

impl Report {
    async fn of(mut command: Command) -> Self {
        let output = tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let findings = serde_json::from_str(&said)
            .unwrap_or_else(|error| panic!("{error}: {said} {output:?}"));
        Self {
            code: output.status.code().unwrap(),
            findings,
        }
    }

    fn get(&self, check: &str) -> &Finding {
        let found = self.findings.iter().find(|it| it.check.starts_with(check));
        found.unwrap_or_else(|| panic!("no {check:?} in {self:#?}"))
    }

    /// It is named as `grade`, with these words in what was found and in the hint.
    #[track_caller]
    fn names(&self, check: &str, grade: Grade, found: &str, hint: &str) {
        let it = self.get(check);
        let said = it.hint.as_deref().unwrap_or_default();
        assert!(
            it.result == grade && it.found.contains(found) && said.contains(hint),
            "{it:#?}"
        );
        let worst = self.findings.iter().map(|it| it.result).max().unwrap();
        let code = match worst {
            Grade::Ok => 0,
            Grade::Warn => 1,
            Grade::Fail => 2,
        };
        assert_eq!(self.code, code);
    }
}

/// What depends on who runs the tests, and on which machine.
fn of_the_machine(it: &Finding) -> bool {
    let name = it.check.as_str();
    [
        "capabilities",
        "steering program",
        "BPF compiler",
        "control groups",
    ]
    .contains(&name)
}

#[tokio::test]
async fn a_whole_site_has_nothing_to_look_at() {
    let site = Site::new().await;
    let report = site.alone().await;
    let bad: Vec<_> = report
        .findings
        .iter()
        .filter(|it| it.result != Grade::Ok && !of_the_machine(it))
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
    let local = format!("local {}", site.local.address());
    assert!(report.get(&local).found.contains("v1.36"), "{report:#?}");
    report.get(&format!("peer {}", site.peer.address()));
    report.get("RBAC");
    report.get("clocks");
    report.get("APIServices");
    let rights = report.get("capabilities").result;
    if rights == Grade::Ok {
        report.names("steering program", Grade::Ok, "not attached", "");
    }
    // Without --offline it says that no mvp runs, and looks all the same.
    let nobody = format!("--control-socket={}", site.path("nobody.sock").display());
    let report = site.check(&[&nobody]).await;
    report.names(
        "mvp",
        Grade::Warn,
        "nobody.sock",
        "start it before the upgrade",
    );
    report.get(&local);
}

#[tokio::test]
async fn the_table_fits_eighty_columns() {
    let site = Site::new().await;
    site.peer.kill().await;
    let mut command = site.command("check", &["--offline"]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let text = String::from_utf8(output.await.unwrap().stdout).unwrap();
    assert!(text.contains("-> "), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
}

#[tokio::test]
async fn an_expired_certificate_is_named() {
    let site = Site::new().await;
    let expired = serving().expires_in(-3600);
    let expired = site.pki.ca.issue(&expired).unwrap();
    site.put("apiserver.crt", &expired.cert_pem());
    site.put("apiserver.key", &expired.key_pem());
    site.peer.set_certificate(&expired).unwrap();
    let report = site.alone().await;
    report.names("--tls-cert-file", Grade::Fail, "has expired", "renew it");
    report.names("peer", Grade::Fail, "", "renew its serving certificate");
}

#[tokio::test]
async fn a_certificate_that_soon_ends_is_warned_of() {
    let site = Site::new().await;
    let soon =
        Leaf::client(Subject::new().cn("front-proxy-client")).expires_in(20 * 24 * 3600 + 1800);
    let soon = site.pki.front_proxy_ca.issue(&soon).unwrap();
    site.put("front-proxy-client.crt", &soon.cert_pem());
    site.put("front-proxy-client.key", &soon.key_pem());
    let report = site.alone().await;
    let flag = "--proxy-client-cert-file";
    report.names(flag, Grade::Warn, "expires in 20 days", "renew it");
}

#[tokio::test]
async fn a_wrong_ca_is_named_wherever_it_is() {
    let site = Site::new().await;
    let other = Authority::new("kubernetes").unwrap();
    site.put("peer-ca.crt", &other.pem());
    let report = site.alone().await;
    report.names(
        "local",
        Grade::Fail,
        "handshake",
        "wrong CA: --peer-ca-file",
    );
    report.names("peer", Grade::Fail, "handshake", "wrong CA: --peer-ca-file");
    site.put("peer-ca.crt", &site.pki.ca.pem());

    // The front proxies' CA: this node's own settings refuse the certificate, and so do the servers that know it.
    site.put("front-proxy-ca.crt", &other.pem());
    let report = site.alone().await;
    report.names(
        "front-proxy trust",
        Grade::Fail,
        "was not issued by",
        "wrong CA",
    );
    report.names("local", Grade::Ok, "takes the identities", "");
    site.put("front-proxy-ca.crt", &site.pki.front_proxy_ca.pem());
    let foreign = Leaf::client(Subject::new().cn("front-proxy-client")).expires_in(LONG);
    let foreign = other.issue(&foreign).unwrap();
    site.put("front-proxy-client.crt", &foreign.cert_pem());
    site.put("front-proxy-client.key", &foreign.key_pem());
    let report = site.alone().await;
    let hint = "--requestheader-client-ca-file";
    report.names("local", Grade::Fail, "refuses the identities", hint);
    report.names("peer", Grade::Fail, "refuses the identities", hint);
}

#[tokio::test]
async fn a_closed_port_is_named() {
    let site = Site::new().await;
    site.local.refuse(true).await.unwrap();
    let report = site.alone().await;
    report.names(
        "local",
        Grade::Fail,
        "refused",
        "is kube-apiserver running?",
    );
    report.names(
        "listeners on port",
        Grade::Fail,
        "none of them",
        "--secure-port",
    );
}

#[tokio::test]
async fn missing_capabilities_are_named() {
    let site = Site::new().await;
    let mut command = site.command("check", &["--offline", "-o", "json"]);
    // Capabilities belong to threads; the process started from one inherits its bounding set.
    let output = std::thread::spawn(move || {
        drop_capabilities(Needs::default()).unwrap();
        command.output().unwrap()
    });
    let output = output.join().unwrap();
    let report = Report {
        code: output.status.code().unwrap(),
        findings: serde_json::from_slice(&output.stdout).unwrap(),
    };
    let found = "CAP_BPF and CAP_NET_ADMIN not in effect";
    report.names("capabilities", Grade::Fail, found, "run it as root");
    report.names(
        "steering program",
        Grade::Fail,
        "CAP_BPF",
        "capabilities above",
    );
    // The rest is looked at all the same.
    report.names("peer", Grade::Ok, "up", "");
}

#[tokio::test]
async fn who_does_not_steer_needs_no_capabilities() {
    let site = Site::new().await;
    for direct in ["--listen=127.0.0.1:0", "--steer=never"] {
        let report = site.check(&["--offline", direct]).await;
        for name in ["capabilities", "steering program"] {
            let found = report.findings.iter().find(|it| it.check == name);
            assert_eq!(found, None, "{direct}");
        }
        report.get("peer");
    }
}

#[tokio::test]
async fn a_wrong_key_is_named() {
    let site = Site::new().await;
    let other = site.pki.ca.issue(&serving()).unwrap();
    site.put("apiserver.key", &other.key_pem());
    let report = site.alone().await;
    let flag = "--tls-private-key-file";
    report.names(
        flag,
        Grade::Fail,
        "does not belong to the certificate",
        "renew both",
    );
    std::fs::remove_file(site.path("front-proxy-client.key")).unwrap();
    let report = site.alone().await;
    report.names(flag, Grade::Fail, "does not belong", "");
    let flag = "--proxy-client-key-file";
    report.names(flag, Grade::Fail, "cannot be read", "run as root");
}

#[tokio::test]
async fn an_unreachable_peer_is_named() {
    let site = Site::new().await;
    site.peer.silence(true);
    let report = site.alone().await;
    report.names("peer", Grade::Fail, "", "firewalls");
    report.names("local", Grade::Ok, "up", "");
    site.peer.kill().await;
    let report = site.alone().await;
    report.names(
        "peer",
        Grade::Fail,
        "refused",
        "is that kube-apiserver running?",
    );
}

#[tokio::test]
async fn clocks_that_disagree_are_named() {
    let site = Site::new().await;
    let mut future = serving();
    future.not_before = future.not_after - k8s_openapi::jiff::SignedDuration::from_hours(24);
    let future = site.pki.ca.issue(&future).unwrap();
    site.put("apiserver.crt", &future.cert_pem());
    site.put("apiserver.key", &future.key_pem());
    site.local.set_certificate(&future).unwrap();
    let when = std::time::SystemTime::now() + Duration::from_mins(5);
    site.peer.fault(Fault {
        on: On::path("/readyz"),
        action: Action::Answer {
            code: 200,
            headers: vec![("date".to_owned(), httpdate::fmt_http_date(when))],
            body: "ok".to_owned(),
        },
        times: None,
    });
    let report = site.alone().await;
    let flag = "--tls-cert-file";
    report.names(flag, Grade::Fail, "is not valid yet", "clock right");
    report.names("local", Grade::Fail, "", "clocks of both nodes");
    let clock = format!("clock of {}", site.peer.address());
    report.names(&clock, Grade::Fail, "ahead of", "NTP");
}

#[tokio::test]
async fn a_listener_of_another_program_is_named() {
    let site = Site::new().await;
    let other = ClusterPki::new().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 3], site.local.address().port()));
    let _other = Standin::builder(&other)
        .bind(address)
        .start()
        .await
        .unwrap();
    let report = site.alone().await;
    let name = format!("listener {address}");
    report.names(&name, Grade::Warn, "not kube-apiserver's", "left alone");
}
