//! Moves the bytes of two TCP sockets inside the kernel, by splice(2) through a pipe for each direction.
//!
//! [`join`] is the whole of it: early bytes first, half-close for each direction, a break made a break on both sides, and
//! counts of what went which way. Where splice(2) does not serve, the same bytes are copied. Not for TLS that ends in user
//! space, and not for deciding what becomes a tunnel: see `tunnel`.
//!
//! The kernel says EAGAIN both for "the socket has nothing" and for "the pipe is full" (splice(2)). Here a pipe is emptied
//! before anything else goes in, so that on the way in EAGAIN means the socket, and on the way out the socket as well;
//! only then is tokio's readiness cleared. A direction that waits for its sender holds no pipe: idle connections cost none.

mod pipe;
#[cfg(test)]
mod tests;

use std::{cell::Cell, io};

use bytes::Bytes;
use rustix::io::Errno;
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

use self::pipe::Pipe;

/// What is copied at a time where splice(2) does not serve.
const BUFFER: usize = 16 * 1024;

/// One end of what is joined.
#[derive(Debug)]
pub struct End {
    /// The connection.
    pub stream: TcpStream,
    /// What was read from it already: goes to the other end first.
    pub early: Bytes,
}

/// How bytes move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Inside the kernel, as long as it can.
    Spliced,
    /// Through a buffer.
    Copied,
}

/// Bytes that went in one direction.
#[derive(Debug, Default)]
pub struct Count {
    /// Inside the kernel.
    pub spliced: Cell<u64>,
    /// Through memory of this process.
    pub copied: Cell<u64>,
}

impl Count {
    /// Both ways together.
    pub const fn total(&self) -> u64 {
        self.spliced.get() + self.copied.get()
    }

    /// Adds what went one way.
    pub fn add(&self, way: Way, bytes: usize) {
        let count = match way {
            Way::Spliced => &self.spliced,
            Way::Copied => &self.copied,
        };
        count.set(count.get() + bytes as u64);
    }
}

/// Moves bytes until both directions have ended, or one breaks. `up` counts what the client sent, `down` what it gets.
///
/// An end of one side becomes an end on the other. After a break, a side that has not had its end yet is reset: nothing
/// truncated looks complete.
pub async fn join(
    client: End,
    upstream: End,
    up: &Count,
    down: &Count,
    way: Way,
) -> io::Result<()> {
    let to_upstream = Direction::new(&client.stream, &upstream.stream, up);
    let to_client = Direction::new(&upstream.stream, &client.stream, down);
    let end = tokio::try_join!(
        to_upstream.run(client.early, way),
        to_client.run(upstream.early, way)
    );
    if end.is_err() {
        to_upstream.reset();
        to_client.reset();
    }
    end.map(|((), ())| ())
}

/// From one socket into another.
struct Direction<'a> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    count: &'a Count,
    ended: Cell<bool>,
}

/// Why splicing stopped.
enum Stop {
    /// The sender has ended, and everything it sent is out.
    End,
    /// The kernel cannot; what it took is out.
    Unable,
}

impl<'a> Direction<'a> {
    const fn new(from: &'a TcpStream, to: &'a TcpStream, count: &'a Count) -> Self {
        Self {
            from,
            to,
            count,
            ended: Cell::new(false),
        }
    }

    async fn run(&self, early: Bytes, way: Way) -> io::Result<()> {
        self.write(&early).await?;
        drop(early);
        match way {
            Way::Spliced => match self.splice().await? {
                Stop::End => {}
                Stop::Unable => self.copy().await?,
            },
            Way::Copied => self.copy().await?,
        }
        self.end()
    }

    async fn splice(&self) -> io::Result<Stop> {
        loop {
            self.from.readable().await?;
            // Without descriptors left there is still memory.
            let Ok(mut pipe) = Pipe::lease() else {
                return Ok(Stop::Unable);
            };
            loop {
                let filled = self
                    .from
                    .try_io(Interest::READABLE, || pipe.fill(self.from));
                match filled {
                    Ok(0) => return Ok(Stop::End),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if unable(&error) => return Ok(Stop::Unable),
                    Err(error) => return Err(error),
                }
                if let Stop::Unable = self.drain(&mut pipe).await? {
                    return Ok(Stop::Unable);
                }
            }
        }
    }

    /// Brings everything in the pipe out.
    async fn drain(&self, pipe: &mut Pipe) -> io::Result<Stop> {
        while pipe.held() > 0 {
            // Counts as work for tokio, so that two fast ends do not keep the thread to themselves.
            let drained = self
                .to
                .async_io(Interest::WRITABLE, || pipe.drain(self.to))
                .await;
            match drained {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.count.add(Way::Spliced, bytes),
                Err(error) if unable(&error) => {
                    let mut buffer = [0; 4096];
                    while pipe.held() > 0 {
                        let read = pipe.read(&mut buffer)?;
                        self.write(buffer.get(..read).unwrap_or_default()).await?;
                    }
                    return Ok(Stop::Unable);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Stop::End)
    }

    async fn copy(&self) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = self
                .from
                .async_io(Interest::READABLE, || self.from.try_read(&mut buffer))
                .await?;
            if read == 0 {
                return Ok(());
            }
            self.write(buffer.get(..read).unwrap_or_default()).await?;
        }
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.to.writable().await?;
            match self.to.try_write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.count.add(Way::Copied, written);
                    bytes = bytes.get(written..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Half-close: the other direction goes on.
    fn end(&self) -> io::Result<()> {
        self.ended.set(true);
        match SockRef::from(self.to).shutdown(std::net::Shutdown::Write) {
            // The other side may be gone already.
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
            _ => Ok(()),
        }
    }

    /// After a break: the receiver sees one as well when the socket is closed, unless it has its end.
    fn reset(&self) {
        if !self.ended.get()
            && let Err(error) = self.to.set_zero_linger()
        {
            tracing::debug!(%error, "A broken tunnel ends without a reset");
        }
    }
}

/// Whether the kernel says that these descriptors cannot be spliced.
fn unable(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS, Errno::PERM]
        .iter()
        .any(|errno| code == Some(errno.raw_os_error()))
}
