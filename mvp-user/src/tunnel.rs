//! Door 3: two connections joined byte for byte, each direction ending on its own.
//!
//! A [`Half`] is a socket and what was already read from it; [`join`] moves the bytes and counts them: two plain sockets
//! inside the kernel (`splice`), TLS by one copy. Used for upgrades and for raw connections. Not for deciding what becomes
//! a tunnel.

use std::io;

use bytes::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf},
    net::TcpStream,
};
use tokio_rustls::{client, server};

use crate::{
    accept::Watched,
    splice::{self, Count, Way},
};

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
    Client(Box<server::TlsStream<TcpStream>>),
    /// TLS towards an API server.
    Upstream(Box<client::TlsStream<TcpStream>>),
}

/// How many bytes went each way.
#[derive(Debug, Default)]
pub struct Tally {
    /// From the client to the upstream.
    pub up: Count,
    /// From the upstream to the client.
    pub down: Count,
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
            .downcast::<TokioIo<client::TlsStream<TcpStream>>>()
            .map_err(|_other| io::Error::other("the upstream's connection is not TLS over TCP"))?;
        Ok(Self {
            io: Io::Upstream(Box::new(parts.io.into_inner())),
            early: parts.read_buf,
        })
    }
}

/// Moves bytes both ways until both directions have ended, or one breaks. An end on one side becomes an end on the other
/// (half-close); a break becomes a break, so that nothing truncated looks complete. `tally` counts as it goes.
pub async fn join(client: Half, upstream: Half, tally: &Tally) -> io::Result<()> {
    match (client.io, upstream.io) {
        (Io::Plain(client_io), Io::Plain(upstream_io)) => {
            let client = splice::End {
                stream: client_io,
                early: client.early,
            };
            let upstream = splice::End {
                stream: upstream_io,
                early: upstream.early,
            };
            splice::join(client, upstream, &tally.up, &tally.down, Way::Spliced).await
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
