//! How many client connections there are, and whether the kernel has refused one for lack of room.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use tokio::time::Instant;

/// How many client connections there may be (`--max-connections`), and who sees to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// The steerer, by not steering: what was steered is accepted in any case.
    Steering(usize),
    /// The acceptor, by not accepting (`--listen`, where there is nobody else to go to): clients wait in the kernel's
    /// queue of at most `somaxconn`, as with other proxies' `maxconn`.
    Accepting(usize),
}

/// How many client connections there are, against the bound. Shared with the steerer (reason *full*): the bound is
/// kept by not steering, never by refusing what was steered (design 2).
#[derive(Debug)]
pub struct Room {
    open: Gauge,
    bound: Bound,
    started: Instant,
    /// Milliseconds after `started` of the last time accept failed for lack of room, plus one; zero: never.
    exhausted: AtomicU64,
}

impl Room {
    pub(super) fn new(bound: Bound) -> Self {
        Self {
            open: Gauge::default(),
            bound,
            started: Instant::now(),
            exhausted: AtomicU64::new(0),
        }
    }

    /// Connections that are open now, handshakes included.
    pub fn open(&self) -> usize {
        usize::try_from(self.open.get()).unwrap_or(0)
    }

    /// The bound (`--max-connections`).
    pub const fn max(&self) -> usize {
        match self.bound {
            Bound::Steering(max) | Bound::Accepting(max) => max,
        }
    }

    /// Whether nothing is to be accepted now.
    pub(super) fn refuses(&self) -> bool {
        matches!(self.bound, Bound::Accepting(max) if self.open() >= max)
    }

    /// Whether accept failed for lack of descriptors or memory within the last `period`.
    pub fn exhausted_within(&self, period: Duration) -> bool {
        match self.exhausted.load(Ordering::Relaxed).checked_sub(1) {
            None => false,
            Some(then) => {
                self.started
                    .elapsed()
                    .saturating_sub(Duration::from_millis(then))
                    <= period
            }
        }
    }

    pub(super) fn note_exhaustion(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.exhausted.store(now + 1, Ordering::Relaxed);
    }

    pub(super) fn enter(self: &Arc<Self>) -> Slot {
        self.open.inc();
        Slot(Arc::clone(self))
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "mvp_client_connections",
            "Client connections open now, handshakes included",
            self.open.clone(),
        );
    }
}

/// One client connection, counted until it is dropped.
#[derive(Debug)]
pub struct Slot(Arc<Room>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.dec();
    }
}

/// EMFILE, ENFILE, ENOBUFS, ENOMEM.
pub(super) fn is_exhaustion(error: &io::Error) -> bool {
    use nix::errno::Errno;
    error
        .raw_os_error()
        .map(Errno::from_raw)
        .is_some_and(|errno| {
            matches!(
                errno,
                Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM
            )
        })
}

/// Handshakes that the kernel has not finished yet on any of these local ports (state `SYN_RECV`). A steered one is
/// listed under the port that the client dialled, like one of kube-apiserver's own.
pub(super) fn half_open(ports: &[u16]) -> usize {
    ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"]
        .into_iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .map(|table| {
            table
                .lines()
                .skip(1)
                .filter(|line| is_half_open(line, ports))
                .count()
        })
        .sum()
}

fn is_half_open(line: &str, ports: &[u16]) -> bool {
    // "sl local_address rem_address st ...", addresses as hex ADDRESS:PORT (Documentation/networking/proc_net_tcp.rst)
    let mut fields = line.split_ascii_whitespace().skip(1);
    let port = fields
        .next()
        .and_then(|local| local.rsplit_once(':'))
        .and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
    let state = fields.nth(1);
    state == Some("03") && port.is_some_and(|port| ports.contains(&port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_open_handshakes_are_counted_by_local_port() {
        let line = "   1: 0100007F:192B 0100007F:C350 03 00000000:00000000 01:00000063 00000000     0        0 0 1";
        assert!(is_half_open(line, &[6443]));
        assert!(!is_half_open(line, &[6444]));
        assert!(!is_half_open(&line.replace(" 03 ", " 01 "), &[6443]));
    }

    #[test]
    fn exhaustion_is_remembered_for_a_while_and_slots_are_counted() {
        let room = Arc::new(Room::new(Bound::Steering(10)));
        assert!(!room.exhausted_within(Duration::from_hours(1)));
        room.note_exhaustion();
        assert!(room.exhausted_within(Duration::from_secs(1)));
        let slots = [room.enter(), room.enter()];
        assert_eq!(room.open(), 2);
        assert!(!room.refuses());
        drop(slots);
        assert_eq!(room.open(), 0);
    }
}
