//! What all kinds of work count with: one tally per process, shared by its tasks.

use std::{cell::RefCell, rc::Rc, time::Duration};

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::time::Instant;

use super::plan::{Curve, Outcome, histogram};

/// Counts of everything that was done since [`Tally::start`].
#[derive(Debug)]
pub(super) struct Tally {
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    began: Instant,
    done: u64,
    failed: u64,
    failure: Option<String>,
    bytes: u64,
    latency: Histogram<u64>,
    lag: Histogram<u64>,
}

impl Tally {
    /// Begins now.
    pub(super) fn start() -> Result<Rc<Self>> {
        Ok(Rc::new(Self {
            state: RefCell::new(State {
                began: Instant::now(),
                done: 0,
                failed: 0,
                failure: None,
                bytes: 0,
                latency: histogram()?,
                lag: histogram()?,
            }),
        }))
    }

    /// One success.
    pub(super) fn done(&self, latency: Duration, bytes: u64) {
        let mut state = self.state.borrow_mut();
        state.done += 1;
        state.bytes += bytes;
        state.latency.saturating_record(nanoseconds(latency));
    }

    /// Bytes of something that is not over.
    pub(super) fn bytes(&self, bytes: u64) {
        self.state.borrow_mut().bytes += bytes;
    }

    /// One request could be sent so much later than it was due.
    pub(super) fn lag(&self, lag: Duration) {
        self.state
            .borrow_mut()
            .lag
            .saturating_record(nanoseconds(lag));
    }

    /// One failure.
    pub(super) fn failed(&self, failure: &anyhow::Error) {
        let mut state = self.state.borrow_mut();
        state.failed += 1;
        state.failure.get_or_insert_with(|| format!("{failure:#}"));
    }

    /// What was counted until now.
    pub(super) fn outcome(&self) -> Outcome {
        let state = self.state.borrow();
        Outcome {
            done: state.done,
            failed: state.failed,
            failure: state.failure.clone(),
            bytes: state.bytes,
            seconds: state.began.elapsed().as_secs_f64(),
            latency: Curve::of(&state.latency),
            lag: Curve::of(&state.lag),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}
