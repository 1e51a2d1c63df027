//! Upgraded connections: real 101 handshakes for WebSocket and SPDY/3.1, then an echo. WebSocket frames come back unmasked as a
//! server's must be, pings are answered, a close is echoed; of SPDY the bytes come back as they came. Either side may half-close.

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use sha1::Digest as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::{body::Body, call::Call, reply::Reply, status::Status};

/// RFC 6455 section 1.3.
const WEBSOCKET_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const SPDY_VERSION: &str = "x-stream-protocol-version";

/// "Upgrade" anywhere in any Connection value (apimachinery `httpstream.IsUpgradeRequest`).
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.get_all(header::CONNECTION).iter().any(|value| {
        String::from_utf8_lossy(value.as_bytes())
            .to_lowercase()
            .contains("upgrade")
    })
}

pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    is_upgrade(headers)
        && headers
            .get(header::UPGRADE)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Switches protocols and echoes.
pub(crate) fn echo(call: &mut Call) -> Result<Reply, Status> {
    if !is_upgrade(&call.headers) || call.peer.wire.is_http2() {
        return Err(Status::bad_request("Upgrade request required"));
    }
    let websocket = is_websocket(&call.headers);
    let mut reply = Response::new(Body::bytes(Bytes::new()));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = reply.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    if websocket {
        let key = call
            .headers
            .get(header::SEC_WEBSOCKET_KEY)
            .ok_or_else(|| Status::bad_request("Sec-WebSocket-Key is missing"))?;
        let digest = sha1::Sha1::digest([key.as_bytes(), WEBSOCKET_GUID.as_bytes()].concat());
        let accept = base64::engine::general_purpose::STANDARD.encode(digest);
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        if let Ok(accept) = HeaderValue::try_from(accept) {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        let offered = call
            .headers
            .get(header::SEC_WEBSOCKET_PROTOCOL)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let first = offered
            .split(',')
            .map(str::trim)
            .find(|protocol| !protocol.is_empty());
        if let Some(protocol) = first.and_then(|protocol| HeaderValue::try_from(protocol).ok()) {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
        }
    } else {
        let name = call
            .headers
            .get(header::UPGRADE)
            .cloned()
            .unwrap_or(HeaderValue::from_static("SPDY/3.1"));
        headers.insert(header::UPGRADE, name);
        if let Some(version) = call.headers.get(SPDY_VERSION) {
            headers.insert(SPDY_VERSION, version.clone());
        }
    }
    let upgrade = call
        .take_upgrade()
        .ok_or_else(|| Status::internal("the connection cannot be upgraded"))?;
    let wire = std::sync::Arc::clone(&call.peer.wire);
    // Without stdin there is nothing to echo: the command "runs", prints itself and succeeds, as kubectl expects it.
    let runs = websocket && call.parameter("command").is_some() && !call.flag("stdin");
    let words: Vec<&str> = call
        .query
        .iter()
        .filter(|(name, _)| name == "command")
        .map(|(_, value)| value.as_str())
        .collect();
    let printed = format!("{}\n", words.join(" "));
    call.server.spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let (read, write) = tokio::io::split(TokioIo::new(upgraded));
        let echoed = async {
            if runs {
                run(read, write, &printed).await
            } else if websocket {
                echo_frames(read, write).await
            } else {
                echo_bytes(read, write).await
            }
        };
        tokio::select! {
            ended = echoed => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "An upgraded connection broke");
                }
            }
            () = wire.ended() => {}
        }
    });
    Ok(reply)
}

async fn echo_bytes(
    mut read: impl AsyncRead + Unpin,
    mut write: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = read.read(&mut buffer).await?;
        if count == 0 {
            // The client has ended its half; all that came before has been sent back.
            return write.shutdown().await;
        }
        write.write_all(&buffer[..count]).await?;
        write.flush().await?;
    }
}

async fn echo_frames(
    mut read: impl AsyncRead + Unpin,
    mut write: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    const CLOSE: u8 = 8;
    const PING: u8 = 9;
    const PONG: u8 = 10;
    loop {
        let mut head = [0; 2];
        match read.read_exact(&mut head).await {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return write.shutdown().await;
            }
            other => drop(other?),
        }
        let length = match head[1] & 0x7f {
            126 => u64::from(read.read_u16().await?),
            127 => read.read_u64().await?,
            short => u64::from(short),
        };
        let mut mask = [0; 4];
        if head[1] & 0x80 != 0 {
            read.read_exact(&mut mask).await?;
        }
        // A hostile length must not allocate; no test needs bigger frames.
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= 16 << 20);
        let Some(length) = length else {
            return Err(std::io::ErrorKind::InvalidData.into());
        };
        let mut payload = vec![0; length];
        read.read_exact(&mut payload).await?;
        for (at, byte) in payload.iter_mut().enumerate() {
            *byte ^= mask[at % 4];
        }
        let opcode = head[0] & 0x0f;
        if opcode == PONG {
            continue;
        }
        let first = if opcode == PING {
            head[0] & 0xf0 | PONG
        } else {
            head[0]
        };
        let mut frame = Vec::with_capacity(payload.len() + 10);
        push_frame(&mut frame, first, &payload);
        write.write_all(&frame).await?;
        write.flush().await?;
        if opcode == CLOSE {
            return write.shutdown().await;
        }
    }
}

/// Output on channel 1, success on channel 3, then a close (`v4.channel.k8s.io` and later).
async fn run(
    mut read: impl AsyncRead + Unpin,
    mut write: impl AsyncWrite + Unpin,
    printed: &str,
) -> std::io::Result<()> {
    let success = br#"{"metadata":{},"status":"Success"}"#;
    let mut frames = Vec::new();
    for (channel, payload) in [(1, printed.as_bytes()), (3, success.as_slice())] {
        push_frame(&mut frames, 0x82, &[&[channel], payload].concat());
    }
    // 1000: normal closure.
    push_frame(&mut frames, 0x88, &1000_u16.to_be_bytes());
    write.write_all(&frames).await?;
    write.flush().await?;
    // The client answers the close; whatever it says, the connection then ends.
    let mut rest = [0; 256];
    while read.read(&mut rest).await? > 0 {}
    write.shutdown().await
}

/// An unmasked frame with this first byte.
fn push_frame(out: &mut Vec<u8>, first: u8, payload: &[u8]) {
    out.push(first);
    match payload.len() {
        short @ ..126 => out.push(u8::try_from(short).unwrap_or_default()),
        medium @ ..65536 => {
            out.push(126);
            out.extend(u16::try_from(medium).unwrap_or_default().to_be_bytes());
        }
        long => {
            out.push(127);
            out.extend((long as u64).to_be_bytes());
        }
    }
    out.extend(payload);
}
