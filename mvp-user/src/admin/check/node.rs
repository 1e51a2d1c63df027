//! The node: kernel, capabilities, BPF, control groups. Each is asked, nothing is attached.

use rustix::thread::{CapabilitySet, capabilities};

use super::{fail, ok, warn};
use crate::{
    admin::wire::Finding,
    steer::{SteerError, Steering},
};

/// `sk_lookup` came with this.
const KERNEL: (u32, u32) = (5, 9);

/// What the kernel and the machine are, whoever asks.
pub fn machine() -> Vec<Finding> {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    vec![kernel(&release), jit(), control_groups()]
}

pub(super) fn kernel(release: &str) -> Finding {
    const NAME: &str = "kernel";
    match version(release) {
        Some(version) if version >= KERNEL => ok(NAME, release),
        Some(_) => fail(
            NAME,
            format!("{release} is too old: steering needs Linux 5.9 or newer"),
            "upgrade the node's kernel; until then --listen ADDR:PORT serves without steering",
        ),
        None => warn(
            NAME,
            format!("{release}: unknown version"),
            "steering needs Linux 5.9 or newer: compare with `uname -r`",
        ),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The capabilities of this process: those in effect count, not those that it might raise.
pub(super) fn rights() -> Finding {
    const NAME: &str = "capabilities";
    let sets = match capabilities(None) {
        Ok(sets) => sets,
        Err(error) => return warn(NAME, error.to_string(), "is /proc mounted?"),
    };
    let held = sets.effective;
    let mut missing = Vec::new();
    if !held.intersects(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN) {
        missing.push("CAP_BPF");
    }
    if !held.contains(CapabilitySet::NET_ADMIN) {
        missing.push("CAP_NET_ADMIN");
    }
    if missing.is_empty() {
        return ok(NAME, "CAP_BPF and CAP_NET_ADMIN are in effect");
    }
    fail(
        NAME,
        format!("{} not in effect", missing.join(" and ")),
        "run it as root, or add them to securityContext.capabilities of the pod",
    )
}

/// Whether the kernel takes the program: its maps are made and it is verified, then all is taken away again.
pub(super) fn program() -> Finding {
    const NAME: &str = "steering program";
    match Steering::try_out() {
        Ok(()) => ok(NAME, "the kernel takes it (it was not attached)"),
        Err(error) => {
            let hint = match &error {
                SteerError::Capability(_) => "see the capabilities above",
                SteerError::OldKernel(_) => "see the kernel above",
                SteerError::NoObject => "use a binary that was built with cargo xtask build",
                _ => {
                    "the kernel needs CONFIG_BPF_SYSCALL, CONFIG_NET and kernel.lockdown below confidentiality"
                }
            };
            fail(NAME, error.to_string(), hint)
        }
    }
}

fn jit() -> Finding {
    const NAME: &str = "BPF compiler";
    let path = "/proc/sys/net/core/bpf_jit_enable";
    match std::fs::read_to_string(path).ok().as_deref().map(str::trim) {
        Some("0") => warn(
            NAME,
            format!("{path} is 0: programs are interpreted"),
            "sysctl net.core.bpf_jit_enable=1",
        ),
        Some(_) => ok(NAME, "on"),
        None => ok(NAME, "always on, or not visible from here"),
    }
}

fn control_groups() -> Finding {
    const NAME: &str = "control groups";
    if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        ok(NAME, "version 2")
    } else {
        // Nothing that could be repaired, so nothing to warn of.
        ok(
            NAME,
            "version 1: --existing=drain closes no connection that has a local client",
        )
    }
}
