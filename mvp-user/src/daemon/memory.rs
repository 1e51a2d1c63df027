//! How much memory there is and who has to give some back: what clients do not take of their answers shall not use it up, so
//! that where it runs out, those that hold most of it are ended (`serve::Backlogs`). Where it has no bound, nobody is.

use std::{collections::HashMap, fs, io, net::SocketAddr, time::Duration};

use tokio::time::sleep;

use super::Parts;
use crate::{
    serve::Ends,
    steer::sockdiag::{SockDiag, Which},
};

/// How often it is looked at. Where it fills from 80 % to the bound in less than two looks (of 2 GiB, with more than 800 MB/s),
/// this comes too late.
const LOOK: Duration = Duration::from_millis(250);
/// How long the allocator and the kernel have for giving back what was freed.
const SETTLE: Duration = Duration::from_secs(1);

/// The memory that the kernel holds against the bound of this process's control group, and the bound; no bound: never full.
/// It is more than what is resident: what waits in sockets is the kernel's, and counts as well.
#[derive(Debug)]
pub(super) struct Memory {
    bound: Option<u64>,
    /// The file that tells what is used.
    used: String,
}

impl Memory {
    pub(super) fn new() -> Self {
        // cgroup v2: the limit of the group this process is in (proc(5), cgroups(7)); "max" does not parse.
        let group = fs::read_to_string("/proc/self/cgroup").ok();
        let group = group
            .as_deref()
            .and_then(|text| text.trim().rsplit("::").next())
            .unwrap_or("/")
            .to_owned();
        let second = |group: &str| {
            ["memory.max", "memory.current"].map(|it| format!("/sys/fs/cgroup{group}/{it}"))
        };
        // cgroup v1, as a container sees it; no bound is a number larger than any memory.
        let first = ["memory.limit_in_bytes", "memory.usage_in_bytes"]
            .map(|it| format!("/sys/fs/cgroup/memory/{it}"));
        Self::of([second(&group), second(""), first])
    }

    /// From the first of these pairs of files, bound and use, that is there.
    fn of(files: [[String; 2]; 3]) -> Self {
        let found = files.into_iter().find_map(|[bound, used]| {
            let bound = fs::read_to_string(bound).ok()?;
            Some((bound.trim().parse().ok(), used))
        });
        let (bound, used) = found.unwrap_or_default();
        Self { bound, used }
    }

    pub(super) fn percent(&self) -> u64 {
        self.read()
            .map_or(0, |(used, bound)| used.saturating_mul(100) / bound.max(1))
    }

    /// What is used and the bound, in bytes.
    fn read(&self) -> Option<(u64, u64)> {
        let bound = self.bound?;
        let used = fs::read_to_string(&self.used)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0);
        Some((used, bound))
    }
}

/// Looks at it for as long as there is a bound.
pub(super) async fn tend(parts: &Parts) {
    let memory = Memory::new();
    let config = &parts.config;
    let ports = if config.listen.is_empty() {
        vec![config.secure_port]
    } else {
        config.listen.iter().map(SocketAddr::port).collect()
    };
    loop {
        sleep(LOOK).await;
        let Some((used, bound)) = memory.read() else {
            return;
        };
        let Some(wanted) = wanted(used, bound) else {
            continue;
        };
        let queued = queued(&ports).unwrap_or_else(|error| {
            tracing::debug!(%error, "What waits in sockets cannot be read");
            HashMap::new()
        });
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let queued = |ends: &Ends| queued.get(ends).copied().unwrap_or_default();
        let ended = parts.shared.backlogs.look(queued, wanted);
        if ended.connections > 0 {
            let (connections, bytes) = (ended.connections, ended.bytes);
            tracing::warn!(
                connections,
                bytes,
                used,
                bound,
                "Memory runs out: client connections that did not take their answers are ended"
            );
            sleep(SETTLE).await;
        }
    }
}

/// How much is to be had back: none below 80 % of the bound, nothing yet below 90 %.
fn wanted(used: u64, bound: u64) -> Option<u64> {
    let enough = bound / 100 * 80;
    if used < enough {
        return None;
    }
    let full = used >= bound / 100 * 90;
    Some(if full { used - enough } else { 0 })
}

/// What waits in the kernel for the clients at these ports.
fn queued(ports: &[u16]) -> io::Result<HashMap<Ends, usize>> {
    let mut sockets = SockDiag::open()?;
    let mut queued = HashMap::new();
    for port in ports {
        let found = sockets.list(Which::Established, *port, 0)?;
        queued.extend(found.iter().map(|it| (it.ends(), it.send_queue as usize)));
    }
    Ok(queued)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_the_kernel_counts_against_the_bound() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name).display().to_string();
        let pair = |one: &str, other: &str| [file(one), file(other)];
        let files = || {
            [
                pair("not", "there"),
                pair("memory.max", "memory.current"),
                pair("memory.current", "memory.max"),
            ]
        };
        assert_eq!(Memory::of(files()).percent(), 0);
        fs::write(file("memory.max"), "2147483648\n").unwrap();
        fs::write(file("memory.current"), "1932735284\n").unwrap();
        let memory = Memory::of(files());
        assert_eq!(memory.percent(), 90);
        fs::write(file("memory.current"), "1500000000\n").unwrap();
        assert_eq!(memory.percent(), 69);
        fs::write(file("memory.max"), "max\n").unwrap();
        assert_eq!(Memory::of(files()).percent(), 0);
    }

    #[test]
    fn clients_are_looked_at_from_80_percent_on_and_ended_at_90() {
        let of = |percent: u64| wanted(percent * 1000, 100_000);
        assert_eq!(of(79), None);
        assert_eq!(of(80), Some(0));
        assert_eq!(of(89), Some(0));
        assert_eq!(of(90), Some(10_000));
        assert_eq!(of(120), Some(40_000));
    }

    #[test]
    fn what_waits_in_a_socket_is_found_by_its_ends() {
        use std::io::Write as _;

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(local).unwrap();
        let (mut server, peer) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        while server.write(&[0; 16 * 1024]).is_ok() {}
        let waits = queued(&[local.port()]).unwrap();
        assert!(waits[&(local, peer)] > 64 * 1024, "{waits:?}");
        drop(client);
    }
}
