//! The one body type that travels through the corridor: a stream of `Bytes` frames that mvp forwards and never collects.
//!
//! Not for buffering: the only bodies held in memory are answers that mvp makes itself and the bounded replay buffer
//! of `forward`.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;

pub use self::{
    gate::{Gate, waits},
    kept::{Keeper, Kept, REPLAY_LIMIT},
    streamed::{GIVEN_BACK, Open, Streamed},
};

mod gate;
mod kept;
mod streamed;

/// Errors of a body are only ever passed on: whoever reads it sees a truncated stream.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A request or response body.
#[derive(Debug, Default)]
pub enum Body {
    /// No bytes and no trailers.
    #[default]
    Empty,
    /// An answer made by mvp, complete in memory.
    Full(Full<Bytes>),
    /// Frames straight from a connection; the hot path, so it is not boxed.
    Incoming(Incoming),
    /// Frames straight from an HTTP/2 stream of an upstream connection; the hot path too.
    Streamed(Streamed),
    /// A request body that can be sent a second time.
    Kept(Kept),
    /// Anything else: replayed, counted, limited or test bodies.
    Boxed(UnsyncBoxBody<Bytes, BodyError>),
}

impl Body {
    /// A complete body held in memory.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::Full(Full::new(bytes.into()))
    }

    /// Any other stream of frames.
    pub fn boxed<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        Self::Boxed(body.map_err(Into::into).boxed_unsync())
    }
}

impl From<Incoming> for Body {
    fn from(body: Incoming) -> Self {
        Self::Incoming(body)
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Full(body) => match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => Poll::Ready(Some(Ok(frame))),
                Some(Err(never)) => match never {},
                None => Poll::Ready(None),
            },
            Self::Incoming(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Streamed(body) => Pin::new(body).poll_frame(cx),
            Self::Kept(body) => Pin::new(body).poll_frame(cx),
            Self::Boxed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(body) => body.is_end_stream(),
            Self::Incoming(body) => body.is_end_stream(),
            Self::Streamed(body) => body.is_end_stream(),
            Self::Kept(body) => body.is_end_stream(),
            Self::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(body) => body.size_hint(),
            Self::Incoming(body) => body.size_hint(),
            Self::Streamed(body) => body.size_hint(),
            Self::Kept(body) => body.size_hint(),
            Self::Boxed(body) => body.size_hint(),
        }
    }
}
