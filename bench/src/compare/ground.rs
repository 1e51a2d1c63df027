//! What every proxy stands on: a cluster's certificates, two origins (local and a peer that serves more), and, for what
//! steers, a network namespace of its own.

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::programs::Programs;
use crate::{
    load::{LOOPBACK_NAME, Outcome, Plan},
    pki::ClusterPki,
};

/// How long a process may take to say something.
const PATIENCE: Duration = Duration::from_secs(100);
/// Where real kube-apiservers are: at addresses of a namespace's loopback that the certificates name.
pub(super) const LOCAL: ([u8; 4], u16) = ([10, 99, 0, 1], 6443);
pub(super) const PEER: ([u8; 4], u16) = ([10, 99, 0, 2], 6443);
/// What local does not serve and the peer does.
const OFF: &str = "batch/v1";

/// See the module.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) programs: Programs,
    /// What stands for this node's kube-apiserver.
    pub(super) local: SocketAddr,
    /// The other one.
    pub(super) peer: SocketAddr,
    logs: PathBuf,
    // In the order in which they end.
    origins: Vec<Talker>,
    /// The same, where they are not origins.
    pub(super) servers: Vec<Child>,
    /// The real kube-apiserver at `local`.
    pub(super) native: Option<u32>,
    /// Proxies run under valgrind, which counts what they copy (`copies`).
    pub(super) copies: bool,
    namespace: Option<Namespace>,
    /// Another node's.
    beside: Option<Namespace>,
    // Last: whoever has not ended writes into it, and would leave it behind.
    directory: TempDir,
}

/// A child that is told and tells in lines.
#[derive(Debug)]
pub(super) struct Talker {
    // Killed on drop.
    child: Child,
    log: PathBuf,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Ground {
    /// `skew`: the peer serves what local does not. `apart`: in a namespace of its own.
    pub(super) async fn lay(
        programs: &Programs,
        logs: &Path,
        skew: bool,
        apart: Option<&str>,
    ) -> Result<Self> {
        let mut ground = Self::bare(programs, logs, apart)?;
        let off = if skew { &[OFF][..] } else { &[] };
        for (address, off) in [(ground.local, off), (ground.peer, &[])] {
            let mut command = ground.command(&programs.bench);
            command
                .args(["origin", "--listen", &address.to_string(), "--pki"])
                .arg(ground.pki());
            for what in off {
                command.args(["--off", what]);
            }
            let mut origin = Talker::start(command, &ground, "origin")?;
            origin.expect("ready").await.context("the origin")?;
            ground.origins.push(origin);
        }
        Ok(ground)
    }

    /// Certificates and addresses, and nobody there yet.
    pub(super) fn bare(programs: &Programs, logs: &Path, apart: Option<&str>) -> Result<Self> {
        let directory = tempfile::tempdir().context("a directory for certificates")?;
        let pki = directory.path().join("pki");
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let cluster = ClusterPki::new()?;
        let addresses = [loopback, LOCAL.0.into(), PEER.0.into()];
        cluster.write(&pki, &addresses)?;
        cluster
            .serving_also(&[LOOPBACK_NAME], &addresses)?
            .write(&pki, "apiserver")?;
        cluster
            .client("bench-user", &["system:masters"])?
            .write(&pki, "user")?;
        let both = |name: &str| -> Result<String> {
            let read = |extension| std::fs::read_to_string(pki.join(format!("{name}.{extension}")));
            Ok(read("crt")? + &read("key")?)
        };
        // HAProxy wants certificate and key in one file.
        std::fs::write(directory.path().join("serving.pem"), both("apiserver")?)?;
        std::fs::write(
            directory.path().join("front-proxy.pem"),
            both("front-proxy-client")?,
        )?;
        let namespace = apart.map(Namespace::make).transpose()?;
        let (local, peer) = if namespace.is_some() {
            (
                SocketAddr::new(loopback, 6443),
                SocketAddr::new(loopback, 7443),
            )
        } else {
            (free_port()?, free_port()?)
        };
        std::fs::create_dir_all(logs).with_context(|| format!("{}", logs.display()))?;
        Ok(Self {
            directory,
            programs: programs.clone(),
            local,
            peer,
            logs: logs.to_owned(),
            namespace,
            beside: None,
            servers: Vec::new(),
            native: None,
            copies: false,
            origins: Vec::new(),
        })
    }

    /// Lays another node's ground beside this one: the peer is there, and each has its address on the link between them. For
    /// what must not be taken for this node's own.
    pub(super) fn lay_beside(&mut self) -> Result<()> {
        let own = self.namespace.as_ref().context("there is no namespace")?;
        let beside = Namespace::make("beside")?;
        let link = ["link", "add", "node", "netns", &own.0, "type", "veth"];
        ip(&[&link[..], &["peer", "name", "node", "netns", &beside.0]].concat())?;
        for (namespace, (address, _)) in [(&own.0, LOCAL), (&beside.0, PEER)] {
            let address = format!("{}/24", Ipv4Addr::from(address));
            ip(&["-n", namespace, "addr", "add", &address, "dev", "node"])?;
            ip(&["-n", namespace, "link", "set", "node", "up"])?;
        }
        (self.local, self.peer) = (LOCAL.into(), PEER.into());
        self.beside = Some(beside);
        Ok(())
    }

    /// Where certificates are, as kubeadm names them; `user.crt` is the asker's.
    pub(super) fn pki(&self) -> PathBuf {
        self.directory.path().join("pki")
    }

    /// For files of proxies.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs a program on this ground. It ends with the value.
    pub(super) fn command(&self, program: &Path) -> Command {
        Self::within(self.namespace.as_ref(), program)
    }

    /// Runs a program on the other node.
    pub(super) fn command_beside(&self, program: &Path) -> Command {
        Self::within(self.beside.as_ref(), program)
    }

    fn within(namespace: Option<&Namespace>, program: &Path) -> Command {
        let mut command = match namespace {
            None => Command::new(program),
            Some(namespace) => {
                // `ip netns exec` replaces itself, so the process id is the program's.
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &namespace.0]).arg(program);
                command
            }
        };
        command.kill_on_drop(true);
        command
    }

    /// The processes that answer, where they are origins.
    pub(super) fn answerers(&self) -> Vec<u32> {
        self.origins.iter().filter_map(Talker::pid).collect()
    }

    /// Where a program's words go.
    pub(super) fn log(&self, name: &str) -> Result<(Stdio, PathBuf)> {
        let path = self.logs.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&path);
        Ok((
            Stdio::from(file.with_context(|| format!("{}", path.display()))?),
            path,
        ))
    }

    /// A load process that has its plan; `ready` is the next thing it says.
    pub(super) async fn load(&self, plan: &Plan) -> Result<Talker> {
        let mut command = self.command(&self.programs.bench);
        command.arg("load");
        let mut load = Talker::start(command, self, "load")?;
        load.say(&serde_json::to_string(plan)?).await?;
        Ok(load)
    }
}

/// The last words of a log.
pub(super) fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(3).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
}

/// A port that nobody uses now.
pub(super) fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

impl Talker {
    fn start(mut command: Command, ground: &Ground, name: &str) -> Result<Self> {
        let (words, log) = ground.log(name)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(words);
        let mut child = command.spawn().with_context(|| {
            format!(
                "{} cannot be started",
                command.as_std().get_program().display()
            )
        })?;
        let input = child.stdin.take().context("no standard input")?;
        let output = child.stdout.take().context("no standard output")?;
        Ok(Self {
            child,
            log,
            input,
            output: BufReader::new(output).lines(),
        })
    }

    /// Its process, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    pub(super) async fn say(&mut self, line: &str) -> Result<()> {
        self.input.write_all(line.as_bytes()).await?;
        Ok(self.input.write_all(b"\n").await?)
    }

    async fn hear(&mut self) -> Result<String> {
        let line = timeout(PATIENCE, self.output.next_line())
            .await
            .context("it says nothing")??;
        line.with_context(|| format!("a load process ended: {}", tail(&self.log)))
    }

    /// Waits for this word.
    pub(super) async fn expect(&mut self, word: &str) -> Result<()> {
        loop {
            let line = self.hear().await?;
            if line == word {
                return Ok(());
            }
            if line.starts_with("done") {
                bail!("it says {line:?} instead of {word:?}");
            }
        }
    }

    /// What was done.
    pub(super) async fn outcome(&mut self) -> Result<Outcome> {
        let line = self.hear().await?;
        let text = line
            .strip_prefix("done ")
            .with_context(|| format!("it says {line:?}"))?;
        Ok(serde_json::from_str(text)?)
    }
}

/// A network namespace with a loopback; it is deleted at the end.
#[derive(Debug)]
struct Namespace(String);

impl Namespace {
    fn make(name: &str) -> Result<Self> {
        let name = format!("mvp-bench-{name}-{}", std::process::id());
        ip(&["netns", "add", &name])
            .context("steering is measured in network namespaces, which need root and iproute2")?;
        let namespace = Self(name);
        ip(&["-n", &namespace.0, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "delete", &self.0]) {
            tracing::warn!(%error, "A namespace stays behind");
        }
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = std::process::Command::new("ip")
        .args(arguments)
        .output()
        .context("ip (iproute2) cannot be run")?;
    if !output.status.success() {
        bail!(
            "ip {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
