//! TLS under an HTTP/2 connection: reads much at a time, and writes once for all frames of one turn.
//!
//! h2 flushes after every DATA frame, which with `tokio-rustls` is a TLS record and a system call (two records if the
//! frame is full: 16 KiB and 9 bytes), and rustls reads a record in pieces. A [`Wire`] takes what is written until
//! [`Outlet::flush`], which whoever polls the connection calls after each poll ([`driven`]), or until there is a write's
//! worth, and reads into a buffer that the thread lends to connections in turn. What that brings is in
//! `docs/performance.md`. Not for handshakes, nor for HTTP/1.1 connections that may become tunnels.

use std::{
    cell::RefCell,
    io::{self, BufRead as _, Write as _},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustls::Connection;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// A full TLS record (RFC 8446, 5.1).
const RECORD: usize = 16 * 1024;
/// What is written at a time: four full records.
const WRITE: usize = 4 * RECORD;
/// Slices that are looked at in one write; h2 gives two, a frame's head and its payload.
const SLICES: usize = 8;
/// What is read at a time: as much as others write at a time, four full records, with all that encryption and frames add.
/// With less, its last bytes take a system call of their own.
const READ: usize = WRITE + 4 * 1024;
/// Buffers that a thread keeps for its connections.
const KEPT: usize = 4;

thread_local! {
    /// Buffers that no connection needs now.
    static READS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
    static WRITES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The connection, as h2 has it.
pub struct Wire(Rc<RefCell<Inner>>);

/// The connection, as whoever polls h2 has it.
#[derive(Clone)]
pub struct Outlet(Rc<RefCell<Inner>>);

struct Inner {
    tcp: TcpStream,
    tls: Connection,
    /// Read and not decrypted yet.
    inbound: Option<Inbound>,
    /// Written and not encrypted yet: less than a record.
    outbound: Vec<u8>,
    /// Encrypted and not sent yet, as it was before.
    sealed: usize,
    /// Something was read since this was last looked at.
    heard: bool,
    /// `close_notify` is on its way.
    closing: bool,
    /// A flush that nobody waited for failed.
    broken: Option<io::ErrorKind>,
}

struct Inbound {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
}

impl Wire {
    /// Takes over an established connection.
    pub fn new(tcp: TcpStream, tls: impl Into<Connection>) -> (Self, Outlet) {
        let mut tls = tls.into();
        // It is bounded here, by whole records.
        tls.set_buffer_limit(None);
        let inner = Rc::new(RefCell::new(Inner {
            tcp,
            tls,
            inbound: None,
            outbound: Vec::new(),
            sealed: 0,
            heard: false,
            closing: false,
            broken: None,
        }));
        (Self(Rc::clone(&inner)), Outlet(inner))
    }
}

impl Outlet {
    /// Sends what was written. An error is what the connection's next read or write says; true if there is a new one.
    pub fn flush(&self, cx: &mut Context<'_>) -> bool {
        let mut inner = self.0.borrow_mut();
        match inner.push(cx) {
            Poll::Ready(Err(error)) if inner.broken.is_none() => {
                inner.broken = Some(error.kind());
                true
            }
            _ => false,
        }
    }

    /// Dropped, the connection is reset.
    pub fn give_up(&self) {
        give_up(&self.0.borrow().tcp);
    }

    /// Whether something was read since the last call.
    pub fn heard(&self) -> bool {
        std::mem::take(&mut self.0.borrow_mut().heard)
    }
}

/// Has a socket reset when it is dropped: what a client does not take would stay in the kernel for minutes.
pub fn give_up(tcp: &TcpStream) {
    if let Err(error) = SockRef::from(tcp).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "SO_LINGER");
    }
}

/// Polls a connection and sends what it wrote.
pub fn driven<C: Future + ?Sized>(
    mut connection: Pin<&mut C>,
    outlet: &Outlet,
    cx: &mut Context<'_>,
) -> Poll<C::Output> {
    match connection.as_mut().poll(cx) {
        // So that it hears of it.
        Poll::Pending if outlet.flush(cx) => connection.poll(cx),
        polled => polled,
    }
}

impl Inner {
    fn usable(&self) -> io::Result<()> {
        self.broken.map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// Sends what is encrypted.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.wants_write() {
            let mut socket = Socket(&mut self.tcp, cx);
            match self.tls.write_tls(&mut socket) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.sealed = 0;
        Poll::Ready(Ok(()))
    }

    /// Encrypts and sends all there is.
    fn push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.outbound.is_empty() {
            self.tls.writer().write_all(&self.outbound)?;
            self.sealed += self.outbound.len();
        }
        give_back_write(std::mem::take(&mut self.outbound));
        self.send(cx)
    }

    /// Takes what h2 writes: full records are encrypted from where they lie, the rest is copied and waits for more.
    fn accept(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.usable()?;
        if self.sealed >= WRITE {
            ready!(self.send(cx))?;
        }
        let bufs = bufs.get(..SLICES).unwrap_or(bufs);
        let offered = bufs.iter().map(|buf| buf.len()).sum::<usize>();
        let accepted = offered.min(WRITE);
        let there = self.outbound.len();
        let whole = (there + accepted) / RECORD * RECORD;
        let mut left = accepted;
        let mut parts = [&[][..]; SLICES];
        for (part, buf) in parts.iter_mut().zip(bufs) {
            *part = buf.get(..left.min(buf.len())).unwrap_or_default();
            left -= part.len();
        }
        if whole > 0 {
            let mut left = whole - there;
            let mut slices = [io::IoSlice::new(&[]); SLICES + 1];
            let [first, others @ ..] = &mut slices;
            *first = io::IoSlice::new(&self.outbound);
            for (slice, part) in others.iter_mut().zip(&mut parts) {
                let (sealed, rest) = part.split_at(left.min(part.len()));
                *slice = io::IoSlice::new(sealed);
                *part = rest;
                left -= sealed.len();
            }
            // Without a limit rustls takes all.
            if self.tls.writer().write_vectored(&slices)? != whole {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sealed += whole;
            self.outbound.clear();
        }
        if self.outbound.capacity() == 0 {
            self.outbound = WRITES
                .with_borrow_mut(Vec::pop)
                .unwrap_or_else(|| Vec::with_capacity(RECORD));
        }
        // Two as a rule: to copy nothing six times costs as much as to copy a frame.
        for part in parts.iter().take(bufs.len()) {
            self.outbound.extend_from_slice(part);
        }
        Poll::Ready(Ok(accepted))
    }

    /// Reads once from the socket, if all that was read is decrypted.
    fn pull(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.inbound.is_some() {
            return Poll::Ready(Ok(()));
        }
        let mut buffer = READS
            .with_borrow_mut(Vec::pop)
            .unwrap_or_else(|| vec![0; READ].into_boxed_slice());
        let mut read = ReadBuf::new(&mut buffer);
        let polled = Pin::new(&mut self.tcp).poll_read(cx, &mut read);
        let to = read.filled().len();
        if to == 0 {
            give_back_read(buffer);
            ready!(polled)?;
            // The end: rustls judges whether it may be here.
            self.tls.read_tls(&mut io::empty())?;
            self.tls.process_new_packets().map_err(invalid)?;
            return Poll::Ready(Ok(()));
        }
        self.heard = true;
        self.inbound = Some(Inbound {
            buffer,
            from: 0,
            to,
        });
        Poll::Ready(Ok(()))
    }

    /// Decrypts until there is something to be taken, or nothing left.
    fn decrypt(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(inbound) = &mut self.inbound else {
            return Ok(());
        };
        loop {
            let mut rest = inbound
                .buffer
                .get(inbound.from..inbound.to)
                .unwrap_or_default();
            let taken = if rest.is_empty() {
                0
            } else {
                self.tls.read_tls(&mut rest)?
            };
            if taken == 0 {
                // Nothing left, or the other side has said that it is done.
                if let Some(inbound) = self.inbound.take() {
                    give_back_read(inbound.buffer);
                }
                return Ok(());
            }
            inbound.from += taken;
            match self.tls.process_new_packets() {
                Ok(state) if state.plaintext_bytes_to_read() > 0 => return Ok(()),
                Ok(_) => {}
                Err(error) => {
                    // The alert, if it can be sent at once.
                    let mut socket = Socket(&mut self.tcp, cx);
                    if let Err(error) = self.tls.write_tls(&mut socket) {
                        tracing::trace!(%error, "No alert sent");
                    }
                    return Err(invalid(error));
                }
            }
        }
    }

    /// Gives what is decrypted; none: nothing is.
    fn take(&mut self, into: &mut ReadBuf<'_>) -> Option<io::Result<()>> {
        let mut reader = self.tls.reader();
        match reader.fill_buf() {
            Ok(chunk) => {
                let length = chunk.len().min(into.remaining());
                into.put_slice(chunk.get(..length).unwrap_or_default());
                reader.consume(length);
                Some(Ok(()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        give_back_write(std::mem::take(&mut self.outbound));
        if let Some(inbound) = self.inbound.take() {
            give_back_read(inbound.buffer);
        }
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn give_back_read(buffer: Box<[u8]>) {
    READS.with_borrow_mut(|kept| {
        if kept.len() < KEPT {
            kept.push(buffer);
        }
    });
}

fn give_back_write(mut buffer: Vec<u8>) {
    if buffer.capacity() == 0 {
        return;
    }
    buffer.clear();
    WRITES.with_borrow_mut(|kept| {
        if kept.len() < KEPT {
            kept.push(buffer);
        }
    });
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.0.borrow_mut();
        loop {
            if let Some(taken) = inner.take(buf) {
                return Poll::Ready(taken);
            }
            inner.usable()?;
            ready!(inner.pull(cx))?;
            inner.decrypt(cx)?;
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().accept(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().accept(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Nothing: see the module.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.borrow().usable())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.0.borrow_mut();
        inner.usable()?;
        ready!(inner.push(cx))?;
        if !inner.closing {
            inner.closing = true;
            inner.tls.send_close_notify();
        }
        ready!(inner.push(cx))?;
        match ready!(Pin::new(&mut inner.tcp).poll_shutdown(cx)) {
            // The other side was quicker.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            result => Poll::Ready(result),
        }
    }
}

/// The socket as rustls wants it: whatever would wait is `WouldBlock`, and wakes the task later.
struct Socket<'a, 'b>(&'a mut TcpStream, &'a mut Context<'b>);

impl io::Write for Socket<'_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        now(Pin::new(&mut *self.0).poll_write(self.1, buf))
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        // One record, as most often: send(2), which has less to look at than writev(2).
        if let [only] = bufs {
            return self.write(only);
        }
        now(Pin::new(&mut *self.0).poll_write_vectored(self.1, bufs))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn now<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
    match polled {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

#[cfg(test)]
mod tests;
