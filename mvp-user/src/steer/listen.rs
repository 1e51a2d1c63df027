//! mvp's own listeners behind the steer. Not here: `--listen` (clients reach that one by its
//! address; `accept.rs`), and accepting.

use std::{
    fs, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

/// The pair of listeners that the program hands connections to. Bound to loopback on ephemeral
/// ports, so that hardly anything but the steer reaches them.
#[derive(Debug)]
pub struct Listeners {
    /// On 127.0.0.1; `None` where the machine has no IPv4 loopback.
    pub v4: Option<TcpListener>,
    /// On `::1`; `None` where IPv6 is switched off.
    pub v6: Option<TcpListener>,
}

impl Listeners {
    /// Makes both, non-blocking; an error only when neither can be had.
    pub fn bind() -> io::Result<Self> {
        let backlog = backlog();
        let v4 = bind_with(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), backlog);
        let v6 = bind_with(SocketAddr::from((Ipv6Addr::LOCALHOST, 0)), backlog);
        match (v4, v6) {
            (Err(error), Err(_)) => Err(error),
            (v4, v6) => Ok(Self {
                v4: v4.ok(),
                v6: v6.ok(),
            }),
        }
    }
}

/// A listener of `--listen`, non-blocking, with the longest queue that the kernel grants.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    bind_with(address, backlog())
}

fn bind_with(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Steered connections have the steered port as their local one and inherit this option; without
    // it a restarting kube-apiserver could not bind its own port while any of them is open, or in
    // TIME_WAIT (EADDRINUSE).
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// The longest accept queue that the kernel grants: a burst waits there instead of being lost.
pub fn backlog() -> i32 {
    const DEFAULT: i32 = 4096; // The kernel's own default since 5.4.
    fs::read_to_string("/proc/sys/net/core/somaxconn")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(DEFAULT)
}

/// Raises the number of descriptors this process may hold to what the hard limit grants (with
/// `CAP_SYS_RESOURCE`: to at least a million), and returns the limit that is in force.
pub fn raise_descriptor_limit() -> u64 {
    const WANTED: u64 = 1 << 20;
    let now = getrlimit(Resource::Nofile);
    let hard = now.maximum.unwrap_or(u64::MAX);
    for limit in [hard.max(WANTED), hard] {
        let new = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        if setrlimit(Resource::Nofile, new).is_ok() {
            break;
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
