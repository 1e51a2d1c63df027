//! Two real kube-apiservers on one etcd, the first without `batch/v1`: what it does with its own peer proxy is compared
//! with an mvp in front of it. Both live in one network namespace, at addresses of its loopback; each has a host name of its
//! own, because kube-apiserver's identity is a hash of it.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use super::{
    ground::{Ground, LOCAL, PEER},
    programs::{Native, Programs},
    scenario::PATH,
};
use crate::load::{Identity, Plan, Shot, Work};

/// How long two kube-apiservers may take until the first reroutes.
const PATIENCE: Duration = Duration::from_mins(5);
/// Lays the ground, starts everything in its namespace, and waits until the first server reroutes.
pub(super) async fn lay(programs: &Programs, logs: &Path) -> Result<Ground> {
    let native = programs
        .native
        .as_ref()
        .context("no kube-apiserver was given")?;
    let mut ground = Ground::bare(programs, logs, Some("native"))?;
    (ground.local, ground.peer) = (LOCAL.into(), PEER.into());
    for (address, _) in [LOCAL, PEER] {
        let address = std::net::Ipv4Addr::from(address);
        ground.ip(&["addr", "add", &format!("{address}/32"), "dev", "lo"])?;
    }
    let data = ground.directory().join("etcd");
    let mut etcd = ground.command(&native.etcd);
    let (client, own) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
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
    let etcd = start(etcd, &ground, "etcd")?;
    let mut local = server(
        native,
        &ground,
        "cp1",
        LOCAL.into(),
        &["--runtime-config=batch/v1=false"],
    )?;
    let peer = server(native, &ground, "cp2", PEER.into(), &[])?;
    reroutes(&mut local, &ground).await?;
    ground.native = local.id();
    ground.servers = vec![etcd, local, peer];
    Ok(ground)
}

async fn reroutes(local: &mut Child, ground: &Ground) -> Result<()> {
    let plan = Plan {
        to: LOCAL.into(),
        ca: ground.pki().join("ca.crt"),
        identity: Identity::Certificate(
            ground.pki().join("user.crt"),
            ground.pki().join("user.key"),
        ),
        http2: true,
        connections: 1,
        streams: 1,
        work: Work::First {
            shot: Shot::get(PATH),
        },
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = local.try_wait()? {
            bail!("kube-apiserver ended: {status}");
        }
        let once = async {
            let mut load = ground.load(&plan).await?;
            load.expect("ready").await?;
            load.say("go").await?;
            load.outcome().await
        };
        match once.await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context("kube-apiserver does not reroute"));
            }
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    }
}

fn server(
    native: &Native,
    ground: &Ground,
    name: &str,
    address: SocketAddr,
    more: &[&str],
) -> Result<Child> {
    let pki = ground.pki();
    let file = |flag: &str, name: &str| format!("--{flag}={}", pki.join(name).display());
    let mut command = ground.command(Path::new("unshare"));
    // `exec` keeps the process id.
    command
        .args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", name])
        .arg(&native.program);
    command.args([
        "--etcd-servers=http://127.0.0.1:2379",
        "--service-cluster-ip-range=10.96.0.0/16",
    ]);
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
