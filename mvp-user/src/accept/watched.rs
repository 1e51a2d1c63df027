//! A client's HTTP/1.1 connection that tells how much was read from it: what tells a client that has begun its next
//! request from one that is idle. Not for what follows from that (`serve`).

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::tls::RecordStream;

/// See the module.
#[derive(Debug)]
pub struct Watched {
    io: TlsStream<RecordStream>,
    read: Arc<AtomicU64>,
}

impl Watched {
    /// Nothing was read yet.
    pub fn new(io: TlsStream<RecordStream>) -> Self {
        Self {
            io,
            read: Arc::default(),
        }
    }

    /// The number of bytes read so far, as it grows.
    pub fn read(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.read)
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
        Pin::new(&mut self.io).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
