//! What exec needs at its far end when the servers are real: a kubelet on the demo's only worker, which is the host of
//! the clients. It answers every upgrade with 101 and sends back what it gets, frame by frame.

use std::{net::Ipv4Addr, sync::Arc};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use bench::pki::Issued;
use rustls::{ServerConfig, crypto::aws_lc_rs};
use sha1::Digest as _;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, spawn_local},
};
use tokio_rustls::TlsAcceptor;

use super::kinds::KUBELET_PORT;

/// RFC 6455 section 1.3.
const WEBSOCKET_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A running kubelet; dropped, it ends.
#[derive(Debug)]
pub(crate) struct Kubelet(JoinHandle<()>);

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Listens on the worker's address, in the namespace of the calling thread.
pub(crate) fn start(address: Ipv4Addr, serving: &Issued) -> Result<Kubelet> {
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![serving.der.clone()], serving.private_key())?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener =
        std::net::TcpListener::bind((address, KUBELET_PORT)).context("the demo's kubelet")?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    Ok(Kubelet(spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            spawn_local(async move {
                if let Err(error) = converse(acceptor, stream).await {
                    eprintln!("the demo's kubelet: {error:#}");
                }
            });
        }
    })))
}

async fn converse(acceptor: TlsAcceptor, stream: TcpStream) -> Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    let mut key = String::new();
    let mut protocol = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let line = line.trim();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            match name.to_ascii_lowercase().as_str() {
                "sec-websocket-key" => value.trim().clone_into(&mut key),
                "sec-websocket-protocol" => value.trim().clone_into(&mut protocol),
                _ => {}
            }
        }
    }
    if key.is_empty() {
        bail!("only WebSocket is understood");
    }
    let digest = sha1::Sha1::digest([key.as_bytes(), WEBSOCKET_GUID.as_bytes()].concat());
    let accept = base64::engine::general_purpose::STANDARD.encode(digest);
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    loop {
        let mut head = [0; 2];
        if stream.read_exact(&mut head).await.is_err() {
            // The other end has gone; that is how every exec ends here.
            return Ok(());
        }
        let length = head[1] & 0x7f;
        if length > 125 {
            bail!("only short frames are understood");
        }
        let mut mask = [0; 4];
        if head[1] & 0x80 != 0 {
            stream.read_exact(&mut mask).await?;
        }
        let mut payload = vec![0; usize::from(length)];
        stream.read_exact(&mut payload).await?;
        for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
            *byte ^= mask;
        }
        stream.write_all(&[head[0], length]).await?;
        stream.write_all(&payload).await?;
        stream.flush().await?;
    }
}
