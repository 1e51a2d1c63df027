//! mvp as a process, with `--listen`, in front of stand-ins; and `mvp ui` beside it.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use bench::pki::ClusterPki;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

const MVP: &str = env!("CARGO_BIN_EXE_mvp");

/// One mvp process; killed when dropped.
pub(crate) struct Node {
    mvp: Child,
    files: tempfile::TempDir,
    /// Where clients find it.
    pub(crate) address: SocketAddr,
}

impl Node {
    /// In front of `local`, with `peers`, ready.
    pub(crate) async fn start(pki: &ClusterPki, local: SocketAddr, peers: &[SocketAddr]) -> Self {
        Self::with(pki, local, peers, &[]).await
    }

    /// The same, told more.
    pub(crate) async fn with(
        pki: &ClusterPki,
        local: SocketAddr,
        peers: &[SocketAddr],
        more: &[&str],
    ) -> Self {
        Self::logging(pki, local, peers, more, "info").await
    }

    /// The same, with a level or filter for its log.
    pub(crate) async fn logging(
        pki: &ClusterPki,
        local: SocketAddr,
        peers: &[SocketAddr],
        more: &[&str],
        filter: &str,
    ) -> Self {
        let files = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = files.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let serving = pki.serving(&[[127, 0, 0, 1].into()]).unwrap();
        let proxy = pki.front_proxy_client().unwrap();
        let address = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut command = Command::new(MVP);
        command.args(["run", "--kubeadm-manifest=", "--metrics-listen=127.0.0.1:0"]);
        command.args(["--log-format=json", "--discovery-interval=1s"]);
        command.args(more).env("MVP_LOG", filter);
        let authority = write("ca.crt", pki.ca.pem());
        for (name, value) in [
            ("listen", address.to_string()),
            ("local", format!("https://{local}")),
            ("secure-port", local.port().to_string()),
            ("tls-cert-file", write("apiserver.crt", serving.cert_pem())),
            (
                "tls-private-key-file",
                write("apiserver.key", serving.key_pem()),
            ),
            ("client-ca-file", authority.clone()),
            ("peer-ca-file", authority),
            (
                "requestheader-client-ca-file",
                write("front.crt", pki.front_proxy_ca.pem()),
            ),
            (
                "proxy-client-cert-file",
                write("proxy.crt", proxy.cert_pem()),
            ),
            ("proxy-client-key-file", write("proxy.key", proxy.key_pem())),
            (
                "state-file",
                files.path().join("state.json").display().to_string(),
            ),
            (
                "control-socket",
                files.path().join("c.sock").display().to_string(),
            ),
        ] {
            command.arg(format!("--{name}={value}"));
        }
        for peer in peers {
            command.arg(format!("--peer=https://{peer}"));
        }
        let log = File::create(files.path().join("log")).unwrap();
        let mvp = command.stderr(log).stdin(Stdio::null()).spawn().unwrap();
        let node = Self {
            mvp,
            files,
            address,
        };
        let begun = Instant::now();
        while !node.ask(&["probe"]).status.success() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{}", node.log());
            sleep(Duration::from_millis(100)).await;
        }
        node
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.files.path().join("c.sock")
    }

    /// What it logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.files.path().join("log")).unwrap()
    }

    /// A verb that asks it.
    pub(crate) fn ask(&self, words: &[&str]) -> std::process::Output {
        ask(&self.socket(), words)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.mvp.id().try_into().unwrap());
        kill(pid, signal).unwrap();
    }

    /// How it ended; none: it runs.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.mvp.try_wait().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.mvp.kill().unwrap();
        self.mvp.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.mvp.kill());
        drop(self.mvp.wait());
    }
}

/// `mvp WORDS`, at a control socket.
pub(crate) fn ask(socket: &Path, words: &[&str]) -> std::process::Output {
    Command::new(MVP)
        .args(words)
        .env("MVP_CONTROL_SOCKET", socket)
        .output()
        .unwrap()
}

/// `mvp ui`; killed when dropped.
pub(crate) struct Ui {
    pub(crate) process: Child,
    pub(crate) address: SocketAddr,
}

impl Ui {
    pub(crate) fn start(socket: &Path) -> Self {
        let mut process = Command::new(MVP)
            .arg("ui")
            .env("MVP_CONTROL_SOCKET", socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap();
        let address = address.strip_suffix('/').unwrap().parse().unwrap();
        Self { process, address }
    }

    /// Sends a request head as it is.
    pub(crate) async fn send(&self, head: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    /// The whole answer, head and body.
    pub(crate) async fn get(&self, method: &str, path: &str, host: &str) -> String {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut stream = self.send(&head).await;
        let mut answer = String::new();
        let read = timeout(Duration::from_secs(5), stream.read_to_string(&mut answer)).await;
        read.unwrap().unwrap();
        answer
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// An open stream of events.
pub(crate) struct Events {
    stream: TcpStream,
    seen: String,
}

impl Events {
    pub(crate) async fn open(ui: &Ui) -> Self {
        let host = ui.address;
        let head = format!("GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n");
        Self {
            stream: ui.send(&head).await,
            seen: String::new(),
        }
    }

    /// Reads on until `wanted` came; what came since the last call.
    pub(crate) async fn until(&mut self, wanted: &str) -> String {
        let reading = async {
            let mut buffer = vec![0; 64 << 10];
            while !self.seen.contains(wanted) {
                let count = self.stream.read(&mut buffer).await.unwrap();
                assert!(
                    count > 0,
                    "the stream ended without {wanted:?}: {}",
                    self.seen
                );
                self.seen += &String::from_utf8_lossy(&buffer[..count]);
            }
        };
        let came = timeout(Duration::from_secs(20), reading).await;
        assert!(came.is_ok(), "{wanted:?} did not come: {}", self.seen);
        std::mem::take(&mut self.seen)
    }

    /// The rest of the stream.
    pub(crate) async fn rest(mut self) -> String {
        let mut rest = Vec::new();
        let end = timeout(Duration::from_secs(5), self.stream.read_to_end(&mut rest)).await;
        end.unwrap().unwrap();
        String::from_utf8_lossy(&rest).into()
    }
}
