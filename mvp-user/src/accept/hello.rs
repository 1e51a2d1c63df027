//! Reads a ClientHello, bounded in size and time, and decides what becomes of the connection.

use std::{
    io::{self, Read as _},
    net::IpAddr,
    time::Duration,
};

use bytes::BytesMut;
use rustls::server::{Accepted, AcceptedAlert, Acceptor, ClientHello};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    RawReason,
    metrics::{Failure, Outcome},
    node::NodeAddresses,
};
use crate::{
    api::{ALPN_DIRECT, LOOPBACK_SNI},
    table::Table,
};

/// A client that says nothing for this long is a probe, or wants to keep us busy.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest handshake message that rustls takes; kube-apiserver's limit is the same.
pub(super) const HELLO_LIMIT: usize = 64 << 10;
/// What Go takes for plain HTTP (`tlsRecordHeaderLooksLikeHTTP` of net/http).
const HTTP: [&[u8; 5]; 5] = [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"];
/// Go's answer to it, word for word.
const HTTP_ANSWER: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// What a client said first.
pub(super) struct Hello {
    /// Parsed, with whatever came behind it.
    pub(super) accepted: Accepted,
    /// Every byte that was read.
    pub(super) head: BytesMut,
}

/// What becomes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Raw(RawReason),
    Terminate { decided: bool },
}

/// Reads until the ClientHello is complete.
pub(super) async fn read(stream: &mut TcpStream) -> Result<Hello, Failure> {
    let mut head = BytesMut::new();
    let read = timeout(HELLO_TIMEOUT, read_hello(stream, &mut head)).await;
    match read {
        Ok(Ok(accepted)) => Ok(Hello { accepted, head }),
        Ok(Err(Broken::Io(error))) => Err(error.into()),
        Ok(Err(Broken::Closed)) => Err(Failure::closed(head.len())),
        Ok(Err(Broken::Http)) => {
            answer(stream, HTTP_ANSWER).await;
            Err(Failure {
                outcome: Outcome::PlainHttp,
                detail: "plain HTTP".to_owned(),
            })
        }
        Ok(Err(Broken::Tls(error, mut alert))) => {
            let mut text = Vec::new();
            // Writing into a Vec cannot fail.
            if alert.write_all(&mut text).is_ok() {
                answer(stream, &text).await;
            }
            Err(Failure::from(error))
        }
        Err(_elapsed) => Err(Failure::timeout("no ClientHello within 10 s")),
    }
}

enum Broken {
    Io(io::Error),
    Closed,
    Http,
    Tls(rustls::Error, AcceptedAlert),
}

async fn read_hello(stream: &mut TcpStream, head: &mut BytesMut) -> Result<Accepted, Broken> {
    let mut acceptor = Acceptor::default();
    let mut fed = 0;
    loop {
        // rustls reads no more than 4 KiB at a time; what it has not read when it is done would be lost.
        head.reserve(4096);
        let limit = HELLO_LIMIT.saturating_sub(head.len()).min(4096);
        if limit == 0 {
            let full = io::Error::new(io::ErrorKind::InvalidData, "ClientHello larger than 64 KiB");
            return Err(Broken::Io(full));
        }
        let read = stream
            .take(limit as u64)
            .read_buf(head)
            .await
            .map_err(Broken::Io)?;
        if read == 0 {
            return Err(Broken::Closed);
        }
        if let Some(start) = head.first_chunk::<5>() {
            if HTTP.contains(&start) {
                return Err(Broken::Http);
            }
        } else if head.first() != Some(&0x16) {
            // Maybe the beginning of HTTP: too short to tell, and no TLS in any case.
            continue;
        }
        let mut new = head.get(fed..).unwrap_or_default();
        while !new.is_empty() {
            let taken = acceptor.read_tls(&mut new.by_ref()).map_err(Broken::Io)?;
            if taken == 0 {
                return Err(Broken::Closed);
            }
        }
        fed = head.len();
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(accepted),
            Ok(None) => {}
            Err((error, alert)) => return Err(Broken::Tls(error, alert)),
        }
    }
}

/// Sends a last word and lets it arrive: closing with unread input would reset the connection and destroy it.
async fn answer(stream: &mut TcpStream, text: &[u8]) {
    let last = async {
        stream.write_all(text).await?;
        stream.shutdown().await?;
        let mut rest = stream.take(HELLO_LIMIT as u64);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    if let Ok(Err(error)) = timeout(Duration::from_secs(1), last).await {
        tracing::trace!(%error, "a last word to a client");
    }
}

/// Design 2 (loopback) and 4.4 (one decision per request).
pub(super) fn judge(
    hello: &ClientHello<'_>,
    peer: IpAddr,
    node: &NodeAddresses,
    table: &Table,
) -> Verdict {
    let loopback = hello
        .server_name()
        .is_some_and(|name| name.eq_ignore_ascii_case(LOOPBACK_SNI));
    if loopback && node.has(peer) {
        return Verdict::Raw(RawReason::Loopback);
    }
    let marked = hello
        .alpn()
        .is_some_and(|mut offered| offered.any(|protocol| protocol == ALPN_DIRECT));
    if !marked {
        return Verdict::Terminate { decided: false };
    }
    let known = table
        .members()
        .peers
        .iter()
        .any(|server| server.address.ip().to_canonical() == peer);
    if known || node.has(peer) {
        Verdict::Raw(RawReason::Direct)
    } else {
        Verdict::Terminate { decided: true }
    }
}
