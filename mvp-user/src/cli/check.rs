//! The part of `mvp check` that needs no running mvp: kernel, capabilities, BPF; and the question to the one that runs.

use rustix::thread::{CapabilitySet, capabilities};

use super::{
    client::{Client, ClientError},
    exists,
};
use crate::admin::wire::{Finding, Grade};

/// `sk_lookup` came with this.
const KERNEL: (u32, u32) = (5, 9);

fn finding(check: &str, result: Grade, found: impl Into<String>, hint: Option<&str>) -> Finding {
    Finding {
        check: check.to_owned(),
        result,
        found: found.into(),
        hint: hint.map(ToOwned::to_owned),
    }
}

/// What this node offers.
pub(super) fn node() -> Vec<Finding> {
    vec![kernel(), rights(), jit(), control_groups()]
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let found = release.to_string();
    match version(&release) {
        Some(version) if version >= KERNEL => finding("kernel", Grade::Ok, found, None),
        Some(_) => finding(
            "kernel",
            Grade::Fail,
            found,
            Some("steering needs Linux 5.9 or newer; --listen works with any"),
        ),
        None => finding(
            "kernel",
            Grade::Warn,
            format!("{found}: unknown version"),
            None,
        ),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn rights() -> Finding {
    const NAME: &str = "capabilities";
    let sets = match capabilities(None) {
        Ok(sets) => sets,
        Err(error) => return finding(NAME, Grade::Warn, error.to_string(), None),
    };
    let bpf = CapabilitySet::BPF.union(CapabilitySet::NET_ADMIN);
    let admin = CapabilitySet::SYS_ADMIN.union(CapabilitySet::NET_ADMIN);
    if sets.effective.contains(bpf) || sets.effective.contains(admin) {
        finding(NAME, Grade::Ok, "CAP_BPF and CAP_NET_ADMIN are there", None)
    } else {
        finding(
            NAME,
            Grade::Fail,
            "CAP_BPF (or CAP_SYS_ADMIN) and CAP_NET_ADMIN are not both there",
            Some("run as root, or give the pod these capabilities"),
        )
    }
}

fn jit() -> Finding {
    const NAME: &str = "BPF compiler";
    let path = "/proc/sys/net/core/bpf_jit_enable";
    match std::fs::read_to_string(path).ok().as_deref().map(str::trim) {
        Some("0") => finding(
            NAME,
            Grade::Warn,
            format!("{path} is 0: programs are interpreted"),
            Some("sysctl net.core.bpf_jit_enable=1"),
        ),
        Some(_) => finding(NAME, Grade::Ok, "on", None),
        None => finding(NAME, Grade::Ok, "always on, or not visible from here", None),
    }
}

fn control_groups() -> Finding {
    const NAME: &str = "control groups";
    if exists("/sys/fs/cgroup/cgroup.controllers") {
        finding(NAME, Grade::Ok, "version 2", None)
    } else {
        finding(
            NAME,
            Grade::Warn,
            "version 1: kube-apiserver's own older connections cannot be told apart",
            Some("connections with a local client are then never closed by --existing=drain"),
        )
    }
}

/// What the running mvp says; that there is none is a finding too.
pub(super) fn running(client: &Result<Client, ClientError>) -> Vec<Finding> {
    let asked = match client {
        Ok(client) => client.get("/v1/check"),
        Err(error) => Err(ClientError::Broken(error.to_string())),
    };
    let answered = asked.and_then(|text| {
        serde_json::from_slice::<Vec<Finding>>(&text).map_err(ClientError::Answer)
    });
    match answered {
        Ok(findings) => findings,
        Err(error) => vec![finding(
            "mvp",
            Grade::Fail,
            error.to_string(),
            Some("the checks of certificates, peers and steering need it running"),
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn kernels_name_their_version_in_many_ways() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("5.10.102.1-microsoft-standard"), Some((5, 10)));
        assert_eq!(version("6.14rc1"), Some((6, 14)));
        assert_eq!(version("none"), None);
    }
}
