//! The gate of 100-continue, between a client's HTTP/1.1 connection and whoever waits for the upstream to ask for the body:
//! reading a body that nobody asked for would make hyper tell the client to send it.
//!
//! Who waits decides when it opens; the connection opens it if the client sends without being asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;

/// One gate for each connection, which has one request at a time; open unless a request asks for 100-continue.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<State>);

#[derive(Debug, Default)]
struct State {
    shut: AtomicBool,
    waits: AtomicWaker,
}

impl Gate {
    /// A client waits for 100-continue.
    pub fn shut(&self) {
        self.0.shut.store(true, Ordering::Release);
    }

    /// Whether it waits still.
    pub fn is_shut(&self) -> bool {
        self.0.shut.load(Ordering::Acquire)
    }

    /// It is read from now on, however often its request is sent.
    pub fn open(&self) {
        self.0.shut.store(false, Ordering::Release);
        self.0.waits.wake();
    }

    /// Ready once it is open.
    pub fn poll_open(&self, context: &Context<'_>) -> Poll<()> {
        self.0.waits.register(context.waker());
        if self.is_shut() {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}
