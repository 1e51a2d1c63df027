//! The body of every answer: known bytes, a generated pattern, or a stream of events; and the ways a fault can spoil it.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::Stream;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::time::Sleep;

use super::{log::Entry, wire::Wire};

type Events = Pin<Box<dyn Stream<Item = Result<Bytes, Infallible>> + Send>>;

/// The body was broken off on command.
#[derive(Debug, thiserror::Error)]
#[error("the body was broken off on command")]
pub(crate) struct BrokenOff;

enum Source {
    Bytes(Bytes),
    /// Bytes left of the pattern, and the position.
    Pattern(u64, u64),
    Events(Events),
}

/// How a body ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Hang,
    Error,
    Reset,
}

/// See the module.
pub(crate) struct Body {
    source: Source,
    ends: Option<(u64, End)>,
    pace: Option<Pace>,
    trailers: Option<HeaderMap>,
    /// Dropped with the body: the connection then knows that the answer is over.
    guard: Option<Guard>,
    /// What a paced body has taken from its source and not yet given out.
    kept: Bytes,
}

struct Pace {
    bytes: usize,
    every: Duration,
    sleep: Pin<Box<Sleep>>,
}

/// Ends a request's bookkeeping when its answer is over.
pub(crate) struct Guard {
    pub(crate) wire: Arc<Wire>,
    pub(crate) entry: Option<Arc<Entry>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.wire.request_ended();
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

/// The pattern repeats after this many bytes.
const PERIOD: u64 = 1 << 20;
/// Bytes of a frame.
const FRAME: u64 = 64 * 1024;

/// Up to 64 KiB of the body of `/debug/bytes` from offset `at`: lines of 16 bytes, each its own offset in hex, modulo 1 MiB. Made once;
/// no byte of it is copied.
pub fn pattern(at: u64, length: u64) -> Bytes {
    static BLOCK: OnceLock<Bytes> = OnceLock::new();
    let block = BLOCK.get_or_init(|| {
        let lines: Vec<String> = (0..(PERIOD + FRAME) / 16)
            .map(|line| format!("{:015x}\n", line * 16 % PERIOD))
            .collect();
        Bytes::from(lines.concat())
    });
    let start = usize::try_from(at % PERIOD).unwrap_or_default();
    block.slice(start..start + usize::try_from(length.min(FRAME)).unwrap_or_default())
}

impl Body {
    pub(crate) fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self::new(Source::Bytes(bytes.into()))
    }

    /// `length` bytes of [`pattern`].
    pub(crate) fn pattern(length: u64) -> Self {
        Self::new(Source::Pattern(length, 0))
    }

    pub(crate) fn events(
        events: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
    ) -> Self {
        Self::new(Source::Events(Box::pin(events)))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            ends: None,
            pace: None,
            trailers: None,
            guard: None,
            kept: Bytes::new(),
        }
    }

    pub(crate) fn guarded(mut self, guard: Guard) -> Self {
        self.guard = Some(guard);
        self
    }

    pub(crate) fn ending(mut self, after: u64, end: End) -> Self {
        self.ends = Some((after, end));
        self
    }

    pub(crate) fn paced(mut self, bytes: usize, every: Duration) -> Self {
        self.pace = Some(Pace {
            bytes: bytes.max(1),
            every,
            sleep: Box::pin(tokio::time::sleep(every)),
        });
        self
    }

    pub(crate) fn trailers(mut self, trailers: HeaderMap) -> Self {
        self.trailers = Some(trailers);
        self
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !self.kept.is_empty() {
            return Poll::Ready(Some(std::mem::take(&mut self.kept)));
        }
        match &mut self.source {
            Source::Bytes(bytes) if bytes.is_empty() => Poll::Ready(None),
            Source::Bytes(bytes) => Poll::Ready(Some(std::mem::take(bytes))),
            Source::Pattern(0, _) => Poll::Ready(None),
            Source::Pattern(left, at) => {
                let take = (*left).min(FRAME);
                let chunk = pattern(*at, take);
                *left -= take;
                *at += take;
                Poll::Ready(Some(chunk))
            }
            Source::Events(events) => events
                .as_mut()
                .poll_next(cx)
                .map(|next| next.and_then(Result::ok)),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let this = self.get_mut();
        if let Some((0, end)) = this.ends {
            return match end {
                End::Hang => Poll::Pending,
                End::Error => Poll::Ready(Some(Err(BrokenOff))),
                End::Reset => {
                    if let Some(guard) = &this.guard {
                        guard.wire.reset();
                    }
                    Poll::Pending
                }
            };
        }
        if let Some(pace) = &mut this.pace {
            ready!(pace.sleep.as_mut().poll(cx));
            pace.sleep
                .as_mut()
                .reset(tokio::time::Instant::now() + pace.every);
        }
        let Some(mut chunk) = ready!(this.poll_source(cx)) else {
            if let Some(guard) = &this.guard
                && let Some(entry) = &guard.entry
            {
                entry.finished();
            }
            return Poll::Ready(
                this.trailers
                    .take()
                    .map(|trailers| Ok(Frame::trailers(trailers))),
            );
        };
        if let Some(pace) = &this.pace
            && chunk.len() > pace.bytes
        {
            this.kept = chunk.split_off(pace.bytes);
        }
        if let Some((left, _)) = &mut this.ends {
            let take = usize::try_from(*left)
                .unwrap_or(usize::MAX)
                .min(chunk.len());
            chunk.truncate(take);
            *left -= take as u64;
        }
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        let over = self.kept.is_empty() && self.trailers.is_none() && self.ends.is_none();
        let empty = over && matches!(&self.source, Source::Bytes(bytes) if bytes.is_empty());
        if empty
            && let Some(guard) = &self.guard
            && let Some(entry) = &guard.entry
        {
            entry.finished();
        }
        empty
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Bytes(bytes) if self.trailers.is_none() => {
                SizeHint::with_exact((bytes.len() + self.kept.len()) as u64)
            }
            Source::Pattern(left, _) if self.trailers.is_none() => {
                SizeHint::with_exact(left + self.kept.len() as u64)
            }
            _ => SizeHint::default(),
        }
    }
}
