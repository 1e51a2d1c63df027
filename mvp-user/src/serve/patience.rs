//! How long an HTTP/1.1 client may take: for a request's headers what kube-apiserver allows, between two requests a
//! little more. hyper has one time for both, which begins when the last answer has ended; [`Patience`] is the timer that
//! it asks, and makes two of it, as Go's server has them.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
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
pub(super) struct Patience(pub(super) Arc<AtomicU64>);

/// hyper waits for headers.
struct Wait {
    end: Pin<Box<time::Sleep>>,
    read: Arc<AtomicU64>,
    /// What was read before.
    before: u64,
    begun: bool,
}

impl Timer for Patience {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        let before = self.0.load(Ordering::Relaxed);
        let begun = before == 0;
        let duration = if begun { HEADERS } else { duration };
        Box::pin(Wait {
            end: Box::pin(time::sleep(duration)),
            read: Arc::clone(&self.0),
            before,
            begun,
        })
    }

    #[expect(clippy::disallowed_types, reason = "the signature of hyper's trait")]
    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }

    #[expect(clippy::disallowed_types, reason = "the signature of hyper's trait")]
    fn now(&self) -> std::time::Instant {
        Instant::now().into_std()
    }
}

impl Sleep for Wait {}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // hyper asks again whenever it has read something and it was not enough.
        if !self.begun && self.read.load(Ordering::Relaxed) != self.before {
            self.begun = true;
            self.end.as_mut().reset(Instant::now() + HEADERS);
        }
        ready!(self.end.as_mut().poll(context));
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long hyper would wait, if the client's next bytes come after `silence`; none: they never come.
    async fn waits(read_before: u64, silence: Option<Duration>) -> Duration {
        let read = Arc::new(AtomicU64::new(read_before));
        let start = Instant::now();
        let mut wait = Patience(Arc::clone(&read)).sleep(IDLE);
        if let Some(silence) = silence {
            assert!(time::timeout(silence, &mut wait).await.is_err());
            read.fetch_add(1, Ordering::Relaxed);
        }
        wait.await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn headers_have_32_s_from_their_first_byte_and_idleness_has_two_minutes() {
        let close = |waited: Duration, wanted: u64| {
            waited.abs_diff(Duration::from_secs(wanted)) < Duration::from_millis(10)
        };
        assert!(close(waits(0, None).await, 32), "the first request");
        assert!(close(waits(0, Some(Duration::from_secs(20))).await, 32));
        assert!(close(waits(500, None).await, 120), "idle");
        let later = waits(500, Some(Duration::from_secs(100))).await;
        assert!(close(later, 132), "{later:?}");
    }
}
