//! A server's life: it starts in steps, keeps its endpoint, and stops in steps.

use std::{sync::Arc, time::Duration};

use super::{
    conn, keeper, loopback,
    server::{Phase, Server},
};

/// How long each step of a server's life takes, and how its endpoint is kept.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// 503 to everything after the listener is there.
    pub starting: Duration,
    /// Incomplete discovery with 200, /readyz red (a real one: about 2 s).
    pub incomplete: Duration,
    /// After the stop began: /readyz red, everything works.
    pub delaying: Duration,
    /// 429 to new requests.
    pub refusing: Duration,
    /// 503 to new requests; watches have ended.
    pub stopping: Duration,
    /// How long the end waits for answers in flight.
    pub draining: Duration,
    /// How long the endpoint outlives a killed server (a real one: 15 s).
    pub endpoint_ttl: Duration,
    /// How often it is renewed, and others' ended ones are removed (10 s).
    pub endpoint_every: Duration,
}

impl Timing {
    /// Ready at once, stopped at once: for tests that are about something else.
    pub fn prompt() -> Self {
        Self {
            starting: Duration::ZERO,
            incomplete: Duration::ZERO,
            delaying: Duration::ZERO,
            refusing: Duration::ZERO,
            stopping: Duration::ZERO,
            draining: Duration::from_secs(2),
            endpoint_ttl: Duration::from_secs(15),
            endpoint_every: Duration::from_secs(10),
        }
    }

    /// As measured on real servers of v1.34 and v1.36, stop sequence included.
    pub fn real() -> Self {
        Self {
            starting: Duration::from_millis(300),
            incomplete: Duration::from_secs(2),
            delaying: Duration::ZERO,
            refusing: Duration::from_secs(1),
            stopping: Duration::from_millis(500),
            draining: Duration::from_secs(10),
            ..Self::prompt()
        }
    }
}

/// SIGTERM: endpoint away, then the phases of [`Timing`], then the listener and what is connected.
pub(super) async fn stop(server: Arc<Server>, timing: Timing) {
    server.phase.send_replace(Phase::Delaying);
    if let Err(error) = keeper::retract(&server).await {
        tracing::warn!(%error, "The endpoint could not be taken away");
    }
    tokio::time::sleep(timing.delaying).await;
    if !timing.refusing.is_zero() {
        server.phase.send_replace(Phase::Refusing);
        tokio::time::sleep(timing.refusing).await;
    }
    server.phase.send_replace(Phase::Stopping);
    tokio::time::sleep(timing.stopping).await;
    drop(conn::refuse(&server, true).await);
    let wires = server.wires();
    for wire in &wires {
        wire.go_away();
    }
    drop(wires);
    let drained = async {
        while !server.wires().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // What is still running then is cut off.
    drop(tokio::time::timeout(timing.draining, drained).await);
}

/// A server's life.
pub(super) async fn live(server: Arc<Server>, timing: Timing, pace: keeper::Pace, loopback: bool) {
    tokio::time::sleep(timing.starting).await;
    keeper::starting(&server).await;
    // A stop may have come first: phases only go forward.
    let advance = |phase: Phase| {
        server.phase.send_if_modified(|now| {
            let forward = *now < phase;
            if forward {
                *now = phase;
            }
            forward
        })
    };
    if !timing.incomplete.is_zero() {
        advance(Phase::Incomplete);
        tokio::time::sleep(timing.incomplete).await;
    }
    if loopback {
        loopback::established(&server).await;
        server.spawn(loopback::keep(Arc::clone(&server)));
    }
    if let Err(error) = keeper::publish(&server, pace).await {
        tracing::warn!(%error, "The endpoint could not be written");
    }
    advance(Phase::Ready);
    keeper::keep(server, pace).await;
}
