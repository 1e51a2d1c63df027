//! Who listens on the port that is steered: kube-apiserver, and whoever else.

use super::{Ground, fail, ok, warn};
use crate::{
    admin::wire::Finding,
    config::SteerMode,
    steer::{
        judge,
        listeners::{self, Listener, Whose},
    },
};

/// One finding for kube-apiserver's listener, and one for each other.
pub(super) async fn look(ground: &Ground) -> Vec<Finding> {
    let port = ground.config.secure_port;
    let name = format!("listeners on port {port}");
    let found = match listeners::on_port(port) {
        Ok(found) => found,
        Err(error) => {
            return vec![fail(
                name,
                format!("cannot be read by sock_diag: {error}"),
                "the kernel needs CONFIG_INET_DIAG (modprobe tcp_diag)",
            )];
        }
    };
    let mut findings = Vec::new();
    let mut locals = Vec::new();
    for listener in found {
        match judge::whose(&ground.dialer, ground.config.local.ip(), &listener).await {
            Whose::Local => locals.push(listener.address.to_string()),
            Whose::Other => findings.push(other(&listener)),
            Whose::Unknown => findings.push(warn(
                format!("listener {}", listener.address),
                format!("{} gave no answer to a handshake", owner(&listener)),
                "if it is a starting kube-apiserver, check again when it is ready",
            )),
        }
    }
    // Where nothing is steered, nobody needs to listen there.
    let steers = ground.config.listen.is_empty() && ground.config.steer != SteerMode::Never;
    findings.insert(
        0,
        if !locals.is_empty() {
            ok(name, format!("kube-apiserver at {}", locals.join(", ")))
        } else if steers {
            fail(
                name,
                "none of them shows the certificate of --tls-cert-file and listens at --local, so nothing is steered",
                "is kube-apiserver running on this node? do --secure-port, --bind-address and --tls-cert-file say what its own flags say?",
            )
        } else {
            ok(name, "no kube-apiserver; nothing is to be steered")
        },
    );
    findings
}

fn other(listener: &Listener) -> Finding {
    warn(
        format!("listener {}", listener.address),
        format!(
            "{}, not kube-apiserver's: it shows another certificate, or does not listen at --local",
            owner(listener)
        ),
        "it is left alone, and what goes through it is not steered; a load balancer there may send to this node's kube-apiserver as before",
    )
}

/// The process behind a socket, as far as `/proc` tells (proc(5), `/proc/PID/fd`).
fn owner(listener: &Listener) -> String {
    let wanted = format!("socket:[{}]", listener.inode);
    let holds = |pid: &std::path::Path| {
        std::fs::read_dir(pid.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|fd| {
                std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str())
            })
    };
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .find(|path| holds(path))
        .and_then(|path| {
            let name = std::fs::read_to_string(path.join("comm")).ok()?;
            let pid = path.file_name()?.to_str()?.to_owned();
            Some(format!("{} (pid {pid})", name.trim()))
        })
        .unwrap_or_else(|| format!("a process of uid {}", listener.uid))
}
