//! Processes of the demo: started in a host's namespace with a log of their own, stopped by pid, never left behind.
//!
//! Each is the leader of a process group of its own, so that a wrapper's children go with it and Ctrl-C reaches only
//! the demo, which then ends everything in order.

use std::{
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    errno::Errno,
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::time::{Instant, sleep};

use crate::lab::Host;

/// A running process; dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Process {
    /// For messages, e.g. `mvp on cp1`.
    name: String,
    log: PathBuf,
    child: Child,
    kept: bool,
}

/// What runs where.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The executable.
    pub(crate) path: PathBuf,
    /// Its arguments.
    pub(crate) arguments: Vec<String>,
    /// The host name it sees, if not this machine's: kube-apiserver's identity is a hash of it.
    pub(crate) host_name: Option<String>,
}

impl Process {
    /// Starts `program` on `host`; what it writes goes to `log`.
    pub(crate) fn start(name: &str, host: &Host, program: &Program, log: &Path) -> Result<Self> {
        let mut command = if let Some(host_name) = &program.host_name {
            let mut command = host.command(Path::new("unshare"), log)?;
            command.args([
                "--uts",
                "sh",
                "-c",
                "hostname \"$0\" && exec \"$@\"",
                host_name,
            ]);
            command.arg(&program.path);
            command
        } else {
            host.command(&program.path, log)?
        };
        command.args(&program.arguments).process_group(0);
        // Nothing of the caller's own set-up may reach mvp.
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("MVP_") {
                command.env_remove(variable);
            }
        }
        let child = command
            .spawn()
            .with_context(|| format!("{name} cannot be started"))?;
        Ok(Self {
            name: name.to_owned(),
            log: log.to_owned(),
            child,
            kept: false,
        })
    }

    /// Sends a signal to the process and what it started.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let group = Pid::from_raw(i32::try_from(self.child.id())?);
        match killpg(group, signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("{signal} to {}", self.name)),
        }
    }

    /// Fails, with the end of the log, if it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status}):\n{}", self.name, self.tail());
        }
        Ok(())
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&mut self, patience: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > until {
                bail!("{} did not end within {patience:?}", self.name);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// kill -9, and waits.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.end()
    }

    /// Leaves it running when this is dropped.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }

    fn end(&mut self) -> Result<()> {
        // Once the leader has been waited for, its number may be somebody else's.
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        self.signal(Signal::SIGKILL)?;
        self.child.wait()?;
        Ok(())
    }

    /// The last lines of its log.
    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = self.end()
        {
            eprintln!("{}: {error:#}", self.name);
        }
    }
}
