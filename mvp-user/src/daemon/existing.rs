//! Sends direct connections that are older than steering home, slowly, when servers are known to differ (design 3,
//! `--existing=drain`), and counts those that are left.
//!
//! Not for which connection may be closed (`steer::existing`).

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Parts, steering::Helm};
use crate::{
    config::Existing,
    steer::{
        Steering, Switch,
        existing::{Class, DrainOptions, Drainer},
        listeners::{Listener, Whose},
    },
};

/// How often what is left is counted while steering is on.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

/// Counts, and drains when it is due, for ever.
pub async fn tend(parts: &Parts, steering: &Arc<Steering>, helm: &Helm) {
    let config = &parts.config;
    let mut drainer = match Drainer::new(config.secure_port, config.exempt_source) {
        Ok(drainer) => drainer.for_clients_of(Arc::clone(steering)),
        Err(error) => {
            tracing::error!(%error, "Older connections cannot be read by sock_diag: none is counted or closed");
            return;
        }
    };
    let mut state = helm.state.subscribe();
    let mut proven = helm.proven.subscribe();
    let mut last: Option<Instant> = None;
    let mut on_since: Option<Instant> = None;
    let mut forced = false;
    loop {
        let on = state.borrow_and_update().switch == Switch::On;
        let differ = *proven.borrow_and_update();
        if on {
            on_since.get_or_insert_with(Instant::now);
        } else {
            on_since = None;
            forced = false;
        }
        let force = matches!((config.existing_deadline, on_since), (Some(deadline), Some(since)) if since.elapsed() >= deadline);
        let local = locals(helm);
        // The deadline does not wait for the interval.
        let due =
            last.is_none_or(|last| last.elapsed() >= config.drain_interval) || force && !forced;
        if on && differ && due && config.existing == Existing::Drain {
            last = Some(Instant::now());
            forced = force;
            let options = DrainOptions {
                idle: config.drain_idle,
                force,
            };
            let go_on = || *helm.proven.borrow() && helm.state.borrow().switch == Switch::On;
            match drainer.drain(&local, options, go_on).await {
                Ok(report) => {
                    tracing::info!(
                        closed = report.closed,
                        forced = report.forced,
                        left = report.left,
                        spared = report.spared,
                        "Connections older than steering were sent home"
                    );
                    parts.drained.inc_by(report.closed as u64);
                    helm.older.send_replace(Some(report.left as u64));
                }
                Err(error) => tracing::warn!(%error, "Older connections cannot be closed"),
            }
        } else if on {
            match drainer.survey(&local, config.drain_idle) {
                Ok(all) => {
                    let left = all
                        .iter()
                        .filter(|(_, class)| matches!(class, Class::Candidate | Class::Busy))
                        .count();
                    helm.older.send_replace(Some(left as u64));
                }
                Err(error) => tracing::debug!(%error, "Older connections cannot be counted"),
            }
        } else {
            helm.older.send_replace(None);
        }
        tokio::select! {
            _ = state.changed() => {}
            _ = proven.changed() => {}
            () = tokio::time::sleep(COUNT_INTERVAL) => {}
        }
    }
}

fn locals(helm: &Helm) -> Vec<Listener> {
    let listeners = helm.listeners.borrow();
    listeners
        .iter()
        .filter(|(_, whose)| *whose == Whose::Local)
        .map(|(listener, _)| listener.clone())
        .collect()
}
