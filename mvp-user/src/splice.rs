//! Moves the bytes of two TCP sockets inside the kernel, by splice(2) through a pipe for each direction.
//!
//! [`join`] is the whole of it: early bytes first, half-close for each direction, a break made a break on both sides, and
//! counts of what went which way. Where splice(2) does not serve, the same bytes are copied. A socket may have its TLS in
//! the kernel (`End::tls`): then its clean end is `close_notify`, and the end of its TCP alone is a break. Not for TLS that
//! ends in user space, and not for deciding what becomes a tunnel: see `tunnel`.
//!
//! The kernel says EAGAIN both for "the socket has nothing" and for "the pipe is full" (splice(2)). Here a pipe is emptied
//! before anything else goes in, so that on the way in EAGAIN means the socket, and on the way out the socket as well;
//! only then is tokio's readiness cleared. A direction that waits for its sender holds no pipe: idle connections cost none.

mod pipe;
mod records;
#[cfg(test)]
mod tests;

use std::{cell::Cell, io, mem};

use bytes::Bytes;
use rustix::io::Errno;
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

pub(crate) use self::records::KeyUpdate;
use self::{pipe::Pipe, records::Next};

/// What is copied at a time where splice(2) does not serve.
const BUFFER: usize = 16 * 1024;

/// Records after which a key has to be changed (AES-GCM: 2^24.5, RFC 8446 5.5), which nobody here can: 256 GiB of full
/// records. Such a tunnel breaks.
const MOST_RECORDS: u64 = 1 << 24;

/// One end of what is joined.
#[derive(Debug)]
pub struct End {
    /// The connection.
    pub stream: TcpStream,
    /// What was read from it already: goes to the other end first.
    pub early: Bytes,
    /// Whether the kernel does its TLS.
    pub tls: bool,
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
    mut client: End,
    mut upstream: End,
    up: &Count,
    down: &Count,
    way: Way,
) -> io::Result<()> {
    let early = [&mut client, &mut upstream].map(|end| mem::take(&mut end.early));
    let [client_early, upstream_early] = early;
    let to_upstream = Direction::new(&client, &upstream, up);
    let to_client = Direction::new(&upstream, &client, down);
    let end = tokio::try_join!(
        to_upstream.run(client_early, way),
        to_client.run(upstream_early, way)
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
    from_tls: bool,
    to_tls: bool,
    count: &'a Count,
    records: Cell<u64>,
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
    const fn new(from: &'a End, to: &'a End, count: &'a Count) -> Self {
        Self {
            from: &from.stream,
            to: &to.stream,
            from_tls: from.tls,
            to_tls: to.tls,
            count,
            records: Cell::new(0),
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
        self.end().await
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
                    // Neither an end nor a failure, before it is known what it was.
                    Ok(0) if self.from_tls => match self.record().await? {
                        Some(stop) => return Ok(stop),
                        None => continue,
                    },
                    Err(error) if self.from_tls && is_record(&error) => {
                        match self.record().await? {
                            Some(stop) => return Ok(stop),
                            None => continue,
                        }
                    }
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
                Ok(bytes) => {
                    self.count.add(Way::Spliced, bytes);
                    self.sealed(bytes)?;
                }
                Err(error) if unable(&error) => {
                    // Not an array, which would be in every tunnel from its beginning, twice.
                    let mut buffer = vec![0; 4096];
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
                .await;
            let read = match read {
                Ok(0) if !self.from_tls => return Ok(()),
                Err(error) if !(self.from_tls && is_record(&error)) => return Err(error),
                Ok(0) | Err(_) => match self.record().await? {
                    Some(Stop::End) => return Ok(()),
                    _ => continue,
                },
                Ok(read) => read,
            };
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
                    self.sealed(written)?;
                    bytes = bytes.get(written..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Looks at a record that is no data, or has none; `None`: the next may be.
    async fn record(&self) -> io::Result<Option<Stop>> {
        let mut buffer = vec![0; records::LONGEST];
        let next = self
            .from
            .try_io(Interest::READABLE, || records::take(self.from, &mut buffer));
        match next {
            Ok(Next::Data(length)) => {
                self.write(buffer.get(..length).unwrap_or_default()).await?;
                Ok(None)
            }
            Ok(Next::Nothing) => Ok(None),
            Ok(Next::End) => Ok(Some(Stop::End)),
            // There was an empty record, and nothing is behind it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Counts the records that were made of so many bytes: at most so many.
    fn sealed(&self, bytes: usize) -> io::Result<()> {
        let made = 1 + (bytes / records::LONGEST) as u64;
        self.records.set(self.records.get() + made);
        if self.to_tls && self.records.get() > MOST_RECORDS {
            return Err(io::Error::other("a key in the kernel is used up"));
        }
        Ok(())
    }

    /// Half-close: the other direction goes on.
    async fn end(&self) -> io::Result<()> {
        if self.to_tls {
            self.to
                .async_io(Interest::WRITABLE, || records::close_notify(self.to))
                .await?;
        }
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

/// Whether the kernel says that the next record is no data: EINVAL to splice(2), EIO to read(2).
fn is_record(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::INVAL, Errno::IO]
        .iter()
        .any(|errno| code == Some(errno.raw_os_error()))
}

/// Whether the kernel says that these descriptors cannot be spliced.
fn unable(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS, Errno::PERM]
        .iter()
        .any(|errno| code == Some(errno.raw_os_error()))
}
