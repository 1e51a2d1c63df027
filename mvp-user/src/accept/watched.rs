//! A client's HTTP/1.1 connection that tells how much was read from it: what tells a client that has begun its next
//! request from one that is idle. And what hyper answers by itself, to what it cannot read as a first request, becomes an
//! answer of mvp's here: hyper's has no body. And a client that sends a body before 100-continue opens its own gate here, since
//! hyper does not look. Not for what follows from that (`serve`).

use std::{
    io::{self, BufRead as _},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};
use tokio_rustls::server::TlsStream;

use crate::{
    body::Gate,
    reply::{self, Refusal},
    tls::RecordStream,
    wire,
};

/// How long a client may take to end its side after ours; Go's server waits as long (`rstAvoidanceDelay`).
const LINGER: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub struct Watched {
    io: TlsStream<RecordStream>,
    read: Arc<AtomicU64>,
    /// The last bytes read.
    tail: [u8; 6],
    gate: Gate,
    /// A request was read: from now on, what is written may be a server's words.
    served: Arc<AtomicBool>,
    unread: Arc<OnceLock<Refusal>>,
    given_up: Arc<AtomicBool>,
    /// What is left of the answer that is written in place of hyper's.
    instead: Bytes,
    /// Our end is sent; the client's is waited for until then.
    linger: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    /// Nothing was read yet.
    pub fn new(io: TlsStream<RecordStream>) -> Self {
        Self {
            io,
            read: Arc::default(),
            tail: [0; 6],
            gate: Gate::default(),
            served: Arc::default(),
            unread: Arc::default(),
            given_up: Arc::default(),
            instead: Bytes::new(),
            linger: None,
        }
    }

    /// The number of bytes read so far, as it grows.
    pub fn read(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.read)
    }

    /// The gate of the request that is being served.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Whether the client has sent more than the head that hyper read last; else the task is woken when it does.
    fn sends(&mut self, context: &mut Context<'_>) -> bool {
        if !is_end_of_head(self.tail) {
            return true;
        }
        let (below, session) = self.io.get_mut();
        let nothing = matches!(
            session.reader().fill_buf(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock
        );
        if !nothing {
            return true;
        }
        let mut byte = [0];
        let mut seen = ReadBuf::new(&mut byte);
        below.stream().poll_peek(context, &mut seen).is_ready()
    }

    /// To be set with the first request. Only before it can an answer be known for hyper's own: later, a piece of a body
    /// may look the same, and to replace that would let whoever wrote the body break the framing.
    pub fn served(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.served)
    }

    /// What hyper answers by itself, if this is that.
    fn by_hyper(&self, buffer: &[u8]) -> Option<Refusal> {
        if self.served.load(Ordering::Relaxed) {
            None
        } else {
            by_hyper(buffer)
        }
    }

    /// Why the connection ends, if that is because something could not be read as a request.
    pub fn unread(&self) -> Arc<OnceLock<Refusal>> {
        Arc::clone(&self.unread)
    }

    /// To be set for a client that is to be rid of: the next write fails, and the connection is reset.
    pub fn given_up(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.given_up)
    }

    fn usable(&self) -> io::Result<()> {
        if !self.given_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        wire::give_up(self.io.get_ref().0.stream());
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    /// Writes the whole of mvp's answer before hyper hears that its own is written.
    fn poll_write_instead(
        &mut self,
        context: &mut Context<'_>,
        why: Refusal,
    ) -> Poll<io::Result<()>> {
        if self.unread.set(why).is_ok() {
            self.instead = reply::refuse_unread(why).into();
        }
        while !self.instead.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(context, &self.instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.instead.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Throws away what a client still sends, until it ends as well or [`LINGER`] is over: closing with unread input
    /// resets the connection, and the reset may overtake the last answer, one that came before the request's body was
    /// read most of all.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let over = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if over.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut piece = [0; 4096];
        loop {
            let mut rest = ReadBuf::new(&mut piece);
            match ready!(Pin::new(self.io.get_mut().0).poll_read(context, &mut rest)) {
                Ok(()) if !rest.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
    }

    /// The connection itself.
    pub fn into_inner(self) -> TlsStream<RecordStream> {
        self.io
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(context, buffer);
        let new = buffer.filled().len().saturating_sub(before);
        if new > 0 {
            self.read.fetch_add(new as u64, Ordering::Relaxed);
            let piece = buffer.filled().get(before..).unwrap_or_default();
            remember(&mut self.tail, piece);
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(why) = self.by_hyper(buffer) {
            ready!(self.poll_write_instead(context, why))?;
            return Poll::Ready(Ok(buffer.len()));
        }
        Pin::new(&mut self.io).poll_write(context, buffer)
    }

    /// hyper flushes whenever it has looked at everything else.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.usable()?;
        if self.gate.is_shut() && self.sends(context) {
            self.gate.open();
        }
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.io).poll_shutdown(context))?;
        }
        self.poll_linger(context).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.usable()?;
        if let [head] = buffers
            && self.by_hyper(head).is_some()
        {
            return self.poll_write(context, head);
        }
        Pin::new(&mut self.io).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

/// Keeps the last bytes of all that was read.
fn remember(tail: &mut [u8; 6], piece: &[u8]) {
    let kept = piece.len().min(tail.len());
    tail.rotate_left(kept);
    let new = piece.iter().rev();
    for (to, from) in tail.iter_mut().rev().zip(new) {
        *to = *from;
    }
}

/// Whether so ends a head, with nothing of a body behind it. The last chunk of a body ends alike.
fn is_end_of_head(tail: [u8; 6]) -> bool {
    (tail.ends_with(b"\n\r\n") || tail.ends_with(b"\n\n")) && tail != *b"\n0\r\n\r\n"
}

/// What hyper means by an answer of its own: a status, that the connection closes, that there is no body, the date, and
/// nothing else. No API server says so little.
fn by_hyper(head: &[u8]) -> Option<Refusal> {
    let text = str::from_utf8(head.strip_prefix(b"HTTP/1.1 4")?).ok()?;
    let why = match text.get(..3)? {
        "00 " => Refusal::BadRequest("malformed HTTP/1.1 request"),
        "14 " => Refusal::UriTooLong,
        "31 " => Refusal::HeadersTooLarge,
        _ => return None,
    };
    let (_, lines) = text.strip_suffix("\r\n\r\n")?.split_once("\r\n")?;
    let mut closes = false;
    let says_no_more = lines.split("\r\n").all(|line| {
        closes |= line == "connection: close";
        line == "connection: close" || line == "content-length: 0" || line.starts_with("date: ")
    });
    (says_no_more && closes).then_some(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_head_is_known_however_it_is_cut() {
        let cases: [(&str, bool); 6] = [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("GET / HTTP/1.1\nHost: a\n\n", true),
            ("PUT / HTTP/1.1\r\nHost: a\r\n\r\nbody", false),
            (
                "PUT / HTTP/1.1\r\nHost: a\r\n\r\n1\r\na\r\n0\r\n\r\n",
                false,
            ),
            ("PUT / HTTP/1.1\r\nHost: a\r\n", false),
            ("", false),
        ];
        for (text, ends) in cases {
            for size in 1..=text.len().max(1) {
                let mut tail = [0; 6];
                for piece in text.as_bytes().chunks(size) {
                    remember(&mut tail, piece);
                }
                assert_eq!(is_end_of_head(tail), ends, "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn only_hyper_s_own_words_are_replaced() {
        let own = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: Tue, 01 Dec 2026 09:00:00 GMT\r\n\r\n";
        assert!(matches!(
            by_hyper(own.as_bytes()),
            Some(Refusal::BadRequest(_))
        ));
        let status = |code: &str| own.replace("400 Bad Request", code);
        let long = status("414 URI Too Long");
        assert_eq!(by_hyper(long.as_bytes()), Some(Refusal::UriTooLong));
        let large = status("431 Request Header Fields Too Large");
        assert_eq!(by_hyper(large.as_bytes()), Some(Refusal::HeadersTooLarge));
        for other in [
            status("404 Not Found"),
            own.replace("date: ", "audit-id: 1\r\ndate: "),
            own.replace("content-length: 0", "content-length: 1"),
            own.replace("connection: close\r\n", ""),
            format!("{own}x"),
            "HTTP/1.1 400".to_owned(),
        ] {
            assert_eq!(by_hyper(other.as_bytes()), None, "{other}");
        }
    }
}
