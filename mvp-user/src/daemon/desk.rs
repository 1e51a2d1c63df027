//! What the control socket asks of the daemon.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

use crate::{
    accept::Acceptor,
    admin::{self, Taken, check::Ground, wire},
    config::SteerMode,
    identity::Reason,
    serve,
    steer::{Heartbeat, Steering, Switch},
};

use super::{
    House,
    pulse::{Last, Pulse},
    steering::Helm,
};

/// The daemon, as the control socket sees it.
pub(super) struct Desk {
    helm: Helm,
    steering: Option<Arc<Steering>>,
    acceptor: Arc<Acceptor>,
    percent: AtomicU8,
    draining: watch::Receiver<bool>,
    ground: Ground,
    shared: Arc<serve::Shared>,
    beats: Mutex<Vec<Arc<Last>>>,
    /// When mvp last answered itself.
    itself: OnceLock<Arc<Last>>,
}

impl Desk {
    pub(super) fn new(house: &House, draining: watch::Receiver<bool>) -> Self {
        Self {
            helm: house.helm.clone(),
            steering: house.steering.clone(),
            acceptor: Arc::clone(&house.parts.acceptor),
            percent: AtomicU8::new(house.parts.config.steer_percent),
            draining,
            ground: Ground {
                config: Arc::clone(&house.parts.config),
                table: Arc::clone(&house.parts.table),
                dialer: Arc::clone(&house.parts.dialer),
            },
            shared: Arc::clone(&house.parts.shared),
            beats: Mutex::default(),
            itself: OnceLock::new(),
        }
    }

    /// A thread's pulse, which `/livez` watches.
    pub(super) fn pulse(&self, heartbeat: Option<Heartbeat>) -> Pulse {
        let (pulse, last) = Pulse::new(heartbeat);
        self.beats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(last);
        pulse
    }

    /// The pulse of the self-request; `/livez` does not watch it.
    pub(super) fn self_pulse(&self, heartbeat: Option<Heartbeat>) -> Pulse {
        let (pulse, last) = Pulse::new(heartbeat);
        self.itself.get_or_init(|| last);
        pulse
    }

    fn steering(&self) -> Result<&Arc<Steering>, String> {
        self.steering.as_ref().ok_or_else(|| {
            "this process does not steer: it was started with --listen or --steer=never".to_owned()
        })
    }
}

impl admin::Daemon for Desk {
    fn steering(&self) -> wire::Steering {
        let state = self.helm.state.borrow().clone();
        let counters = self
            .steering
            .as_ref()
            .and_then(|steering| steering.counters().ok());
        let since = state.since.elapsed().unwrap_or_default().as_secs();
        let mode = self.helm.ordered.borrow().mode;
        wire::Steering {
            mode: match mode {
                SteerMode::Auto => "auto",
                SteerMode::Always => "always",
                SteerMode::Never => "never",
            }
            .to_owned(),
            state: match (&self.steering, state.switch) {
                (None, _) => "none",
                (_, Switch::Off) => "off",
                (_, Switch::On) => "on",
                (_, Switch::Full) => "full",
            }
            .to_owned(),
            why: state.reason.to_owned(),
            detail: state.detail,
            since,
            percent: self.percent.load(Ordering::Relaxed),
            lookups: counters
                .iter()
                .flat_map(crate::steer::Counters::iter)
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            older_connections: *self.helm.older.borrow(),
        }
    }

    fn set_mode(&self, mode: SteerMode) -> Result<Taken, String> {
        self.steering()?;
        if *self.draining.borrow() {
            return Err("this process is about to end and steers nothing any more".to_owned());
        }
        tracing::info!(?mode, "Steering mode was changed");
        let number = self.helm.order(mode);
        Ok(Taken::new(number, self.helm.carried_out.subscribe()))
    }

    fn set_percent(&self, percent: u8) -> Result<(), String> {
        self.steering()?
            .set_percent(percent)
            .map_err(|error| error.to_string())?;
        tracing::info!(percent, "Share of steered sources was changed");
        self.percent.store(percent, Ordering::Relaxed);
        Ok(())
    }

    fn beats(&self) -> Vec<Duration> {
        self.beats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|last| last.ago())
            .collect()
    }

    fn answered_itself(&self) -> Option<Duration> {
        self.itself.get().map(|last| last.ago())
    }

    fn connections(&self) -> wire::Connections {
        let room = self.acceptor.room();
        wire::Connections {
            open: room.open(),
            bound: room.max(),
        }
    }

    fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    fn ground(&self) -> Option<Ground> {
        Some(self.ground.clone())
    }

    fn certificates_without_identity(&self, reason: Reason) -> u64 {
        self.shared.metrics.certificates_without_identity(reason)
    }
}
