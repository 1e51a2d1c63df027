//! A request body that can be sent a second time, as long as not more than a bound of it was read (design 5.2).
//!
//! The frames are kept as they came, by reference count; when the request is answered, keeping ends.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use super::{Body, BodyError};

/// How many bytes of a body are kept (design 5.2).
pub const REPLAY_LIMIT: usize = 64 * 1024;

/// And in how many frames: each costs memory beside its bytes and holds on to the buffer that it was read into, so that
/// a client which sends one byte at a time could make 64 KiB weigh megabytes.
const REPLAY_FRAMES: usize = 256;

/// Holds what was read of a body, and the rest of it.
#[derive(Debug)]
pub struct Keeper(Arc<Mutex<Shared>>);

/// One sending of the body. Only the newest works.
#[derive(Debug)]
pub struct Kept {
    shared: Arc<Mutex<Shared>>,
    sending: u32,
    /// Frames of `Shared::frames` that this sending has given out.
    at: usize,
}

#[derive(Debug)]
struct Shared {
    body: Incoming,
    frames: Vec<Bytes>,
    size: usize,
    /// False once the answer came.
    keeping: bool,
    /// Something was read that was not kept.
    lost: bool,
    sending: u32,
}

impl Keeper {
    /// Nothing was read yet.
    pub fn new(body: Incoming) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            body,
            frames: Vec::new(),
            size: 0,
            keeping: true,
            lost: false,
            sending: 0,
        })))
    }

    /// The body from its beginning, unless that is gone. Earlier sendings end with an error.
    pub fn send(&self) -> Option<Body> {
        let mut shared = lock(&self.0);
        if shared.lost {
            return None;
        }
        shared.sending += 1;
        Some(Body::Kept(Kept {
            shared: Arc::clone(&self.0),
            sending: shared.sending,
            at: 0,
        }))
    }

    /// It will not be sent again.
    pub fn release(&self) {
        lock(&self.0).keeping = false;
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpBody for Kept {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let mut shared = lock(&this.shared);
        if shared.sending != this.sending {
            return Poll::Ready(Some(Err("the body is being sent elsewhere".into())));
        }
        if let Some(frame) = shared.frames.get(this.at) {
            this.at += 1;
            return Poll::Ready(Some(Ok(Frame::data(frame.clone()))));
        }
        if !shared.keeping && !shared.frames.is_empty() {
            shared.frames = Vec::new();
            shared.lost = true;
            this.at = 0;
        }
        let frame = match ready!(Pin::new(&mut shared.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                shared.lost = true;
                return Poll::Ready(Some(Err(error.into())));
            }
            None => return Poll::Ready(None),
        };
        match frame.data_ref() {
            Some(data) if shared.keeping && !shared.lost => {
                shared.size += data.len();
                if shared.size <= REPLAY_LIMIT && shared.frames.len() < REPLAY_FRAMES {
                    let data = data.clone();
                    shared.frames.push(data);
                    this.at += 1;
                } else {
                    shared.lost = true;
                    shared.frames = Vec::new();
                    this.at = 0;
                }
            }
            // Trailers are not kept: nobody sends any to kube-apiserver.
            _ => shared.lost = true,
        }
        drop(shared);
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        let shared = lock(&self.shared);
        self.at >= shared.frames.len() && shared.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let shared = lock(&self.shared);
        let kept: usize = shared.frames.iter().skip(self.at).map(Bytes::len).sum();
        let rest = shared.body.size_hint();
        drop(shared);
        rest.exact().map_or_else(SizeHint::default, |rest| {
            SizeHint::with_exact(rest + kept as u64)
        })
    }
}
