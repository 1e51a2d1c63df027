//! A control plane for tests of the real `mvp`: three hosts on one network (a node, a peer, and the clients'), stand-in
//! kube-apiservers on the first two, and `mvp` processes as an operator would start them. Not here: load ([`super::load`]).

use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::process::CommandExt as _,
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use bench::{
    client::{Client, Who},
    pki::{ClusterPki, Issued, KubeconfigUser, kubeconfig},
    standin::{Builder, Handle, Release, Standin, Store, Timing},
};
use nix::{
    sched::{CloneFlags, unshare},
    sys::signal::{Signal, kill},
    unistd::{Pid, gettid},
};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::support::{PORT, ip};

/// Only a 1.36 serves it by default: through mvp it is 200 on every node, directly 404 on a 1.34.
pub(crate) const NEW: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
/// Every server has it.
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";

/// One host: a network namespace, and a runtime whose threads live in it.
pub(crate) struct Host {
    /// Its name, and its address on the network (also `fd08::octet`).
    pub(crate) name: &'static str,
    pub(crate) address: Ipv4Addr,
    runtime: Runtime,
}

impl Host {
    fn new(name: &'static str, octet: u8) -> Result<Self, nix::Error> {
        let runtime = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("host")
                .enable_all()
                .build()
                .unwrap();
            Ok::<_, nix::Error>(runtime)
        });
        let host = Self {
            name,
            address: Ipv4Addr::new(10, 8, 0, octet),
            runtime: runtime.join().unwrap()?,
        };
        host.ip("link set lo up");
        Ok(host)
    }

    /// Runs something on this host and waits for it.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.runtime.block_on(self.runtime.spawn(work)) {
            Ok(result) => result,
            Err(error) => resume_unwind(error.into_panic()),
        }
    }

    /// Runs something on this host beside the test.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Runs iproute2's `ip` on this host.
    pub(crate) fn ip(&self, arguments: &str) {
        let arguments = arguments.to_owned();
        self.run(async move { ip(&arguments) });
    }

    /// Where its kube-apiserver is.
    pub(crate) fn server(&self) -> SocketAddr {
        (self.address, PORT).into()
    }

    /// The same over IPv6.
    pub(crate) fn server_v6(&self) -> SocketAddr {
        let octet = u16::from(self.address.octets()[3]);
        (Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, octet), PORT).into()
    }

    /// Moves the calling thread to this host.
    pub(crate) fn enter(&self) {
        let thread = self.run(async { gettid() });
        let namespace = File::open(format!("/proc/self/task/{thread}/ns/net")).unwrap();
        nix::sched::setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
    }
}

/// The whole.
pub(crate) struct World {
    /// Where the mvp under test is, and the older server.
    pub(crate) node: Host,
    /// The other control-plane node.
    pub(crate) peer: Host,
    /// Where clients are.
    pub(crate) outside: Host,
    pub(crate) pki: ClusterPki,
    pub(crate) store: Store,
    /// In `system:masters`, over HTTP/2.
    pub(crate) admin: Client,
    /// The same, over HTTP/1.1.
    pub(crate) admin_h1: Client,
    files: tempfile::TempDir,
}

/// Runs a test in a world of its own. Without root it says so and returns, or fails when `MVP_KERNEL_TESTS=require`.
pub(crate) fn in_world(test: impl FnOnce(&World)) {
    let hosts = || {
        Ok::<_, nix::Error>((
            Host::new("node", 1)?,
            Host::new("peer", 2)?,
            Host::new("outside", 3)?,
        ))
    };
    let (node, peer, outside) = match hosts() {
        Ok(hosts) => hosts,
        Err(error) => {
            let require = std::env::var("MVP_KERNEL_TESTS").is_ok_and(|v| v == "require");
            assert!(!require, "no network namespace can be made: {error}");
            eprintln!("skipped: cannot make a network namespace: {error}");
            return;
        }
    };
    // The bridge is on the node itself.
    node.ip("link add br0 type bridge");
    node.ip("link set br0 up");
    node.ip("addr add 10.8.0.1/24 dev br0");
    node.ip("addr add fd08::1/64 dev br0 nodad");
    for host in [&peer, &outside] {
        let thread = host.run(async { gettid() });
        let octet = host.address.octets()[3];
        node.ip(&format!(
            "link add to-{octet} type veth peer name eth0 netns {thread}"
        ));
        node.ip(&format!("link set to-{octet} master br0 up"));
        host.ip(&format!("addr add {}/24 dev eth0", host.address));
        host.ip(&format!("addr add fd08::{octet}/64 dev eth0 nodad"));
        host.ip("link set eth0 up");
    }
    let pki = ClusterPki::new().unwrap();
    let files = tempfile::tempdir().unwrap();
    pki.write(files.path(), &[]).unwrap();
    let issued = pki.client("kubernetes-admin", &["system:masters"]).unwrap();
    let url = format!("https://kubernetes.default.svc:{PORT}");
    let text = kubeconfig(&url, &pki.ca.pem(), KubeconfigUser::Certificate(&issued));
    fs::write(files.path().join("mvp.kubeconfig"), text).unwrap();
    let client = |http2| {
        let who = Who::Certificate(vec![issued.der.clone()], issued.private_key());
        Client::new(&pki.ca.certificate.der, who, http2).unwrap()
    };
    let world = World {
        admin: client(true),
        admin_h1: client(false),
        node,
        peer,
        outside,
        pki,
        store: Store::memory(),
        files,
    };
    for host in [&world.node, &world.peer] {
        world.new_certificate(host);
    }
    test(&world);
}

impl World {
    fn directory(&self, host: &Host) -> PathBuf {
        self.files.path().join(host.name)
    }

    /// A file of the test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Gives a host a new serving certificate, in the files that mvp reads; replaced as the kubelet does.
    pub(crate) fn new_certificate(&self, host: &Host) -> Issued {
        let octet = u16::from(host.address.octets()[3]);
        let addresses: [IpAddr; 4] = [
            host.address.into(),
            Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, octet).into(),
            Ipv4Addr::LOCALHOST.into(),
            Ipv6Addr::LOCALHOST.into(),
        ];
        let issued = self.pki.serving(&addresses).unwrap();
        let directory = self.directory(host);
        fs::create_dir_all(&directory).unwrap();
        issued.write(&directory, "new").unwrap();
        for extension in ["key", "crt"] {
            fs::rename(
                directory.join(format!("new.{extension}")),
                directory.join(format!("apiserver.{extension}")),
            )
            .unwrap();
        }
        issued
    }

    fn certificate(&self, host: &Host) -> (Vec<u8>, Vec<u8>) {
        let read = |name: &str| fs::read(self.directory(host).join(name)).unwrap();
        (read("apiserver.crt"), read("apiserver.key"))
    }

    /// A server for a host, as a real one listens: on all addresses, asking itself over its own port.
    pub(crate) fn builder(&self, host: &Host, release: Release) -> Builder {
        use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
        let (certificate, key) = self.certificate(host);
        let chain = vec![CertificateDer::from_pem_slice(&certificate).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(&key).unwrap();
        Standin::builder(&self.pki)
            .certificate_chain(chain, key)
            .release(release)
            .store(&self.store)
            .name(host.name)
            .bind((Ipv6Addr::UNSPECIFIED, PORT).into())
            .advertise(host.server())
            .loopback_client(true)
            .timing(Timing::prompt())
    }

    /// Starts a server on a host and waits until it is ready.
    pub(crate) fn serve(&self, host: &Host, release: Release) -> Handle {
        let builder = self.builder(host, release);
        host.run(async move { builder.start().await.unwrap() })
    }

    /// Starts an `mvp run` on a host.
    pub(crate) fn mvp(&self, host: &Host, flags: &[&str]) -> Daemon {
        self.mvp_as(host, "mvp", flags, |_| {})
    }

    /// The same, with a name of its own among several on one host, and changes to the command.
    pub(crate) fn mvp_as(
        &self,
        host: &Host,
        name: &str,
        flags: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Daemon {
        let (mut command, daemon) = self.prepare(host, name, flags);
        change(&mut command);
        daemon(host.run(async move { command.spawn().unwrap() }))
    }

    /// The same, on a thread of its own, which `confine` may take something from first.
    pub(crate) fn mvp_confined(
        &self,
        host: &Host,
        flags: &[&str],
        confine: impl FnOnce() + Send,
    ) -> Daemon {
        let (mut command, daemon) = self.prepare(host, "mvp", flags);
        let child = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                host.enter();
                confine();
                command.spawn().unwrap()
            });
            thread.join().unwrap()
        });
        daemon(child)
    }

    fn prepare(
        &self,
        host: &Host,
        name: &str,
        flags: &[&str],
    ) -> (Command, impl FnOnce(Child) -> Daemon + use<>) {
        let own = self.directory(host);
        let shared = |name: &str| self.file(name).display().to_string();
        let socket = own.join(format!("{name}.sock"));
        let log = own.join(format!("{name}.log"));
        let defaults = [
            ("kubeadm-manifest", String::new()),
            ("secure-port", PORT.to_string()),
            (
                "tls-cert-file",
                own.join("apiserver.crt").display().to_string(),
            ),
            (
                "tls-private-key-file",
                own.join("apiserver.key").display().to_string(),
            ),
            ("client-ca-file", shared("ca.crt")),
            ("requestheader-client-ca-file", shared("front-proxy-ca.crt")),
            (
                "requestheader-allowed-names",
                "front-proxy-client".to_owned(),
            ),
            ("proxy-client-cert-file", shared("front-proxy-client.crt")),
            ("proxy-client-key-file", shared("front-proxy-client.key")),
            ("peer-ca-file", shared("ca.crt")),
            ("advertise-address", host.address.to_string()),
            ("kubeconfig", shared("mvp.kubeconfig")),
            ("state-file", own.join("state.json").display().to_string()),
            ("control-socket", socket.display().to_string()),
            ("drain-timeout", "5s".to_owned()),
            ("threads", "2".to_owned()),
        ];
        let mut command = Command::new(env!("CARGO_BIN_EXE_mvp"));
        command.arg("run");
        for (flag, value) in defaults {
            let given = flags
                .iter()
                .any(|given| given.starts_with(&format!("--{flag}=")));
            if !given {
                command.arg(format!("--{flag}={value}"));
            }
        }
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        command
            .args(flags)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0);
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("MVP_") {
                command.env_remove(variable);
            }
        }
        (command, move |child| Daemon { child, socket, log })
    }

    /// One GET on a connection of its own, from the clients' host; what went wrong, if there is no answer.
    pub(crate) fn get(&self, to: SocketAddr, path: &str) -> Result<u16, String> {
        let (client, path) = (self.admin.clone(), path.to_owned());
        self.outside.run(async move {
            let answer =
                tokio::time::timeout(Duration::from_secs(10), client.once(to, "GET", &path));
            match answer.await {
                Ok(Ok(answer)) => Ok(answer.status.as_u16()),
                Ok(Err(error)) => Err(format!("{error:#}")),
                Err(_late) => Err("no answer within 10 s".to_owned()),
            }
        })
    }

    /// The whole text of a host's `/metrics`.
    pub(crate) fn metrics(&self, host: &Host) -> String {
        host.run(async {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let mut stream = tokio::net::TcpStream::connect("127.0.0.1:9740")
                .await
                .unwrap();
            let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        })
    }
}

/// A running `mvp run`; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) socket: PathBuf,
    log: PathBuf,
}

impl Daemon {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for the end.
    pub(crate) fn ended(&mut self, patience: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < patience, "still runs:\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// `mvp WORDS`, as an operator says it to this process; what it printed.
    pub(crate) fn say(&self, words: &[&str]) -> Result<String, String> {
        say(&self.socket, words)
    }

    /// `mvp status -o json`; none while the process does not answer.
    pub(crate) fn try_status(&self) -> Option<Value> {
        let text = self.say(&["status", "-o", "json"]).ok()?;
        serde_json::from_str(&text).ok()
    }

    pub(crate) fn status(&self) -> Value {
        self.try_status()
            .unwrap_or_else(|| panic!("no status:\n{}", self.log()))
    }

    /// Waits until the status is as wanted; how long that took.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Duration {
        let start = Instant::now();
        loop {
            let status = self.try_status();
            if status.as_ref().is_some_and(&wanted) {
                return start.elapsed();
            }
            assert!(
                start.elapsed() < Duration::from_secs(40),
                "never: {what}; {status:#?}\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until every server is known and trusted, and steering is `state` (`on`, `off`).
    #[track_caller]
    pub(crate) fn settled(&self, servers: usize, state: &str) {
        self.until(
            &format!("{servers} servers known, steering {state}"),
            |status| {
                let known = |server: &&Value| {
                    server["membership"] == "listed"
                        && server["health"] == "up"
                        && server["proof"] == "proven"
                        && server["catalogue"] == "fresh"
                };
                let all = status["servers"].as_array().unwrap();
                status["ready"] == true
                    && all.iter().filter(known).count() == servers
                    && status["steering"]["state"] == state
            },
        );
    }

    /// The kernel's look-ups with this outcome.
    pub(crate) fn lookups(&self, outcome: &str) -> u64 {
        self.status()["steering"]["lookups"][outcome]
            .as_u64()
            .unwrap()
    }

    /// Everything it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// `mvp WORDS` to the process behind a socket.
pub(crate) fn say(socket: &Path, words: &[&str]) -> Result<String, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_mvp"))
        .args(words)
        .arg("--control-socket")
        .arg(socket)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

/// Waits for a server's end, as its host sees it.
pub(crate) fn killed(host: &Host, server: Handle) -> Handle {
    host.run(async move {
        server.kill().await;
        server
    })
}

/// Starts a killed server again and waits until it is ready.
pub(crate) fn restarted(host: &Host, server: Handle) -> Handle {
    host.run(async move { server.restart().await.unwrap() })
}
