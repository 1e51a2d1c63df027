//! Where a request goes, and why: the ladder of design 5.2, rung by rung.
//!
//! Pure: no IO, no clock. The walk asks, tries, and asks again with what it learnt ([`Evidence`]). Nothing is allocated.
//! Not for how a request is sent (`forward`), nor for completing discovery (`discovery`).

use std::{net::IpAddr, sync::Arc, time::Duration};

use crate::{
    config::LocalDown,
    reply::Refusal,
    request_info::{Class, DiscoveryPath, OpenApiPath, RequestInfo},
    table::{Health, Lookup, Members, Membership, Proof, Server, Table},
};

mod candidates;
mod evidence;

pub use evidence::{Evidence, MAX_TRIES, Outcome, Refreshed};

use candidates::{Need, Want};

/// How old a catalogue may be for its word to be final against a 404.
pub const SURE: Duration = Duration::from_secs(1);

/// Who asks, as far as routing cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// How the caller is authenticated.
    pub kind: AskerKind,
    /// `x-kubernetes-peer-proxied: true` came from a verified front proxy (KEP-4020); from anyone else it is no marker.
    pub marker: bool,
    /// The connection offered `mvp-direct` from a foreign address: local serves whatever it asks (design 4.4).
    pub decided: bool,
    /// Address of the client: its requests for a resource stick to one peer.
    pub client: IpAddr,
}

/// Kinds of caller (design 4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AskerKind {
    /// A verified front proxy that forwards somebody.
    FrontProxy,
    /// A client certificate.
    User,
    /// A bearer token, which the upstream judges.
    Token,
    /// Nobody.
    Anonymous,
}

impl AskerKind {
    /// Whether mvp forwards the identity in headers, so that the upstream must be proven to read them.
    pub const fn needs_proof(self) -> bool {
        matches!(self, Self::FrontProxy | Self::User)
    }
}

/// What to do next with a request.
#[derive(Clone, Debug)]
pub struct Decision {
    /// What to do.
    pub to: To,
    /// Why.
    pub because: Because,
}

/// What to do next.
#[derive(Clone, Debug)]
pub enum To {
    /// Send it there.
    Server(Arc<Server>),
    /// Have the servers of [`to_refresh`] read again (at most 2 s, reads that begin after now), then ask again with
    /// [`Evidence::refreshed`].
    Refresh,
    /// Relay the last answer, a 404, to the client: it is true.
    Relay,
    /// Answer it here.
    Refuse(Refusal),
}

/// The reason of a decision: one word in logs, metrics, `mvp explain` and tests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Because {
    /// A verified front proxy has rerouted it once already.
    AlreadyProxied,
    /// Another mvp took the decision.
    AlreadyDecided,
    /// Health, metrics, version, debug or logs of this node.
    AboutLocal,
    /// Discovery or OpenAPI: the authority answers, then it is completed.
    Discovery,
    /// The authority does not know the group or group-version; this server lists it.
    DiscoveryByPeer,
    /// Not about a resource.
    NonResource,
    /// The authority was never read; it is asked rather than guessed at.
    AuthorityUnread,
    /// The authority serves it.
    AuthorityServes,
    /// The authority does not serve it (or failed just now), this server does.
    PeerServes,
    /// The only servers that serve it look unavailable; this one is tried once.
    LastResort,
    /// Only unavailable servers serve it.
    OnlyUnavailable,
    /// Only a server without proof of identity forwarding serves it.
    OnlyUnproven,
    /// Nobody is known to serve it and not everybody is known.
    NotReady,
    /// Nobody serves it; the authority says so itself.
    NobodyServes,
    /// The authority says 404, but what others serve was read too long ago to be sure.
    Unconfirmed,
    /// Every server was asked and nobody serves it.
    Confirmed,
    /// Whoever should answer failed.
    Failed,
}

impl Because {
    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AlreadyProxied => "already_proxied",
            Self::AlreadyDecided => "already_decided",
            Self::AboutLocal => "about_local",
            Self::Discovery => "discovery",
            Self::DiscoveryByPeer => "discovery_by_peer",
            Self::NonResource => "non_resource",
            Self::AuthorityUnread => "authority_unread",
            Self::AuthorityServes => "authority_serves",
            Self::PeerServes => "peer_serves",
            Self::LastResort => "last_resort",
            Self::OnlyUnavailable => "only_unavailable",
            Self::OnlyUnproven => "only_unproven",
            Self::NotReady => "not_ready",
            Self::NobodyServes => "nobody_serves",
            Self::Unconfirmed => "unconfirmed",
            Self::Confirmed => "confirmed",
            Self::Failed => "failed",
        }
    }

    /// Whether it is local's to answer, whoever else could.
    pub const fn names_local(self) -> bool {
        matches!(
            self,
            Self::AlreadyProxied | Self::AlreadyDecided | Self::AboutLocal
        )
    }
}

impl std::fmt::Display for Because {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Decision {
    fn send(server: &Arc<Server>, because: Because) -> Self {
        Self {
            to: To::Server(Arc::clone(server)),
            because,
        }
    }

    const fn refuse(refusal: Refusal, because: Because) -> Self {
        Self {
            to: To::Refuse(refusal),
            because,
        }
    }

    /// The server it goes to, if it goes to one.
    pub const fn server(&self) -> Option<&Arc<Server>> {
        match &self.to {
            To::Server(server) => Some(server),
            To::Refresh | To::Relay | To::Refuse(_) => None,
        }
    }
}

/// Who answers what every server could: local while it is up, else (failover) the first peer that is up and proven, else
/// local (design 5.2).
pub fn authority(table: &Table, local_down: LocalDown) -> Arc<Server> {
    let members = table.members();
    Arc::clone(authority_of(&members, local_down, &Evidence::default()))
}

/// The authority among those that did not fail this request already.
fn authority_of<'a>(
    members: &'a Members,
    local_down: LocalDown,
    evidence: &Evidence,
) -> &'a Arc<Server> {
    let local = &members.local;
    if local.health() == Health::Up && !evidence.failed(local.id) || local_down == LocalDown::Refuse
    {
        return local;
    }
    members
        .peers
        .iter()
        .find(|peer| {
            peer.membership() == Membership::Listed
                && peer.health() == Health::Up
                && peer.proof() == Proof::Proven
                && !evidence.failed(peer.id)
        })
        .unwrap_or(local)
}

/// Where the request goes next, given what was tried.
pub fn decide(
    info: &RequestInfo,
    asker: &Asker,
    evidence: &Evidence,
    table: &Table,
    local_down: LocalDown,
) -> Decision {
    let members = table.members();
    let local = &members.local;
    let only_local = if asker.marker {
        Some(Because::AlreadyProxied)
    } else if asker.decided {
        Some(Because::AlreadyDecided)
    } else if info.class() == Class::LocalOnly {
        Some(Because::AboutLocal)
    } else {
        None
    };
    if let Some(because) = only_local {
        return match evidence.outcome(local.id) {
            None => Decision::send(local, because),
            Some(Outcome::NotFound) => relay(because),
            Some(Outcome::Refused) => Decision::refuse(Refusal::ForwardingRefused, because),
            Some(_) => Decision::refuse(Refusal::LocalDown, because),
        };
    }
    // At local the refusal ends steering; the client reconnects to local directly (design 4.3).
    if evidence.outcome(local.id) == Some(Outcome::Refused) {
        return Decision::refuse(Refusal::ForwardingRefused, Because::Failed);
    }
    let authority = authority_of(&members, local_down, evidence);
    let walk = Walk {
        info,
        asker,
        evidence,
        table,
        members: &members,
        authority,
        local_down,
    };
    match info.class() {
        Class::Resource => walk.resource(),
        Class::Discovery(path) => walk.discovery(matches!(
            path,
            DiscoveryPath::Group | DiscoveryPath::GroupVersion
        )),
        Class::OpenApi(path) => walk.discovery(
            path == OpenApiPath::V3Document
                && (info.group_version().is_some() || info.group().is_some()),
        ),
        Class::LocalOnly | Class::Other => walk.at_authority(Because::NonResource),
    }
}

/// The servers whose catalogue is too old to believe that nobody serves what was asked: read more than [`SURE`] before
/// the 404 came. The server that answered 404 needs not be asked. One that starts or is back may be another version than
/// the one that is known, and so may one that was down or stopping when it was last looked at: see [`is_readable`] and
/// [`must_be_sure`].
pub fn to_refresh<'a>(
    members: &'a Members,
    table: &'a Table,
    evidence: &'a Evidence,
) -> impl Iterator<Item = &'a Arc<Server>> {
    std::iter::once(&members.local)
        .chain(members.peers.iter())
        .filter(|server| candidates::is_doubtful(server, table, evidence))
}

/// Whether a server can be read, by what is known of it. One that cannot is looked at first.
pub fn is_readable(server: &Server) -> bool {
    matches!(server.health(), Health::Up | Health::Starting)
}

/// Whether a 404 is unconfirmed when this server could not be read again. One that is not up, or has left, serves nobody
/// until it can be read.
pub fn must_be_sure(server: &Server) -> bool {
    server.health() == Health::Up && server.membership() == Membership::Listed
}

/// One question, with all that it is answered from.
struct Walk<'a> {
    info: &'a RequestInfo,
    asker: &'a Asker,
    evidence: &'a Evidence,
    table: &'a Table,
    members: &'a Members,
    authority: &'a Arc<Server>,
    local_down: LocalDown,
}

const fn relay(because: Because) -> Decision {
    Decision {
        to: To::Relay,
        because,
    }
}

impl Walk<'_> {
    /// What every server can answer: the authority, or the next one if it fails.
    fn at_authority(&self, because: Because) -> Decision {
        match self.evidence.outcome(self.authority.id) {
            None if !self.evidence.is_full() => Decision::send(self.authority, because),
            Some(Outcome::NotFound) => relay(because),
            None | Some(_) => self.failed(),
        }
    }

    /// Discovery: the authority first; a group or group-version that it does not know, from a server that lists it.
    fn discovery(&self, may_be_elsewhere: bool) -> Decision {
        if !may_be_elsewhere || !self.evidence.any_not_found() {
            return self.at_authority(Because::Discovery);
        }
        let want = match (self.info.group_version(), self.info.group()) {
            (Some(group_version), _) => Want::Version(group_version),
            (None, Some(group)) => Want::Group(group),
            (None, None) => return relay(Because::Discovery),
        };
        self.elsewhere(want, Because::DiscoveryByPeer)
    }

    fn resource(&self) -> Decision {
        let Some(resource) = self.info.resource() else {
            return self.at_authority(Because::NonResource);
        };
        let (subresource, verb) = (self.info.subresource(), self.info.verb());
        let want = Want::Resource(Lookup::new(resource, subresource, verb));
        if self.evidence.outcome(self.authority.id).is_none() && !self.evidence.is_full() {
            match self.members.catalogue(self.authority.id) {
                Some(catalogue) if want.is_in(catalogue) => {
                    return Decision::send(self.authority, Because::AuthorityServes);
                }
                Some(_) => {}
                None => return Decision::send(self.authority, Because::AuthorityUnread),
            }
        } else if self.local_down == LocalDown::Refuse
            && self.evidence.failed(self.members.local.id)
        {
            return self.failed();
        }
        self.elsewhere(want, Because::PeerServes)
    }

    /// The rungs below "the authority serves it".
    fn elsewhere(&self, want: Want<'_>, because: Because) -> Decision {
        let survey = self.survey(want);
        if let Some(server) = survey.best {
            return Decision::send(server, because);
        }
        if let Some(server) = survey.last_resort {
            return Decision::send(server, Because::LastResort);
        }
        match survey.need {
            Need::Failed => return self.failed(),
            Need::Unavailable => {
                return Decision::refuse(Refusal::OnlyUnavailableServe, Because::OnlyUnavailable);
            }
            Need::Unproven => return Decision::refuse(Refusal::Unproven, Because::OnlyUnproven),
            Need::Nobody => {}
        }
        let ready = self.table.is_ready();
        match self.evidence.outcome(self.authority.id) {
            None if self.evidence.is_full() => self.failed(),
            None if ready => Decision::send(self.authority, Because::NobodyServes),
            None => Decision::send(self.authority, Because::NotReady),
            Some(Outcome::NotFound) => self.double_check(ready),
            Some(_) if self.evidence.any_not_found() => self.double_check(ready),
            Some(_) => self.failed(),
        }
    }

    /// A 404 for an unknown path or resource, and nobody is known to serve it.
    fn double_check(&self, ready: bool) -> Decision {
        if matches!(self.info.class(), Class::OpenApi(_)) {
            return relay(Because::NobodyServes);
        }
        match self.evidence.refresh() {
            _ if !ready => Decision::refuse(Refusal::NotReady, Because::NotReady),
            Refreshed::Failed => Decision::refuse(Refusal::Unconfirmed, Because::Unconfirmed),
            Refreshed::Done => relay(Because::Confirmed),
            Refreshed::No => {
                if to_refresh(self.members, self.table, self.evidence)
                    .next()
                    .is_some()
                {
                    Decision {
                        to: To::Refresh,
                        because: Because::Unconfirmed,
                    }
                } else {
                    relay(Because::Confirmed)
                }
            }
        }
    }

    fn failed(&self) -> Decision {
        Decision::refuse(self.evidence.blame(), Because::Failed)
    }
}

#[cfg(test)]
mod tests;
