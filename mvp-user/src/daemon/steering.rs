//! Carries out when the kernel steers: the judgement of `peers::skew`, narrowed by what only the process knows (no
//! listener seen, no room, going away).
//!
//! Not for how steering is done (`steer`).

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use crate::{
    config::{LocalDown, SteerMode},
    peers::skew::{Policy, Reason},
    steer::{
        Steering, Switch, Verdict, judge,
        listeners::{Listener, REFRESH_INTERVAL, Watcher, Whose},
    },
    table::{Health, Membership, Proof, Table},
};

use super::{Parts, memory::Memory};

mod fullness;
use fullness::{Fullness, ports_percent, room_percent};

/// Longest time between two looks at room and mode; changes of the table are seen at once.
const TICK: Duration = Duration::from_millis(100);

/// What the kernel was told, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Steered {
    /// What the kernel was told.
    pub switch: Switch,
    /// One word, of [`choose`] or `no_ebpf`.
    pub reason: &'static str,
    /// The reason in full.
    pub detail: String,
    /// Since when.
    pub since: std::time::SystemTime,
}

/// What `mvp steer` said last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    /// The mode in force.
    pub mode: SteerMode,
    /// One more for each order, also for one that changes nothing; 0: `--steer`.
    pub number: u64,
}

/// The handle by which the rest of the process sees and changes steering.
#[derive(Clone, Debug)]
pub struct Helm {
    /// What was ordered; see [`Self::order`].
    pub ordered: Arc<watch::Sender<Order>>,
    /// The number of the last order that was carried out: the kernel was told, and `state` shows it.
    pub carried_out: Arc<watch::Sender<u64>>,
    /// What the kernel was told.
    pub state: Arc<watch::Sender<Steered>>,
    /// Whether servers are known to differ for long enough that older connections may be closed for it.
    pub proven: Arc<watch::Sender<bool>>,
    /// Direct connections that are older than steering and still there; none: not counted.
    pub older: Arc<watch::Sender<Option<u64>>>,
    /// Who listens on the steered port, as last seen.
    pub listeners: Arc<watch::Sender<Vec<(Listener, Whose)>>>,
    /// Whether a key of the program steers: an address is kube-apiserver's, or was when it last listened.
    pub keyed: Arc<watch::Sender<bool>>,
}

impl Helm {
    /// Off until the first choice.
    pub fn new(mode: SteerMode, reason: &'static str) -> Self {
        let off = Steered {
            switch: Switch::Off,
            reason,
            detail: String::new(),
            since: std::time::SystemTime::now(),
        };
        Self {
            ordered: Arc::new(watch::Sender::new(Order { mode, number: 0 })),
            carried_out: Arc::default(),
            state: Arc::new(watch::Sender::new(off)),
            proven: Arc::default(),
            older: Arc::default(),
            listeners: Arc::default(),
            keyed: Arc::default(),
        }
    }

    /// Takes an order; it is carried out once `carried_out` has come to the number that is returned.
    pub fn order(&self, mode: SteerMode) -> u64 {
        let mut number = 0;
        self.ordered.send_modify(|order| {
            order.mode = mode;
            order.number += 1;
            number = order.number;
        });
        number
    }

    /// Shows what the kernel was told, with one line where it, or the reason, is another than before.
    fn show(&self, now: Steered, switched: bool) {
        let (reworded, another) = {
            let before = self.state.borrow();
            (before.detail != now.detail, before.reason != now.reason)
        };
        if switched || another {
            tracing::info!(switch = ?now.switch, reason = now.reason, detail = now.detail, "Steering");
            self.state.send_replace(now);
        } else if reworded {
            // Another server, or another difference: worth showing, not worth a line.
            self.state.send_modify(|state| state.detail = now.detail);
        }
    }
}

/// Everything that the choice depends on.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each with a name"
)]
pub struct Situation {
    /// `--steer`, or what `mvp steer` said since.
    pub mode: SteerMode,
    /// mvp is going away.
    pub draining: bool,
    /// A listener of kube-apiserver's was seen since start, and no other program has its addresses.
    pub listener: bool,
    /// At the bound of connections, descriptors, ports or memory.
    pub full: bool,
    /// How local is.
    pub local: Health,
    /// Whether local authenticates what mvp forwards.
    pub proof: Proof,
    /// Some listed peer is up and proven.
    pub peer: bool,
    /// `--local-down`.
    pub local_down: LocalDown,
    /// What `auto` steers for.
    pub wanted: Option<&'static str>,
}

impl Situation {
    /// The part of it that the table knows.
    pub fn of(table: &Table, mode: SteerMode, local_down: LocalDown) -> Self {
        let members = table.members();
        Self {
            mode,
            draining: false,
            listener: true,
            full: false,
            local: members.local.health(),
            proof: members.local.proof(),
            peer: members.peers.iter().any(|peer| {
                peer.health() == Health::Up
                    && peer.proof() == Proof::Proven
                    && peer.membership() == Membership::Listed
            }),
            local_down,
            wanted: None,
        }
    }
}

/// What to tell the kernel, and one word why (design 3): a proof of identity forwarding and room always, then the mode.
pub fn choose(now: &Situation) -> (Switch, &'static str) {
    let down = now.local != Health::Up;
    let failover = now.local_down == LocalDown::Failover;
    // At local while it is up; while it is not, local's last proof or a peer's will do, for a peer answers.
    let proven = now.proof == Proof::Proven || down && failover && now.peer;
    let off = |why| (Switch::Off, why);
    let why = match (now.mode, now.wanted) {
        (SteerMode::Never, _) => return off("never"),
        _ if now.draining => return off("draining"),
        _ if !now.listener => return off("no_listener"),
        _ if down && !failover => return off("local_down_refused"),
        _ if !proven && now.proof == Proof::Refused => return off("forwarding_refused"),
        _ if !proven => return off("no_proof"),
        (SteerMode::Always, _) => "always",
        (SteerMode::Auto, Some(wanted)) => wanted,
        (SteerMode::Auto, None) => return off("no_skew"),
    };
    if now.full {
        (Switch::Full, "full")
    } else {
        (Switch::On, why)
    }
}

/// Chooses and tells the kernel, for ever. `draining` ends it: the last thing it tells is off.
pub async fn steer(
    parts: &Parts,
    steering: &Steering,
    helm: &Helm,
    mut draining: watch::Receiver<bool>,
) {
    let mut policy = Policy::new(parts.config.local_down, parts.config.steer_off_delay);
    let mut fullness = Fullness::default();
    let memory = Memory::new();
    let mut changes = parts.table.changed.subscribe();
    let mut orders = helm.ordered.subscribe();
    let mut told: Option<Switch> = None;
    let mut failing: Option<Switch> = None;
    loop {
        let order = *orders.borrow_and_update();
        let stop = *draining.borrow_and_update();
        let steered = matches!(told, Some(Switch::On | Switch::Full));
        let wanted = policy.judge(&parts.table, &parts.learner.view(), steered, Instant::now());
        helm.proven.send_if_modified(|proven| {
            let before = *proven;
            *proven = policy.is_proven(Instant::now());
            before != *proven
        });
        // Keys outlive the listener: failover needs them.
        let listener = *helm.keyed.borrow();
        let (switch, reason) = choose(&Situation {
            draining: stop,
            listener,
            full: fullness.update([
                room_percent(parts.acceptor.room()),
                ports_percent(&parts.dialer),
                memory.percent(),
            ]),
            wanted: wanted.as_ref().map(Reason::as_str),
            ..Situation::of(&parts.table, order.mode, parts.config.local_down)
        });
        // What the kernel does not take is tried again with the next look, and not shown as if it were done.
        if told == Some(switch) || switched(steering, switch, &mut failing) {
            if steered && switch == Switch::Off && !stop {
                // Clients come back directly (design 3).
                parts.leave.send_modify(|epoch| *epoch += 1);
            }
            let now = Steered {
                switch,
                reason,
                detail: wanted.map_or_else(String::new, |wanted| wanted.to_string()),
                since: std::time::SystemTime::now(),
            };
            helm.show(now, told != Some(switch));
            told = Some(switch);
            helm.carried_out
                .send_if_modified(|last| std::mem::replace(last, order.number) != order.number);
        }
        if stop {
            return;
        }
        tokio::select! {
            _ = changes.changed() => {}
            _ = orders.changed() => {}
            _ = draining.changed() => {}
            () = tokio::time::sleep(TICK) => {}
        }
    }
}

/// Tells the kernel; false: it did not take it. One line, however often that is tried.
fn switched(steering: &Steering, switch: Switch, failing: &mut Option<Switch>) -> bool {
    match steering.set_switch(switch) {
        Ok(()) => {
            *failing = None;
            true
        }
        Err(error) => {
            if failing.replace(switch) != Some(switch) {
                tracing::error!(%error, ?switch, "Steering cannot be switched");
            }
            false
        }
    }
}

/// Keeps the keys in step with the listening sockets, for ever; tells `prober` when local is another process.
pub async fn watch_listeners(parts: &Parts, steering: &Steering, helm: &Helm) {
    let mut watcher = match Watcher::new(parts.config.secure_port) {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::error!(%error, "Listening sockets cannot be read by sock_diag: nothing will be steered");
            return;
        }
    };
    let mut generations = parts.tls.generations();
    let mut seen: Option<u64> = None;
    loop {
        let judge = async |listener: &Listener| {
            judge::whose(&parts.dialer, parts.config.local.ip(), listener).await
        };
        if let Err(error) = watcher.refresh(steering, judge).await {
            tracing::warn!(%error, "Keys of the steering program were not brought up to date");
        }
        let local = watcher
            .listeners()
            .iter()
            .find(|(_, whose)| *whose == Whose::Local)
            .map(|(listener, _)| listener.cookie);
        if let Some(cookie) = local {
            if seen.is_some_and(|before| before != cookie) {
                parts.prober.local_replaced();
            }
            seen = Some(cookie);
        }
        let steers = |verdict: &Verdict| *verdict == Verdict::Steer;
        helm.keyed.send_replace(watcher.keys().values().any(steers));
        if *helm.listeners.borrow() != watcher.listeners() {
            for (listener, whose) in watcher.listeners() {
                tracing::info!(address = %listener.address, ?whose, "Listener on the steered port");
            }
            helm.listeners.send_replace(watcher.listeners().to_vec());
        }
        tokio::select! {
            () = tokio::time::sleep(REFRESH_INTERVAL) => {}
            Ok(()) = generations.changed() => watcher.forget(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calm() -> Situation {
        Situation {
            mode: SteerMode::Always,
            draining: false,
            listener: true,
            full: false,
            local: Health::Up,
            proof: Proof::Proven,
            peer: true,
            local_down: LocalDown::Failover,
            wanted: None,
        }
    }

    #[test]
    fn nothing_steers_without_a_proof_of_identity_forwarding() {
        let unproven = Situation {
            proof: Proof::Unproven,
            ..calm()
        };
        assert_eq!(choose(&unproven), (Switch::Off, "no_proof"));
        let refused = Situation {
            proof: Proof::Refused,
            ..calm()
        };
        assert_eq!(choose(&refused), (Switch::Off, "forwarding_refused"));
    }

    #[test]
    fn while_local_is_down_a_peers_proof_is_enough_for_failover() {
        let now = Situation {
            local: Health::Down,
            proof: Proof::Unproven,
            ..calm()
        };
        assert_eq!(choose(&now), (Switch::On, "always"));
        assert_eq!(
            choose(&Situation { peer: false, ..now }),
            (Switch::Off, "no_proof")
        );
        let refuse = Situation {
            local_down: LocalDown::Refuse,
            ..now
        };
        assert_eq!(choose(&refuse), (Switch::Off, "local_down_refused"));
    }

    #[test]
    fn auto_steers_only_for_a_reason() {
        let now = Situation {
            mode: SteerMode::Auto,
            ..calm()
        };
        assert_eq!(choose(&now), (Switch::Off, "no_skew"));
        let skew = Situation {
            wanted: Some("skew"),
            ..now
        };
        assert_eq!(choose(&skew), (Switch::On, "skew"));
        assert_eq!(
            choose(&Situation { full: true, ..skew }),
            (Switch::Full, "full")
        );
        assert_eq!(
            choose(&Situation {
                listener: false,
                ..skew
            }),
            (Switch::Off, "no_listener")
        );
    }

    #[test]
    fn an_order_that_changes_nothing_has_a_number_of_its_own() {
        let helm = Helm::new(SteerMode::Auto, "no_listener");
        assert_eq!(helm.order(SteerMode::Auto), 1);
        assert_eq!(helm.order(SteerMode::Never), 2);
        let last = Order {
            mode: SteerMode::Never,
            number: 2,
        };
        assert_eq!(*helm.ordered.borrow(), last);
        assert_eq!(*helm.carried_out.borrow(), 0);
    }

    #[test]
    fn another_reason_is_another_state_and_another_detail_is_not() {
        let helm = Helm::new(SteerMode::Auto, "no_listener");
        let told = |reason, detail: &str, ago| Steered {
            switch: Switch::Off,
            reason,
            detail: detail.to_owned(),
            since: std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(ago),
        };
        helm.show(told("no_skew", "", 1), true);
        helm.show(told("no_skew", "x", 2), false);
        assert_eq!(*helm.state.borrow(), told("no_skew", "x", 1));
        helm.show(told("no_proof", "", 3), false);
        assert_eq!(*helm.state.borrow(), told("no_proof", "", 3));
    }
}
