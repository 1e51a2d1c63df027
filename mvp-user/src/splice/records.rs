//! TLS records of a kernel TLS socket that are not data: taken out of its queue, and the one that is sent.
//! Not for keys (`tunnel::ktls`). <https://docs.kernel.org/networking/tls.html>

use std::{
    io::{self, IoSliceMut},
    os::fd::{AsRawFd, RawFd},
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::FutureExt as _;
use ktls::KtlsStream;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, TlsGetRecordType, recvmsg};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};

/// The longest plaintext of a record (RFC 8446 5.1).
pub(super) const LONGEST: usize = 16 * 1024;

/// `close_notify`, `key_update` (RFC 8446 6.1, 4).
const CLOSE_NOTIFY: u8 = 0;
const WARNING: u8 = 1;
const KEY_UPDATE: u8 = 24;

/// What a socket has next.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// That many bytes of data.
    Data(usize),
    /// A record that means nothing to a tunnel: a session ticket, a warning.
    Nothing,
    /// The peer's clean end.
    End,
}

/// The peer has changed its key, and nobody here can follow: rustls has forgotten what the next one is made from.
#[derive(Debug, thiserror::Error)]
#[error("the peer updates its key, which a connection in the kernel cannot follow")]
pub(crate) struct KeyUpdate;

/// Takes the next record, or several of data.
pub(super) fn take(from: &TcpStream, buffer: &mut [u8]) -> io::Result<Next> {
    let mut space = nix::cmsg_space!(u8);
    let (kind, length) = {
        let mut pieces = [IoSliceMut::new(buffer)];
        let message = recvmsg::<()>(
            from.as_raw_fd(),
            &mut pieces,
            Some(&mut space),
            MsgFlags::MSG_DONTWAIT,
        )?;
        let kind = message.cmsgs()?.find_map(|part| match part {
            ControlMessageOwned::TlsGetRecordType(kind) => Some(kind),
            _ => None,
        });
        (kind, message.bytes)
    };
    let bytes = buffer.get(..length).unwrap_or_default();
    match (kind, bytes) {
        (None, []) => Err(truncated()),
        (None | Some(TlsGetRecordType::ApplicationData), bytes) => Ok(Next::Data(bytes.len())),
        (Some(TlsGetRecordType::Alert), &[_, CLOSE_NOTIFY]) => Ok(Next::End),
        (Some(TlsGetRecordType::Alert), &[WARNING, _]) => Ok(Next::Nothing),
        (Some(TlsGetRecordType::Alert), bytes) => Err(io::Error::other(format!(
            "the peer ends TLS with alert {bytes:?}"
        ))),
        (Some(TlsGetRecordType::Handshake), messages) if updates_key(messages) => {
            Err(io::Error::other(KeyUpdate))
        }
        // Tickets are of no use: the connection that could resume from them is in the kernel.
        (Some(TlsGetRecordType::Handshake), _) => Ok(Next::Nothing),
        (Some(kind), _) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a TLS record of type {kind:?} in the middle of a tunnel"),
        )),
    }
}

/// Whether one of the handshake messages is a `key_update`: each has a type and a length of 24 bits.
fn updates_key(mut messages: &[u8]) -> bool {
    while let Some((&[kind, high, middle, low], rest)) = messages.split_first_chunk::<4>() {
        if kind == KEY_UPDATE {
            return true;
        }
        let length = u32::from_be_bytes([0, high, middle, low]);
        let Some(next) = usize::try_from(length).ok().and_then(|it| rest.get(it..)) else {
            return false;
        };
        messages = next;
    }
    false
}

/// A connection without a clean end.
pub(super) fn truncated() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the peer closed the connection without close_notify",
    )
}

/// Sends `close_notify`. The record's type goes into a control message that no safe interface but this crate's has.
pub(super) fn close_notify(to: &TcpStream) -> io::Result<()> {
    let mut stream = KtlsStream::new(Closing(to.as_raw_fd()), None);
    // It does not wait: the descriptor of a tokio stream is non-blocking.
    stream
        .shutdown()
        .now_or_never()
        .unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
}

/// A descriptor of which only the TLS is shut down.
struct Closing(RawFd);

impl AsRawFd for Closing {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl AsyncWrite for Closing {
    fn poll_write(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        _bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::updates_key;

    #[test]
    fn a_key_update_is_found_behind_tickets() {
        let ticket = [4, 0, 0, 3, 9, 9, 9];
        let update = [24, 0, 0, 1, 1];
        assert!(updates_key(&update));
        assert!(updates_key(&[&ticket[..], &ticket, &update].concat()));
        assert!(!updates_key(&[ticket, ticket].concat()));
        for cut in [&[][..], &[24], &[4, 0xff, 0xff, 0xff], &ticket[..5]] {
            assert!(!updates_key(cut));
        }
    }
}
