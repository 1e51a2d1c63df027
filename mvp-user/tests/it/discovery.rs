//! Discovery and OpenAPI through the whole data path: what a scan costs, what is not found, and what 500 CRDs cost.

use std::{
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::Duration,
};

use bench::{
    client::Client,
    pki::ClusterPki,
    standin::{Action, Fault, Handle, On, Release, Standin},
};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, sleep};

use crate::{
    client::{Wire, get},
    plane::{self, Plane, user},
};

const NEW: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";

fn admin(pki: &ClusterPki) -> Client {
    user(pki, "admin", &["system:masters"], true)
}

async fn server(pki: &ClusterPki, release: Release, off: &[&str]) -> Handle {
    let mut builder = Standin::builder(pki).release(release);
    for what in off {
        builder = builder.off(what);
    }
    builder.start().await.unwrap()
}

/// Reads of `/apis` by mvp itself.
fn reads(server: &Handle) -> usize {
    server
        .take_requests()
        .iter()
        .filter(|seen| {
            seen.path() == "/apis"
                && seen
                    .user
                    .as_ref()
                    .is_some_and(|user| user.name == "mvp:probe")
        })
        .count()
}

#[tokio::test]
async fn a_scan_of_random_paths_costs_one_read_a_second_and_changes_nobody_s_answers() {
    let pki = ClusterPki::new().unwrap();
    let old = server(&pki, Release::V1_34, &[]).await;
    let new = server(&pki, Release::V1_36, &[]).await;
    let plane = Plane::live(&pki, old.address(), &[new.address()], |_| {}).await;
    let client = admin(&pki);
    for server in [&old, &new] {
        server.take_requests();
    }
    let began = Instant::now();
    let others = tokio::spawn({
        let (client, to) = (client.clone(), plane.address);
        async move {
            let mut wire = Wire::open(&client, to).await;
            for round in 0..200 {
                let path = [NEW, "/api/v1/pods", "/apis", "/openapi/v3"][round % 4];
                let answer = wire.send(get(&client, path)).await.unwrap();
                assert_eq!(answer.status(), 200, "{path}");
                answer.into_body().collect().await.unwrap();
                sleep(Duration::from_millis(10)).await;
            }
        }
    });
    let scans = (0..5).map(|scanner| {
        let (client, to) = (client.clone(), plane.address);
        tokio::spawn(async move {
            let mut wire = Wire::open(&client, to).await;
            let mut running = Vec::new();
            for round in 0..200 {
                let path = match round % 4 {
                    0 => format!("/apis/g{scanner}-{round}.example.com/v1/things"),
                    1 => format!("/apis/apps/v1/r{scanner}x{round}"),
                    2 => format!("/api/v1/namespaces/n/r{scanner}x{round}/name"),
                    _ => format!("/apis/batch/v{scanner}{round}/jobs"),
                };
                let Wire::H2(sender) = &mut wire else {
                    panic!("not HTTP/2")
                };
                sender.ready().await.unwrap();
                let mut request = get(&client, &path);
                *request.uri_mut() = format!("https://kubernetes.default.svc{path}")
                    .parse()
                    .unwrap();
                running.push(sender.send_request(request));
                if running.len() == 50 {
                    for answer in futures_util::future::join_all(running.drain(..)).await {
                        let answer = answer.unwrap();
                        assert_eq!(answer.status(), 404);
                        answer.into_body().collect().await.unwrap();
                    }
                }
            }
        })
    });
    for scan in scans.collect::<Vec<_>>() {
        scan.await.unwrap();
    }
    others.await.unwrap();
    let took = began.elapsed();
    // One a second, one that was due by itself, one at each edge.
    let allowed = usize::try_from(took.as_secs()).unwrap() + 3;
    for server in [&old, &new] {
        let reads = reads(server);
        assert!(reads <= allowed, "{reads} reads in {took:?}");
    }
}

#[tokio::test]
async fn openapi_of_a_group_version_that_local_lacks_comes_from_a_peer_or_is_503() {
    let pki = ClusterPki::new().unwrap();
    let old = server(&pki, Release::V1_34, &["batch/v1"]).await;
    let new = server(&pki, Release::V1_36, &[]).await;
    let plane = Plane::live(&pki, old.address(), &[new.address()], |_| {}).await;
    let client = admin(&pki);
    let batch = "/openapi/v3/apis/batch/v1";
    // kube-openapi says nothing at all.
    let nothing = |server: &Handle, path: &str| {
        server.fault(Fault {
            on: On::path(path),
            action: Action::Answer {
                code: 404,
                headers: Vec::new(),
                body: String::new(),
            },
            times: None,
        });
    };
    nothing(&old, batch);
    nothing(&old, "/openapi/v3/apis/nobody*");
    nothing(&new, "/openapi/v3/apis/nobody*");
    let direct = client.once(old.address(), "GET", batch).await.unwrap();
    assert_eq!((direct.status.as_u16(), direct.body.len()), (404, 0));
    let there = client.once(new.address(), "GET", batch).await.unwrap();
    let through = client.once(plane.address, "GET", batch).await.unwrap();
    assert_eq!(through.status, 200);
    assert_eq!(through.body, there.body);
    assert_eq!(through.headers["etag"], there.headers["etag"]);
    // The peer judges the hash of what only it has.
    let asked = format!("{batch}?hash=0");
    let through = client.once(plane.address, "GET", &asked).await.unwrap();
    assert_eq!(through.status, 301);
    // Nobody's stays the empty 404 that it is.
    let nobody = "/openapi/v3/apis/nobody.example.com/v1";
    let through = client.once(plane.address, "GET", nobody).await.unwrap();
    assert_eq!((through.status.as_u16(), through.body.len()), (404, 0));
    new.kill().await;
    for path in [batch, "/apis/batch/v1", "/apis/batch/v1/jobs"] {
        let through = client.once(plane.address, "GET", path).await.unwrap();
        assert_eq!(through.status, 503, "{path}");
        assert!(through.headers.contains_key("retry-after"), "{path}");
    }
    let through = client.once(plane.address, "GET", nobody).await.unwrap();
    assert_eq!((through.status.as_u16(), through.body.len()), (404, 0));
}

/// The real program, with a port of its own.
struct Program {
    child: Child,
    address: SocketAddr,
    _files: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Program {
    fn start(pki: &ClusterPki, local: SocketAddr, peer: SocketAddr) -> Self {
        let (files, tls) = plane::files(pki);
        let free = || {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            socket.local_addr().unwrap()
        };
        let (address, metrics) = (free(), free());
        let flag = |name: &str, path: &std::path::Path| format!("--{name}={}", path.display());
        let child = Command::new(env!("CARGO_BIN_EXE_mvp"))
            .args(["run", "--kubeadm-manifest=", "--steer=never", "--threads=1"])
            .arg(format!("--local=https://{local}"))
            .arg(format!("--peer=https://{peer}"))
            .arg(format!("--listen={address}"))
            .arg(format!("--metrics-listen={metrics}"))
            .arg(flag("tls-cert-file", &tls.cert_file))
            .arg(flag("tls-private-key-file", &tls.private_key_file))
            .arg(flag("client-ca-file", &tls.client_ca_file.unwrap()))
            .arg(flag(
                "requestheader-client-ca-file",
                &tls.requestheader_client_ca_file.unwrap(),
            ))
            .arg(flag(
                "proxy-client-cert-file",
                &tls.proxy_client_cert_file.unwrap(),
            ))
            .arg(flag(
                "proxy-client-key-file",
                &tls.proxy_client_key_file.unwrap(),
            ))
            .arg(flag("peer-ca-file", &tls.peer_ca_file))
            .arg(flag("state-file", &files.path().join("state.json")))
            .arg(flag("control-socket", &files.path().join("mvp.sock")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            address,
            _files: files,
        }
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }

    /// Resident memory and its highest so far, in KiB.
    fn memory(&self) -> (u64, u64) {
        let status = self.proc("status");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.unwrap().trim().trim_end_matches(" kB");
            number.parse().unwrap()
        };
        (field("VmRSS:"), field("VmHWM:"))
    }
}

/// OpenAPI v2 of a server with 500 more kinds, each as large as a pod's specification, as CRDs carry it inline.
async fn with_crds(server: &Handle, client: &Client) -> usize {
    let own = client
        .once(server.address(), "GET", "/openapi/v2")
        .await
        .unwrap();
    let mut document = own.json().unwrap();
    let pod = document["definitions"]["io.k8s.api.core.v1.PodSpec"].clone();
    let deployments = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments"].clone();
    for number in 0..500 {
        document["definitions"][format!("com.example.group{number}.v1.Kind")] = pod.clone();
        document["paths"][format!("/apis/group{number}.example.com/v1/kinds")] =
            deployments.clone();
    }
    let body = document.to_string();
    let length = body.len();
    server.fault(Fault {
        on: On::path("/openapi/v2"),
        action: Action::Answer {
            code: 200,
            headers: vec![
                ("content-type".into(), "application/json".into()),
                ("etag".into(), format!("\"{length}\"")),
            ],
            body,
        },
        times: None,
    });
    length
}

// Design 6: less than 300 MiB at peak, whatever the build. Time is for the benchmark to show, in an optimised one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openapi_with_500_crds_is_completed_within_its_memory() {
    let pki = ClusterPki::new().unwrap();
    let old = server(&pki, Release::V1_34, &[]).await;
    let new = server(&pki, Release::V1_36, &[]).await;
    let client = admin(&pki);
    let own = with_crds(&old, &client).await;
    with_crds(&new, &client).await;
    let program = Program::start(&pki, old.address(), new.address());
    let began = Instant::now();
    // First something that does not touch OpenAPI, through the peer: everything is learnt then.
    loop {
        if let Ok(answer) = client.once(program.address, "GET", NEW).await
            && answer.status == 200
        {
            break;
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "mvp never learns"
        );
        sleep(Duration::from_millis(50)).await;
    }
    let (before, _) = program.memory();
    let mut wire = Wire::open(&client, program.address).await;
    loop {
        let answer = wire.send(get(&client, "/openapi/v2")).await.unwrap();
        assert_eq!(answer.status(), 200);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        if body.len() > own {
            assert!(
                memchr::memmem::find(
                    &body,
                    b"\"io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicy\""
                )
                .is_some()
            );
            break;
        }
        assert!(began.elapsed() < Duration::from_mins(1), "never completed");
        sleep(Duration::from_secs(1)).await;
    }
    let (after, peak) = program.memory();
    assert!(
        peak - before < 300 << 10,
        "{own} bytes each: {before} KiB before, {peak} at peak, {after} after"
    );
    eprintln!("{own} bytes each: {before} KiB before, {peak} at peak, {after} after");
}
