//! Closing direct connections that are older than steering (`--existing=drain`), so that their
//! clients come back through mvp. Best effort, and says so: a connection that looks idle may get
//! a request in the instant before it is closed. Not here: whether and when to drain (only on
//! proven skew, at most once per `--drain-interval`; the caller knows).
//!
//! [`class`] is the pure part, design 3's rules. Never closed: connections of mvp itself and of
//! kube-apiserver to itself, and those of which that cannot be told.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use super::{
    Steering,
    listeners::Listener,
    sockdiag::{Entry, SockDiag, Which},
};

/// At most this many connections are closed in a second.
const PER_SECOND: f64 = 20.0;
/// At most this share of the direct connections is closed in a second.
const SHARE_PER_SECOND: f64 = 0.05;

/// What a connection to the steered port is to the drain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// Direct and idle: the server spoke last, and that is a while ago.
    Candidate,
    /// Direct, and in use or not idle for long enough.
    Busy,
    /// Of mvp: steered to it, or from it to kube-apiserver.
    Mvp,
    /// From kube-apiserver to itself, or from this node without a way to tell.
    Own,
    /// To another program on the same port, or not accepted yet.
    Other,
    /// Direct, of a client that is not steered (exempt, or not in the canary): it would come back to where it is.
    NotSteered,
}

/// What is known of the node when connections are classed.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Source address of mvp's own IPv4 connections.
    pub exempt_source: Option<Ipv4Addr>,
    /// Inodes of this process's sockets.
    pub own: HashSet<u32>,
    /// kube-apiserver's listeners.
    pub local: Vec<Listener>,
    /// Their cgroups; empty where the kernel does not tell.
    pub cgroups: HashSet<u64>,
    /// The client-side sockets on this node, by (client's end, server's end).
    pub clients: HashMap<(SocketAddr, SocketAddr), (u32, Option<u64>)>,
    /// Another mvp runs here, and no cgroup tells the connections that it accepted from kube-apiserver's.
    pub twin: bool,
}

/// Classes one server-side connection on the steered port.
pub fn class(entry: &Entry, node: &Node, idle: Duration) -> Class {
    let (server, client) = entry.ends();
    let here = node.clients.get(&(client, server));
    if is_mvps(client.ip(), server.ip(), node)
        || node.own.contains(&entry.inode)
        || here.is_some_and(|(inode, _)| node.own.contains(inode))
    {
        return Class::Mvp;
    }
    // Accepted connections belong to the cgroup of their listener; but control groups of version 1 are one to the kernel here.
    let of_local = entry
        .cgroup
        .is_none_or(|cgroup| node.cgroups.is_empty() || node.cgroups.contains(&cgroup))
        && node.local.iter().any(|it| it.answers_at(server.ip()));
    if entry.inode == 0 || !of_local {
        return Class::Other;
    }
    let from_here = here.is_some() || client.ip().is_loopback() || client.ip() == server.ip();
    let another_program = here
        .and_then(|(_, cgroup)| *cgroup)
        .is_some_and(|cgroup| !node.cgroups.is_empty() && !node.cgroups.contains(&cgroup));
    if node.twin || from_here && !another_program {
        return Class::Own;
    }
    if is_idle(entry, idle) {
        Class::Candidate
    } else {
        Class::Busy
    }
}

/// Whether the client-side socket `entry` is of another mvp: one that this process replaces, and that lets its
/// connections finish. Told only where cgroups do not tell what it accepted from what kube-apiserver did (control groups
/// version 1, or both in one).
fn is_of_twin(entry: &Entry, node: &Node) -> bool {
    let (client, server) = entry.ends();
    is_mvps(client.ip(), server.ip(), node)
        && entry.inode != 0
        && !node.own.contains(&entry.inode)
        && entry
            .cgroup
            .is_none_or(|cgroup| node.cgroups.is_empty() || node.cgroups.contains(&cgroup))
}

/// Whether only an mvp comes from there: this one, or, from a loopback address that is nobody else's, one that this one
/// replaces, perhaps with another `--exempt-source`. Over IPv6 nobody else comes from `::1` to another address of the node, or
/// from another one to `::1`.
fn is_mvps(client: IpAddr, server: IpAddr, node: &Node) -> bool {
    node.exempt_source.is_some_and(|own| match client {
        IpAddr::V4(ip) => ip == own || ip.is_loopback() && ip != Ipv4Addr::LOCALHOST,
        IpAddr::V6(ip) => ip.is_loopback() != server.is_loopback(),
    })
}

/// The last word was the server's, it was acknowledged, and both directions have been quiet.
fn is_idle(entry: &Entry, idle: Duration) -> bool {
    let quiet = entry.receive_queue == 0 && entry.send_queue == 0;
    quiet
        && entry.traffic.is_some_and(|traffic| {
            traffic.unacknowledged == 0
                && traffic.last_sent > idle
                && traffic.last_received > idle
                && traffic.last_sent < traffic.last_received
        })
}

/// How a drain is done.
#[derive(Clone, Copy, Debug)]
pub struct DrainOptions {
    /// How long a connection must have been quiet (`--drain-idle`).
    pub idle: Duration,
    /// Close busy connections too (`--existing-deadline` has passed).
    pub force: bool,
}

/// What a drain did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Connections closed.
    pub closed: usize,
    /// Of these, the ones that were not idle (only with [`DrainOptions::force`]).
    pub forced: usize,
    /// Direct connections that are still there: they keep seeing only what local serves.
    pub left: usize,
    /// Connections that are never closed: kube-apiserver's own, or not told apart from them or from another mvp's.
    pub spared: usize,
}

/// Reads and closes connections on one port.
#[derive(Debug)]
pub struct Drainer {
    port: u16,
    exempt_source: Ipv4Addr,
    tables: SockDiag,
    steering: Option<Arc<Steering>>,
}

impl Drainer {
    /// A drainer of the steered port.
    pub fn new(port: u16, exempt_source: Ipv4Addr) -> io::Result<Self> {
        Ok(Self {
            port,
            exempt_source,
            tables: SockDiag::open()?,
            steering: None,
        })
    }

    /// The same for connections of clients that this program steers.
    #[must_use]
    pub fn for_clients_of(self, steering: Arc<Steering>) -> Self {
        Self {
            steering: Some(steering),
            ..self
        }
    }

    /// All connections on the port with their class; `local` are kube-apiserver's listeners.
    pub fn survey(
        &mut self,
        local: &[Listener],
        idle: Duration,
    ) -> io::Result<Vec<(Entry, Class)>> {
        // Before and after: what is opened or closed meanwhile is this process's too.
        let mut own = own_inodes()?;
        let servers = self.tables.list(Which::Established, self.port, 0)?;
        let clients = self.tables.list(Which::Established, 0, self.port)?;
        own.extend(own_inodes()?);
        let mut cgroups = HashSet::new();
        if local.iter().all(|listener| listener.cgroup.is_some()) {
            cgroups.extend(local.iter().filter_map(|listener| listener.cgroup));
        }
        let mut node = Node {
            exempt_source: Some(self.exempt_source),
            own,
            local: local.to_vec(),
            cgroups,
            clients: clients
                .iter()
                .map(|entry| (entry.ends(), (entry.inode, entry.cgroup)))
                .collect(),
            twin: false,
        };
        node.twin = clients.iter().any(|entry| is_of_twin(entry, &node));
        let steered = |entry: &Entry| {
            let (_, client) = entry.ends();
            let steering = self.steering.as_ref();
            steering.is_none_or(|steering| steering.chooses(client.ip()))
        };
        let classed = servers.into_iter().map(|entry| {
            let class = match class(&entry, &node, idle) {
                Class::Candidate | Class::Busy if !steered(&entry) => Class::NotSteered,
                class => class,
            };
            (entry, class)
        });
        Ok(classed.collect())
    }

    /// Closes what may be closed, slowly, as long as `keep_on` says so. Without a listener of
    /// kube-apiserver's nothing is closed: there is nothing to tell its connections by.
    pub async fn drain(
        &mut self,
        local: &[Listener],
        options: DrainOptions,
        keep_on: impl Fn() -> bool,
    ) -> io::Result<Report> {
        let mut report = Report::default();
        if local.is_empty() {
            return Ok(report);
        }
        let all = self.survey(local, options.idle)?;
        let count = |wanted: Class| all.iter().filter(|(_, class)| *class == wanted).count();
        let (idle, busy) = (count(Class::Candidate), count(Class::Busy));
        report.left = idle + busy;
        report.spared = count(Class::Own);
        let pace = pace(report.left);
        for (entry, class) in &all {
            let wanted = *class == Class::Candidate || (options.force && *class == Class::Busy);
            if !wanted {
                continue;
            }
            tokio::time::sleep(pace).await;
            if !keep_on() {
                break;
            }
            let Some(now) = self.tables.refresh(entry)? else {
                report.left = report.left.saturating_sub(1);
                continue;
            };
            let idle = is_idle(&now, options.idle);
            if !(idle || options.force) {
                continue; // It got a request meanwhile.
            }
            if self.tables.destroy(&now)? {
                report.closed += 1;
                report.forced += usize::from(!idle);
            }
            report.left = report.left.saturating_sub(1);
        }
        Ok(report)
    }
}

/// The time between two closings, so that both bounds hold.
fn pace(connections: usize) -> Duration {
    let connections = f64::from(u32::try_from(connections).unwrap_or(u32::MAX));
    let per_second = (connections * SHARE_PER_SECOND).clamp(SHARE_PER_SECOND, PER_SECOND);
    Duration::from_secs_f64(per_second.recip())
}

/// Inodes of the sockets that this process holds.
fn own_inodes() -> io::Result<HashSet<u32>> {
    let mut own = HashSet::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        // A descriptor may be closed between the listing and the look at it.
        let Ok(target) = fs::read_link(entry?.path()) else {
            continue;
        };
        let inode: Option<u32> = target.to_str().and_then(|text| {
            text.strip_prefix("socket:[")?
                .strip_suffix(']')?
                .parse::<u32>()
                .ok()
        });
        own.extend(inode);
    }
    Ok(own)
}

#[cfg(test)]
mod tests;
