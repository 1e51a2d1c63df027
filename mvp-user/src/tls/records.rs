//! The TCP stream below TLS, which knows where TLS records end. rustls reads what is there, and says nothing of what it
//! keeps of a record that is not complete; kernel TLS can take a connection over between two records only (`tunnel`).
//! Not for looking into records: the five bytes before each are all that is read here (RFC 8446 5.1).

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// Type, version, and a length of 16 bits.
const HEADER: usize = 5;

/// What is read at a time on the way to the end of a record.
const PIECE: usize = 4096;

/// A TCP stream that TLS goes over.
#[derive(Debug)]
pub struct RecordStream {
    stream: TcpStream,
    /// Bytes of a record's header that were read; 0 in its body.
    header: usize,
    /// Bytes of its body that were not.
    left: usize,
    stops: bool,
}

impl RecordStream {
    /// A stream of which nothing was read.
    pub const fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            header: 0,
            left: 0,
            stops: false,
        }
    }

    /// A stream of which this was read.
    pub fn after(stream: TcpStream, read: &[u8]) -> Self {
        let mut fresh = Self::new(stream);
        fresh.pass(read);
        fresh
    }

    /// The stream itself.
    pub const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The stream without the knowledge.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Whether what was read ends with a record.
    pub const fn at_an_end(&self) -> bool {
        self.header == 0 && self.left == 0
    }

    /// From now on (or no longer) nothing is read beyond the record that was begun: there, reads wait without being woken,
    /// so that [`RecordStream::at_an_end`] has to be asked.
    pub const fn stop_at_the_end(&mut self, stops: bool) {
        self.stops = stops;
    }

    fn pass(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.header == 0 && self.left > 0 {
                let passed = self.left.min(bytes.len());
                self.left -= passed;
                bytes = bytes.get(passed..).unwrap_or_default();
                continue;
            }
            match self.header {
                3 => self.left = usize::from(byte) << 8,
                4 => self.left |= usize::from(byte),
                _ => {}
            }
            self.header = (self.header + 1) % HEADER;
            bytes = rest;
        }
    }
}

impl AsyncRead for RecordStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.stops {
            let most = if this.header == 0 {
                this.left
            } else {
                HEADER - this.header
            };
            let mut piece = [0; PIECE];
            let room = most.min(buffer.remaining()).min(PIECE);
            if room == 0 {
                return Poll::Pending;
            }
            let mut part = ReadBuf::new(piece.get_mut(..room).unwrap_or_default());
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut part))?;
            this.pass(part.filled());
            buffer.put_slice(part.filled());
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        this.pass(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for RecordStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // One record, as most often: send(2), which has less to look at than writev(2).
        if let [only] = bytes {
            return self.poll_write(context, only);
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_record_is_known_however_it_is_cut() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let records = [
            &[22, 3, 1, 0, 3, 1, 2, 3][..],
            &[23, 3, 3, 0, 0],
            &[23, 3, 3, 1, 0],
            &[7; 256],
        ]
        .concat();
        let ends = [0, 8, 13, records.len()];
        let stream = TcpStream::connect(listener.local_addr().unwrap());
        let mut stream = stream.await.unwrap();
        for size in 1..records.len() {
            let mut below_tls = RecordStream::new(stream);
            let mut passed = 0;
            for piece in records.chunks(size) {
                below_tls.pass(piece);
                passed += piece.len();
                assert_eq!(below_tls.at_an_end(), ends.contains(&passed), "{passed}");
            }
            stream = below_tls.into_stream();
        }
    }
}
