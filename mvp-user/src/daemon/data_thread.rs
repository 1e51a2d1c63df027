//! The threads that serve: each an event loop of its own.

use std::{io, net::TcpListener, rc::Rc, sync::Arc};

use tokio::{
    runtime,
    sync::{mpsc, watch},
    task::{LocalSet, spawn_local},
};

use super::pulse::{self, Pulse};
use crate::{accept::Acceptor, serve};

/// One data thread: its own event loop, and every connection it accepts.
pub(super) struct DataThread {
    pub(super) shared: Arc<serve::Shared>,
    pub(super) acceptor: Arc<Acceptor>,
    pub(super) listeners: Vec<TcpListener>,
    pub(super) pulse: Pulse,
    pub(super) stop: watch::Receiver<bool>,
    pub(super) leave: watch::Receiver<u64>,
    pub(super) done: mpsc::Sender<()>,
}

impl DataThread {
    pub(super) fn run(self) {
        let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                // Its heartbeat slot is free again with its pulse; the other threads go on.
                tracing::error!(%error, "A data thread cannot start");
                return;
            }
        };
        let local = LocalSet::new();
        // A task like the others: what a set runs beside its tasks is polled whenever any of them is.
        let serving = local.spawn_local(self.serve());
        if let Err(error) = runtime.block_on(local.run_until(serving)) {
            tracing::error!(%error, "A data thread has failed");
        }
    }

    async fn serve(self) {
        let listeners: io::Result<Vec<_>> = self
            .listeners
            .into_iter()
            .map(tokio::net::TcpListener::from_std)
            .collect();
        let listeners = match listeners {
            Ok(listeners) => listeners,
            Err(error) => {
                tracing::error!(%error, "A data thread cannot listen");
                return;
            }
        };
        // Its own sender of the farewell, for the end: what was accepted last must hear it too, although its handshake may take
        // until then.
        let (goodbye, leave) = watch::channel(0_u64);
        let mut outer = self.leave;
        let goodbye = Rc::new(goodbye);
        let relay = Rc::clone(&goodbye);
        spawn_local(async move {
            while outer.changed().await.is_ok() {
                relay.send_modify(|epoch| *epoch = epoch.saturating_add(1));
            }
        });
        let thread = serve::Thread::new(self.shared, leave);
        spawn_local(Rc::clone(&thread).tend());
        spawn_local(pulse::beat(self.pulse));
        let mut open = self
            .acceptor
            .run(listeners, self.stop, move |connection| {
                Rc::clone(&thread).serve(connection)
            })
            .await;
        goodbye.send_replace(serve::LAST_FAREWELL);
        while open.join_next().await.is_some() {}
        drop(self.done);
    }
}
