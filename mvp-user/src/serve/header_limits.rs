//! What the headers of a request may be, so that neither mvp nor an upstream connection of many clients comes to harm by them.
//! Not for reading them (`conn` has the bounds of that).

use std::collections::HashSet;

use http::HeaderMap;

use super::conn::MAX_HEADERS;

/// Different header names that a request may have. A `HeaderMap` panics where its table cannot grow any more: at the
/// 24,577th name, or if their hashes collide, at the 6,554th; and what is forwarded gets some more.
const MAX_HEADER_NAMES: usize = 4096;
/// Headers of a request that may go over a connection with those of other clients: no usual request has more. What is
/// forwarded has a path and an identity besides, and is longer on the wire where characters are rare. Go's server ends the
/// whole connection at a frame more than twice as long as what is left of its 1 MiB (`readMetaFrame` of
/// `golang.org/x/net/http2`), so that one client could cut off all others; so far below it none is.
pub(super) const MAX_SHARED_HEADERS: usize = 128 * 1024;
/// What a request may repeat of its headers. HPACK has a field that was there before in one byte, and what is forwarded has
/// most of it in full: 300 bytes of a client, without credentials, would be 1 MiB to write here and to read for a server. No
/// usual request comes near.
const MAX_REPEATED: usize = 64 * 1024;

/// Whether a header has a name that the http crate takes over HTTP/2 and Go's server does not: a quotation mark is in no token
/// (RFC 9110, 5.6.2). Where another frame follows, Go ends the connection for it, with everybody's requests.
pub(super) fn has_bad_name(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().contains('"'))
}

/// Whether a request has more headers than kube-apiserver takes, more names than can be forwarded, or too much that the client
/// did not send.
pub(super) fn is_too_large(headers: &HeaderMap, size: usize) -> bool {
    headers.keys_len() > MAX_HEADER_NAMES
        || size > MAX_HEADERS as usize
        || size > MAX_REPEATED && repeated(headers) > MAX_REPEATED
}

/// How much of the headers is there twice by reference: values, and the names of further ones.
fn repeated(headers: &HeaderMap) -> usize {
    let (mut seen, mut last, mut size) = (HashSet::new(), None, 0);
    for (name, value) in headers {
        if last.replace(name) == Some(name) {
            size += name.as_str().len();
        }
        // One that the decoder took from its table shares that one's bytes; what was sent twice does not.
        if !seen.insert(value.as_bytes().as_ptr()) {
            size += value.len();
        }
    }
    size
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::upstream::header_list_size;

    fn headers(name: &str, values: impl Iterator<Item = HeaderValue>) -> HeaderMap {
        let name = HeaderName::try_from(name).unwrap();
        values.map(|value| (name.clone(), value)).collect()
    }

    #[test]
    fn what_a_client_did_not_send_is_bounded() {
        let of = |length: usize| HeaderValue::try_from("a".repeat(length)).unwrap();
        let one = of(3000);
        let group = |number: usize| HeaderValue::try_from(format!("group-{number:030}")).unwrap();
        let long = "x".repeat(3000);
        for (what, headers, too_large) in [
            (
                "one value again and again",
                headers("x-pad", std::iter::repeat_n(one.clone(), 250)),
                true,
            ),
            (
                "the same, a few times",
                headers("x-pad", std::iter::repeat_n(one, 20)),
                false,
            ),
            (
                "equal values, each of them sent",
                headers("x-pad", (0..250).map(|_| of(3000))),
                false,
            ),
            (
                "one long name again and again",
                headers(&long, (0..250).map(|_| of(1))),
                true,
            ),
            (
                "a user of many groups",
                headers("x-remote-group", (0..2000).map(group)),
                false,
            ),
        ] {
            let size = header_list_size(&headers);
            assert_eq!(is_too_large(&headers, size), too_large, "{what}");
        }
    }
}
