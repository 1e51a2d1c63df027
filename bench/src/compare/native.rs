//! Two real kube-apiservers on one etcd, the first without `batch/v1`: what it does with its own peer proxy is compared
//! with an mvp in front of it. Each is a node of its own, in a network namespace: mvp takes no address of its own node for a
//! peer's. Each has a host name of its own, because kube-apiserver's identity is a hash of it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use super::{
    ground::{Ground, LOCAL, PEER, tail},
    programs::{Native, Programs},
    scenario::{CONFIGMAPS, PATH},
};
use crate::load::{Identity, Outcome, Plan, Shot, Work};

/// How long two kube-apiservers may take until the first reroutes.
const PATIENCE: Duration = Duration::from_mins(5);
/// What is listed: so many `ConfigMap`s of so many bytes, 100 MB in all (etcd takes 1.5 MiB of each).
const OBJECTS: (usize, usize) = (100, 1_000_000);

/// Lays the ground, starts everything in its namespace, and waits until the first server reroutes.
pub(super) async fn lay(programs: &Programs, logs: &Path) -> Result<Ground> {
    let native = programs
        .native
        .as_ref()
        .context("no kube-apiserver was given")?;
    let mut ground = Ground::bare(programs, logs, Some("native"))?;
    ground.lay_beside()?;
    let data = ground.directory().join("etcd");
    let mut etcd = ground.command(&native.etcd);
    let (client, own) = (etcd_url(), "http://127.0.0.1:2380");
    etcd.args([
        "--name=bench",
        "--unsafe-no-fsync",
        &format!("--data-dir={}", data.display()),
    ]);
    etcd.args([
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
    ]);
    etcd.args([
        format!("--listen-peer-urls={own}"),
        format!("--initial-advertise-peer-urls={own}"),
    ]);
    etcd.arg(format!("--initial-cluster=bench={own}"));
    let mut etcd = start(etcd, &ground, "etcd")?;
    // `exec` keeps the process id.
    let unshare = Path::new("unshare");
    let off = "--runtime-config=batch/v1=false";
    let here = ground.command(unshare);
    let mut local = server(native, &ground, here, ("cp1", LOCAL.into()), &[off])?;
    let beside = ground.command_beside(unshare);
    let mut peer = server(native, &ground, beside, ("cp2", PEER.into()), &[])?;
    let all = [("etcd", &mut etcd), ("cp1", &mut local), ("cp2", &mut peer)];
    reroutes(all, &ground).await?;
    once(
        &ground,
        OBJECTS.0,
        Shot::post(CONFIGMAPS, 0).saying(object()),
    )
    .await
    .context("creating what is to be listed")?;
    ground.native = local.id();
    ground.servers = vec![etcd, local, peer];
    Ok(ground)
}

/// Waits until the first does. Who ends meanwhile says why in its log.
async fn reroutes(mut servers: [(&str, &mut Child); 3], ground: &Ground) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for (name, server) in &mut servers {
            if let Some(status) = server.try_wait()? {
                let (_, log) = ground.log(name)?;
                bail!("{name} ended ({status}): {}", tail(&log));
            }
        }
        match once(ground, 1, Shot::get(PATH)).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context("kube-apiserver does not reroute"));
            }
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    }
}

/// Asks local, so often, one request after the other.
async fn once(ground: &Ground, times: usize, shot: Shot) -> Result<Outcome> {
    let pki = ground.pki();
    let plan = Plan {
        to: LOCAL.into(),
        ca: pki.join("ca.crt"),
        identity: Identity::Certificate(pki.join("user.crt"), pki.join("user.key")),
        http2: true,
        connections: times,
        streams: 1,
        work: Work::First { shot },
    };
    let mut load = ground.load(&plan).await?;
    load.expect("ready").await?;
    load.say("go").await?;
    load.outcome().await
}

/// Both nodes reach it.
fn etcd_url() -> String {
    format!("http://{}:2379", Ipv4Addr::from(LOCAL.0))
}

fn object() -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "generateName": "bench-" },
        "data": { "text": "x".repeat(OBJECTS.1) },
    })
    .to_string()
}

fn server(
    native: &Native,
    ground: &Ground,
    mut command: Command,
    (name, address): (&str, SocketAddr),
    more: &[&str],
) -> Result<Child> {
    let pki = ground.pki();
    let file = |flag: &str, name: &str| format!("--{flag}={}", pki.join(name).display());
    command
        .args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", name])
        .arg(&native.program);
    command.arg(format!("--etcd-servers={}", etcd_url()));
    command.arg("--service-cluster-ip-range=10.96.0.0/16");
    command.args([
        format!("--bind-address={}", address.ip()),
        format!("--advertise-address={}", address.ip()),
    ]);
    command.args([
        format!("--secure-port={}", address.port()),
        format!("--peer-advertise-port={}", address.port()),
    ]);
    command.arg(format!("--peer-advertise-ip={}", address.ip()));
    command.args([
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        file("client-ca-file", "ca.crt"),
        file("peer-ca-file", "ca.crt"),
        file("service-account-key-file", "sa.crt"),
        file("service-account-signing-key-file", "sa.key"),
        file("requestheader-client-ca-file", "front-proxy-ca.crt"),
        file("proxy-client-cert-file", "front-proxy-client.crt"),
        file("proxy-client-key-file", "front-proxy-client.key"),
        file("kubelet-client-certificate", "admin.crt"),
        file("kubelet-client-key", "admin.key"),
    ]);
    command.args([
        "--service-account-issuer=https://kubernetes.default.svc",
        "--endpoint-reconciler-type=lease",
        "--authorization-mode=Node,RBAC",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-uid-headers=X-Remote-Uid",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--feature-gates=UnknownVersionInteroperabilityProxy=true",
    ]);
    command.args(more);
    start(command, ground, name)
}

fn start(mut command: Command, ground: &Ground, name: &str) -> Result<Child> {
    let ((out, path), (err, _)) = (ground.log(name)?, ground.log(name)?);
    command
        .stdin(std::process::Stdio::null())
        .stdout(out)
        .stderr(err);
    command
        .spawn()
        .with_context(|| format!("{name} cannot be started, see {}", path.display()))
}
