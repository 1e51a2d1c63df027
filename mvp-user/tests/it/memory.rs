//! What a client costs in memory (design 10), of an mvp process of its own: the bounds hold in a debug build as well. The
//! normal run holds fewer clients than `cargo xtask test soak`. Some clients are there before the first measurement: what
//! the first of their kind costs (code, pools, an upstream connection) is not the cost of each.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use bench::{
    client::Client,
    load::origin::{self, Settings},
    pki::ClusterPki,
};
use h2::client::SendRequest;
use http::Request;
use tokio::{task::JoinSet, time::Instant};

use crate::plane::user;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// An mvp in front of an origin that answers from memory.
struct Mvp {
    child: Child,
    address: SocketAddr,
    admin: Client,
    http1: Client,
    _files: tempfile::TempDir,
}

impl Drop for Mvp {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Mvp {
    async fn start() -> Self {
        let free = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap()
        };
        let files = tempfile::tempdir().unwrap();
        let pki = ClusterPki::new().unwrap();
        pki.write(files.path(), &[[127, 0, 0, 1].into()]).unwrap();
        let (local, address) = (free(), free());
        origin(local, files.path());
        let file = |name: &str| files.path().join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_mvp"));
        command.args(["run", "--kubeadm-manifest", ""]);
        command.args(["--local", &format!("https://{local}")]);
        // The only server, said so by one that is never there.
        command.args(["--peer", &format!("https://{}", free())]);
        command.args(["--listen", &address.to_string(), "--threads", "1"]);
        command.args(["--metrics-listen", &free().to_string()]);
        command.args(["--requestheader-allowed-names", "front-proxy-client"]);
        for (flag, name) in [
            ("--tls-cert-file", "apiserver.crt"),
            ("--tls-private-key-file", "apiserver.key"),
            ("--client-ca-file", "ca.crt"),
            ("--peer-ca-file", "ca.crt"),
            ("--requestheader-client-ca-file", "front-proxy-ca.crt"),
            ("--proxy-client-cert-file", "front-proxy-client.crt"),
            ("--proxy-client-key-file", "front-proxy-client.key"),
            ("--state-file", "state.json"),
            ("--control-socket", "mvp.sock"),
        ] {
            command.arg(flag).arg(file(name));
        }
        let log = std::fs::File::create(file("mvp.log")).unwrap();
        command.stdin(Stdio::null()).stdout(log);
        command.stderr(std::fs::File::create(file("mvp.err")).unwrap());
        let mvp = Self {
            child: command.spawn().unwrap(),
            address,
            admin: user(&pki, "admin", &["system:masters"], true),
            http1: user(&pki, "admin", &["system:masters"], false),
            _files: files,
        };
        // Until local is up and takes mvp for a front proxy.
        let start = Instant::now();
        loop {
            let path = "/api/v1/namespaces/d/configmaps/one?bytes=10";
            match mvp.admin.once(address, "GET", path).await {
                Ok(answer) if answer.status == 200 => return mvp,
                other => assert!(
                    start.elapsed() < Duration::from_secs(30),
                    "{other:?}; {}",
                    std::fs::read_to_string(mvp._files.path().join("mvp.err")).unwrap()
                ),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Bytes that are resident now.
    fn resident(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.unwrap().trim().strip_suffix(" kB").unwrap();
        kibibytes.trim().parse::<u64>().unwrap() * KIB
    }

    /// The most that is resident during `time`.
    async fn peak(&self, time: Duration) -> u64 {
        let (start, mut peak) = (Instant::now(), 0);
        while start.elapsed() < time {
            peak = peak.max(self.resident());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        peak
    }

    /// An HTTP/2 connection with as large a window as a client may have.
    async fn open(&self, tasks: &mut JoinSet<()>) -> SendRequest<bytes::Bytes> {
        let io = self.admin.tls(self.address).await.unwrap();
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size((1 << 31) - 1)
            .initial_connection_window_size((1 << 31) - 1)
            .handshake(io)
            .await
            .unwrap();
        tasks.spawn(async move { drop(connection.await) });
        sender
    }

    fn get(&self, path: &str) -> Request<()> {
        let request = self.admin.request("GET", path, &[], "").unwrap();
        let (parts, _) = request.into_parts();
        Request::from_parts(parts, ())
    }
}

/// An origin on a thread of its own, for as long as the tests run.
fn origin(listen: SocketAddr, pki: &Path) {
    let settings = Settings {
        listen: vec![listen],
        pki: pki.to_owned(),
        off: Vec::new(),
    };
    let (send, listening) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        tokio::task::LocalSet::new()
            .block_on(
                &runtime,
                origin::serve(&settings, || send.send(()).unwrap()),
            )
            .unwrap();
    });
    listening.recv().unwrap();
}

/// States a figure and holds it against its bound.
#[track_caller]
fn check(what: &str, (before, after): (u64, u64), units: u64, bound: u64) {
    use std::io::Write as _;
    let each = after.saturating_sub(before) / units;
    // Past libtest's capture of print macros.
    let line = format!("{what}: {} KiB each of {units}", each / KIB);
    writeln!(std::io::stderr(), "{line}").unwrap();
    assert!(each < bound, "{line}, more than {} KiB", bound / KIB);
}

/// Lists of 1 GiB to clients that take what fits into their windows and read little.
async fn slow_lists(streams: u64) {
    let path = format!("/api/v1/namespaces/d/configmaps?bytes={}", 1024 * MIB);
    for http2 in [true, false] {
        let mvp = Mvp::start().await;
        let mut tasks = JoinSet::new();
        let mut before = 0;
        for number in 0..=streams {
            if number == 1 {
                before = mvp.peak(Duration::from_secs(2)).await;
            }
            if http2 {
                let sender = mvp.open(&mut tasks).await;
                let request = mvp.get(&path);
                tasks.spawn(async move {
                    let mut sender = sender.ready().await.unwrap();
                    let (answer, _) = sender.send_request(request, true).unwrap();
                    let mut body = answer.await.unwrap().into_body();
                    // 64 KiB now and then, in frames that are never given back.
                    loop {
                        body.data().await.unwrap().unwrap();
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                });
            } else {
                let client = mvp.http1.clone();
                let (path, address) = (path.clone(), mvp.address);
                tasks.spawn(async move {
                    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
                    let mut io = client.tls(address).await.unwrap();
                    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
                    io.write_all(head.as_bytes()).await.unwrap();
                    let mut buffer = vec![0; 64 * 1024];
                    loop {
                        assert!(io.read(&mut buffer).await.unwrap() > 0);
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                });
            }
        }
        let peak = mvp.peak(Duration::from_secs(4)).await;
        let (what, bound) = if http2 {
            ("HTTP/2", MIB)
        } else {
            ("HTTP/1.1", 2 * MIB)
        };
        check(
            &format!("a list of 1 GiB to a slow {what} client"),
            (before, peak),
            streams,
            bound,
        );
        assert!(tasks.try_join_next().is_none(), "a list has ended");
        tasks.shutdown().await;
    }
}

async fn idle_watches(connections: u64) {
    const STREAMS: u64 = 100;
    let mvp = Mvp::start().await;
    let mut tasks = JoinSet::new();
    let mut before = 0;
    let mut watches = Vec::new();
    for number in 0..=connections {
        if number == 1 {
            before = mvp.peak(Duration::from_secs(1)).await;
        }
        let mut sender = mvp.open(&mut tasks).await;
        for _ in 0..STREAMS {
            let request = mvp.get("/api/v1/namespaces/d/configmaps?watch=1");
            sender = sender.ready().await.unwrap();
            let (answer, _) = sender.send_request(request, true).unwrap();
            let answer = answer.await.unwrap();
            assert_eq!(answer.status(), 200);
            watches.push(answer.into_body());
        }
    }
    let after = mvp.peak(Duration::from_secs(1)).await;
    let units = connections * STREAMS;
    check("an idle watch", (before, after), units, 16 * KIB);
}

async fn idle_connections(count: u64) {
    for http2 in [true, false] {
        // A process each: what one kind gives back is not what the other is made of.
        const FIRST: u64 = 20;
        let mvp = Mvp::start().await;
        let mut before = 0;
        let client = if http2 { &mvp.admin } else { &mvp.http1 };
        let mut open = Vec::new();
        for number in 0..FIRST + count {
            if number == FIRST {
                before = mvp.peak(Duration::from_secs(1)).await;
            }
            let mut connection = client.connect(mvp.address).await.unwrap();
            let path = "/api/v1/namespaces/d/configmaps/one?bytes=1024";
            let request = client.request("GET", path, &[], "").unwrap();
            assert_eq!(connection.send(request).await.unwrap().status, 200);
            open.push(connection);
        }
        let after = mvp.peak(Duration::from_secs(1)).await;
        let what = if http2 { "HTTP/2" } else { "HTTP/1.1" };
        check(
            &format!("an idle {what} connection"),
            (before, after),
            count,
            64 * KIB,
        );
    }
}

#[tokio::test]
async fn a_list_of_a_gibibyte_to_a_slow_client_is_never_held() {
    slow_lists(8).await;
}

#[tokio::test]
async fn a_thousand_idle_watches_are_cheap() {
    idle_watches(10).await;
}

#[tokio::test]
async fn idle_connections_are_cheap() {
    idle_connections(200).await;
}

#[tokio::test]
#[ignore = "long: cargo xtask test soak"]
async fn fifty_lists_of_a_gibibyte_to_slow_clients_are_never_held() {
    slow_lists(50).await;
}

#[tokio::test]
#[ignore = "long: cargo xtask test soak"]
async fn ten_thousand_idle_watches_are_cheap() {
    idle_watches(100).await;
}

#[tokio::test]
#[ignore = "long: cargo xtask test soak"]
async fn two_thousand_idle_connections_are_cheap() {
    idle_connections(2000).await;
}
