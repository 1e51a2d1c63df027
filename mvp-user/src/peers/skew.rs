//! What `--steer=auto` steers for (design 3): a pure judgement of the table, made again whenever it changes.
//!
//! `daemon` asks [`Policy::judge`] and weighs the answer with the mode, the proof of identity forwarding and room.

use std::{fmt, ops::ControlFlow, time::Duration};

use tokio::time::Instant;

use super::View;
use crate::{
    api::{Gvr, ServerId, Verb, Verbs},
    config::LocalDown,
    table::{Catalogue, Freshness, Health, Membership, Served, Table},
};

/// For how long a peer that was never read is reason enough to steer.
pub const UNREAD_FOR: Duration = Duration::from_mins(10);
/// How long a difference must have lasted before older connections may be closed for it.
pub const PROVEN_AFTER: Duration = Duration::from_secs(10);

/// Something that a peer holds and local lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Who has it.
    pub server: ServerId,
    /// The resource.
    pub resource: Gvr,
    /// The subresource, if the difference is there.
    pub subresource: Option<Box<str>>,
    /// The verbs that local lacks.
    pub verbs: Verbs,
}

/// Why `auto` steers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Local lacks something.
    Skew(Missing),
    /// Local is not up, and a peer is.
    LocalDown,
    /// A listed peer was never read.
    Unread(ServerId),
    /// The last reason ended less than `--steer-off-delay` ago.
    Quiet,
}

/// The judgement over time.
#[derive(Debug)]
pub struct Policy {
    local_down: LocalDown,
    off_delay: Duration,
    /// When there last was a reason of `auto` that needs a quiet period after it.
    wanted_at: Option<Instant>,
    /// Since when a fresh catalogue of a reachable peer holds something that a fresh local lacks.
    proven_since: Option<Instant>,
    /// When a peer that was never read stops being a reason.
    unread_until: Option<Instant>,
}

impl Reason {
    /// The stable word for logs and metric labels.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Skew(_) => "skew",
            Self::LocalDown => "local_down",
            Self::Unread(_) => "unread",
            Self::Quiet => "quiet",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Skew(missing) => write!(f, "skew: {missing}"),
            Self::Unread(server) => write!(f, "unread: {server} was never read"),
            other => f.write_str(other.as_str()),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} serves {}", self.server, self.resource.as_ref())?;
        if let Some(subresource) = &self.subresource {
            write!(f, "/{subresource}")?;
        }
        let verbs: Vec<&str> = self.verbs.iter().map(Verb::as_str).collect();
        write!(f, " ({})", verbs.join(", "))
    }
}

impl Policy {
    /// Nothing was judged yet.
    pub const fn new(local_down: LocalDown, off_delay: Duration) -> Self {
        Self {
            local_down,
            off_delay,
            wanted_at: None,
            proven_since: None,
            unread_until: None,
        }
    }

    /// Judges anew: why `auto` steers now; none: it does not. Call it when the table changed and at
    /// [`Policy::recheck`]. `steering`: whether connections are steered now. Only what was steered for has a quiet
    /// period after it, so that a start, at which nothing is known for a moment, does not cost a minute of steering; and
    /// a peer that is unread needs none, because it becomes that only once.
    pub fn judge(
        &mut self,
        table: &Table,
        view: &View,
        steering: bool,
        now: Instant,
    ) -> Option<Reason> {
        self.note_proven(table, now);
        let reason = self.reason(table, view, now);
        if steering && matches!(reason, Some(Reason::Skew(_) | Reason::LocalDown)) {
            self.wanted_at = Some(now);
        }
        let quiet = self.quiet_until().is_some_and(|until| now < until);
        reason.or_else(|| quiet.then_some(Reason::Quiet))
    }

    /// When to judge again although nothing changes.
    pub fn recheck(&self, now: Instant) -> Option<Instant> {
        [
            self.quiet_until(),
            self.unread_until,
            self.proven_since.map(|since| since + PROVEN_AFTER),
        ]
        .into_iter()
        .flatten()
        .filter(|at| *at > now)
        .min()
    }

    /// Whether servers are known to differ, for long enough that connections older than steering may be closed for it.
    pub fn is_proven(&self, now: Instant) -> bool {
        self.proven_since
            .is_some_and(|since| now - since >= PROVEN_AFTER)
    }

    fn quiet_until(&self) -> Option<Instant> {
        self.wanted_at.map(|at| at + self.off_delay)
    }

    /// What `auto` steers for.
    fn reason(&mut self, table: &Table, view: &View, now: Instant) -> Option<Reason> {
        self.unread_until = None;
        let members = table.members();
        // At start local counts as down, but nobody has looked yet: no reason to steer, nor for a quiet period.
        let down = members.local.is_seen() && members.local.health() != Health::Up;
        // Where nobody can stand in for it (a single control plane, or a node whose firewall keeps mvp from everybody), mvp
        // would answer 503 to who might be served directly.
        let stands_in = members
            .peers
            .iter()
            .any(|peer| peer.health() == Health::Up && peer.membership() == Membership::Listed);
        if down && stands_in && self.local_down == LocalDown::Failover {
            return Some(Reason::LocalDown);
        }
        if let Some(missing) = first_missing(table, |_, _| true) {
            return Some(Reason::Skew(missing));
        }
        let (server, until) = view
            .unread
            .iter()
            .map(|(server, since)| (*server, *since + UNREAD_FOR))
            .max_by_key(|(_, until)| *until)
            .filter(|(_, until)| now < *until)?;
        self.unread_until = Some(until);
        Some(Reason::Unread(server))
    }

    fn note_proven(&mut self, table: &Table, now: Instant) {
        let fresh = |id| {
            table
                .look(id, |catalogue| catalogue.freshness == Freshness::Fresh)
                .unwrap_or(false)
        };
        let proven = table.members().local.health() == Health::Up
            && fresh(ServerId::Local)
            && first_missing(table, |server, catalogue| {
                server.health() == Health::Up
                    && server.membership() == Membership::Listed
                    && catalogue.freshness == Freshness::Fresh
            })
            .is_some();
        if proven {
            self.proven_since.get_or_insert(now);
        } else {
            self.proven_since = None;
        }
    }
}

/// The first thing that local lacks and a peer that `counts` holds.
fn first_missing(
    table: &Table,
    counts: impl Fn(&crate::table::Server, &Catalogue) -> bool,
) -> Option<Missing> {
    let mut found = None;
    visit(table, counts, |missing| {
        found = Some(missing);
        ControlFlow::Break(())
    });
    found
}

/// Everything that local lacks and a peer holds, for `mvp skew`; at most `limit`.
pub fn differences(table: &Table, limit: usize) -> Vec<Missing> {
    let mut found = Vec::new();
    visit(
        table,
        |_, _| true,
        |missing| {
            found.push(missing);
            if found.len() < limit {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        },
    );
    found.sort_by(|one, two| {
        (one.server, &one.resource, &one.subresource).cmp(&(
            two.server,
            &two.resource,
            &two.subresource,
        ))
    });
    found
}

/// Group-versions that all servers share through etcd are never a difference; neither is anything while local itself
/// was never read.
fn visit(
    table: &Table,
    counts: impl Fn(&crate::table::Server, &Catalogue) -> bool,
    mut found: impl FnMut(Missing) -> ControlFlow<()>,
) {
    let Some(local) = table.catalogue(ServerId::Local) else {
        return;
    };
    let shared = table.shared.load();
    let members = table.members();
    for server in &members.peers {
        let Some(theirs) = table.catalogue(server.id) else {
            continue;
        };
        if !counts(server, &theirs) {
            continue;
        }
        for (resource, served) in &theirs.resources {
            let group_version = resource.as_ref().group_version();
            if shared.owned.contains(&group_version) || shared.deleted.contains_key(&group_version)
            {
                continue;
            }
            let ours = local.resources.get(resource);
            for (subresource, verbs) in lacks(served, ours) {
                let missing = Missing {
                    server: server.id,
                    resource: resource.clone(),
                    subresource: subresource.map(Into::into),
                    verbs,
                };
                if found(missing).is_break() {
                    return;
                }
            }
        }
    }
}

/// What `ours` lacks of `theirs`: the resource itself (no name) and its subresources.
fn lacks<'a>(
    theirs: &'a Served,
    ours: Option<&'a Served>,
) -> impl Iterator<Item = (Option<&'a str>, Verbs)> {
    let own = ours.map_or(Verbs::NONE, |ours| ours.verbs);
    let resource = (None, theirs.verbs.without(own));
    let subresources = theirs.subresources.iter().map(move |(name, verbs)| {
        let known = ours.and_then(|ours| ours.subresources.get(name));
        let lacking = known.map_or(*verbs, |known| verbs.without(*known));
        (Some(&**name), lacking)
    });
    std::iter::once(resource)
        .chain(subresources)
        .filter(|(_, verbs)| *verbs != Verbs::NONE)
}

#[cfg(test)]
mod tests;
