//! The body of an answer that arrives on an HTTP/2 stream of an upstream connection.
//!
//! Hyper's own body takes a stream that was reset with `NO_ERROR` for complete; here an answer is complete only after
//! `END_STREAM`, so that a truncated one stays truncated downstream. Window is given back as frames are handed on, so
//! the reader's pace reaches the sender.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;

use super::BodyError;

/// Counts a stream of a connection as open for as long as it lives.
#[derive(Debug)]
pub struct Open(Arc<AtomicUsize>);

impl Open {
    /// One more open stream.
    pub fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Frames of one HTTP/2 stream; dropping it before the end resets the stream.
#[derive(Debug)]
pub struct Streamed {
    recv: RecvStream,
    /// Bytes still to come, if the headers say so.
    remaining: Option<u64>,
    data_done: bool,
    /// Dropped together with the body: ends an upload that outlives the answer's headers.
    _upload: Option<oneshot::Sender<()>>,
    _open: Open,
}

impl Streamed {
    /// `length` is the answer's Content-Length; `upload` is closed when the body is dropped.
    pub fn new(
        recv: RecvStream,
        length: Option<u64>,
        upload: Option<oneshot::Sender<()>>,
        open: Open,
    ) -> Self {
        Self {
            recv,
            remaining: length,
            data_done: false,
            _upload: upload,
            _open: open,
        }
    }
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.data_done {
            if let Some(chunk) = ready!(self.recv.poll_data(cx)) {
                let chunk = chunk?;
                self.recv.flow_control().release_capacity(chunk.len())?;
                if let Some(remaining) = &mut self.remaining {
                    *remaining = remaining.saturating_sub(chunk.len() as u64);
                }
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            self.data_done = true;
        }
        let trailers = ready!(self.recv.poll_trailers(cx))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.recv.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.remaining
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
