//! Door 3: two connections joined byte for byte, each direction ending on its own.
//!
//! A [`Half`] is a socket and what was already read from it; [`join`] moves the bytes and counts them: two plain sockets
//! inside the kernel (`splice`), TLS by one copy, or in the kernel as well where it has been handed over (`ktls`). Used for
//! upgrades and for raw connections. Not for deciding what becomes a tunnel.

use std::{cell::Cell, io};

use bytes::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf},
    net::TcpStream,
};
use tokio_rustls::{client, server};

use crate::{
    accept::Watched,
    config::Ktls,
    splice::{self, Count, KeyUpdate, Way},
    tls::RecordStream,
};

mod ktls;
#[cfg(test)]
mod tests;

pub use ktls::{Kernel, kernel};

/// What is moved at a time in user space.
const BUFFER: usize = 16 * 1024;

/// One side of a tunnel.
#[derive(Debug)]
pub struct Half {
    /// The connection.
    pub io: Io,
    /// What was read from it before it became a tunnel: goes to the other side first.
    pub early: Bytes,
}

/// A connection that can be a side of a tunnel.
#[derive(Debug)]
pub enum Io {
    /// TCP.
    Plain(TcpStream),
    /// A client's TLS connection.
    Client(Box<server::TlsStream<RecordStream>>),
    /// TLS towards an API server.
    Upstream(Box<client::TlsStream<RecordStream>>),
}

/// How many bytes went each way.
#[derive(Debug, Default)]
pub struct Tally {
    /// From the client to the upstream.
    pub up: Count,
    /// From the upstream to the client.
    pub down: Count,
    /// Whether the TLS of both sides was handed to the kernel.
    pub in_kernel: Cell<bool>,
}

/// How bytes may move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How {
    /// `--splice`: inside the kernel where it can.
    pub splice: bool,
    /// `--ktls`; means nothing without splicing.
    pub ktls: Ktls,
}

/// Whether a tunnel broke because a peer changed its key.
pub fn is_key_update(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<KeyUpdate>)
}

impl Io {
    /// The connection below.
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Client(stream) => stream.get_ref().0.stream(),
            Self::Upstream(stream) => stream.get_ref().0.stream(),
        }
    }
}

impl Half {
    /// A plain connection of which `early` was read.
    pub const fn plain(stream: TcpStream, early: Bytes) -> Self {
        Self {
            io: Io::Plain(stream),
            early,
        }
    }

    /// The client's connection after a 101.
    pub fn client(upgraded: Upgraded) -> io::Result<Self> {
        let parts = upgraded
            .downcast::<TokioIo<Watched>>()
            .map_err(|_other| io::Error::other("the client's connection is not TLS over TCP"))?;
        Ok(Self {
            io: Io::Client(Box::new(parts.io.into_inner().into_inner())),
            early: parts.read_buf,
        })
    }

    /// The API server's connection after a 101.
    pub fn upstream(upgraded: Upgraded) -> io::Result<Self> {
        let parts = upgraded
            .downcast::<TokioIo<client::TlsStream<RecordStream>>>()
            .map_err(|_other| io::Error::other("the upstream's connection is not TLS over TCP"))?;
        Ok(Self {
            io: Io::Upstream(Box::new(parts.io.into_inner())),
            early: parts.read_buf,
        })
    }
}

/// Moves bytes both ways until both directions have ended, or one breaks. An end on one side becomes an end on the other
/// (half-close); a break becomes a break, so that nothing truncated looks complete. `tally` counts as it goes.
pub async fn join(client: Half, upstream: Half, how: How, tally: &Tally) -> io::Result<()> {
    // The dialer's time-out also ends a connection whose receiver has closed its window (tcp(7)), and the reader of a tunnel
    // may take as long as it likes. That the other end is there, keepalive sees.
    SockRef::from(upstream.io.tcp()).set_tcp_user_timeout(None)?;
    let (client, upstream) = if how.splice {
        match Box::pin(ktls::hand_over(client, upstream, how.ktls)).await? {
            ktls::Handed::Over(client, upstream) => {
                tally.in_kernel.set(true);
                return splice::join(client, upstream, &tally.up, &tally.down, Way::Spliced).await;
            }
            ktls::Handed::Not(client, upstream) => (client, upstream),
        }
    } else {
        (client, upstream)
    };
    match (client.io, upstream.io) {
        (Io::Plain(client_io), Io::Plain(upstream_io)) => {
            let end = |stream, early| splice::End {
                stream,
                early,
                tls: false,
            };
            let way = if how.splice {
                Way::Spliced
            } else {
                Way::Copied
            };
            let client = end(client_io, client.early);
            let upstream = end(upstream_io, upstream.early);
            splice::join(client, upstream, &tally.up, &tally.down, way).await
        }
        (Io::Plain(client_io), Io::Upstream(upstream_io)) => {
            copy(client_io, client.early, *upstream_io, upstream.early, tally).await
        }
        (Io::Client(client_io), Io::Upstream(upstream_io)) => {
            copy(
                *client_io,
                client.early,
                *upstream_io,
                upstream.early,
                tally,
            )
            .await
        }
        (Io::Client(client_io), Io::Plain(upstream_io)) => {
            copy(*client_io, client.early, upstream_io, upstream.early, tally).await
        }
        (Io::Upstream(_), _) | (_, Io::Client(_)) => {
            Err(io::Error::other("the sides of a tunnel are swapped"))
        }
    }
}

/// The user-space copy.
async fn copy<C, U>(
    client: C,
    client_early: Bytes,
    upstream: U,
    upstream_early: Bytes,
    tally: &Tally,
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    U: AsyncRead + AsyncWrite,
{
    let (client_read, client_write) = tokio::io::split(client);
    let (upstream_read, upstream_write) = tokio::io::split(upstream);
    let up = one_way(client_read, client_early, upstream_write, &tally.up);
    let down = one_way(upstream_read, upstream_early, client_write, &tally.down);
    tokio::try_join!(up, down).map(|((), ())| ())
}

async fn one_way<R: AsyncRead, W: AsyncWrite>(
    mut from: ReadHalf<R>,
    early: Bytes,
    mut to: WriteHalf<W>,
    count: &Count,
) -> io::Result<()> {
    if !early.is_empty() {
        to.write_all(&early).await?;
        to.flush().await?;
        count.add(Way::Copied, early.len());
    }
    drop(early);
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            // The other side may be gone already.
            return match to.shutdown().await {
                Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
                _ => Ok(()),
            };
        }
        to.write_all(buffer.get(..read).unwrap_or_default()).await?;
        to.flush().await?;
        count.add(Way::Copied, read);
    }
}
