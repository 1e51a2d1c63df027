//! Requests that were taken back so lately that their server may still be at them. Pure but for the clock.

use std::{cell::Cell, time::Duration};

use tokio::time::Instant;

/// How long a server may take to end what was taken back. Go's counts it until its handler has returned, and ends the whole
/// connection when more than four times as many streams as it allows wait for that (`scheduleHandler` of
/// `golang.org/x/net/http2`).
const WITHIN: Duration = Duration::from_millis(250);

/// Those of one connection.
#[derive(Debug)]
pub(super) struct Settling {
    count: Cell<usize>,
    /// When the first of them was taken back.
    since: Cell<Instant>,
}

impl Settling {
    pub(super) fn new() -> Self {
        Self {
            count: Cell::new(0),
            since: Cell::new(Instant::now()),
        }
    }

    /// How many there are. Looks at the clock only if there were any.
    pub(super) fn count(&self) -> usize {
        if self.count.get() > 0 && self.since.get().elapsed() >= WITHIN {
            self.count.set(0);
        }
        self.count.get()
    }

    /// One more was taken back.
    pub(super) fn note(&self) {
        let others = self.count();
        if others == 0 {
            self.since.set(Instant::now());
        }
        self.count.set(others + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_taken_back_counts_for_a_moment() {
        let settling = Settling::new();
        for wanted in 1..=3 {
            settling.note();
            assert_eq!(settling.count(), wanted);
        }
        tokio::time::advance(WITHIN).await;
        assert_eq!(settling.count(), 0);
        settling.note();
        assert_eq!(settling.count(), 1);
    }
}
