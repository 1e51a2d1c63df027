//! Whatever is asked: no proxy, mvp, or another proxy that does the same work (`bench/peers`). Each is a process of its own
//! that is started here, is ready when `start` returns, and ends with the value.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use super::{
    ground::{Ground, free_port, tail},
    process::{Usage, usage},
    scenario::{Against, Mode},
};

/// How long a proxy may take to be ready.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long it may take to end.
const GRACE: Duration = Duration::from_secs(10);
/// Long enough for `sk_lookup` keys to follow the listener (`steer::listeners::REFRESH_INTERVAL` and a margin).
const SETTLE: Duration = Duration::from_secs(5);

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Mvp(Mode),
    Other(Against),
}

impl Who {
    pub(super) fn name(self) -> String {
        match self {
            Self::Mvp(_) => "mvp".to_owned(),
            Self::Other(other) => serde_json::to_string(&other)
                .unwrap_or_default()
                .trim_matches('"')
                .to_owned(),
        }
    }
}

/// A running one.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    /// None: no proxy.
    pid: Option<u32>,
    /// None: somebody else's.
    child: Option<Child>,
}

impl Target {
    /// Starts it on `ground`, with so many threads.
    pub(super) async fn start(who: Who, ground: &Ground, threads: Option<usize>) -> Result<Self> {
        let name = who.name();
        let threads =
            threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let (address, child) = match who {
            Who::Other(Against::Direct) => (ground.local, None),
            Who::Mvp(_) | Who::Other(Against::Build) => {
                let (address, child) = mvp(ground, who, threads).await?;
                (address, Some(child))
            }
            Who::Other(Against::Haproxy) => {
                let program = ground
                    .programs
                    .haproxy
                    .clone()
                    .context("haproxy is not installed")?;
                let (config, address) = configure(
                    ground,
                    "haproxy.cfg",
                    include_str!("../../peers/haproxy.cfg"),
                    threads,
                )?;
                let mut command = ground.command(&program);
                command.args(["-db", "-f"]).arg(config);
                (
                    address,
                    Some(listening(command, ground, &name, address).await?),
                )
            }
            Who::Other(Against::Nginx) => {
                let program = ground
                    .programs
                    .nginx
                    .clone()
                    .context("nginx is not installed")?;
                let (config, address) = configure(
                    ground,
                    "nginx.conf",
                    include_str!("../../peers/nginx.conf"),
                    threads,
                )?;
                let mut command = ground.command(&program);
                command
                    .arg("-p")
                    .arg(ground.directory())
                    .arg("-c")
                    .arg(config);
                (
                    address,
                    Some(listening(command, ground, &name, address).await?),
                )
            }
            Who::Other(Against::Pingora) => {
                let program = ground
                    .programs
                    .pingora
                    .clone()
                    .context("pingora-peer is not built")?;
                let address = free_port()?;
                let mut command = ground.command(&program);
                command.args([
                    "--listen",
                    &address.to_string(),
                    "--local",
                    &ground.local.to_string(),
                ]);
                command
                    .args(["--threads", &threads.to_string(), "--pki"])
                    .arg(ground.pki());
                (
                    address,
                    Some(listening(command, ground, &name, address).await?),
                )
            }
            Who::Other(Against::Native) => {
                let pid = ground
                    .native
                    .context("kube-apiserver's own proxy is measured with real ones only")?;
                return Ok(Self {
                    name,
                    address: ground.local,
                    pid: Some(pid),
                    child: None,
                });
            }
        };
        Ok(Self {
            name,
            address,
            pid: child.as_ref().and_then(Child::id),
            child,
        })
    }

    /// What it has used; nothing for no proxy.
    pub(super) fn usage(&self) -> Result<Usage> {
        match self.pid {
            None => Ok(Usage::default()),
            Some(pid) => usage(pid).with_context(|| format!("{} has ended", self.name)),
        }
    }

    /// Ends it as whoever operates it would, so that an instrumented build writes what it counted.
    pub(super) async fn end(mut self) -> Result<()> {
        let leader = self.leader();
        if let (Some(leader), Some(child)) = (leader, &mut self.child) {
            rustix::process::kill_process(leader, rustix::process::Signal::TERM)?;
            // Whoever takes longer is killed.
            if let Ok(ended) = timeout(GRACE, child.wait()).await {
                ended?;
            }
        }
        Ok(())
    }

    /// Its process, which leads its group.
    fn leader(&self) -> Option<rustix::process::Pid> {
        let leader = self.child.as_ref()?.id()?;
        rustix::process::Pid::from_raw(leader.try_into().ok()?)
    }

    /// Whether there is a proxy.
    pub(super) const fn is_proxy(&self) -> bool {
        self.pid.is_some()
    }
}

#[expect(
    clippy::too_many_lines,
    reason = "mostly the flags of mvp run, one a line"
)]
async fn mvp(ground: &Ground, who: Who, threads: usize) -> Result<(SocketAddr, Child)> {
    let programs = &ground.programs;
    let (program, mode) = match (who, &programs.build) {
        (Who::Mvp(mode), _) => (&programs.mvp, mode),
        (_, Some(build)) => (build, Mode::Listen),
        (_, None) => bail!("no other build was given"),
    };
    let pki = |name: &str| ground.pki().join(name);
    let metrics = free_port()?;
    // Two of them may run at once.
    let own = |name: &str| {
        ground
            .directory()
            .join(format!("{}-{name}", metrics.port()))
    };
    let socket = own("mvp.sock");
    let mut command = ground.command(program);
    command.args(["run", "--kubeadm-manifest", ""]);
    command.args(["--local", &format!("https://{}", ground.local)]);
    command.args(["--peer", &format!("https://{}", ground.peer)]);
    command.arg("--tls-cert-file").arg(pki("apiserver.crt"));
    command
        .arg("--tls-private-key-file")
        .arg(pki("apiserver.key"));
    command.arg("--client-ca-file").arg(pki("ca.crt"));
    command.arg("--peer-ca-file").arg(pki("ca.crt"));
    command
        .arg("--requestheader-client-ca-file")
        .arg(pki("front-proxy-ca.crt"));
    command.args(["--requestheader-allowed-names", "front-proxy-client"]);
    command
        .arg("--proxy-client-cert-file")
        .arg(pki("front-proxy-client.crt"));
    command
        .arg("--proxy-client-key-file")
        .arg(pki("front-proxy-client.key"));
    command.arg("--state-file").arg(own("mvp-state.json"));
    command.arg("--control-socket").arg(&socket);
    command.args(["--metrics-listen", &metrics.to_string()]);
    command.args([
        "--threads",
        &threads.to_string(),
        "--max-connections",
        "30000",
    ]);
    let address = match mode {
        Mode::Listen | Mode::BeforeNative => {
            let address = free_port()?;
            command.args(["--listen", &address.to_string()]);
            address
        }
        Mode::Steered => {
            command.args([
                "--steer",
                "always",
                "--secure-port",
                &ground.local.port().to_string(),
            ]);
            ground.local
        }
        Mode::Auto => {
            command.args([
                "--steer",
                "auto",
                "--secure-port",
                &ground.local.port().to_string(),
            ]);
            ground.local
        }
    };
    let (mut child, log) = spawn(command, ground, "mvp")?;
    let probe = |ground: &Ground| {
        let mut probe = ground.command(&ground.programs.mvp);
        probe
            .arg("probe")
            .arg("ready")
            .arg("--control-socket")
            .arg(&socket);
        probe
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            bail!("mvp ended ({status}) before it was ready: {}", tail(&log));
        }
        let output = probe(ground).output().await.context("mvp probe")?;
        if output.status.success() {
            break;
        }
        if Instant::now() > deadline {
            bail!(
                "mvp is not ready: {}; {}",
                String::from_utf8_lossy(&output.stdout).trim(),
                tail(&log)
            );
        }
        sleep(Duration::from_millis(100)).await;
    }
    if matches!(mode, Mode::Steered | Mode::Auto) {
        sleep(SETTLE).await;
        let mut status = ground.command(&ground.programs.mvp);
        status
            .args(["steer", "-o", "json", "--control-socket"])
            .arg(&socket);
        let output = status.output().await.context("mvp steer")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let wanted = if mode == Mode::Steered { "on" } else { "off" };
        let state = serde_json::from_str::<serde_json::Value>(&text).ok();
        if state.as_ref().and_then(|it| it.get("state")?.as_str()) != Some(wanted) {
            bail!("mvp steers otherwise than was asked: {}", text.trim());
        }
    }
    Ok((address, child))
}

impl Drop for Target {
    /// The whole group: nginx has workers, which outlive a master that is killed.
    fn drop(&mut self) {
        let Some(leader) = self.leader() else {
            return;
        };
        if let Err(error) =
            rustix::process::kill_process_group(leader, rustix::process::Signal::KILL)
        {
            tracing::debug!(%error, name = self.name, "Already gone");
        }
    }
}

/// Fills in a configuration.
fn configure(
    ground: &Ground,
    name: &str,
    template: &str,
    threads: usize,
) -> Result<(PathBuf, SocketAddr)> {
    let address = free_port()?;
    let text = template
        .replace("@WORDS@", "Words between at signs")
        .replace("@THREADS@", &threads.to_string())
        .replace("@LISTEN@", &address.to_string())
        .replace("@LOCAL@", &ground.local.to_string())
        .replace("@PKI@", &ground.pki().display().to_string())
        .replace("@DIR@", &ground.directory().display().to_string());
    let path = ground.directory().join(name);
    std::fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    Ok((path, address))
}

fn spawn(mut command: Command, ground: &Ground, name: &str) -> Result<(Child, PathBuf)> {
    let (log, path) = ground.log(name)?;
    let (more, _) = ground.log(name)?;
    command
        .stdin(std::process::Stdio::null())
        .stdout(log)
        .stderr(more)
        .process_group(0);
    let child = command
        .spawn()
        .with_context(|| format!("{name} cannot be started"))?;
    Ok((child, path))
}

/// Waits until it takes connections.
async fn listening(
    command: Command,
    ground: &Ground,
    name: &str,
    address: SocketAddr,
) -> Result<Child> {
    let (mut child, log) = spawn(command, ground, name)?;
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).await.is_err() {
        if let Some(status) = child.try_wait()? {
            bail!("{name} ended ({status}): {}", tail(&log));
        }
        if Instant::now() > deadline {
            bail!("{name} does not listen at {address}: {}", tail(&log));
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(child)
}
