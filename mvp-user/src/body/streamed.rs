//! The body of an answer that arrives on an HTTP/2 stream of an upstream connection.
//!
//! Hyper's own body takes a stream that was reset with `NO_ERROR` for complete; here an answer is complete only after
//! `END_STREAM`, so that a truncated one stays truncated downstream. Window is given back as frames are handed on, in
//! lumps, so the reader's pace reaches the sender.

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

/// How much window is given back at a time: half of a stream's.
///
/// Each time a frame, a record and a system call wake the server. The h2 crate alone would do it for every frame as soon as
/// all that may be sent ahead has been.
pub const GIVEN_BACK: usize = 128 * 1024;

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
    /// Bytes that were handed on and whose window was not given back. With the stream's end h2 gives it to the connection.
    owed: usize,
    data_done: bool,
    /// Dropped together with the body: ends an upload that outlives the answer's headers.
    _upload: Option<oneshot::Sender<()>>,
    _open: Open,
    /// Nothing is left to be read, as known from the last frame: to ask the stream takes a lock.
    ended: bool,
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
            owed: 0,
            data_done: false,
            _upload: upload,
            _open: open,
            ended: false,
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
                self.owed += chunk.len();
                if self.owed >= GIVEN_BACK {
                    let owed = std::mem::take(&mut self.owed);
                    self.recv.flow_control().release_capacity(owed)?;
                }
                if let Some(remaining) = &mut self.remaining {
                    *remaining = remaining.saturating_sub(chunk.len() as u64);
                }
                self.ended = self.recv.is_end_stream();
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            self.data_done = true;
        }
        let trailers = ready!(self.recv.poll_trailers(cx))?;
        self.ended = true;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        self.remaining
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use tokio::task::JoinSet;

    use super::*;

    /// An answer of these frames (whether it is the last one), and what drives both ends.
    async fn answer(frames: Vec<(Bytes, bool)>) -> (Streamed, JoinSet<()>) {
        let (near, far) = tokio::io::duplex(1 << 20);
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(1 << 20);
        builder.initial_connection_window_size(1 << 20);
        let (client, server) = tokio::join!(
            builder.handshake::<_, Bytes>(near),
            h2::server::handshake(far)
        );
        let ((send, connection), mut server) = (client.unwrap(), server.unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { connection.await.unwrap() });
        tasks.spawn(async move {
            let (_request, mut respond) = server.accept().await.unwrap().unwrap();
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            for (data, last) in frames {
                stream.send_data(data, last).unwrap();
            }
            assert!(server.accept().await.is_none());
        });
        let request = Request::get("https://server/").body(()).unwrap();
        let mut send = send.ready().await.unwrap();
        let answer = send.send_request(request, true).unwrap().0.await.unwrap();
        let open = Open::new(&Arc::default());
        let body = Streamed::new(answer.into_body(), None, None, open);
        (body, tasks)
    }

    #[tokio::test]
    async fn window_is_given_back_in_lumps() {
        const PART: usize = 16 * 1024;
        let part = (Bytes::from(vec![0; PART]), false);
        let (mut body, _tasks) = answer(vec![part; 12]).await;
        let mut read = 0;
        while read < 12 * PART {
            read += body
                .frame()
                .await
                .unwrap()
                .unwrap()
                .data_ref()
                .unwrap()
                .len();
            let given_back = read / GIVEN_BACK * GIVEN_BACK;
            let kept = body.recv.flow_control().used_capacity();
            assert!(kept >= read - given_back, "{read} bytes were read");
        }
        let kept = body.recv.flow_control().used_capacity();
        assert_eq!(kept, 12 * PART - GIVEN_BACK, "once, of all that came");
    }

    #[tokio::test]
    async fn the_end_is_known_with_the_last_frame_and_not_before() {
        let (mut body, _tasks) = answer(vec![("one".into(), false), ("two".into(), true)]).await;
        assert!(!body.is_end_stream());
        let mut ends = Vec::new();
        while let Some(frame) = body.frame().await {
            frame.unwrap();
            ends.push(body.is_end_stream());
        }
        assert_eq!(ends, [false, true]);
    }
}
