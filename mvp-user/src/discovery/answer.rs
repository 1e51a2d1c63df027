//! An answer that authorises: the key to every completed document.
//!
//! [`Authorised`] can only be made from a server's own 200 or 304 to the caller's request, and everything that gives a
//! completed document away takes one. So no cache can be asked on behalf of someone whom no server has let in.

use std::{
    collections::VecDeque,
    io::Write as _,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response::Parts};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;

use super::unpack::Unpacked;
use crate::{
    api::wire::{self, WireError},
    body::{Body, BodyError},
    reply::{Refusal, Side, refuse},
};

/// kube-apiserver compresses what is larger (k/k PR 77449).
const GZIP_FROM: usize = 128 << 10;

/// A server's 200 or 304.
#[derive(Debug)]
pub(super) struct Authorised {
    parts: Parts,
    body: Body,
    side: Side,
}

/// Why there are no bytes to complete.
#[derive(Debug)]
pub(super) enum Unread {
    /// The body broke off: there is nothing to relay.
    Broken,
    /// More than the bound, or an unknown coding: relayed as it is.
    Opaque(WireError),
}

/// What the client is to see instead of the server's body.
pub(super) struct Completion {
    pub(super) plain: Plain,
    /// The same, compressed; used if the client takes gzip.
    pub(super) gzip: Option<Bytes>,
    pub(super) content_type: HeaderValue,
    pub(super) etag: Option<HeaderValue>,
    /// How kube-apiserver compares the `ETag` of such a document.
    pub(super) comparison: Comparison,
}

/// A document for those who do not take gzip.
pub(super) enum Plain {
    /// As it is.
    Bytes(Bytes),
    /// Kept compressed, and how long it is.
    Packed(Bytes, usize),
    /// To HEAD, of a document that nobody has built.
    Unknown,
}

/// How If-None-Match is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Comparison {
    /// Byte by byte, as aggregated discovery does.
    Exact,
    /// As RFC 9110, 13.1.2: `*`, lists, weak tags. OpenAPI is served by Go's `http.ServeContent`.
    Weak,
}

/// What the client's request said about the form of the answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    pub(super) if_none_match: Option<HeaderValue>,
    pub(super) gzip: bool,
    pub(super) head: bool,
}

impl Client {
    /// Whether the client has the document with this tag already.
    pub(super) fn has(&self, etag: &HeaderValue, comparison: Comparison) -> bool {
        self.if_none_match
            .as_ref()
            .is_some_and(|named| match comparison {
                Comparison::Exact => named == etag,
                Comparison::Weak => names(named.as_bytes(), etag.as_bytes()),
            })
    }
}

/// Whether a list of tags names `etag`, weakly compared. Reads as Go does: up to the first thing that is no tag.
fn names(mut list: &[u8], etag: &[u8]) -> bool {
    loop {
        list = list.trim_ascii_start();
        match list {
            [] => return false,
            [b',', rest @ ..] => list = rest,
            [b'*', ..] => return true,
            _ => {
                let opaque = list.strip_prefix(b"W/").unwrap_or(list);
                let end = opaque
                    .strip_prefix(b"\"")
                    .and_then(|inner| inner.iter().position(|byte| *byte == b'"'));
                let Some(end) = end else { return false };
                let (tag, rest) = opaque.split_at(end + 2);
                if tag == etag {
                    return true;
                }
                list = rest;
            }
        }
    }
}

impl Authorised {
    /// The answer, if it authorises; otherwise it is given back to be relayed.
    #[expect(
        clippy::result_large_err,
        reason = "the other way out is the answer itself, which is relayed"
    )]
    pub(super) fn check(side: Side, answer: Response<Body>) -> Result<Self, Response<Body>> {
        if matches!(answer.status(), StatusCode::OK | StatusCode::NOT_MODIFIED) {
            let (parts, body) = answer.into_parts();
            Ok(Self { parts, body, side })
        } else {
            Err(answer)
        }
    }

    /// 304: the server has what was named in If-None-Match.
    pub(super) fn is_unchanged(&self) -> bool {
        self.parts.status == StatusCode::NOT_MODIFIED
    }

    pub(super) fn text(&self, name: &HeaderName) -> Option<&str> {
        self.parts.headers.get(name)?.to_str().ok()
    }

    pub(super) fn etag(&self) -> Option<&HeaderValue> {
        self.parts.headers.get(header::ETAG)
    }

    pub(super) fn content_type(&self) -> Option<&HeaderValue> {
        self.parts.headers.get(header::CONTENT_TYPE)
    }

    /// The plain body, at most `limit` bytes of it. Whatever happens but [`Unread::Broken`], [`Self::relay`] still gives
    /// the server's answer.
    pub(super) async fn read(&mut self, limit: usize) -> Result<Bytes, Unread> {
        let mut body = std::mem::take(&mut self.body);
        let mut seen = VecDeque::new();
        let mut length = 0;
        let mut whole = BytesMut::new();
        while length <= limit {
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        length += data.len();
                        seen.push_back(data);
                    }
                }
                Some(Err(_)) => return Err(Unread::Broken),
                None => {
                    for data in seen {
                        whole.extend_from_slice(&data);
                    }
                    let raw = whole.freeze();
                    self.body = Body::full(raw.clone());
                    return self.plain(raw, limit).map_err(Unread::Opaque);
                }
            }
        }
        self.body = Body::boxed(Replayed { seen, rest: body });
        Err(Unread::Opaque(WireError::TooLarge(limit)))
    }

    fn plain(&self, raw: Bytes, limit: usize) -> Result<Bytes, WireError> {
        match self.text(&header::CONTENT_ENCODING) {
            None => Ok(raw),
            coding => wire::decompress(coding, &raw, limit).map(Bytes::from),
        }
    }

    /// The server's answer as it came.
    pub(super) fn relay(self) -> Response<Body> {
        Response::from_parts(self.parts, self.body)
    }

    /// The server's 304 to a client that has its document, also where it had to be asked without condition.
    pub(super) fn unchanged(mut self) -> Response<Body> {
        for name in [
            header::CONTENT_LENGTH,
            header::CONTENT_ENCODING,
            header::CONTENT_TYPE,
            header::TRANSFER_ENCODING,
        ] {
            self.parts.headers.remove(name);
        }
        self.parts.status = StatusCode::NOT_MODIFIED;
        Response::from_parts(self.parts, Body::Empty)
    }

    /// Nothing can be relayed.
    pub(super) fn broken(self) -> Response<Body> {
        refuse(Refusal::Unreachable(self.side))
    }

    /// The server's answer to HEAD, without what it says of a document that the client would not get.
    pub(super) fn bare(mut self) -> Response<Body> {
        for name in [
            header::CONTENT_LENGTH,
            header::CONTENT_ENCODING,
            header::ETAG,
            header::ACCEPT_RANGES,
            header::LAST_MODIFIED,
        ] {
            self.parts.headers.remove(name);
        }
        Response::from_parts(self.parts, Body::Empty)
    }

    /// The document is elsewhere: it has another hash by now.
    pub(super) fn redirect(mut self, location: &str) -> Response<Body> {
        let Ok(to) = HeaderValue::try_from(location) else {
            return self.broken();
        };
        for name in [
            header::CONTENT_ENCODING,
            header::TRANSFER_ENCODING,
            header::ETAG,
            header::ACCEPT_RANGES,
            header::LAST_MODIFIED,
        ] {
            self.parts.headers.remove(name);
        }
        let headers = &mut self.parts.headers;
        headers.insert(header::LOCATION, to);
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(0));
        self.parts.status = StatusCode::MOVED_PERMANENTLY;
        Response::from_parts(self.parts, Body::Empty)
    }

    /// The server's headers around the completed document.
    pub(super) fn complete(mut self, client: &Client, document: Completion) -> Response<Body> {
        let unchanged = document
            .etag
            .as_ref()
            .is_some_and(|etag| client.has(etag, document.comparison));
        let headers = &mut self.parts.headers;
        for name in [
            header::CONTENT_LENGTH,
            header::CONTENT_ENCODING,
            header::TRANSFER_ENCODING,
            header::ETAG,
        ] {
            headers.remove(name);
        }
        for name in [header::ACCEPT_RANGES, header::LAST_MODIFIED] {
            headers.remove(name);
        }
        if let Some(etag) = document.etag {
            headers.insert(header::ETAG, etag);
        }
        if unchanged {
            headers.remove(header::CONTENT_TYPE);
            self.parts.status = StatusCode::NOT_MODIFIED;
            return Response::from_parts(self.parts, Body::Empty);
        }
        self.parts.status = StatusCode::OK;
        headers.insert(header::CONTENT_TYPE, document.content_type);
        let (length, body) = match (document.gzip, document.plain) {
            (Some(compressed), _) if client.gzip => {
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                vary_by_encoding(headers);
                (Some(compressed.len()), Body::full(compressed))
            }
            (_, Plain::Bytes(bytes)) => (Some(bytes.len()), Body::full(bytes)),
            (_, Plain::Packed(gzip, length)) => {
                (Some(length), Body::boxed(Unpacked::new(gzip, length)))
            }
            (_, Plain::Unknown) => (None, Body::Empty),
        };
        if let Some(length) = length {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        let body = if client.head { Body::Empty } else { body };
        Response::from_parts(self.parts, body)
    }
}

fn vary_by_encoding(headers: &mut HeaderMap) {
    let varies = headers.get_all(header::VARY).iter().any(|value| {
        value.as_bytes().split(|byte| *byte == b',').any(|name| {
            name.trim_ascii()
                .eq_ignore_ascii_case(header::ACCEPT_ENCODING.as_str().as_bytes())
        })
    });
    if !varies {
        headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
}

/// The compressed form of what is large enough.
pub(super) fn compress(bytes: &[u8]) -> Option<Bytes> {
    if bytes.len() <= GZIP_FROM {
        return None;
    }
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(bytes)
        .and_then(|()| gzip.finish())
        .ok()
        .map(Bytes::from)
}

/// What was read already, then the rest.
struct Replayed {
    seen: VecDeque<Bytes>,
    rest: Body,
}

impl HttpBody for Replayed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(data) = self.seen.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        Poll::Ready(ready!(Pin::new(&mut self.rest).poll_frame(cx)))
    }

    fn is_end_stream(&self) -> bool {
        self.seen.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
