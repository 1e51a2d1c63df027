//! When the kernel steers, and why: one pure choice ([`choose`]) over what is known, and the loop that carries it out.
//!
//! Not for how steering is done (`steer`), nor for whether `auto` wants it (`health::policy`).

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    config::{LocalDown, SteerMode},
    steer::Switch,
    table::{Health, Proof, Table},
};

/// Why steering is on or off: one word in logs, metrics and `mvp status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// `--steer=never` or `mvp steer off`.
    Never,
    /// No listener of kube-apiserver was seen on the port since start.
    NoListener,
    /// Local does not authenticate what mvp forwards, or was never seen to.
    Unproven,
    /// Local is not up and `--local-down=refuse`.
    LocalDown,
    /// No room for more connections.
    Full,
    /// mvp is going away.
    Draining,
    /// `auto`, and all servers serve the same.
    NoSkew,
    /// `--steer=always` or `mvp steer on`.
    Always,
    /// `auto`: some server serves what local does not.
    Skew,
    /// `auto`: local is not up and a peer can answer.
    Failover,
    /// `auto`: a listed peer was never read.
    UnreadPeer,
}

impl Why {
    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::NoListener => "no_listener",
            Self::Unproven => "unproven",
            Self::LocalDown => "local_down",
            Self::Full => "full",
            Self::Draining => "draining",
            Self::NoSkew => "no_skew",
            Self::Always => "always",
            Self::Skew => "skew",
            Self::Failover => "failover",
            Self::UnreadPeer => "unread_peer",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Everything the choice depends on.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// `--steer`, or what `mvp steer` said since.
    pub mode: SteerMode,
    /// mvp is going away.
    pub draining: bool,
    /// A `steer` key is in the kernel.
    pub listener: bool,
    /// At the bound of connections, files or memory.
    pub full: bool,
    /// How local is.
    pub local: Health,
    /// Whether local authenticates what mvp forwards.
    pub proof: Proof,
    /// Some listed peer is up and proven.
    pub peer: bool,
    /// `--local-down`.
    pub local_down: LocalDown,
    /// What makes `auto` steer; none: nothing does (any more, after the quiet period).
    pub wanted: Option<Why>,
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
                    && peer.membership() == crate::table::Membership::Listed
            }),
            local_down,
            wanted: None,
        }
    }
}

/// Whether to steer (design 3): a proof of identity forwarding always, room, and then what the mode says.
pub fn choose(now: &Situation) -> (Switch, Why) {
    let down = now.local != Health::Up;
    let failover = now.local_down == LocalDown::Failover;
    // At local while it is up; while it is not, local's last proof or a peer's will do, for a peer answers.
    let proven = now.proof == Proof::Proven || down && failover && now.peer;
    let off = |why| (Switch::Off, why);
    match now.mode {
        SteerMode::Never => return off(Why::Never),
        _ if now.draining => return off(Why::Draining),
        _ if !now.listener => return off(Why::NoListener),
        _ if down && !failover => return off(Why::LocalDown),
        _ if !proven => return off(Why::Unproven),
        SteerMode::Auto if now.wanted.is_none() => return off(Why::NoSkew),
        SteerMode::Auto | SteerMode::Always => {}
    }
    if now.full {
        return (Switch::Full, Why::Full);
    }
    let why = match now.mode {
        SteerMode::Auto => now.wanted.unwrap_or(Why::Always),
        SteerMode::Always | SteerMode::Never => Why::Always,
    };
    (Switch::On, why)
}

/// Keeps *full* from flapping: true at 90 % of the bound, false below 80 % (design 2).
#[derive(Debug, Default)]
pub struct Fullness {
    full: bool,
}

impl Fullness {
    /// Takes in how many of how many connections there are, and whether anything else ran out since the last call.
    pub fn update(&mut self, open: usize, bound: usize, exhausted: bool) -> bool {
        let percent = open.saturating_mul(100) / bound.max(1);
        self.full = exhausted || percent >= 90 || self.full && percent >= 80;
        self.full
    }
}

/// Keeps `auto` on for a quiet period after its last cause is gone (design 3: on at once, off after 60 s).
#[derive(Debug)]
pub struct Quiet {
    delay: Duration,
    last: Option<(Why, tokio::time::Instant)>,
}

impl Quiet {
    /// Off after `delay` without a cause.
    pub const fn new(delay: Duration) -> Self {
        Self { delay, last: None }
    }

    /// The cause in force: the present one, or the last one until the quiet period is over.
    pub fn update(&mut self, cause: Option<Why>, now: tokio::time::Instant) -> Option<Why> {
        if let Some(why) = cause {
            self.last = Some((why, now));
        } else if self.last.is_some_and(|(_, seen)| now - seen >= self.delay) {
            self.last = None;
        }
        self.last.map(|(why, _)| why)
    }
}

/// What steering does now, for `mvp status` and the metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steered {
    /// What the kernel was told.
    pub switch: Switch,
    /// Why.
    pub why: Why,
    /// Since when.
    pub since: std::time::SystemTime,
}

/// The handle by which the rest of the process sees and changes steering.
#[derive(Clone, Debug)]
pub struct Helm {
    /// The mode in force; `mvp steer` changes it.
    pub mode: Arc<tokio::sync::watch::Sender<SteerMode>>,
    /// What the kernel was told.
    pub state: Arc<tokio::sync::watch::Sender<Steered>>,
}

impl Helm {
    /// Off until the first choice.
    pub fn new(mode: SteerMode) -> Self {
        let off = Steered {
            switch: Switch::Off,
            why: Why::NoListener,
            since: std::time::SystemTime::now(),
        };
        Self {
            mode: Arc::new(tokio::sync::watch::Sender::new(mode)),
            state: Arc::new(tokio::sync::watch::Sender::new(off)),
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
        for proof in [Proof::Unproven, Proof::Refused] {
            let now = Situation { proof, ..calm() };
            assert_eq!(choose(&now), (Switch::Off, Why::Unproven));
        }
    }

    #[test]
    fn while_local_is_down_a_peers_proof_is_enough_for_failover() {
        let now = Situation {
            local: Health::Down,
            proof: Proof::Unproven,
            ..calm()
        };
        assert_eq!(choose(&now), (Switch::On, Why::Always));
        let alone = Situation { peer: false, ..now };
        assert_eq!(choose(&alone), (Switch::Off, Why::Unproven));
        let refuse = Situation {
            local_down: LocalDown::Refuse,
            ..now
        };
        assert_eq!(choose(&refuse), (Switch::Off, Why::LocalDown));
    }

    #[test]
    fn auto_steers_only_for_a_cause() {
        let now = Situation {
            mode: SteerMode::Auto,
            ..calm()
        };
        assert_eq!(choose(&now), (Switch::Off, Why::NoSkew));
        let skew = Situation {
            wanted: Some(Why::Skew),
            ..now
        };
        assert_eq!(choose(&skew), (Switch::On, Why::Skew));
        let full = Situation { full: true, ..skew };
        assert_eq!(choose(&full), (Switch::Full, Why::Full));
    }

    #[test]
    fn full_begins_at_nine_tenths_and_ends_below_eight() {
        let mut fullness = Fullness::default();
        let seen: Vec<bool> = [89, 90, 85, 80, 79, 89]
            .into_iter()
            .map(|open| fullness.update(open, 100, false))
            .collect();
        assert_eq!(seen, [false, true, true, true, false, false]);
        assert!(
            fullness.update(1, 100, true),
            "a failed accept is full at any number of connections"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn auto_stays_on_for_the_quiet_period() {
        let mut quiet = Quiet::new(Duration::from_secs(60));
        let now = tokio::time::Instant::now;
        assert_eq!(quiet.update(None, now()), None);
        assert_eq!(quiet.update(Some(Why::Skew), now()), Some(Why::Skew));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(quiet.update(None, now()), Some(Why::Skew));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(quiet.update(None, now()), None);
    }
}
