//! A control plane of three nodes in network namespaces, and the host of its clients: files, servers, mvps. Not here:
//! what is asked of it.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bench::{
    client::{Client, Who},
    pki::{ClusterPki, Issued, KubeconfigUser, kubeconfig},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    people::{self, Desk, People},
    process::{Process, Program},
    servers::{PORT, Paths, Servers},
};
use crate::lab::{Host, Lab};

/// How long a server may take until it is ready; a real one on a busy machine takes its time.
const READY_WITHIN: Duration = Duration::from_mins(2);
/// How long a server may take to leave after SIGTERM; a kubelet waits as long before it kills
/// (`terminationGracePeriodSeconds`). Watches of clients keep a real server for up to a minute.
const LEAVE_WITHIN: Duration = Duration::from_secs(30);

/// The whole control plane. Dropped: everything is ended, then the namespaces go.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The nodes, in order: cp1, cp2, cp3.
    pub(crate) nodes: Vec<Node>,
    /// Who asks.
    pub(crate) people: People,
    /// Where the clients are.
    pub(crate) outside: Host,
    servers: Servers,
    etcd: Option<Process>,
    pki: ClusterPki,
    directory: PathBuf,
    mvp: PathBuf,
    lab: Option<Lab>,
}

/// One node: a kube-apiserver and, at times, an mvp.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its host.
    pub(crate) host: Host,
    /// Version of its kube-apiserver, e.g. `v1.34`.
    pub(crate) version: String,
    server: Option<Process>,
    mvp: Option<Process>,
    directory: PathBuf,
}

/// How one mvp is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch<'a> {
    /// `--steer`.
    pub(crate) steer: &'a str,
    /// Name of the pair of files it forwards identities with.
    pub(crate) front_proxy: &'a str,
}

/// As it is meant to be run.
pub(crate) const ALWAYS: Launch<'static> = Launch {
    steer: "always",
    front_proxy: "front-proxy-client",
};

impl Node {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.host.name
    }

    /// Where clients connect.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host.ip(), PORT)
    }

    /// Control socket of its mvp.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("mvp.sock")
    }

    /// An admin's credentials for this node.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("admin.kubeconfig")
    }

    /// Fails if its server or its mvp has ended by itself.
    fn check(&mut self) -> Result<()> {
        for process in self.server.iter_mut().chain(self.mvp.iter_mut()) {
            process.check()?;
        }
        Ok(())
    }
}

impl Cluster {
    /// Lays out hosts and files; nothing runs yet. `versions` has one version a node.
    pub(crate) fn new(
        directory: &Path,
        mvp: &Path,
        servers: Servers,
        versions: &[&str],
    ) -> Result<Self> {
        let mut lab = Lab::new("mvp-demo")?;
        let store = lab.host("store", 2)?;
        let outside = lab.host("client", 100)?;
        let pki = ClusterPki::new()?;
        let shared = directory.join("pki");
        fs::create_dir_all(&shared)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
        pki.write(&shared, &[])?;
        // A front proxy whom no server knows.
        ClusterPki::new()?
            .front_proxy_client()?
            .write(&shared, "stranger")?;
        let admin = pki.client("kubernetes-admin", &["system:masters"])?;
        let mut nodes = Vec::new();
        for (number, version) in (1..).zip(versions) {
            let host = lab.host(&format!("cp{number}"), 10 + number)?;
            let own = directory.join(&host.name);
            fs::create_dir_all(&own)?;
            let service: IpAddr = [10, 96, 0, 1].into();
            let loopback: [IpAddr; 2] = [[127, 0, 0, 1].into(), "::1".parse()?];
            pki.serving(&[host.ip(), loopback[0], loopback[1], service])?
                .write(&own, "apiserver")?;
            let node = Node {
                host,
                version: (*version).to_owned(),
                server: None,
                mvp: None,
                directory: own,
            };
            let url = format!("https://{}", node.address());
            let text = kubeconfig(&url, &pki.ca.pem(), KubeconfigUser::Certificate(&admin));
            fs::write(node.kubeconfig(), text)?;
            nodes.push(node);
        }
        let people = People::new(&pki, &admin)?;
        let etcd = servers.start_store(&store, directory)?;
        Ok(Self {
            nodes,
            people,
            outside,
            servers,
            etcd,
            pki,
            directory: directory.to_owned(),
            mvp: mvp.to_owned(),
            lab: Some(lab),
        })
    }

    /// Starts every server and sets up what the demo needs in the cluster.
    pub(crate) async fn start_servers(&mut self) -> Result<()> {
        for node in 0..self.nodes.len() {
            self.start_server(node)?;
        }
        for node in 0..self.nodes.len() {
            self.ready(node).await?;
        }
        // Through the first node, which is direct: no mvp runs yet.
        let desk = Desk {
            admin: &self.people.admin,
            server: self.nodes[0].address(),
        };
        people::settle(&desk, self.outside.address).await?;
        let tokens = self.servers.tokens(&desk).await?;
        self.people.robot = self.client(Who::Token(tokens.robot))?;
        let server = format!("https://kubernetes.default.svc:{PORT}");
        let text = kubeconfig(
            &server,
            &self.pki.ca.pem(),
            KubeconfigUser::Token(&tokens.mvp),
        );
        fs::write(self.directory.join("mvp.kubeconfig"), text)?;
        Ok(())
    }

    /// A client of this cluster over HTTP/2.
    pub(crate) fn client(&self, who: Who) -> Result<Client> {
        Client::new(&self.pki.ca.certificate.der, who, true)
    }

    /// Where files and logs are.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts the server of one node; it is not ready yet.
    pub(crate) fn start_server(&mut self, node: usize) -> Result<()> {
        let shared = self.directory.join("pki");
        let node = &mut self.nodes[node];
        let paths = Paths {
            shared: &shared,
            own: &node.directory,
            all: &self.directory,
        };
        let program = self.servers.program(&node.host, &node.version, &paths)?;
        let log = node
            .directory
            .join(format!("apiserver-{}.log", node.version));
        let name = format!("the kube-apiserver {} on {}", node.version, node.host.name);
        node.server = Some(Process::start(&name, &node.host, &program, &log)?);
        Ok(())
    }

    /// Waits until a node's server says that it is ready.
    pub(crate) async fn ready(&mut self, node: usize) -> Result<()> {
        let until = Instant::now() + READY_WITHIN;
        // Health is always the node's own server's, whether or not mvp is in between.
        let admin = self.people.admin.clone();
        let address = self.nodes[node].address();
        loop {
            self.nodes[node].check()?;
            let answer = admin.once(address, "GET", "/readyz").await;
            if matches!(&answer, Ok(answer) if answer.status == 200) {
                return self.servers.grant(&self.nodes[node].directory).await;
            }
            if Instant::now() > until {
                let name = self.nodes[node].name();
                bail!("the server on {name} was not ready within {READY_WITHIN:?}: {answer:?}");
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// SIGTERM to a node's server, and waits until it has left; kill -9 if that takes longer than a kubelet waits.
    pub(crate) async fn stop_server(&mut self, at: usize) -> Result<()> {
        let node = &mut self.nodes[at];
        let server = node.server.as_mut().context("no server runs there")?;
        server.signal(Signal::SIGTERM)?;
        if server.ended(LEAVE_WITHIN).await.is_err() {
            return self.kill_server(at);
        }
        node.server = None;
        Ok(())
    }

    /// kill -9 of a node's server.
    pub(crate) fn kill_server(&mut self, node: usize) -> Result<()> {
        let server = self.nodes[node].server.take();
        server.context("no server runs there")?.kill()
    }

    /// Starts mvp on a node.
    pub(crate) fn start_mvp(&mut self, node: usize, launch: Launch<'_>) -> Result<()> {
        let shared = self.directory.join("pki");
        let file = |directory: &Path, name: &str| directory.join(name).display().to_string();
        let node = &mut self.nodes[node];
        let own = &node.directory;
        let flags = [
            ("steer", launch.steer.to_owned()),
            ("kubeadm-manifest", String::new()),
            ("secure-port", PORT.to_string()),
            ("tls-cert-file", file(own, "apiserver.crt")),
            ("tls-private-key-file", file(own, "apiserver.key")),
            ("client-ca-file", file(&shared, "ca.crt")),
            (
                "requestheader-client-ca-file",
                file(&shared, "front-proxy-ca.crt"),
            ),
            (
                "requestheader-allowed-names",
                "front-proxy-client".to_owned(),
            ),
            (
                "proxy-client-cert-file",
                file(&shared, &format!("{}.crt", launch.front_proxy)),
            ),
            (
                "proxy-client-key-file",
                file(&shared, &format!("{}.key", launch.front_proxy)),
            ),
            ("peer-ca-file", file(&shared, "ca.crt")),
            ("advertise-address", node.host.address.to_string()),
            ("kubeconfig", file(&self.directory, "mvp.kubeconfig")),
            ("state-file", file(own, "mvp-state.json")),
            ("control-socket", file(own, "mvp.sock")),
            ("drain-timeout", "5s".to_owned()),
        ];
        let mut arguments = vec!["run".to_owned()];
        arguments.extend(flags.map(|(name, value)| format!("--{name}={value}")));
        let program = Program {
            path: self.mvp.clone(),
            arguments,
            host_name: None,
        };
        let name = format!("mvp on {}", node.host.name);
        let log = own.join("mvp.log");
        node.mvp = Some(Process::start(&name, &node.host, &program, &log)?);
        Ok(())
    }

    /// The mvp of a node.
    pub(crate) fn mvp(&self, node: usize) -> Result<&Process> {
        self.nodes[node].mvp.as_ref().context("no mvp runs there")
    }

    /// kill -9 of a node's mvp.
    pub(crate) fn kill_mvp(&mut self, node: usize) -> Result<()> {
        self.nodes[node]
            .mvp
            .take()
            .context("no mvp runs there")?
            .kill()
    }

    /// SIGTERM to a node's mvp, and waits until it has left; fails if it complains.
    pub(crate) async fn stop_mvp(&mut self, node: usize) -> Result<()> {
        let node = &mut self.nodes[node];
        let mvp = node.mvp.as_mut().context("no mvp runs there")?;
        mvp.signal(Signal::SIGTERM)?;
        let status = mvp.ended(Duration::from_secs(20)).await?;
        node.mvp = None;
        if !status.success() {
            bail!("mvp on {} stopped with {status}", node.name());
        }
        Ok(())
    }

    /// `mvp status -o json` of a node.
    pub(crate) async fn mvp_status(&self, node: usize) -> Result<Value> {
        let output = tokio::process::Command::new(&self.mvp)
            .args(["status", "-o", "json", "--control-socket"])
            .arg(self.nodes[node].socket())
            .output()
            .await?;
        if !output.status.success() {
            bail!(
                "mvp status: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Waits until the mvps of all nodes steer and have read every server.
    pub(crate) async fn settled(&mut self) -> Result<()> {
        self.settled_as(Some("on")).await
    }

    /// The same, with steering as it is said here, if it matters.
    pub(crate) async fn settled_as(&mut self, steering: Option<&str>) -> Result<()> {
        let until = Instant::now() + Duration::from_mins(1);
        for node in 0..self.nodes.len() {
            loop {
                self.nodes[node].check()?;
                let status = self.mvp_status(node).await;
                if matches!(&status, Ok(status) if self.knows_all(status, steering)) {
                    break;
                }
                if Instant::now() > until {
                    let seen = status.unwrap_or_else(|error| json!(format!("{error:#}")));
                    bail!(
                        "mvp on {} does not know all servers, or does not steer as wanted: {seen:#}",
                        self.nodes[node].name()
                    );
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }

    fn knows_all(&self, status: &Value, steering: Option<&str>) -> bool {
        let servers = status["servers"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let known = |server: &&Value| {
            server["membership"] == "listed"
                && server["health"] == "up"
                && server["proof"] == "proven"
                && server["catalogue"] == "fresh"
        };
        steering.is_none_or(|steering| status["steering"]["state"] == steering)
            && servers.iter().filter(known).count() == self.nodes.len()
    }

    /// Leaves everything running.
    pub(crate) fn keep(&mut self) {
        for node in &mut self.nodes {
            node.server
                .iter_mut()
                .chain(node.mvp.iter_mut())
                .for_each(Process::keep);
        }
        self.etcd.iter_mut().for_each(Process::keep);
        if let Some(lab) = self.lab.take() {
            lab.keep();
        }
    }

    /// A serving certificate for the host of the clients.
    pub(crate) fn serving(&self) -> Result<Issued> {
        self.pki.serving(&[self.outside.ip()])
    }

    /// The node whose server is the newest.
    pub(crate) fn newest(&self) -> &Node {
        &self.nodes[self.nodes.len() - 1]
    }

    /// How a person goes on with what was kept.
    pub(crate) fn instructions(&self) -> String {
        let each = self.nodes.iter().map(|node| {
            let (prefix, name, version) = (self.outside.prefix(), node.name(), &node.version);
            let kubeconfig = node.kubeconfig();
            let kubeconfig = kubeconfig.display();
            format!(
                "  {prefix} kubectl --kubeconfig {kubeconfig} api-resources   # {name}, {version}\n"
            )
        });
        format!(
            "The control plane stays up. Through each node:\n{}\
             Ask an mvp: {} status --control-socket {}\n\
             Remove everything: cargo xtask demo --down",
            each.collect::<Vec<_>>().concat(),
            self.mvp.display(),
            self.nodes[0].socket().display()
        )
    }
}
