//! Who listens on the steered port, and the keys of the program that follow from it.
//!
//! [`Watcher::refresh`] is to be called at attach and every [`REFRESH_INTERVAL`]. Which listener
//! is kube-apiserver's is judged by the caller (its TLS handshake shows the configured serving
//! certificate). Destroy events of `sock_diag` are not listened to: the kernel would send one for
//! every connection of the node that ends, and nothing hangs on them, for keys outlive
//! kube-apiserver's listener anyway.
//!
//! [`keys`] is the pure part, design 2's rules: the listener of kube-apiserver gives `steer`
//! entries, any other `pass` entries; an IPv6 wildcard gives the unspecified entries of both
//! families unless it is IPv6-only; steer entries outlive kube-apiserver's listener until another
//! program listens there.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    SteerError, Steering, Verdict,
    sockdiag::{Entry, SockDiag, Which},
};

/// How often the listening sockets are read.
pub const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// How long a listener counts as another program's before it is judged again: its certificate,
/// or mvp's, may have been replaced meanwhile.
const REJUDGE: Duration = Duration::from_secs(30);

/// A socket that listens on the steered port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// Where; IPv4-mapped addresses are IPv4.
    pub address: SocketAddr,
    /// Whether IPv4 connections reach it too (an IPv6 wildcard without `IPV6_V6ONLY`).
    pub both_families: bool,
    /// Identifies the socket.
    pub cookie: u64,
    /// Inode, to find its process in `/proc`.
    pub inode: u32,
    /// User that made it.
    pub uid: u32,
    /// cgroup (v2) of its process, when the kernel tells.
    pub cgroup: Option<u64>,
}

impl Listener {
    fn new(entry: &Entry) -> Self {
        let (address, _) = entry.ends();
        Self {
            address,
            both_families: entry.is_v6_socket()
                && entry.local.ip().is_unspecified()
                && !entry.v6only,
            cookie: entry.cookie,
            inode: entry.inode,
            uid: entry.uid,
            cgroup: entry.cgroup,
        }
    }

    /// Whether it takes connections to an address of this port, unless another listener has that address for itself.
    pub fn answers_at(&self, ip: IpAddr) -> bool {
        let own = self.address.ip();
        if own.is_unspecified() {
            self.both_families || own.is_ipv4() == ip.is_ipv4()
        } else {
            own == ip
        }
    }

    /// An address at which this listener answers from this node.
    pub const fn dial_address(&self) -> SocketAddr {
        let ip = match self.address.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(v6) if v6.is_unspecified() => {
                if self.both_families {
                    IpAddr::V4(Ipv4Addr::LOCALHOST)
                } else {
                    IpAddr::V6(Ipv6Addr::LOCALHOST)
                }
            }
            ip => ip,
        };
        SocketAddr::new(ip, self.address.port())
    }

    /// The keys that belong to it.
    fn keys(&self) -> impl Iterator<Item = SocketAddr> {
        let port = self.address.port();
        let second = self
            .both_families
            .then_some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
        [self.address].into_iter().chain(second)
    }
}

/// Whose a listener is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// kube-apiserver's: it showed the configured serving certificate.
    Local,
    /// Another program's: it answered otherwise.
    Other,
    /// It gave no answer; it is asked again at the next refresh and changes nothing until then.
    Unknown,
}

/// Keys and their verdicts.
pub type Keys = BTreeMap<SocketAddr, Verdict>;

/// The keys for these listeners; `before` is what this function returned the last time (empty at
/// start: with no listener of kube-apiserver's seen, there are no steer entries).
pub fn keys(listeners: &[(Listener, Whose)], before: &Keys) -> Keys {
    let of = |whose: Whose| {
        listeners
            .iter()
            .filter(move |(_, judged)| *judged == whose)
            .flat_map(|(listener, _)| listener.keys())
    };
    let mut keys = Keys::new();
    // kube-apiserver may come back on the same addresses, and failover needs them meanwhile.
    if of(Whose::Local).next().is_none() {
        let steered = before.iter().filter(|(_, v)| **v == Verdict::Steer);
        keys.extend(steered.map(|(key, verdict)| (*key, *verdict)));
    }
    // What cannot be judged now keeps the verdict it had.
    for key in of(Whose::Unknown) {
        if let Some(verdict) = before.get(&key) {
            keys.insert(key, *verdict);
        }
    }
    keys.extend(of(Whose::Other).map(|key| (key, Verdict::Pass)));
    // Last: where both listen (SO_REUSEPORT), the port is kube-apiserver's.
    keys.extend(of(Whose::Local).map(|key| (key, Verdict::Steer)));
    keys
}

/// The sockets that listen on a port now.
pub fn on_port(port: u16) -> io::Result<Vec<Listener>> {
    let found = SockDiag::open()?.list(Which::Listening, port, 0)?;
    Ok(found.iter().map(Listener::new).collect())
}

/// Keeps the program's keys in step with the listening sockets.
#[derive(Debug)]
pub struct Watcher {
    port: u16,
    tables: SockDiag,
    judged: HashMap<u64, (Whose, Instant)>,
    listeners: Vec<(Listener, Whose)>,
    keys: Keys,
}

impl Watcher {
    /// A watcher of the listeners on one port, which has not looked yet.
    pub fn new(port: u16) -> io::Result<Self> {
        Ok(Self {
            port,
            tables: SockDiag::open()?,
            judged: HashMap::new(),
            listeners: Vec::new(),
            keys: Keys::new(),
        })
    }

    /// Reads the listening sockets, asks `judge` about those it has not judged yet, and brings
    /// the program's keys up to date. Returns whether a key changed.
    pub async fn refresh<J>(&mut self, steering: &Steering, judge: J) -> Result<bool, WatchError>
    where
        J: AsyncFn(&Listener) -> Whose,
    {
        let found = self
            .tables
            .list(Which::Listening, self.port, 0)
            .map_err(WatchError::Tables)?;
        let now = Instant::now();
        let mut judged = HashMap::with_capacity(found.len());
        let mut listeners = Vec::with_capacity(found.len());
        let mut asked = false;
        for listener in found.iter().map(Listener::new) {
            let (whose, since) = match self.judged.get(&listener.cookie) {
                Some(known @ (Whose::Local, _)) => *known,
                Some(known @ (Whose::Other, since)) if now - *since < REJUDGE => *known,
                _ => {
                    asked = true;
                    (judge(&listener).await, now)
                }
            };
            judged.insert(listener.cookie, (whose, since));
            listeners.push((listener, whose));
        }
        if asked {
            // A process that ends while it is asked resets the connection, as another program may: only what still listens was
            // judged. Else a kube-apiserver that starts and fails would end its own keys, and failover with them.
            let still = self
                .tables
                .list(Which::Listening, self.port, 0)
                .map_err(WatchError::Tables)?;
            listeners.retain(|(listener, _)| still.iter().any(|it| it.cookie == listener.cookie));
        }
        self.judged = judged;
        self.listeners = listeners;
        let wanted = keys(&self.listeners, &self.keys);
        let changed = wanted != self.keys;
        if changed {
            apply(steering, &self.keys, &wanted)?;
            self.keys = wanted;
        }
        Ok(changed)
    }

    /// Judges other programs anew, to be called when the serving certificate was replaced. A socket
    /// that was kube-apiserver's stays that: it shows its old certificate until it has read the
    /// files, which can be a minute after mvp.
    pub fn forget(&mut self) {
        self.judged.retain(|_, (whose, _)| *whose == Whose::Local);
    }

    /// Who listened at the last refresh.
    pub fn listeners(&self) -> &[(Listener, Whose)] {
        &self.listeners
    }

    /// The keys that the program has now.
    pub const fn keys(&self) -> &Keys {
        &self.keys
    }
}

/// Writes the difference. Specific entries of others go in first, so that at no moment a
/// connection to another program's address finds only the unspecified entry.
fn apply(steering: &Steering, before: &Keys, wanted: &Keys) -> Result<(), SteerError> {
    let mut changed: Vec<_> = wanted
        .iter()
        .filter(|(key, verdict)| before.get(key) != Some(verdict))
        .collect();
    changed.sort_by_key(|(key, _)| key.ip().is_unspecified());
    for (key, verdict) in changed {
        steering.set_key(*key, *verdict)?;
    }
    for key in before.keys().filter(|key| !wanted.contains_key(key)) {
        steering.remove_key(*key)?;
    }
    Ok(())
}

/// Why the keys could not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Netlink failed.
    #[error(
        "cannot read the listening sockets by sock_diag (CONFIG_INET_DIAG, module tcp_diag): {0}"
    )]
    Tables(#[source] io::Error),
    /// A map could not be written.
    #[error(transparent)]
    Steer(#[from] SteerError),
}

#[cfg(test)]
pub(super) mod tests;
