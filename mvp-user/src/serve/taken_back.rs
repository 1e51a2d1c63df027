//! Requests that an HTTP/2 client takes back before their answer. h2 bounds those that come together with their
//! cancellation; any other costs an upstream a request and the client nothing (rapid reset, CVE-2023-44487), so that they
//! are bounded here.

use std::{cell::Cell, time::Duration};

use tokio::{sync::Notify, time::Instant};

/// How many may be taken back within [`PERIOD`]: twice a full connection.
const MOST: u32 = 200;
const PERIOD: Duration = Duration::from_secs(1);

/// Those of one connection.
#[derive(Debug)]
pub(super) struct TakenBack {
    since: Cell<Instant>,
    count: Cell<u32>,
    flood: Notify,
}

/// A request without an answer; dropped as such, it is one that was taken back.
pub(super) struct Unanswered<'a>(Option<&'a TakenBack>);

impl TakenBack {
    /// None so far.
    pub(super) fn new() -> Self {
        Self {
            since: Cell::new(Instant::now()),
            count: Cell::new(0),
            flood: Notify::new(),
        }
    }

    /// A request has come.
    pub(super) const fn begin(&self) -> Unanswered<'_> {
        Unanswered(Some(self))
    }

    /// Ready when there were too many.
    pub(super) async fn flood(&self) {
        self.flood.notified().await;
    }

    /// There were too many of another kind.
    pub(super) fn cut_off(&self) {
        self.flood.notify_one();
    }

    fn note(&self) {
        if self.since.get().elapsed() >= PERIOD {
            self.since.set(Instant::now());
            self.count.set(0);
        }
        self.count.set(self.count.get() + 1);
        if self.count.get() > MOST {
            self.flood.notify_one();
        }
    }
}

impl Unanswered<'_> {
    /// There is an answer.
    pub(super) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(taken_back) = self.0 {
            taken_back.note();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_none_of_a_flood_and_neither_is_what_was_answered() {
        let taken_back = TakenBack::new();
        for _ in 0..10 {
            for _ in 0..MOST {
                drop(taken_back.begin());
                taken_back.begin().answered();
            }
            assert_eq!(taken_back.flood().now_or_never(), None);
            tokio::time::advance(PERIOD).await;
        }
        for _ in 0..=MOST {
            drop(taken_back.begin());
        }
        assert_eq!(taken_back.flood().now_or_never(), Some(()));
    }
}
