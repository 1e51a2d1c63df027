//! Header hygiene: what belongs to one connection goes, who asked and from where is written, nothing is left to doubt.

use std::net::IpAddr;

use bytes::{BufMut as _, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Uri, Version,
    header::{self, Entry},
    uri::{Authority, PathAndQuery, Scheme},
};

use crate::api::PEER_PROXIED;

pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// What belongs to one connection, beside `TE`.
static HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    header::PROXY_AUTHORIZATION,
    header::PROXY_AUTHENTICATE,
    header::UPGRADE,
    header::TRANSFER_ENCODING,
];
/// Marks a rerouted request (KEP-4020).
pub(super) const MARKER: HeaderName = HeaderName::from_static(PEER_PROXIED);
/// What few clients send, and what is taken out or changed.
static SELDOM: [HeaderName; 3] = [MARKER, X_REAL_IP, X_FORWARDED_FOR];
/// Bearer tokens of browsers (`k8s.io/apiserver/pkg/authentication/request/websocket/protocol.go`).
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The protocols that may be upgraded to; anything else, such as h2c, is a plain request.
const UPGRADES: [&str; 2] = ["websocket", "SPDY/3.1"];

/// Whether there is nothing of [`SELDOM`], as most often: to look at what is there costs less than to look each of them up.
pub(super) fn is_plain(headers: &HeaderMap) -> bool {
    !headers.keys().any(|name| SELDOM.contains(name))
}

/// What the client wants to upgrade to, as it spelt it: `Connection` lists `upgrade`, and `Upgrade` names one of ours.
pub(super) fn upgrade(headers: &HeaderMap, version: Version) -> Option<HeaderValue> {
    if version != Version::HTTP_11 || !lists(headers, &header::CONNECTION, "upgrade") {
        return None;
    }
    let ours = |token: &str| UPGRADES.iter().any(|it| it.eq_ignore_ascii_case(token));
    headers.get_all(header::UPGRADE).iter().find_map(|value| {
        let text = value.to_str().ok()?;
        if ours(text.trim()) {
            return Some(value.clone());
        }
        let token = text.split(',').map(str::trim).find(|it| ours(it))?;
        HeaderValue::from_str(token).ok()
    })
}

/// Whether one of the lines of `name` lists `token`.
pub(super) fn lists(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers.get_all(name).iter().any(|value| {
        value.to_str().is_ok_and(|value| {
            value
                .split(',')
                .any(|it| it.trim().eq_ignore_ascii_case(token))
        })
    })
}

/// Removes what belongs to the connection a message came on (RFC 9110, 7.6.1). HTTP/2 has none of it: h2 refuses such
/// messages as malformed, but for `TE`.
///
/// `kept` names what `Connection` cannot take away besides.
pub(super) fn strip_hop_by_hop(
    headers: &mut HeaderMap,
    version: Version,
    kept: impl Fn(&HeaderName) -> bool,
) {
    let http2 = version == Version::HTTP_2;
    let is_one = |name: &HeaderName| *name == header::TE || !http2 && HOP_BY_HOP.contains(name);
    // Nearly always there is none of them, and to look at what is there costs less than to look each of them up.
    if !headers.keys().any(is_one) {
        return;
    }
    headers.remove(header::TE);
    if http2 {
        return;
    }
    if let Entry::Occupied(connection) = headers.entry(header::CONNECTION) {
        let (_, values) = connection.remove_entry_mult();
        let named: Vec<HeaderName> = values
            .filter_map(|value| {
                let names = value.to_str().ok()?.split(',');
                Some(
                    names
                        .filter_map(|name| name.trim().parse().ok())
                        .collect::<Vec<_>>(),
                )
            })
            .flatten()
            .collect();
        for name in named {
            // A client cannot have the length of its own message forgotten on the way.
            if name != header::CONTENT_LENGTH && name != header::HOST && !kept(&name) {
                headers.remove(name);
            }
        }
    }
    // Hyper has judged both already and drops the length if there are both.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// What says who asks and from where. kube-apiserver reads it whatever `Connection` lists (it knows no hop-by-hop
/// headers), so that a client behind a proxy that impersonates must not have the impersonation forgotten here.
pub(super) fn is_end_to_end(name: &HeaderName) -> bool {
    *name == header::AUTHORIZATION
        || *name == X_FORWARDED_FOR
        || name.as_str().starts_with("impersonate-")
}

/// Where the client is, as a header: computed once per connection.
pub(super) fn address_value(address: IpAddr) -> HeaderValue {
    // An address as text is always a valid value.
    HeaderValue::try_from(address.to_canonical().to_string())
        .unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

/// One `X-Forwarded-For` line: what the client sent, then the address it came from (kube-apiserver reads only the first
/// line). `X-Real-Ip`, which would come before the socket's address in audit logs, goes.
pub(super) fn forwarded_for(headers: &mut HeaderMap, client: &HeaderValue) {
    headers.remove(X_REAL_IP);
    match headers.entry(X_FORWARDED_FOR) {
        Entry::Vacant(entry) => {
            entry.insert(client.clone());
        }
        Entry::Occupied(mut entry) => {
            let mut joined = BytesMut::new();
            for value in entry.iter().filter(|value| !value.is_empty()) {
                joined.put_slice(value.as_bytes());
                joined.put_slice(b", ");
            }
            joined.put_slice(client.as_bytes());
            // Parts of valid values, and a comma: always valid.
            if let Ok(value) = HeaderValue::from_maybe_shared(joined.freeze()) {
                entry.insert(value);
            }
        }
    }
}

/// Takes a token out of the subprotocols of a `WebSocket` whose caller is known by certificate: the upstream has no use
/// for it. A lone one stays, and is the upstream's to refuse.
pub(super) fn drop_token_protocols(headers: &mut HeaderMap) {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL);
    let is_token = |protocol: &&str| protocol.starts_with(TOKEN_PROTOCOL);
    let protocols = || {
        values
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|protocol| !protocol.is_empty())
    };
    if !protocols().any(|protocol| is_token(&protocol)) {
        return;
    }
    let rest: Vec<&str> = protocols().filter(|it| !is_token(it)).collect();
    if let Ok(value) = HeaderValue::try_from(rest.join(", "))
        && !rest.is_empty()
    {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
    }
}

/// The URI in absolute form with path and query byte for byte, the authority taken from Host where HTTP/1.1 has it.
/// `Err` says what is wrong, in Go's words.
pub(super) fn absolute(
    uri: Uri,
    headers: &mut HeaderMap,
    version: Version,
) -> Result<Uri, &'static str> {
    if uri.scheme() == Some(&Scheme::HTTPS) && uri.authority().is_some() {
        headers.remove(header::HOST);
        return Ok(uri);
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().cloned();
    if hosts.next().is_some() {
        return Err("too many Host headers");
    }
    let mut parts = uri.into_parts();
    parts.authority = match (parts.authority.take(), host) {
        (Some(authority), _) => Some(authority),
        (None, Some(host)) if !host.is_empty() => {
            Some(Authority::try_from(host.as_bytes()).map_err(|_invalid| "malformed Host header")?)
        }
        (None, None) if version == Version::HTTP_11 => {
            return Err("missing required Host header");
        }
        // HTTP/1.0 and an empty Host name nobody; an authority must be there, and kube-apiserver reads it only for links.
        (None, _) => Some(Authority::from_static("kubernetes.default.svc")),
    };
    headers.remove(header::HOST);
    parts.scheme = Some(Scheme::HTTPS);
    if parts.path_and_query.is_none() {
        parts.path_and_query = Some(PathAndQuery::from_static("/"));
    }
    Uri::from_parts(parts).map_err(|_invalid| "malformed request target")
}
