//! What the service manager is told, where there is one (`Type=notify` of systemd, `sd_notify(3)`): started, steering or not,
//! alive, stopping. Without `NOTIFY_SOCKET` nothing happens.

use std::{sync::Arc, time::Duration};

use sd_notify::NotifyState;

use super::{desk::Desk, steering::Helm};
use crate::{admin::Daemon as _, steer::HEARTBEAT_MAX_AGE};

/// Time between two signs of life where none are asked for: then only the state of steering is told.
const CALM: Duration = Duration::from_hours(1);

/// Tells once; that it fails is worth a line, not an end.
pub(super) fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "The service manager cannot be told");
    }
}

/// Tells what steering does whenever that changes, and that mvp is alive, as often as `WatchdogSec=` asks for it: only
/// while every thread beats, so that one that is wedged lets the service manager start mvp anew. Not for the self-request:
/// what makes it fail alone is still there afterwards. For ever.
pub(super) async fn keep_informed(desk: Arc<Desk>, helm: Helm) {
    let watchdog = sd_notify::watchdog_enabled();
    // Twice in the time, as `sd_watchdog_enabled(3)` advises.
    let every = watchdog.map_or(CALM, |within| within / 2);
    // A beat younger than this is a sign of life in any case: a node may be busy for a moment.
    let young = every.max(HEARTBEAT_MAX_AGE);
    let mut state = helm.state.subscribe();
    loop {
        let steered = state.borrow_and_update().clone();
        let status = format!("steering {:?}: {}", steered.switch, steered.reason).to_lowercase();
        tell(&[NotifyState::Status(&status)]);
        let changed = async {
            // Its sender lives as long as the process.
            drop(state.changed().await);
        };
        tokio::pin!(changed);
        loop {
            if watchdog.is_some() && desk.beats().into_iter().all(|ago| ago < young) {
                tell(&[NotifyState::Watchdog]);
            }
            tokio::select! {
                () = &mut changed => break,
                () = tokio::time::sleep(every) => {}
            }
        }
    }
}
