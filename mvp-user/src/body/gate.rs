//! The gate of 100-continue, between a client's HTTP/1.1 connection and whoever waits for the upstream to ask for the body:
//! reading a body that nobody asked for would make hyper tell the client to send it.
//!
//! Who waits decides when it opens; the connection opens it if the client sends without being asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use http::{HeaderMap, Request, Version, header};
use http_body::Body as HttpBody;

/// One gate for each connection, which has one request at a time; open unless a request asks for 100-continue.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<State>);

#[derive(Debug, Default)]
struct State {
    shut: AtomicBool,
    waits: AtomicWaker,
}

/// Whether a client waits for 100-continue: HTTP/1.0 has none.
pub fn waits(headers: &HeaderMap, version: Version) -> bool {
    version != Version::HTTP_10
        && headers
            .get(header::EXPECT)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

impl Gate {
    /// Shuts it if the client waits for 100-continue with a body, and then goes along with the request.
    pub fn shut_for<B: HttpBody>(&self, request: &mut Request<B>) {
        if waits(request.headers(), request.version()) && !request.body().is_end_stream() {
            self.0.shut.store(true, Ordering::Release);
            request.extensions_mut().insert(self.clone());
        }
    }

    /// Whether it waits still.
    pub fn is_shut(&self) -> bool {
        self.0.shut.load(Ordering::Acquire)
    }

    /// It is read from now on, however often its request is sent.
    pub fn open(&self) {
        self.0.shut.store(false, Ordering::Release);
        self.0.waits.wake();
    }

    /// Ready once it is open.
    pub fn poll_open(&self, context: &Context<'_>) -> Poll<()> {
        self.0.waits.register(context.waker());
        if self.is_shut() {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;

    use super::*;

    #[test]
    fn only_a_client_that_waits_for_100_continue_with_a_body_finds_it_shut() {
        for (version, expect, body, shut) in [
            (Version::HTTP_11, Some("100-continue"), "body", true),
            (Version::HTTP_11, Some("100-Continue"), "body", true),
            (Version::HTTP_11, Some("100-continue"), "", false),
            (Version::HTTP_11, Some("something"), "body", false),
            (Version::HTTP_11, None, "body", false),
            (Version::HTTP_10, Some("100-continue"), "body", false),
        ] {
            let gate = Gate::default();
            let mut request = Request::new(Full::<Bytes>::from(body));
            *request.version_mut() = version;
            if let Some(value) = expect {
                request
                    .headers_mut()
                    .insert(header::EXPECT, value.parse().unwrap());
            }
            gate.shut_for(&mut request);
            assert_eq!(gate.is_shut(), shut, "{version:?} {expect:?} {body:?}");
            assert_eq!(request.extensions().get::<Gate>().is_some(), shut);
        }
    }
}
