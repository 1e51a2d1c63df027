//! How long an HTTP/1.1 client may take: for a request's headers what kube-apiserver allows, between two requests a
//! little more. hyper has one time for both, which begins when the last answer has ended; [`Patience`] is the timer that
//! it asks, and makes two of it, as Go's server has them.
//!
//! hyper asks for a new timer before every request. A connection has one all the same, which is put off: what was waited
//! for before ends later, and needs neither a lock of the runtime nor another place among its timers.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::rt::{Sleep, Timer};
use tokio::time::{self, Instant};

/// How long a request's headers may take, from their first byte (of the first request: from the handshake).
const HEADERS: Duration = Duration::from_secs(32);
/// How long a connection may be idle. Longer than kube-apiserver's 90 s, which its clients count on: one that sends its
/// next request just before must not meet a closed connection.
pub(super) const IDLE: Duration = Duration::from_mins(2);

/// A timer for one connection, whose read bytes it looks at.
#[derive(Debug)]
pub(super) struct Patience(Arc<Clock>);

#[derive(Debug)]
struct Clock {
    read: Arc<AtomicU64>,
    /// While a request is served nobody waits for it; should it end then, the connection is polled once for nothing.
    end: Mutex<Pin<Box<time::Sleep>>>,
}

/// hyper waits for headers.
struct Wait {
    clock: Arc<Clock>,
    /// What was read before.
    before: u64,
    begun: bool,
}

impl Patience {
    /// For a connection of which so many bytes were read.
    pub(super) fn new(read: Arc<AtomicU64>) -> Self {
        let end = Mutex::new(Box::pin(time::sleep(HEADERS)));
        Self(Arc::new(Clock { read, end }))
    }
}

impl Clock {
    fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    fn end(&self) -> MutexGuard<'_, Pin<Box<time::Sleep>>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timer for Patience {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until((Instant::now() + duration).into_std())
    }

    #[expect(clippy::disallowed_types, reason = "the signature of hyper's trait")]
    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        let before = self.0.read();
        let begun = before == 0;
        let end = if begun {
            Instant::now() + HEADERS
        } else {
            deadline.into()
        };
        self.0.end().as_mut().reset(end);
        Box::pin(Wait {
            clock: Arc::clone(&self.0),
            before,
            begun,
        })
    }

    #[expect(clippy::disallowed_types, reason = "the signature of hyper's trait")]
    fn now(&self) -> std::time::Instant {
        Instant::now().into_std()
    }
}

impl Sleep for Wait {}

impl Future for Wait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let mut end = this.clock.end();
        // hyper asks again whenever it has read something and it was not enough.
        if !this.begun && this.clock.read() != this.before {
            this.begun = true;
            end.as_mut().reset(Instant::now() + HEADERS);
        }
        end.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(waited: Duration, wanted: u64) -> bool {
        waited.abs_diff(Duration::from_secs(wanted)) < Duration::from_millis(10)
    }

    /// How long hyper would wait, if the client's next bytes come after `silence`; none: they never come.
    async fn waits(read_before: u64, silence: Option<Duration>) -> Duration {
        let read = Arc::new(AtomicU64::new(read_before));
        let start = Instant::now();
        let mut wait = Patience::new(Arc::clone(&read)).sleep(IDLE);
        if let Some(silence) = silence {
            assert!(time::timeout(silence, &mut wait).await.is_err());
            read.fetch_add(1, Ordering::Relaxed);
        }
        wait.await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn headers_have_32_s_from_their_first_byte_and_idleness_has_two_minutes() {
        assert!(close(waits(0, None).await, 32), "the first request");
        assert!(close(waits(0, Some(Duration::from_secs(20))).await, 32));
        assert!(close(waits(500, None).await, 120), "idle");
        let later = waits(500, Some(Duration::from_secs(100))).await;
        assert!(close(later, 132), "{later:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn every_wait_of_a_connection_has_its_own_time_of_the_one_timer() {
        let read = Arc::new(AtomicU64::new(0));
        let patience = Patience::new(Arc::clone(&read));
        for silence in [20, 100, 30] {
            let mut wait = patience.sleep(IDLE);
            let silence = Duration::from_secs(silence);
            assert!(time::timeout(silence, &mut wait).await.is_err());
            read.fetch_add(500, Ordering::Relaxed);
            drop(wait);
        }
        // The last request is served for longer than anybody would have waited.
        time::advance(Duration::from_mins(10)).await;
        let start = Instant::now();
        patience.sleep(IDLE).await;
        assert!(close(start.elapsed(), 120));
    }
}
