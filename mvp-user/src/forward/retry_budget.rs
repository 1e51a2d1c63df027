//! The retry budget: how many safe requests may be sent a second time to a server, so that one which breaks off gets no
//! multiple of its load. Not for whether a request may be repeated at all (`forward` decides that by what it is).

use std::{cell::RefCell, time::Duration};

use tokio::time::Instant;

use crate::api::ServerId;

/// Re-sent safe requests per server and [`RETRY_WINDOW`], however little traffic there is (design 5.2).
const RETRY_FLOOR: u32 = 100;
/// One in so many requests may be re-sent beyond that.
const RETRY_SHARE: u32 = 10;
/// What the share is of.
const RETRY_WINDOW: Duration = Duration::from_secs(10);
/// Servers whose requests are counted; more than a control plane ever has.
const MAX_BUDGETS: usize = 64;

/// The budgets of one thread.
pub(super) struct RetryBudgets(RefCell<Vec<(ServerId, Budget)>>);

/// How many safe requests may be re-sent to one server.
#[derive(Clone, Copy, Debug)]
struct Budget {
    since: Instant,
    requests: u32,
    retries: u32,
}

impl RetryBudgets {
    pub(super) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    /// One more request goes to `server`.
    pub(super) fn count(&self, server: ServerId) {
        let mut budgets = self.0.borrow_mut();
        if let Some((_, budget)) = budgets.iter_mut().find(|(id, _)| *id == server) {
            budget.requests = budget.requests.saturating_add(1);
            return;
        }
        if budgets.len() >= MAX_BUDGETS {
            budgets.clear();
        }
        budgets.push((server, Budget::new(Instant::now())));
    }

    /// Whether one more may be re-sent to `server`.
    pub(super) fn may_resend(&self, server: ServerId) -> bool {
        self.0
            .borrow_mut()
            .iter_mut()
            .find(|(id, _)| *id == server)
            .is_some_and(|(_, budget)| budget.take(Instant::now()))
    }
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            requests: 0,
            retries: 0,
        }
    }

    /// Whether one more may be re-sent.
    fn take(&mut self, now: Instant) -> bool {
        if now - self.since >= RETRY_WINDOW {
            *self = Self::new(now);
        }
        let allowed = self.retries < RETRY_FLOOR.max(self.requests / RETRY_SHARE);
        self.retries += u32::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn second_tries_are_a_hundred_or_a_tenth_of_the_last_ten_seconds() {
        let mut budget = Budget::new(Instant::now());
        let take = |budget: &mut Budget| (0..1000).filter(|_| budget.take(Instant::now())).count();
        assert_eq!(take(&mut budget), RETRY_FLOOR as usize);
        assert_eq!(take(&mut budget), 0);
        budget.requests = 5000;
        assert_eq!(
            take(&mut budget),
            400,
            "a tenth, less those that were taken"
        );
        advance(RETRY_WINDOW).await;
        assert_eq!(take(&mut budget), RETRY_FLOOR as usize);
    }
}
