//! Hosts on this machine: network namespaces on one bridge, for the demo and the comparisons.
//!
//! Everything is named `PREFIX-...` and removed on drop, and what an interrupted run left behind is removed at the
//! start. Nothing outside these namespaces is changed.

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, setns};

/// Several hosts on one network.
#[derive(Debug)]
pub(crate) struct Lab {
    prefix: String,
    hosts: Vec<Host>,
}

/// One host: a namespace with one address.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// Short name, e.g. `cp1`.
    pub(crate) name: String,
    /// Its address on the lab's network.
    pub(crate) address: Ipv4Addr,
    namespace: String,
}

impl Lab {
    /// An empty network. `prefix` must be short: it starts the names of namespaces and interfaces.
    pub(crate) fn new(prefix: &str) -> Result<Self> {
        let lab = Self {
            prefix: prefix.to_owned(),
            hosts: Vec::new(),
        };
        lab.remove_leftovers()?;
        let hub = lab.namespace("hub");
        ip(&["netns", "add", &hub])
            .context("network namespaces need root (CAP_SYS_ADMIN) and iproute2")?;
        ip(&["-n", &hub, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "br0", "up"])?;
        Ok(lab)
    }

    /// Adds a host with the address `10.88.0.octet` (and `fd88::octet`) and a loopback.
    pub(crate) fn host(&mut self, name: &str, octet: u8) -> Result<Host> {
        let host = Host {
            name: name.to_owned(),
            address: Ipv4Addr::new(10, 88, 0, octet),
            namespace: self.namespace(name),
        };
        let (hub, here, there) = (self.namespace("hub"), &host.namespace, format!("to-{name}"));
        ip(&["netns", "add", here])?;
        ip(&[
            "-n", here, "link", "add", "eth0", "type", "veth", "peer", "name", &there, "netns",
            &hub,
        ])?;
        ip(&["-n", &hub, "link", "set", &there, "master", "br0", "up"])?;
        ip(&[
            "-n",
            here,
            "addr",
            "add",
            &format!("{}/24", host.address),
            "dev",
            "eth0",
        ])?;
        ip(&[
            "-n",
            here,
            "addr",
            "add",
            &format!("fd88::{octet:x}/64"),
            "dev",
            "eth0",
            "nodad",
        ])?;
        ip(&["-n", here, "link", "set", "lo", "up"])?;
        ip(&["-n", here, "link", "set", "eth0", "up"])?;
        self.hosts.push(host.clone());
        Ok(host)
    }

    /// Leaves everything in place, for a look around.
    pub(crate) fn keep(mut self) {
        self.hosts.clear();
        self.prefix.clear();
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn remove_leftovers(&self) -> Result<()> {
        let output = Command::new("ip")
            .args(["netns", "list"])
            .output()
            .context("ip (iproute2) cannot be run")?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let name = line.split_whitespace().next().unwrap_or_default();
            if name.starts_with(&format!("{}-", self.prefix)) {
                end_all(name)?;
                ip(&["netns", "delete", name])?;
            }
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !self.prefix.is_empty()
            && let Err(error) = self.remove_leftovers()
        {
            eprintln!("namespaces could not be removed: {error:#}");
        }
    }
}

impl Host {
    /// A command that will run on this host, with its output in `log`.
    pub(crate) fn command(&self, program: &Path, log: &Path) -> Result<Command> {
        let mut command = Command::new("ip");
        let log = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("{}", log.display()))?;
        command
            .args(["netns", "exec", &self.namespace])
            .arg(program);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }

    /// Moves the calling thread to this host: sockets that it makes from now on belong there.
    pub(crate) fn enter(&self) -> Result<()> {
        let path = format!("/run/netns/{}", self.namespace);
        let file = File::open(&path).with_context(|| path.clone())?;
        setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {path}"))
    }

    /// The address as `IpAddr`.
    pub(crate) fn ip(&self) -> IpAddr {
        self.address.into()
    }

    /// How a person runs a command there.
    pub(crate) fn prefix(&self) -> String {
        format!("ip netns exec {}", self.namespace)
    }
}

/// Kills what still runs in a namespace of ours, pid by pid.
fn end_all(namespace: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(["netns", "pids", namespace])
        .output()?;
    for pid in String::from_utf8_lossy(&output.stdout).split_whitespace() {
        let pid = nix::unistd::Pid::from_raw(pid.parse()?);
        // This process itself may have a thread there.
        if pid != nix::unistd::getpid() {
            match nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL) {
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => return Err(error).with_context(|| format!("end process {pid}")),
            }
        }
    }
    Ok(())
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip")
        .args(args)
        .output()
        .context("ip (iproute2) cannot be run")?;
    if !output.status.success() {
        bail!(
            "ip {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
