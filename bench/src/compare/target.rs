//! Whatever is asked: no proxy, mvp, or another proxy that does the same work (`bench/peers`). Each is a process of its own
//! that is started here, is ready when `start` returns, and ends with the value.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::{
    net::TcpStream,
    process::Command,
    time::{Instant, sleep, timeout},
};

use super::{
    copies,
    ground::{Ground, free_port, tail},
    leader::Leader,
    process::{Usage, tree, usage},
    scenario::{Against, Mode},
};

/// How long a proxy may take to be ready.
const PATIENCE: Duration = Duration::from_mins(1);
/// When it is told a second time to end.
const AGAIN: Duration = Duration::from_millis(200);
/// How long it may take to end.
const GRACE: Duration = Duration::from_secs(30);

/// Threads of a proxy at most, unless it is told otherwise: more than asker and answerer, of one thread each, can keep busy.
/// (`HAProxy` 2.6 does not start with more than 64.)
const MOST_THREADS: usize = 16;

/// Threads of each proxy: so many as are wanted, else one for each of `cpus`.
pub(super) fn threads(wanted: Option<usize>, cpus: usize) -> usize {
    wanted.unwrap_or_else(|| cpus.min(MOST_THREADS))
}

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
    child: Option<Leader>,
    /// Where mvp tells its metrics.
    pub(super) metrics: Option<SocketAddr>,
}

impl Target {
    /// Starts it on `ground`, with so many threads.
    pub(super) async fn start(who: Who, ground: &Ground, wanted: Option<usize>) -> Result<Self> {
        let name = who.name();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads(wanted, cpus);
        let mut metrics = None;
        let (address, child) = match who {
            Who::Other(Against::Direct) => (ground.local, None),
            Who::Mvp(_) | Who::Other(Against::Build) => {
                let door = metrics.insert(free_port()?);
                let (address, child) = mvp(ground, who, threads, *door).await?;
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
                    metrics,
                });
            }
        };
        Ok(Self {
            name,
            address,
            pid: child.as_ref().and_then(|child| child.0.id()),
            child,
            metrics,
        })
    }

    /// What it has used; nothing for no proxy.
    pub(super) fn usage(&self) -> Result<Usage> {
        match self.pid {
            None => Ok(Usage::default()),
            Some(pid) => usage(pid).with_context(|| format!("{} has ended", self.name)),
        }
    }

    /// Its processes; none for no proxy.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.pid.map(tree).unwrap_or_default()
    }

    /// Ends it as whoever operates it would, so that an instrumented build writes what it counted.
    pub(super) async fn end(mut self) -> Result<()> {
        if let Some(child) = &mut self.child {
            // pingora waits for minutes before it ends gracefully, and is not instrumented.
            let signal = if self.name == Who::Other(Against::Pingora).name() {
                rustix::process::Signal::INT
            } else {
                rustix::process::Signal::TERM
            };
            child.tell(signal)?;
            // mvp lingers for three seconds, for clients that are on their way: here are none. A second signal cuts that short.
            if timeout(AGAIN, child.0.wait()).await.is_err() {
                child.tell(signal)?;
            }
            // Whoever takes longer is killed.
            if let Ok(ended) = timeout(GRACE, child.0.wait()).await {
                ended?;
            }
        }
        Ok(())
    }

    /// Ends it at once, and waits until it is gone.
    pub(super) async fn kill(mut self) -> Result<()> {
        if let Some(child) = &mut self.child {
            child.0.kill().await?;
        }
        Ok(())
    }

    /// Whether there is a proxy.
    pub(super) const fn is_proxy(&self) -> bool {
        self.pid.is_some()
    }
}

async fn mvp(
    ground: &Ground,
    who: Who,
    threads: usize,
    metrics: SocketAddr,
) -> Result<(SocketAddr, Leader)> {
    let programs = &ground.programs;
    let (program, mode) = match (who, &programs.build) {
        (Who::Mvp(mode), _) => (&programs.mvp, mode),
        (_, Some(build)) => (build, Mode::Listen),
        (_, None) => bail!("no other build was given"),
    };
    let pki = |name: &str| ground.pki().join(name);
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
    let deadline = Instant::now() + PATIENCE;
    let ask = async |verb: &[&str]| {
        let mut command = ground.command(program);
        command.args(verb).arg("--control-socket").arg(&socket);
        command.output().await.context("asking mvp how it is")
    };
    loop {
        if let Some(status) = child.0.try_wait()? {
            bail!("mvp ended ({status}) before it was ready: {}", tail(&log));
        }
        let ready = ask(&["probe", "ready"]).await?;
        let status = ask(&["status", "-o", "json"]).await?;
        if ready.status.success() && is_as_asked(&status.stdout, mode) {
            return Ok((address, child));
        }
        if Instant::now() > deadline {
            bail!(
                "mvp is not ready, steers otherwise than was asked, or does not know the peer: {}; {}; {}",
                String::from_utf8_lossy(&ready.stdout).trim(),
                String::from_utf8_lossy(&status.stdout).trim(),
                tail(&log)
            );
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Whether `mvp status` says that it steers as it shall; where it does not come between by steering, that both servers are up: an
/// mvp that knows no peer would be measured for what local does.
fn is_as_asked(status: &[u8], mode: Mode) -> bool {
    let Ok(status) = serde_json::from_slice::<serde_json::Value>(status) else {
        return false;
    };
    let steering = status.pointer("/steering/state").and_then(|it| it.as_str());
    match mode {
        Mode::Steered => steering == Some("on"),
        Mode::Auto => steering == Some("off"),
        Mode::Listen | Mode::BeforeNative => {
            let servers = status.pointer("/servers").and_then(|it| it.as_array());
            servers.is_some_and(|servers| {
                servers.len() == 2
                    && servers
                        .iter()
                        .all(|server| server.pointer("/health").is_some_and(|it| it == "up"))
            })
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

fn spawn(mut command: Command, ground: &Ground, name: &str) -> Result<(Leader, PathBuf)> {
    if ground.copies {
        command = copies::counted(&command, ground.directory());
    }
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
    Ok((Leader(child), path))
}

/// Waits until it takes connections.
async fn listening(
    command: Command,
    ground: &Ground,
    name: &str,
    address: SocketAddr,
) -> Result<Leader> {
    let (mut child, log) = spawn(command, ground, name)?;
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).await.is_err() {
        if let Some(status) = child.0.try_wait()? {
            bail!("{name} ended ({status}): {}", tail(&log));
        }
        if Instant::now() > deadline {
            bail!("{name} does not listen at {address}: {}", tail(&log));
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(child)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mvp_that_knows_no_peer_is_not_measured() {
        let up = r#"{"health":"up"}"#;
        let status = |servers: &str| {
            format!(r#"{{"steering":{{"state":"off"}},"servers":[{servers}]}}"#).into_bytes()
        };
        let both = status(&format!("{up},{up}"));
        assert!(is_as_asked(&both, Mode::Listen) && is_as_asked(&both, Mode::Auto));
        assert!(!is_as_asked(&both, Mode::Steered));
        assert!(!is_as_asked(&status(up), Mode::BeforeNative));
        let down = status(&format!(r#"{up},{{"health":"down"}}"#));
        assert!(!is_as_asked(&down, Mode::BeforeNative));
        assert!(!is_as_asked(b"", Mode::Listen));
    }

    #[test]
    fn haproxy_keeps_its_upstream_connections_in_every_scenario() {
        let config = include_str!("../../peers/haproxy.cfg");
        let number = |name: &str| -> usize {
            let line = config
                .lines()
                .find_map(|line| line.trim().strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
        };
        let descriptors = 2 * number("maxconn ");
        let scenarios = super::super::all()
            .into_iter()
            .chain(super::super::curves());
        let most = scenarios.map(|it| it.connections).max().unwrap();
        // One upstream for each of a client's, at worst.
        assert!(2 * most < descriptors * number("tune.pool-low-fd-ratio ") / 100);
        let shared = config.lines().filter(|line| line.contains(" alpn h2"));
        assert!(
            shared
                .filter(|line| line.contains("server "))
                .all(|line| line.contains(" proto h2"))
        );
    }

    #[tokio::test]
    async fn who_lingers_is_told_to_end_a_second_time() {
        let mut command = Command::new("sh");
        let lingers = "trap 'trap - TERM' TERM; while :; do sleep 0.02; done";
        command.args(["-c", lingers]).process_group(0);
        let child = command.spawn().unwrap();
        let target = Target {
            name: "mvp".to_owned(),
            address: ([127, 0, 0, 1], 0).into(),
            pid: child.id(),
            child: Some(Leader(child)),
            metrics: None,
        };
        // Until it has set its trap.
        sleep(Duration::from_millis(200)).await;
        let ended = timeout(GRACE / 3, target.end()).await;
        ended.expect("it was told once").unwrap();
    }

    #[test]
    fn many_processors_do_not_mean_hundreds_of_threads() {
        assert_eq!((threads(None, 2), threads(None, 96)), (2, MOST_THREADS));
        assert_eq!((threads(Some(1), 96), threads(Some(40), 2)), (1, 40));
    }
}
