//! What clients have asked for and do not take, counted for each connection. An answer may take as long as it takes, and a server
//! is rid of a short one at once, so that nothing else bounds what clients leave lying here and in the kernel: where memory runs
//! out, the connections that hold most of it are ended, but for those that take it ([`Backlogs::look`]).
//!
//! Not for when memory runs out (`daemon`).

use std::{
    cmp::Reverse,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tokio::sync::Notify;

use crate::body::{Body, BodyError};

/// What a server may have sent of an answer while its client took nothing: a stream's window.
const AHEAD: usize = 256 * 1024;
/// Connections that hold less are left alone; a watch that was idle and has an event now is one.
const LEAST: usize = 64 * 1024;
/// A connection takes what it holds if that would not need so many times the time since the last look.
const PATIENCE: usize = 40;

/// The address that a client reached, and its own.
pub type Ends = (SocketAddr, SocketAddr);

/// What one client connection holds.
#[derive(Debug)]
pub(super) struct Backlog {
    ends: Ends,
    /// Bytes that hyper was given and has not written.
    waiting: AtomicUsize,
    /// Answers of which hyper takes nothing now.
    behind: AtomicUsize,
    /// Bytes that were written so far.
    written: AtomicUsize,
    over: Notify,
}

/// Those of all client connections; shared by the threads.
#[derive(Debug, Default)]
pub struct Backlogs {
    all: Mutex<Vec<Seen>>,
    ended: Counter,
}

/// A connection, as it was when it was last looked at.
#[derive(Debug)]
struct Seen {
    backlog: Weak<Backlog>,
    /// What was written, and how much of it was in the kernel still; none: it is new.
    before: Option<(usize, usize)>,
}

/// What became of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ended {
    /// Connections that are ended.
    pub connections: usize,
    /// What they held, at most.
    pub bytes: usize,
}

impl Backlog {
    /// Ready when the connection is to be ended.
    pub(super) async fn over(&self) {
        self.over.notified().await;
    }

    /// Bytes that wait in this process, at most.
    fn held(&self) -> usize {
        let behind = self.behind.load(Ordering::Relaxed);
        self.waiting.load(Ordering::Relaxed) + behind * AHEAD
    }
}

impl Backlogs {
    /// For a new connection.
    pub(super) fn enter(&self, ends: Ends) -> Arc<Backlog> {
        let backlog = Arc::new(Backlog {
            ends,
            waiting: AtomicUsize::new(0),
            behind: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            over: Notify::new(),
        });
        let seen = Seen {
            backlog: Arc::downgrade(&backlog),
            before: None,
        };
        {
            let mut all = self.lock();
            if all.len() == all.capacity() {
                all.retain(|seen| seen.backlog.strong_count() > 0);
                // The next time comes after as many connections as there are.
                let live = all.len();
                all.reserve(live + 1);
            }
            all.push(seen);
        }
        backlog
    }

    /// Looks at every connection, and ends those that hold most, until they held `wanted` bytes: of those that would need more
    /// than `PATIENCE` times the time since the last look for what they hold. `queued` says what waits in the kernel.
    pub fn look(&self, queued: impl Fn(&Ends) -> usize, wanted: usize) -> Ended {
        let mut slow = Vec::new();
        self.lock().retain_mut(|seen| {
            let Some(backlog) = seen.backlog.upgrade() else {
                return false;
            };
            let queued = queued(&backlog.ends);
            let written = backlog.written.load(Ordering::Relaxed);
            let held = backlog.held() + queued;
            if let Some((written_before, queued_before)) = seen.before.replace((written, queued)) {
                let taken = (written + queued_before).saturating_sub(written_before + queued);
                if held >= LEAST && taken.saturating_mul(PATIENCE) < held {
                    slow.push((held, backlog));
                }
            }
            true
        });
        slow.sort_unstable_by_key(|(held, _)| Reverse(*held));
        let mut ended = Ended::default();
        for (held, backlog) in slow {
            if ended.bytes >= wanted {
                break;
            }
            backlog.over.notify_one();
            self.ended.inc();
            ended.connections += 1;
            ended.bytes += held;
        }
        ended
    }

    /// Publishes how many were ended.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "mvp_stalled_connections_ended",
            "Client connections ended because memory ran out and they took too little of what they had asked for",
            self.ended.clone(),
        );
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body of an answer, counted for its connection.
#[derive(Debug)]
pub(super) struct Counted {
    body: Body,
    backlog: Arc<Backlog>,
    /// Hyper has something of it, and has not asked for more.
    behind: bool,
}

impl Counted {
    pub(super) const fn new(body: Body, backlog: Arc<Backlog>) -> Self {
        Self {
            body,
            backlog,
            behind: false,
        }
    }

    fn set_behind(&mut self, behind: bool) {
        if self.behind == behind {
            return;
        }
        self.behind = behind;
        if behind {
            self.backlog.behind.fetch_add(1, Ordering::Relaxed);
        } else {
            self.backlog.behind.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.set_behind(false);
    }
}

impl HttpBody for Counted {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.set_behind(matches!(polled, Poll::Ready(Some(Ok(_)))));
        polled.map_ok(|frame| frame.map_data(|bytes| Piece::new(bytes, &self.backlog)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes of an answer that hyper has.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    backlog: Arc<Backlog>,
}

impl Piece {
    fn new(bytes: Bytes, backlog: &Arc<Backlog>) -> Self {
        backlog.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        Self {
            bytes,
            backlog: Arc::clone(backlog),
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.backlog.waiting.fetch_sub(count, Ordering::Relaxed);
        self.backlog.written.fetch_add(count, Ordering::Relaxed);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let left = self.bytes.len();
        if left > 0 {
            self.backlog.waiting.fetch_sub(left, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, task::Waker};

    use futures_util::FutureExt as _;

    use super::*;

    fn ends(port: u16) -> Ends {
        (([10, 0, 0, 1], 6443).into(), ([10, 0, 0, 2], port).into())
    }

    fn is_over(backlog: &Backlog) -> bool {
        backlog.over().now_or_never().is_some()
    }

    #[test]
    fn what_hyper_has_is_held_until_it_is_written_or_dropped() {
        let backlog = Backlogs::default().enter(ends(1));
        let next = |body: &mut Counted| {
            let mut cx = Context::from_waker(Waker::noop());
            Pin::new(body).poll_frame(&mut cx)
        };
        let mut body = Counted::new(Body::full("0123456789"), Arc::clone(&backlog));
        assert_eq!(backlog.held(), 0, "nobody has asked for it");
        let Poll::Ready(Some(Ok(frame))) = next(&mut body) else {
            panic!("no frame");
        };
        let mut piece = frame.into_data().unwrap();
        assert_eq!(backlog.held(), 10 + AHEAD);
        piece.advance(4);
        assert_eq!(backlog.held(), 6 + AHEAD);
        assert!(matches!(next(&mut body), Poll::Ready(None)));
        assert_eq!(backlog.held(), 6);
        drop(piece);
        assert_eq!(backlog.held(), 0);
        assert_eq!(backlog.written.load(Ordering::Relaxed), 4);
        let mut left = Counted::new(Body::full("0123456789"), Arc::clone(&backlog));
        drop(next(&mut left));
        assert_eq!(backlog.held(), AHEAD);
        drop(left);
        assert_eq!(backlog.held(), 0);
    }

    #[test]
    fn who_holds_most_is_ended_first_and_who_takes_it_or_holds_little_never() {
        const MIB: usize = 1 << 20;
        let backlogs = Backlogs::default();
        let holding = |port, waiting| {
            let backlog = backlogs.enter(ends(port));
            backlog.waiting.store(waiting, Ordering::Relaxed);
            backlog
        };
        let idle = holding(1, 0);
        let event = holding(2, LEAST - 1);
        let reads = holding(3, 8 * MIB);
        let drains = holding(4, 0);
        let small = holding(5, MIB);
        let large = holding(6, 4 * MIB);
        let in_kernel = holding(7, 0);
        let mut queued = HashMap::from([(ends(4), 4 * MIB), (ends(7), 2 * MIB)]);
        let look = |queued: &HashMap<Ends, usize>, wanted| {
            backlogs.look(|ends| queued.get(ends).copied().unwrap_or_default(), wanted)
        };
        assert_eq!(look(&queued, usize::MAX), Ended::default(), "they are new");
        reads.written.fetch_add(MIB, Ordering::Relaxed);
        queued.insert(ends(4), 3 * MIB);
        assert_eq!(look(&queued, 0), Ended::default(), "nothing is wanted");
        reads.written.fetch_add(MIB, Ordering::Relaxed);
        queued.insert(ends(4), 2 * MIB);
        let ended = look(&queued, 5 * MIB);
        let both = Ended {
            connections: 2,
            bytes: 6 * MIB,
        };
        assert_eq!(ended, both);
        let over = [&large, &in_kernel, &small].map(|it| is_over(it));
        assert_eq!(over, [true, true, false]);
        drop((large, in_kernel));
        reads.written.fetch_add(MIB, Ordering::Relaxed);
        queued.insert(ends(4), MIB);
        assert_eq!(look(&queued, usize::MAX).connections, 1);
        assert!(is_over(&small));
        for left_alone in [idle, event, reads, drains] {
            assert!(!is_over(&left_alone), "{left_alone:?}");
        }
    }

    #[test]
    fn connections_that_have_ended_are_forgotten() {
        let backlogs = Backlogs::default();
        let one = backlogs.enter(ends(1));
        for port in 2..1000 {
            drop(backlogs.enter(ends(port)));
        }
        assert!(backlogs.lock().len() < 10);
        drop(one);
        backlogs.look(|_| 0, 0);
        assert!(backlogs.lock().is_empty());
    }
}
