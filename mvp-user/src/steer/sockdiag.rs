//! The kernel's TCP socket tables of this network namespace, through netlink `sock_diag`
//! (<https://man7.org/linux/man-pages/man7/sock_diag.7.html>): who listens, who is connected, and
//! closing a connection. Not here: what to make of the answers.

use std::{io, net::SocketAddr, os::fd::OwnedFd, time::Duration};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable, Nla as _,
};
use netlink_packet_sock_diag::{
    SockDiagDestroy, SockDiagMessage,
    constants::{AF_INET, AF_INET6, IPPROTO_TCP},
    inet::{ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags, nlas::Nla},
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt::Timeout,
};

use super::canonical;

/// A socket of the kernel's table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its own end. IPv4-mapped addresses are shown as the socket has them.
    pub local: SocketAddr,
    /// The other end; unspecified for a listener.
    pub remote: SocketAddr,
    /// Identifies the socket as long as it lives, and no other socket after it.
    pub cookie: u64,
    /// 0 for a connection that nobody has accepted yet.
    pub inode: u32,
    /// User that made it.
    pub uid: u32,
    /// Bytes received and not read; for a listener: connections not accepted.
    pub receive_queue: u32,
    /// Bytes sent and not acknowledged; for a listener: the longest accept queue.
    pub send_queue: u32,
    /// `IPV6_V6ONLY`; known for listeners only.
    pub v6only: bool,
    /// cgroup (v2) of the process that made the socket, or of its listener; kernel 5.8 and newer.
    pub cgroup: Option<u64>,
    /// What TCP knows about its traffic.
    pub traffic: Option<Traffic>,
    id: SocketId,
    family: u8,
}

/// Parts of `struct tcp_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// Segments in flight.
    pub unacknowledged: u32,
    /// Time since the last data segment left.
    pub last_sent: Duration,
    /// Time since the last data segment arrived.
    pub last_received: Duration,
}

impl Traffic {
    /// Offsets in `struct tcp_info` of `include/uapi/linux/tcp.h`; fields are only ever appended.
    fn parse(raw: &[u8]) -> Option<Self> {
        let word = |offset: usize| -> Option<u32> {
            let bytes = raw.get(offset..offset + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let milliseconds = |offset| word(offset).map(|ms| Duration::from_millis(ms.into()));
        Some(Self {
            unacknowledged: word(24)?,
            last_sent: milliseconds(44)?,
            last_received: milliseconds(52)?,
        })
    }
}

/// Which sockets to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// Those that listen.
    Listening,
    /// Established connections.
    Established,
}

/// `INET_DIAG_CGROUP_ID` of `include/uapi/linux/inet_diag.h`.
const CGROUP_ID: u16 = 21;

/// An open netlink socket to the kernel's socket tables.
#[derive(Debug)]
pub struct SockDiag {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl SockDiag {
    /// Opens the netlink socket; needs no capability.
    pub fn open() -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        rustix::net::connect(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
        // The kernel answers at once; never wait for ever if it does not.
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            Timeout::Recv,
            Some(Duration::from_secs(2)),
        )?;
        Ok(Self {
            socket,
            sequence: 0,
            // The kernel fills at most 32 KiB per message of a dump.
            buffer: vec![0; 1 << 16],
        })
    }

    /// Lists TCP sockets of both families by their own port and the other end's (0: any).
    pub fn list(
        &mut self,
        which: Which,
        local_port: u16,
        remote_port: u16,
    ) -> io::Result<Vec<Entry>> {
        let mut found = Vec::new();
        for (family, mut id) in [
            (AF_INET, SocketId::new_v4()),
            (AF_INET6, SocketId::new_v6()),
        ] {
            id.source_port = local_port;
            id.destination_port = remote_port;
            let states = match which {
                Which::Listening => StateFlags::LISTEN,
                Which::Established => StateFlags::ESTABLISHED,
            };
            self.ask(request(family, id, states), NLM_F_DUMP, &mut found)?;
        }
        Ok(found)
    }

    /// The same socket as it is now; `None` when it is gone.
    pub fn refresh(&mut self, entry: &Entry) -> io::Result<Option<Entry>> {
        let mut found = Vec::new();
        let message = request(entry.family, entry.id.clone(), StateFlags::all());
        match self.ask(message, 0, &mut found) {
            Ok(()) => Ok(found.pop()),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Closes a connection as if its owner had died: both ends see a reset (`SOCK_DESTROY`;
    /// needs `CAP_NET_ADMIN` and `CONFIG_INET_DIAG_DESTROY`). Returns false when it was gone.
    pub fn destroy(&mut self, entry: &Entry) -> io::Result<bool> {
        let message = request(entry.family, entry.id.clone(), StateFlags::all());
        let sent = self.exchange(SockDiagDestroy::new(message), NLM_F_ACK, |_| {});
        match sent {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn ask(
        &mut self,
        message: SockDiagMessage,
        flags: u16,
        found: &mut Vec<Entry>,
    ) -> io::Result<()> {
        self.exchange(message, flags, |message| {
            if let SockDiagMessage::InetResponse(response) = message {
                found.push(Entry::new(*response));
            }
        })
    }

    /// Sends one request and hands over every answer to it.
    fn exchange<M>(
        &mut self,
        message: M,
        flags: u16,
        mut each: impl FnMut(SockDiagMessage),
    ) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())?;
        loop {
            let (length, _) =
                rustix::net::recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty())?;
            let mut rest = self.buffer.get(..length).unwrap_or_default();
            while !rest.is_empty() {
                let answer = NetlinkMessage::<SockDiagMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                let step = (answer.header.length as usize).next_multiple_of(4);
                rest = rest.get(step..).unwrap_or_default();
                if step == 0 || answer.header.sequence_number != self.sequence {
                    continue; // The rest of an answer that an earlier error cut short.
                }
                match answer.payload {
                    NetlinkPayload::InnerMessage(inner) => {
                        each(inner);
                        if flags & (NLM_F_DUMP | NLM_F_ACK) == 0 {
                            return Ok(());
                        }
                    }
                    NetlinkPayload::Done(done) if done.code != 0 => {
                        return Err(io::Error::from_raw_os_error(-done.code));
                    }
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io());
                    }
                    NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }
}

fn request(family: u8, socket_id: SocketId, states: StateFlags) -> SockDiagMessage {
    SockDiagMessage::InetRequest(InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::INFO,
        states,
        socket_id,
    })
}

fn is_gone(error: &io::Error) -> bool {
    // ESTALE: the address is in use again, by a socket with another cookie.
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
}

impl Entry {
    fn new(response: InetResponse) -> Self {
        let header = response.header;
        let id = header.socket_id;
        let mut entry = Self {
            local: SocketAddr::new(id.source_address, id.source_port),
            remote: SocketAddr::new(id.destination_address, id.destination_port),
            cookie: u64::from_ne_bytes(id.cookie),
            inode: header.inode,
            uid: header.uid,
            receive_queue: header.recv_queue,
            send_queue: header.send_queue,
            v6only: false,
            cgroup: None,
            traffic: None,
            family: header.family,
            id,
        };
        for nla in &response.nlas {
            match nla {
                Nla::SkV6Only(only) => entry.v6only = *only,
                Nla::TcpInfo(raw) => entry.traffic = Traffic::parse(raw),
                Nla::Other(other) if other.kind() == CGROUP_ID => {
                    let mut value = [0; 8];
                    if other.value_len() == value.len() {
                        other.emit_value(&mut value);
                        entry.cgroup = Some(u64::from_ne_bytes(value));
                    }
                }
                _ => {}
            }
        }
        entry
    }

    /// Whether this is an IPv6 socket (which may carry IPv4-mapped addresses).
    pub const fn is_v6_socket(&self) -> bool {
        self.family == AF_INET6
    }

    /// Both ends as the network sees them: IPv4-mapped addresses are IPv4.
    pub const fn ends(&self) -> (SocketAddr, SocketAddr) {
        (canonical(self.local), canonical(self.remote))
    }

    /// A made-up entry with nothing but two ends.
    #[cfg(test)]
    pub(super) fn between(local: &str, remote: &str) -> Self {
        let (local, remote): (SocketAddr, SocketAddr) =
            (local.parse().unwrap(), remote.parse().unwrap());
        Self {
            local,
            remote,
            cookie: 0,
            inode: 0,
            uid: 0,
            receive_queue: 0,
            send_queue: 0,
            v6only: false,
            cgroup: None,
            traffic: None,
            id: SocketId::new_v4(),
            family: AF_INET,
        }
    }
}
