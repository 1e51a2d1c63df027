//! What a rolling upgrade is judged by: every anomaly that a client saw, counted and noted with its time.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    fmt::Write as _,
};

use serde::Serialize;
use tokio::time::Instant;

use crate::demo::probe::Outcome;

/// The result of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Which run.
    pub(crate) name: String,
    /// Whether mvp was there.
    pub(crate) with_mvp: bool,
    /// All requests, retries included.
    pub(crate) requests: u64,
    /// 404 although a running server served it.
    pub(crate) false_404: u64,
    /// Reads that failed, and whose single retry failed too.
    pub(crate) failed_reads: u64,
    /// Writes that were executed twice.
    pub(crate) double_writes: u64,
    /// Watches that could not be resumed in time, or missed an event.
    pub(crate) watches_lost: u64,
    /// Requests whose connection was refused, broke or went silent, before any retry.
    pub(crate) raw_resets: u64,
    /// Writes without an answer, or with a refusal (never retried here).
    pub(crate) failed_writes: u64,
    /// Discovery answers that lacked what a running server served.
    pub(crate) half_discovery: u64,
}

impl Row {
    /// Whether it is what mvp promises.
    pub(crate) const fn holds(&self) -> bool {
        self.false_404 == 0
            && self.failed_reads == 0
            && self.double_writes == 0
            && self.watches_lost == 0
            && self.requests > 0
    }
}

/// Something that a client saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Anomaly {
    FalseNotFound,
    FailedRead,
    LostWatch,
    FailedWrite,
    HalfDiscovery,
    DoubleWrite,
}

/// Shared by all clients of a run.
#[derive(Debug)]
pub(crate) struct Ledger {
    began: Instant,
    requests: Cell<u64>,
    resets: Cell<u64>,
    anomalies: RefCell<Vec<Anomaly>>,
    notes: RefCell<String>,
    /// Since when a new server is ready.
    pub(crate) new_since: Cell<Option<Instant>>,
    /// When the last old server was told to stop.
    pub(crate) old_until: Cell<Option<Instant>>,
    /// Names of objects whose creation was acknowledged.
    pub(crate) created: RefCell<BTreeSet<String>>,
    /// Readers and writers are to stop.
    pub(crate) over: Cell<bool>,
}

impl Ledger {
    /// Nothing seen yet.
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            requests: Cell::new(0),
            resets: Cell::new(0),
            anomalies: RefCell::default(),
            notes: RefCell::default(),
            new_since: Cell::new(None),
            old_until: Cell::new(None),
            created: RefCell::default(),
            over: Cell::new(false),
        }
    }

    /// Counts a request and how it ended.
    pub(crate) fn asked(&self, outcome: Outcome) {
        self.requests.set(self.requests.get() + 1);
        if !matches!(outcome, Outcome::Status(_)) {
            self.resets.set(self.resets.get() + 1);
        }
    }

    /// Counts an anomaly, and notes it.
    pub(crate) fn saw(&self, anomaly: Anomaly, what: &str) {
        self.anomalies.borrow_mut().push(anomaly);
        self.note(&format!("{anomaly:?}: {what}"));
    }

    /// Writes a line with the time.
    pub(crate) fn note(&self, what: &str) {
        let at = self.began.elapsed().as_secs_f64();
        if writeln!(self.notes.borrow_mut(), "{at:8.3} {what}").is_err() {
            eprintln!("{what}");
        }
    }

    /// All lines.
    pub(crate) fn notes(&self) -> String {
        self.notes.borrow().clone()
    }

    /// The result.
    pub(crate) fn row(&self, name: &str, with_mvp: bool) -> Row {
        let anomalies = self.anomalies.borrow();
        let count = |kind| anomalies.iter().filter(|seen| **seen == kind).count() as u64;
        Row {
            name: name.to_owned(),
            with_mvp,
            requests: self.requests.get(),
            false_404: count(Anomaly::FalseNotFound),
            failed_reads: count(Anomaly::FailedRead),
            double_writes: count(Anomaly::DoubleWrite),
            watches_lost: count(Anomaly::LostWatch),
            raw_resets: self.resets.get(),
            failed_writes: count(Anomaly::FailedWrite),
            half_discovery: count(Anomaly::HalfDiscovery),
        }
    }
}
