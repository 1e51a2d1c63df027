//! Moves a request body into an HTTP/2 stream, frame by frame, as fast as the upstream's window allows.
//!
//! Window is asked for only when there are bytes to send: hyper's client reserves one byte per open body, so that an
//! idle upload can stop all others (hyperium/hyper#4003).

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body as _;

use crate::body::{Body, BodyError};

/// A request body on its way.
pub(super) struct Upload {
    body: Body,
    stream: SendStream<Bytes>,
    /// Taken from the body, not yet sent.
    chunk: Bytes,
    /// The client speaks HTTP/2: its body is whole only after `END_STREAM`, whatever hyper says (see `finish`).
    framed: bool,
    /// The request announced trailers. Others are left out: Go's server does not look at them, and where they come after its
    /// own last word on the stream it ends the connection, with everybody's requests on it.
    announced: bool,
}

/// The client's side of a body failed: it left, or sent something impossible. The stream was reset.
#[derive(Debug)]
pub(super) struct ClientGone(pub(super) BodyError);

impl Upload {
    pub(super) const fn new(
        body: Body,
        stream: SendStream<Bytes>,
        framed: bool,
        announced: bool,
    ) -> Self {
        Self {
            body,
            stream,
            chunk: Bytes::new(),
            framed,
            announced,
        }
    }

    /// Ready when the whole body was handed to the connection, or when the upstream wants no more of it.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientGone>> {
        loop {
            while !self.chunk.is_empty() {
                let room = self.stream.capacity();
                if room == 0 {
                    match ready!(self.stream.poll_capacity(cx)) {
                        Some(Ok(_)) => continue,
                        // The stream is over; the answer, or its error, says how.
                        Some(Err(_)) | None => return Poll::Ready(Ok(())),
                    }
                }
                let part = self.chunk.split_to(room.min(self.chunk.len()));
                let last = self.chunk.is_empty() && self.body.is_end_stream();
                if self.stream.send_data(part, last).is_err() || last {
                    return Poll::Ready(Ok(()));
                }
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(chunk) => {
                        self.stream.reserve_capacity(chunk.len());
                        self.chunk = chunk;
                    }
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            // Those of an HTTP/1.1 client may name what HTTP/2 forbids (`Connection`); its body is whole
                            // without them. Else it fails only if the stream is over.
                            if !self.announced || self.stream.send_trailers(trailers).is_err() {
                                drop(self.stream.send_data(Bytes::new(), true));
                            }
                            return Poll::Ready(Ok(()));
                        }
                    }
                },
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(self.abort(error))),
                Poll::Ready(None) => return Poll::Ready(self.finish()),
                Poll::Pending => {
                    // While the client is silent the upstream may end the stream.
                    return match self.stream.poll_reset(cx) {
                        Poll::Ready(_) => Poll::Ready(Ok(())),
                        Poll::Pending => Poll::Pending,
                    };
                }
            }
        }
    }

    fn finish(&mut self) -> Result<(), ClientGone> {
        // Hyper ends the body of a stream that its client reset with NO_ERROR as if it were whole.
        if self.framed && !self.body.is_end_stream() {
            return Err(self.abort("the client reset its stream".into()));
        }
        // Fails only if the stream is over.
        drop(self.stream.send_data(Bytes::new(), true));
        Ok(())
    }

    fn abort(&mut self, error: BodyError) -> ClientGone {
        self.stream.send_reset(Reason::CANCEL);
        ClientGone(error)
    }
}
