//! Who asks: a client certificate becomes a user and groups, a bearer token passes through; strips and writes the
//! headers that carry an identity. Pure: no clock, no socket.
//!
//! Nothing is enforced here: kube-apiserver decides on the identity that is forwarded (design 4.2, 4.3). The order is
//! that of its authenticators (`pkg/kubeapiserver/authenticator/config.go`): front proxy, x509, token, anonymous; all
//! are tried, and where none succeeds but one erred, anonymous is not.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue};
use rustls_pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

use crate::{
    config::RequestHeaders,
    tls::{Anchors, Authorities},
};

mod headers;
mod judge;
mod subject;
#[cfg(test)]
mod tests;
mod token;

pub use headers::{forward_identity, is_identity_header, strip_identity};
use subject::Leaf;

/// Who a request comes from, in kube-apiserver's order (design 4.2).
#[derive(Clone, Debug)]
pub enum Caller {
    /// A trusted front proxy that names the user in headers; they pass.
    FrontProxy,
    /// The user of a client certificate.
    User(Arc<User>),
    /// No (usable) certificate, but a bearer token: the upstream decides.
    Token,
    /// Neither certificate nor token.
    Anonymous,
    /// A certificate that yields no identity, and no token: 401.
    Rejected(Reason),
}

/// The identity in a verified client certificate; made here and nowhere else, and every part of it can be a header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    name: String,
    uid: Option<String>,
    groups: Vec<String>,
    credential_id: String,
    /// The same as headers, made once.
    lines: Lines,
    anonymous: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Lines {
    name: HeaderValue,
    uid: Option<HeaderValue>,
    groups: Vec<HeaderValue>,
    credential_id: HeaderValue,
}

/// Why a certificate yields no identity. [`Reason::as_str`] is the word in logs and metrics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// It cannot be parsed; Go breaks off the handshake with such a client.
    Malformed,
    /// No configured CA issued it, or a signature in its chain is wrong.
    UnknownIssuer,
    /// It, or a CA above it, is past its validity.
    Expired,
    /// It, or a CA above it, is not valid yet.
    NotYetValid,
    /// It is not for client authentication, or a CA above it may not issue it.
    WrongUsage,
    /// webpki refuses it for a reason that Go may not know (X.509 v1, an unknown critical extension, ...).
    Undecidable,
    /// A front proxy whose CN is not among `--requestheader-allowed-names`, and no user.
    NameNotAllowed,
    /// No common name.
    NoCommonName,
    /// Several UID attributes, or an empty one.
    BadUid,
    /// The name, the UID or a group does not survive a header unchanged (design 4.2).
    NotRepresentable,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Malformed,
        Self::UnknownIssuer,
        Self::Expired,
        Self::NotYetValid,
        Self::WrongUsage,
        Self::Undecidable,
        Self::NameNotAllowed,
        Self::NoCommonName,
        Self::BadUid,
        Self::NotRepresentable,
    ];

    /// The stable word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "certificate_malformed",
            Self::UnknownIssuer => "certificate_unknown_issuer",
            Self::Expired => "certificate_expired",
            Self::NotYetValid => "certificate_not_yet_valid",
            Self::WrongUsage => "certificate_wrong_usage",
            Self::Undecidable => "certificate_undecidable",
            Self::NameNotAllowed => "certificate_name_not_allowed",
            Self::NoCommonName => "certificate_no_common_name",
            Self::BadUid => "certificate_bad_uid",
            Self::NotRepresentable => "certificate_not_representable",
        }
    }
}

/// The certificate chain that a client presented, parsed once per connection.
#[derive(Debug)]
pub struct Presented {
    chain: Vec<CertificateDer<'static>>,
    leaf: Result<Leaf, Reason>,
    /// First and last second of validity of every certificate in the chain.
    validity: Vec<(u64, u64)>,
    verdict: Option<Verdict>,
}

/// What the certificate alone is worth. It holds for one generation of CAs, and between two moments at which a
/// certificate or CA begins or ceases to be valid.
#[derive(Clone, Debug)]
struct Verdict {
    generation: u64,
    from: u64,
    until: u64,
    front_proxy: Step<()>,
    user: Step<Arc<User>>,
}

/// The answer of one authenticator. kube-apiserver tells apart whether it has nothing to say or found an error.
#[derive(Clone, Debug)]
enum Step<T> {
    Yes(T),
    Nothing,
    Error(Reason),
}

impl Presented {
    /// Parses the leaf; a chain that cannot be parsed yields no identity. None if there is no certificate at all.
    pub fn new(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let first = chain.first()?;
        let validity = chain.iter().filter_map(|der| validity(der)).collect();
        Some(Self {
            leaf: Leaf::parse(first),
            chain: chain.iter().map(|der| der.clone().into_owned()).collect(),
            validity,
            verdict: None,
        })
    }

    /// Who asks. The verdict on the certificate is taken anew when the CAs changed or a time bound passed.
    pub fn caller(
        &mut self,
        headers: &HeaderMap,
        authorities: &Authorities,
        names: &RequestHeaders,
        now: SystemTime,
    ) -> Caller {
        let verdict = self.verdict(authorities, now);
        if matches!(verdict.front_proxy, Step::Yes(())) && headers::names_user(headers, names) {
            return Caller::FrontProxy;
        }
        if let Step::Yes(user) = &verdict.user {
            return Caller::User(Arc::clone(user));
        }
        if token::is_present(headers) {
            return Caller::Token;
        }
        self.fault().map_or(Caller::Anonymous, Caller::Rejected)
    }

    /// Why the certificate yielded no identity, if [`Presented::caller`] just said `Token` or `Rejected`: to be counted, and
    /// told; none: nobody erred. The x509 authenticator says more, except that it did not issue a certificate which may have
    /// been meant for the other one.
    pub fn fault(&self) -> Option<Reason> {
        let verdict = self.verdict.as_ref()?;
        let nameless = self
            .leaf
            .as_ref()
            .is_ok_and(|leaf| leaf.common_name.is_empty());
        match (&verdict.front_proxy, &verdict.user) {
            (Step::Error(Reason::UnknownIssuer), Step::Nothing) if nameless => {
                Some(Reason::NoCommonName)
            }
            (
                Step::Error(reason),
                Step::Error(Reason::UnknownIssuer) | Step::Nothing | Step::Yes(_),
            )
            | (_, Step::Error(reason)) => Some(*reason),
            _ => None,
        }
    }

    /// The subject for logs; the certificate may be anybody's, so print it escaped (`{:?}`).
    pub fn subject(&self) -> String {
        self.chain
            .first()
            .and_then(|der| X509Certificate::from_der(der).ok())
            .map(|(_, parsed)| parsed.subject().to_string())
            .unwrap_or_default()
    }

    fn verdict(&mut self, authorities: &Authorities, now: SystemTime) -> &Verdict {
        let now = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO)
            .as_secs();
        let holds = self.verdict.take().filter(|verdict| {
            verdict.generation == authorities.generation
                && (verdict.from..verdict.until).contains(&now)
        });
        let verdict = holds.unwrap_or_else(|| self.judge(authorities, now));
        self.verdict.insert(verdict)
    }

    fn judge(&self, authorities: &Authorities, now: u64) -> Verdict {
        let anchors = [&authorities.client, &authorities.requestheader];
        let limits = anchors
            .into_iter()
            .flatten()
            .flat_map(Anchors::all_limits)
            .map(|limits| (limits.not_before, limits.not_after));
        let (from, until) = period(self.validity.iter().copied().chain(limits), now);
        Verdict {
            generation: authorities.generation,
            from,
            until,
            front_proxy: self.front_proxy(authorities, now),
            user: self.user(authorities, now),
        }
    }

    /// The leaf, if its chain leads to one of `anchors`.
    fn verified(&self, anchors: &Anchors, now: u64) -> Result<&Leaf, Reason> {
        let leaf = self.leaf.as_ref().map_err(|reason| *reason)?;
        judge::chain(&self.chain, anchors, now)?;
        Ok(leaf)
    }

    /// `NewDynamicVerifyOptionsSecure` of `k8s.io/apiserver/pkg/authentication/request/headerrequest`: the chain, then
    /// the CN; whether a user header is there is asked at each request.
    fn front_proxy(&self, authorities: &Authorities, now: u64) -> Step<()> {
        let Some(anchors) = &authorities.requestheader else {
            return Step::Nothing;
        };
        let leaf = match self.verified(anchors, now) {
            Ok(leaf) => leaf,
            Err(reason) => return Step::Error(reason),
        };
        let allowed = &authorities.allowed_names;
        if allowed.is_empty() || allowed.contains(&leaf.common_name) {
            Step::Yes(())
        } else {
            Step::Error(Reason::NameNotAllowed)
        }
    }

    /// `x509.Authenticator` with `CommonNameUserConversion` (`k8s.io/apiserver/pkg/authentication/request/x509`).
    fn user(&self, authorities: &Authorities, now: u64) -> Step<Arc<User>> {
        let Some(anchors) = &authorities.client else {
            return Step::Nothing;
        };
        let leaf = match self.verified(anchors, now) {
            Ok(leaf) => leaf,
            Err(reason) => return Step::Error(reason),
        };
        if leaf.common_name.is_empty() {
            return Step::Nothing;
        }
        match self.chain.first().map(|der| leaf.user(der)) {
            Some(Ok(user)) => Step::Yes(Arc::new(user)),
            Some(Err(reason)) => Step::Error(reason),
            None => Step::Error(Reason::Malformed),
        }
    }
}

/// Who asks, where no certificate was presented.
pub fn without_certificate(headers: &HeaderMap) -> Caller {
    if token::is_present(headers) {
        Caller::Token
    } else {
        Caller::Anonymous
    }
}

/// Whether the upstream takes the request for an anonymous one although it comes over the front-proxy connection: it
/// ends such connections (GOAWAY), so the request needs a pair of its own (design 4.3). Impersonation does not matter:
/// kube-apiserver looks before it impersonates.
pub fn ends_connections(caller: &Caller, headers: &HeaderMap, names: &RequestHeaders) -> bool {
    match caller {
        Caller::FrontProxy => headers::is_anonymous(headers, names),
        Caller::User(user) => user.anonymous,
        Caller::Token | Caller::Anonymous | Caller::Rejected(_) => true,
    }
}

const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

impl User {
    /// Fails if a value would not survive a header unchanged.
    fn new(
        name: String,
        uid: Option<String>,
        groups: Vec<String>,
        credential_id: String,
    ) -> Result<Self, Reason> {
        let lines = Lines {
            name: headers::representable(&name)?,
            uid: uid.as_deref().map(headers::representable).transpose()?,
            groups: groups
                .iter()
                .map(|group| headers::representable(group))
                .collect::<Result<_, _>>()?,
            credential_id: headers::representable(&credential_id)?,
        };
        let anonymous = name == ANONYMOUS || groups.iter().any(|group| group == UNAUTHENTICATED);
        Ok(Self {
            name,
            uid,
            groups,
            credential_id,
            lines,
            anonymous,
        })
    }

    /// Last CN of the subject.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Attribute 1.3.6.1.4.1.57683.2 of the subject.
    pub fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    /// Every O of the subject, in order; `system:authenticated` is added by the upstream.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// `X509SHA256=` and the hex SHA-256 of the certificate.
    pub fn credential_id(&self) -> &str {
        &self.credential_id
    }
}

/// First and last second of validity; what cannot be parsed has no bounds (and gives no identity at any time).
fn validity(der: &CertificateDer<'_>) -> Option<(u64, u64)> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
    Some((
        seconds(parsed.validity().not_before.timestamp()),
        seconds(parsed.validity().not_after.timestamp()),
    ))
}

/// The stretch of time around `now` in which no certificate begins or ceases to be valid: from inclusive, until
/// exclusive.
fn period(bounds: impl Iterator<Item = (u64, u64)>, now: u64) -> (u64, u64) {
    bounds
        .flat_map(|(first, last)| [first, last.saturating_add(1)])
        .fold((0, u64::MAX), |(from, until), moment| {
            if moment <= now {
                (from.max(moment), until)
            } else {
                (from, until.min(moment))
            }
        })
}
