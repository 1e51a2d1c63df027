//! Hands the TLS of a tunnel's two connections to the kernel (design 7), so that its bytes can be spliced.
//!
//! The order matters. First everything that can fail without harm: whether kernel and mode allow these two connections,
//! the upper-layer protocol on both sockets (without keys it changes nothing), and reading on in user space to the end of
//! a record on each side. Until then the connections are whole, and a tunnel in user space goes on with them. Only then
//! are the secrets taken out of rustls and given to the kernel. What the kernel can was tried at start with the same calls,
//! so that nothing is left to fail there but memory.
//!
//! A peer that changes its key ends such a tunnel, on any kernel: rustls gives away keys, not the secret that the next
//! one is derived from. So `--ktls=auto` takes TLS 1.2 only, where keys never change.
//! <https://docs.kernel.org/networking/tls.html>

use std::{
    fmt,
    future::poll_fn,
    io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::AsFd,
    pin::Pin,
    sync::LazyLock,
    task::Poll,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use nix::sys::socket::{
    setsockopt,
    sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo},
};
use rustls::{
    CipherSuite, CommonState, ConnectionTrafficSecrets, ExtractedSecrets, ProtocolVersion,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    time::timeout,
};

use super::{Half, Io};
use crate::{config::Ktls, splice::End, tls::RecordStream};

/// How long a peer may take for the rest of a record that it has begun, and to take what was written to it.
const SETTLED_WITHIN: Duration = Duration::from_millis(500);

/// What is read at a time on the way to the end of a record.
const PIECE: usize = 16 * 1024;

/// What both the kernel and rustls know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cipher {
    Aes128Gcm,
    Aes256Gcm,
    Chacha20Poly1305,
}

const CIPHERS: [Cipher; 3] = [
    Cipher::Aes128Gcm,
    Cipher::Aes256Gcm,
    Cipher::Chacha20Poly1305,
];

impl Cipher {
    const fn key_length(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::Chacha20Poly1305 => 32,
        }
    }
}

const VERSIONS: [u16; 2] = [libc::TLS_1_2_VERSION, libc::TLS_1_3_VERSION];

/// What this kernel takes: versions and ciphers, by trial.
#[derive(Debug)]
pub struct Kernel {
    takes: Vec<(u16, Cipher)>,
}

static KERNEL: LazyLock<Kernel> = LazyLock::new(|| {
    Kernel::try_all().unwrap_or_else(|error| {
        tracing::debug!(%error, "Kernel TLS was not tried");
        Kernel { takes: Vec::new() }
    })
});

/// What this kernel takes. Tried at the first call, which may load the kernel's module: call it before `CAP_NET_ADMIN` is
/// dropped.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

impl Kernel {
    /// Whether it has kernel TLS at all.
    pub const fn has_tls(&self) -> bool {
        !self.takes.is_empty()
    }

    fn try_all() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut takes = Vec::new();
        for version in VERSIONS {
            for cipher in CIPHERS {
                let one = TcpStream::connect(listener.local_addr()?)?;
                let (_other, _) = listener.accept()?;
                let key = vec![0; cipher.key_length()];
                let Some(zeros) = info(version, cipher, &key, &[0; 12], 0) else {
                    continue;
                };
                let tried = ulp(&one)
                    .and_then(|()| Ok(setsockopt(&one, TcpTlsTx, &zeros)?))
                    .and_then(|()| Ok(setsockopt(&one, TcpTlsRx, &zeros)?));
                match tried {
                    Ok(()) => takes.push((version, cipher)),
                    Err(error) => tracing::debug!(version, ?cipher, %error, "Not in this kernel"),
                }
            }
        }
        Ok(Self { takes })
    }

    fn takes(&self, mode: Ktls, common: &CommonState) -> Option<(u16, Cipher)> {
        let wanted = match mode {
            Ktls::Off => return None,
            Ktls::Auto => Some(ProtocolVersion::TLSv1_2),
            Ktls::On => common.protocol_version(),
        };
        if common.protocol_version() != wanted {
            return None;
        }
        let version = match wanted? {
            ProtocolVersion::TLSv1_2 => libc::TLS_1_2_VERSION,
            ProtocolVersion::TLSv1_3 => libc::TLS_1_3_VERSION,
            _ => return None,
        };
        let cipher = match common.negotiated_cipher_suite()?.suite() {
            CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => Cipher::Aes128Gcm,
            CipherSuite::TLS13_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => Cipher::Aes256Gcm,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => Cipher::Chacha20Poly1305,
            _ => return None,
        };
        let both = (version, cipher);
        self.takes.contains(&both).then_some(both)
    }
}

/// What became of it.
pub(super) enum Handed {
    /// Both connections are the kernel's.
    Over(End, End),
    /// Both are as they were, but for bytes that were read early.
    Not(Half, Half),
}

/// Hands both sides over, or none. An error means that they are lost.
pub(super) async fn hand_over(client: Half, upstream: Half, mode: Ktls) -> io::Result<Handed> {
    if mode == Ktls::Off {
        return Ok(Handed::Not(client, upstream));
    }
    let kernel = kernel();
    let takes = |half: &Half| kernel.takes(mode, half.io.session()?);
    let (Some(client_kind), Some(upstream_kind)) = (takes(&client), takes(&upstream)) else {
        return Ok(Handed::Not(client, upstream));
    };
    let refused = [&client, &upstream]
        .into_iter()
        .filter_map(|half| half.io.socket())
        .find_map(|socket| ulp(socket).err());
    if let Some(error) = refused {
        tracing::debug!(%error, "A tunnel stays in user space");
        return Ok(Handed::Not(client, upstream));
    }
    let (mut client, mut upstream) = (client, upstream);
    if !(client.settle().await? && upstream.settle().await?) {
        client.io.stop_at_the_end(false);
        upstream.io.stop_at_the_end(false);
        tracing::debug!("A tunnel stays in user space: it is ending, or slow");
        return Ok(Handed::Not(client, upstream));
    }
    Ok(Handed::Over(
        client.into_kernel(client_kind)?,
        upstream.into_kernel(upstream_kind)?,
    ))
}

/// Makes TLS the upper-layer protocol of a connection. Without keys nothing changes for it.
fn ulp(socket: &impl AsFd) -> io::Result<()> {
    Ok(setsockopt(socket, TcpUlp::default(), b"tls")?)
}

impl Io {
    fn session(&self) -> Option<&CommonState> {
        match self {
            Self::Plain(_) => None,
            Self::Client(stream) => Some(stream.get_ref().1),
            Self::Upstream(stream) => Some(stream.get_ref().1),
        }
    }

    fn socket(&self) -> Option<&tokio::net::TcpStream> {
        match self {
            Self::Plain(_) => None,
            Self::Client(stream) => Some(stream.get_ref().0.stream()),
            Self::Upstream(stream) => Some(stream.get_ref().0.stream()),
        }
    }

    fn stop_at_the_end(&mut self, stops: bool) {
        match self {
            Self::Plain(_) => {}
            Self::Client(stream) => stream.get_mut().0.stop_at_the_end(stops),
            Self::Upstream(stream) => stream.get_mut().0.stop_at_the_end(stops),
        }
    }
}

impl Half {
    /// Reads on until nothing of a record is left in rustls, and sends what it has; whether that came about.
    async fn settle(&mut self) -> io::Result<bool> {
        self.io.stop_at_the_end(true);
        let mut read = BytesMut::from(&self.early[..]);
        let settled = match &mut self.io {
            Io::Plain(_) => return Ok(false),
            Io::Client(stream) => {
                let end = settle(&mut **stream, |stream| stream.get_ref().0, &mut read);
                timeout(SETTLED_WITHIN, end).await
            }
            Io::Upstream(stream) => {
                let end = settle(&mut **stream, |stream| stream.get_ref().0, &mut read);
                timeout(SETTLED_WITHIN, end).await
            }
        };
        self.early = Bytes::from(read);
        let sent = self.io.session().is_some_and(|it| !it.wants_write());
        Ok(match settled {
            Ok(settled) => settled? && sent,
            Err(_elapsed) => false,
        })
    }

    /// The point of no return.
    fn into_kernel(self, (version, cipher): (u16, Cipher)) -> io::Result<End> {
        let (wire, secrets) = match self.io {
            Io::Plain(stream) => {
                return Ok(End {
                    stream,
                    early: self.early,
                    tls: false,
                });
            }
            Io::Client(stream) => {
                let (wire, session) = stream.into_inner();
                (wire, session.dangerous_extract_secrets())
            }
            Io::Upstream(stream) => {
                let (wire, session) = stream.into_inner();
                (wire, session.dangerous_extract_secrets())
            }
        };
        let ExtractedSecrets { tx, rx } = secrets.map_err(io::Error::other)?;
        let stream = wire.into_stream();
        let info = |(sequence, secrets): &(u64, ConnectionTrafficSecrets)| {
            let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
            | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = secrets
            else {
                return None;
            };
            info(version, cipher, key.as_ref(), iv.as_ref(), *sequence)
        };
        let unknown = || io::Error::other("rustls has keys of an unknown form");
        setsockopt(&stream, TcpTlsTx, &info(&tx).ok_or_else(unknown)?)?;
        setsockopt(&stream, TcpTlsRx, &info(&rx).ok_or_else(unknown)?)?;
        Ok(End {
            stream,
            early: self.early,
            tls: true,
        })
    }
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Over(..) => "Over",
            Self::Not(..) => "Not",
        })
    }
}

/// Reads to the end of a record; false at the end of the stream.
async fn settle<S>(
    stream: &mut S,
    wire: impl Fn(&S) -> &RecordStream,
    into: &mut BytesMut,
) -> io::Result<bool>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut piece = vec![0; PIECE];
    let goes_on = poll_fn(|context| {
        loop {
            let mut part = ReadBuf::new(&mut piece);
            match Pin::new(&mut *stream).poll_read(context, &mut part) {
                Poll::Ready(Ok(())) if part.filled().is_empty() => {
                    return Poll::Ready(Ok(false));
                }
                Poll::Ready(Ok(())) => into.extend_from_slice(part.filled()),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if wire(stream).at_an_end() => {
                    return Poll::Ready(Ok(true));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await?;
    // An answer to a key update that was read just now, for one.
    stream.flush().await?;
    Ok(goes_on)
}

/// Keys as the kernel takes them; `None` if their lengths are not the cipher's. The first four bytes of AES-GCM's nonce are the salt, the others go with the records in TLS 1.2.
fn info(
    version: u16,
    cipher: Cipher,
    key: &[u8],
    nonce: &[u8],
    sequence: u64,
) -> Option<TlsCryptoInfo> {
    let rec_seq = sequence.to_be_bytes();
    let (salt, rest) = nonce.split_first_chunk::<4>()?;
    let info = |cipher_type| libc::tls_crypto_info {
        version,
        cipher_type,
    };
    Some(match cipher {
        Cipher::Aes128Gcm => TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 {
            info: info(libc::TLS_CIPHER_AES_GCM_128),
            iv: rest.try_into().ok()?,
            key: key.try_into().ok()?,
            salt: *salt,
            rec_seq,
        }),
        Cipher::Aes256Gcm => TlsCryptoInfo::Aes256Gcm(libc::tls12_crypto_info_aes_gcm_256 {
            info: info(libc::TLS_CIPHER_AES_GCM_256),
            iv: rest.try_into().ok()?,
            key: key.try_into().ok()?,
            salt: *salt,
            rec_seq,
        }),
        Cipher::Chacha20Poly1305 => {
            TlsCryptoInfo::Chacha20Poly1305(libc::tls12_crypto_info_chacha20_poly1305 {
                info: info(libc::TLS_CIPHER_CHACHA20_POLY1305),
                iv: nonce.try_into().ok()?,
                key: key.try_into().ok()?,
                salt: [],
                rec_seq,
            })
        }
    })
}
