//! The two kinds of servers a demo can have: stand-ins with the recorded answers of real ones, or real binaries on one
//! etcd. Not here: when they start and stop.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use bench::standin::{
    Rule,
    control::{self, Answer, Command},
};

use super::{
    kinds,
    people::{self, Desk, Tokens},
    process::{Process, Program},
};
use crate::lab::Host;

/// Where every kube-apiserver listens.
pub(crate) const PORT: u16 = 6443;
const ETCD_PORT: u16 = 2379;
/// Files of stand-ins.
const STORE: &str = "store.sock";
const CONTROL: &str = "apiserver.sock";
const TOKENS: &str = "tokens.csv";
/// Tokens that stand-ins know.
const ROBOT: &str = "token-of-the-robot";
const MVP: &str = "token-of-mvp";

/// Which servers, and what they are started with.
#[derive(Clone, Debug)]
pub(crate) enum Servers {
    /// The binary `standin-apiserver`.
    StandIn(PathBuf),
    /// Real kube-apiservers by version, and their etcd.
    Real {
        /// Executables by version, e.g. `v1.34`.
        binaries: BTreeMap<String, PathBuf>,
        /// The store.
        etcd: Etcd,
    },
}

/// How etcd is called.
#[derive(Clone, Debug)]
pub(crate) enum Etcd {
    /// With etcd's own flags.
    Plain(PathBuf),
    /// As `WRAPPER DATADIR CLIENT_URL PEER_URL`.
    Wrapper(PathBuf),
}

/// Where files are.
#[derive(Debug)]
pub(crate) struct Paths<'a> {
    /// Certificates of the cluster.
    pub(crate) shared: &'a Path,
    /// Files of the node.
    pub(crate) own: &'a Path,
    /// The demo's directory.
    pub(crate) all: &'a Path,
}

impl Servers {
    /// Starts what the servers share.
    pub(crate) fn start_store(&self, host: &Host, directory: &Path) -> Result<Option<Process>> {
        let etcd = match self {
            Self::Real { etcd, .. } => etcd,
            Self::StandIn(path) => {
                fs::write(directory.join(TOKENS), tokens())?;
                let arguments = vec![format!("--serve-store={}", directory.join(STORE).display())];
                let program = Program {
                    path: path.clone(),
                    arguments,
                    host_name: None,
                };
                return Process::start("the store", host, &program, &directory.join("store.log"))
                    .map(Some);
            }
        };
        let data = directory.join("etcd").display().to_string();
        let url = |port: u16| format!("http://{}:{port}", host.address);
        let (client, peer) = (url(ETCD_PORT), url(ETCD_PORT + 1));
        let (path, arguments) = match etcd {
            Etcd::Wrapper(path) => (path, vec![data, client, peer]),
            Etcd::Plain(path) => {
                let flags = [
                    ("name", "demo".to_owned()),
                    ("data-dir", data),
                    ("listen-client-urls", client.clone()),
                    ("advertise-client-urls", client),
                    ("listen-peer-urls", peer.clone()),
                    ("initial-advertise-peer-urls", peer.clone()),
                    ("initial-cluster", format!("demo={peer}")),
                ];
                (
                    path,
                    flags
                        .map(|(name, value)| format!("--{name}={value}"))
                        .to_vec(),
                )
            }
        };
        let program = Program {
            path: path.clone(),
            arguments,
            host_name: None,
        };
        Process::start("etcd", host, &program, &directory.join("etcd.log")).map(Some)
    }

    /// The server of a node.
    pub(crate) fn program(&self, host: &Host, version: &str, paths: &Paths<'_>) -> Result<Program> {
        match self {
            Self::StandIn(path) => Ok(stand_in(path, host, version, paths)),
            Self::Real { binaries, .. } => {
                let path = binaries
                    .get(version)
                    .with_context(|| format!("no kube-apiserver {version}"))?;
                Ok(real(path, host, paths))
            }
        }
    }

    /// Tokens of the service accounts.
    pub(crate) async fn tokens(&self, desk: &Desk<'_>) -> Result<Tokens> {
        match self {
            Self::StandIn(_) => Ok(Tokens {
                robot: ROBOT.to_owned(),
                mvp: MVP.to_owned(),
            }),
            Self::Real { .. } => Ok(Tokens {
                robot: people::token(desk, "default", "robot").await?,
                mvp: people::token(desk, "kube-system", "mvp").await?,
            }),
        }
    }

    /// What a server that has just become ready must be told: who may do what, where RBAC objects do not say it.
    pub(crate) async fn grant(&self, own: &Path) -> Result<()> {
        if let Self::StandIn(_) = self {
            match control::command(&own.join(CONTROL), &Command::Rules(rules())).await? {
                Answer::Done => {}
                other => bail!("a stand-in refused its rules: {other:?}"),
            }
        }
        Ok(())
    }

    /// One word for people.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::StandIn(_) => "stand-in",
            Self::Real { .. } => "real",
        }
    }
}

/// kube-apiserver's static token file.
fn tokens() -> String {
    let line = |token: &str, namespace: &str, name: &str| {
        format!(
            "{token},system:serviceaccount:{namespace}:{name},uid-of-{name},\
             \"system:serviceaccounts,system:serviceaccounts:{namespace}\"\n"
        )
    };
    line(ROBOT, "default", "robot") + &line(MVP, "kube-system", "mvp")
}

/// What `people` says with RBAC objects.
fn rules() -> Vec<Rule> {
    let read = |subject: &str, on: &[&str]| Rule::new(subject, &["get", "list", "watch"], on);
    let new_kind = format!("{}.{}", kinds::NEW_RESOURCE, kinds::NEW_GROUP);
    vec![
        read(
            "system:serviceaccount:kube-system:mvp",
            &[
                "customresourcedefinitions.apiextensions.k8s.io",
                "apiservices.apiregistration.k8s.io",
                "endpointslices.discovery.k8s.io",
                "leases.coordination.k8s.io",
            ],
        ),
        read("alice", &[&new_kind]),
        read("system:serviceaccount:default:robot", &[&new_kind]),
    ]
}

fn stand_in(path: &Path, host: &Host, version: &str, paths: &Paths<'_>) -> Program {
    let shared = |name: &str| paths.shared.join(name).display().to_string();
    let own = |name: &str| paths.own.join(name).display().to_string();
    let flags = [
        ("store", paths.all.join(STORE).display().to_string()),
        ("control", own(CONTROL)),
        ("release", version.to_owned()),
        ("runtime-config", "api/all=true".to_owned()),
        ("hostname", host.name.clone()),
        ("bind-address", "::".to_owned()),
        ("secure-port", PORT.to_string()),
        ("advertise-address", host.address.to_string()),
        ("tls-cert-file", own("apiserver.crt")),
        ("tls-private-key-file", own("apiserver.key")),
        ("client-ca-file", shared("ca.crt")),
        ("requestheader-client-ca-file", shared("front-proxy-ca.crt")),
        (
            "requestheader-allowed-names",
            "front-proxy-client".to_owned(),
        ),
        ("requestheader-uid-headers", "X-Remote-Uid".to_owned()),
        (
            "token-auth-file",
            paths.all.join(TOKENS).display().to_string(),
        ),
    ];
    Program {
        path: path.to_owned(),
        arguments: flags
            .map(|(name, value)| format!("--{name}={value}"))
            .to_vec(),
        host_name: None,
    }
}

fn real(path: &Path, host: &Host, paths: &Paths<'_>) -> Program {
    let shared = |name: &str| paths.shared.join(name).display().to_string();
    let own = |name: &str| paths.own.join(name).display().to_string();
    let flags = [
        ("etcd-servers", format!("http://10.88.0.2:{ETCD_PORT}")),
        ("secure-port", PORT.to_string()),
        ("advertise-address", host.address.to_string()),
        ("tls-cert-file", own("apiserver.crt")),
        ("tls-private-key-file", own("apiserver.key")),
        ("client-ca-file", shared("ca.crt")),
        (
            "service-account-issuer",
            "https://kubernetes.default.svc".to_owned(),
        ),
        ("service-account-key-file", shared("sa.crt")),
        ("service-account-signing-key-file", shared("sa.key")),
        ("service-cluster-ip-range", "10.96.0.0/16".to_owned()),
        ("endpoint-reconciler-type", "lease".to_owned()),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("enable-admission-plugins", "NodeRestriction".to_owned()),
        ("allow-privileged", "true".to_owned()),
        ("requestheader-client-ca-file", shared("front-proxy-ca.crt")),
        (
            "requestheader-allowed-names",
            "front-proxy-client".to_owned(),
        ),
        ("requestheader-username-headers", "X-Remote-User".to_owned()),
        ("requestheader-uid-headers", "X-Remote-Uid".to_owned()),
        ("requestheader-group-headers", "X-Remote-Group".to_owned()),
        (
            "requestheader-extra-headers-prefix",
            "X-Remote-Extra-".to_owned(),
        ),
        ("proxy-client-cert-file", shared("front-proxy-client.crt")),
        ("proxy-client-key-file", shared("front-proxy-client.key")),
        ("kubelet-client-certificate", shared("admin.crt")),
        ("kubelet-client-key", shared("admin.key")),
        ("enable-aggregator-routing", "true".to_owned()),
        // So that each version has APIs that the other lacks.
        ("runtime-config", "api/all=true".to_owned()),
        ("v", "1".to_owned()),
    ];
    Program {
        path: path.to_owned(),
        arguments: flags
            .map(|(name, value)| format!("--{name}={value}"))
            .to_vec(),
        host_name: Some(host.name.clone()),
    }
}
