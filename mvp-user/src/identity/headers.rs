//! The headers that carry an identity: which they are, how they are taken away, and how ours are written
//! (`k8s.io/client-go/transport/round_trippers.go`, and `headerrequest` on the receiving side).

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{ANONYMOUS, Caller, Reason, UNAUTHENTICATED, User, token};
use crate::config::{OtherHeaders, RequestHeaders};

const STANDARD_USER: HeaderName = HeaderName::from_static("x-remote-user");
const STANDARD_UID: HeaderName = HeaderName::from_static("x-remote-uid");
const STANDARD_GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const STANDARD_EXTRA: &str = "x-remote-extra-";
const STANDARD_CREDENTIAL: HeaderName =
    HeaderName::from_static("x-remote-extra-authentication.kubernetes.io%2fcredential-id");
/// The key `authentication.kubernetes.io/credential-id`: a `/` is not allowed in a header name, so it is escaped.
const CREDENTIAL_KEY: &str = "authentication.kubernetes.io%2fcredential-id";

/// Makes `headers` carry `caller` and nobody else: strips every identity header that is standard, configured or another
/// server's (any case, also with `_`), and writes ours. A front proxy's own headers pass. Tokens go where a certificate won. Call it after
/// hop-by-hop headers were removed, or a client could have ours removed by naming them.
pub fn forward_identity(caller: &Caller, headers: &mut HeaderMap, names: &RequestHeaders) {
    strip_identity(caller, headers, names);
    if let Caller::User(user) = caller {
        write(user, headers, names);
    }
}

/// The first half of that: nothing of ours is written.
pub fn strip_identity(caller: &Caller, headers: &mut HeaderMap, names: &RequestHeaders) {
    match caller {
        Caller::FrontProxy => token::remove(headers),
        Caller::User(_) => {
            strip(headers, names);
            token::remove(headers);
        }
        // Rejected ones are not forwarded at all; should that ever fail, nothing of theirs gets through.
        Caller::Token | Caller::Anonymous | Caller::Rejected(_) => strip(headers, names),
    }
}

fn strip(headers: &mut HeaderMap, names: &RequestHeaders) {
    let others = names.others.load();
    let found: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_one(name, names, &others))
        .cloned()
        .collect();
    for name in found {
        headers.remove(name);
    }
}

/// Whether a header carries an identity to any server of the cluster: a standard name, one that is known from a flag or from
/// what servers publish, or one that becomes such a name where `_` is taken for `-` (CGI and some servers do).
pub fn is_identity_header(name: &HeaderName, names: &RequestHeaders) -> bool {
    is_one(name, names, &names.others.load())
}

fn is_one(name: &HeaderName, names: &RequestHeaders, others: &OtherHeaders) -> bool {
    let configured = names.username.iter().chain(&names.uid).chain(&names.group);
    let standard = [&STANDARD_USER, &STANDARD_UID, &STANDARD_GROUP];
    let name = name.as_str().as_bytes();
    configured
        .chain(&others.names)
        .chain(standard)
        .any(|known| same(name, known.as_str().as_bytes()))
        || names
            .extra_prefix
            .iter()
            .chain(&others.prefixes)
            .map(String::as_str)
            .chain([STANDARD_EXTRA])
            .any(|prefix| {
                !prefix.is_empty()
                    && name
                        .get(..prefix.len())
                        .is_some_and(|start| same(start, prefix.as_bytes()))
            })
}

/// Equal without regard to case and to the difference between `_` and `-`.
fn same(left: &[u8], right: &[u8]) -> bool {
    let fold = |byte: &u8| {
        if *byte == b'_' {
            b'-'
        } else {
            byte.to_ascii_lowercase()
        }
    };
    left.len() == right.len() && left.iter().map(fold).eq(right.iter().map(fold))
}

fn write(user: &User, headers: &mut HeaderMap, names: &RequestHeaders) {
    // A configured name is shared by all threads and counts its clones; the standard one does not.
    let first = |list: &[HeaderName], standard: HeaderName| match list.first() {
        Some(name) if *name != standard => name.clone(),
        _ => standard,
    };
    headers.insert(
        first(&names.username, STANDARD_USER),
        user.lines.name.clone(),
    );
    if let Some(uid) = &user.lines.uid {
        headers.insert(first(&names.uid, STANDARD_UID), uid.clone());
    }
    let group = first(&names.group, STANDARD_GROUP);
    for line in &user.lines.groups {
        headers.append(group.clone(), line.clone());
    }
    headers.insert(credential_header(names), user.lines.credential_id.clone());
}

fn credential_header(names: &RequestHeaders) -> HeaderName {
    match names.extra_prefix.first() {
        Some(prefix) if !prefix.eq_ignore_ascii_case(STANDARD_EXTRA) => {
            HeaderName::try_from(format!("{prefix}{CREDENTIAL_KEY}")).unwrap_or(STANDARD_CREDENTIAL)
        }
        _ => STANDARD_CREDENTIAL,
    }
}

/// `headerValue` of `headerrequest`: of each name in turn the first line; the first that is not empty wins.
fn user<'a>(headers: &'a HeaderMap, names: &RequestHeaders) -> Option<&'a HeaderValue> {
    names
        .username
        .iter()
        .filter_map(|name| headers.get(name))
        .find(|value| !value.is_empty())
}

/// Whether a front proxy names a user.
pub(super) fn names_user(headers: &HeaderMap, names: &RequestHeaders) -> bool {
    user(headers, names).is_some()
}

/// Whether the user that a front proxy names is one whose connections kube-apiserver ends.
pub(super) fn is_anonymous(headers: &HeaderMap, names: &RequestHeaders) -> bool {
    user(headers, names).is_some_and(|user| user == ANONYMOUS)
        || names
            .group
            .iter()
            .flat_map(|name| headers.get_all(name))
            .any(|group| group == UNAUTHENTICATED)
}

/// The value as a header, if it arrives unchanged: Go trims space and tab at both ends, and control bytes are not
/// allowed. Everything above ASCII passes as it is.
pub(super) fn representable(value: &str) -> Result<HeaderValue, Reason> {
    let bytes = value.as_bytes();
    let blank = |byte: Option<&u8>| matches!(byte, None | Some(b' ' | b'\t'));
    if blank(bytes.first()) || blank(bytes.last()) || bytes.iter().any(u8::is_ascii_control) {
        return Err(Reason::NotRepresentable);
    }
    HeaderValue::from_bytes(bytes).map_err(|_invalid| Reason::NotRepresentable)
}
