//! Whether a request carries a bearer token that kube-apiserver would look at, and how the websocket form of it is
//! taken out. Tokens are never read, kept or logged.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// `bearerProtocolPrefix` of `k8s.io/apiserver/pkg/authentication/request/websocket/protocol.go`.
const PROTOCOL_PREFIX: &[u8] = b"base64url.bearer.authorization.k8s.io.";

/// In either form. A token that is bad counts: the upstream says so.
pub(super) fn is_present(headers: &HeaderMap) -> bool {
    in_authorization(headers) || in_protocols(headers)
}

/// `bearertoken.Authenticator`: the first line only, the scheme in any case, the token up to the next space.
fn in_authorization(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return false;
    };
    let mut parts = value
        .as_bytes()
        .trim_ascii()
        .splitn(3, |byte| *byte == b' ');
    let scheme = parts.next().unwrap_or_default();
    let token = parts.next().unwrap_or_default();
    scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty()
}

/// `websocket.ProtocolAuthenticator`: only in a websocket request, in any line of the header.
fn in_protocols(headers: &HeaderMap) -> bool {
    is_websocket(headers)
        && headers
            .get_all(header::SEC_WEBSOCKET_PROTOCOL)
            .iter()
            .flat_map(protocols)
            .any(is_token)
}

/// `wsstream.IsWebSocketRequest`.
fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE);
    let mut connection = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(protocols);
    upgrade.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && connection.any(|name| name.eq_ignore_ascii_case(b"upgrade"))
}

fn protocols(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value
        .as_bytes()
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
}

fn is_token(protocol: &[u8]) -> bool {
    protocol.starts_with(PROTOCOL_PREFIX)
}

/// Takes both forms out: the identity is another one.
pub(super) fn remove(headers: &mut HeaderMap) {
    let carries = |name: &HeaderName| {
        *name == header::AUTHORIZATION || *name == header::SEC_WEBSOCKET_PROTOCOL
    };
    // As most often: to look at what is there costs less than to look both of them up.
    if !headers.keys().any(carries) {
        return;
    }
    headers.remove(header::AUTHORIZATION);
    let lines = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL);
    if !lines.iter().flat_map(protocols).any(is_token) {
        return;
    }
    let kept: Vec<HeaderValue> = lines
        .iter()
        .filter_map(|line| {
            let rest: Vec<&[u8]> = protocols(line).filter(|name| !is_token(name)).collect();
            HeaderValue::from_bytes(&rest.join(&b", "[..]))
                .ok()
                .filter(|line| !line.is_empty())
        })
        .collect();
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    for line in kept {
        headers.append(header::SEC_WEBSOCKET_PROTOCOL, line);
    }
}
