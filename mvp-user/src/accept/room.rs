//! How many client connections there are, in all and on each thread, and whether the kernel has refused one for lack of room.
//! Not for which thread gets one (`seats`).

use std::{
    collections::HashSet,
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
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
        Slot {
            room: Arc::clone(self),
            thread: None,
        }
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
pub struct Slot {
    room: Arc<Room>,
    /// Counted there as well.
    thread: Option<Loaded>,
}

impl Slot {
    /// From now on it is one of that thread's.
    pub(super) fn belongs_to(&mut self, thread: &Load) {
        self.thread = Some(thread.one_more());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.room.open.dec();
    }
}

/// How many connections a thread has.
#[derive(Clone, Debug, Default)]
pub(super) struct Load(Arc<AtomicUsize>);

impl Load {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// One more, until the value is dropped.
    pub(super) fn one_more(&self) -> Loaded {
        self.0.fetch_add(1, Ordering::Relaxed);
        Loaded(self.clone())
    }
}

/// One connection of a thread.
#[derive(Debug)]
pub(super) struct Loaded(Load);

impl Drop for Loaded {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
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

/// Both ends of a connection, as the kernel writes them.
pub(super) type Ends = (String, String);

/// Handshakes that the kernel has not finished yet on any of these local ports (state `SYN_RECV`). A steered one is
/// listed under the port that the client dialled, like one of kube-apiserver's own.
pub(super) fn half_open(ports: &[u16]) -> HashSet<Ends> {
    let mut found = HashSet::new();
    for file in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let table = fs::read_to_string(file).unwrap_or_default();
        let lines = table.lines().skip(1);
        found.extend(lines.filter_map(|line| ends_if_half_open(line, ports)));
    }
    found
}

fn ends_if_half_open(line: &str, ports: &[u16]) -> Option<Ends> {
    // "sl local_address rem_address st ...", addresses as hex ADDRESS:PORT (Documentation/networking/proc_net_tcp.rst)
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let (_, port) = local.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (state == "03" && ports.contains(&port)).then(|| (local.to_owned(), remote.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_open_handshakes_are_counted_by_local_port() {
        let line = "   1: 0100007F:192B 0100007F:C350 03 00000000:00000000 01:00000063 00000000     0        0 0 1";
        let ends = ("0100007F:192B".to_owned(), "0100007F:C350".to_owned());
        assert_eq!(ends_if_half_open(line, &[6443]), Some(ends));
        assert_eq!(ends_if_half_open(line, &[6444]), None);
        let established = line.replace(" 03 ", " 01 ");
        assert_eq!(ends_if_half_open(&established, &[6443]), None);
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
