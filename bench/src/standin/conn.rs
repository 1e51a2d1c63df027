//! Connections: accepting them, TLS, HTTP/1.1 or HTTP/2 around each, and what can be done to one from outside (silence, reset,
//! GOAWAY, an orderly end).

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls_pki_types::CertificateDer;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{
    authn::Presented,
    frames::Frames,
    log::Connection,
    serve,
    server::Server,
    wire::{Listening, Peer, Tcp, Wire},
};

/// kube-apiserver's own limits (apiserver `server/secure_serving.go`).
const HEADER_LIMIT: usize = 1 << 20;
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// How long Go waits between the last answer after a GOAWAY and closing the connection (`http2.goAwayTimeout`).
const AFTER_GOAWAY: Duration = Duration::from_secs(1);

/// A listening socket with a backlog like kube-apiserver's (somaxconn). Must be called inside the server's runtime.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(4096)
}

/// Accepts connections from now on.
pub(crate) fn listen(server: &Arc<Server>, listener: TcpListener) {
    let (stop, mut stopped) = watch::channel(false);
    let accepting = Arc::clone(server);
    let (ended, closed) = tokio::sync::oneshot::channel();
    server.spawn(async move {
        tokio::select! {
            () = accept(accepting, &listener) => {}
            _ = stopped.wait_for(|stop| *stop) => {}
        }
        drop(listener);
        if ended.send(()).is_err() {
            tracing::debug!("Nobody waits for the listener's end");
        }
    });
    server.listening(Some(Listening { stop, closed }));
}

/// Closes the listener and waits until it is closed, or opens it again.
pub(crate) async fn refuse(server: &Arc<Server>, on: bool) -> io::Result<()> {
    let present = server.listening(None);
    match (present, on) {
        (Some(listening), true) => {
            listening.stop.send_replace(true);
            drop(listening.closed.await);
        }
        (None, false) => listen(server, bind(server.bind)?),
        (Some(listening), false) => drop(server.listening(Some(listening))),
        (None, true) => {}
    }
    Ok(())
}

#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
async fn accept(server: Arc<Server>, listener: &TcpListener) {
    loop {
        server.silence.ended().await;
        let accepted = listener.accept().await;
        // Accepted at the moment silence began: it waits with the rest.
        server.silence.ended().await;
        match accepted {
            Ok((stream, client)) => {
                let id = server.next_connection();
                // An IPv4 client of an IPv6 socket is an IPv4 client.
                let client = SocketAddr::new(client.ip().to_canonical(), client.port());
                let wire = Wire::new(id, client, Arc::clone(&server.silence), server.budget());
                server.track(&wire);
                let task = connection(Arc::clone(&server), stream, wire);
                server.spawn(task);
            }
            Err(error) => {
                tracing::warn!(%error, "Accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(server: Arc<Server>, stream: TcpStream, wire: Arc<Wire>) {
    drop(stream.set_nodelay(true));
    server.log.opened(Connection {
        id: wire.id,
        client: wire.client,
        server_name: None,
        alpn_offered: Vec::new(),
        alpn: None,
        certificate: None,
        closed: false,
        failure: None,
    });
    let tcp = Tcp {
        stream,
        wire: Arc::clone(&wire),
    };
    tokio::select! {
        served = handshake_and_serve(&server, tcp, &wire) => {
            if let Err(error) = served {
                tracing::debug!(connection = wire.id, %error, "Connection ended");
                server.log.change(wire.id, |found| found.failure = Some(error.to_string()));
            }
        }
        () = wire.ended() => {}
    }
    server.log.change(wire.id, |found| found.closed = true);
}

async fn handshake_and_serve(
    server: &Arc<Server>,
    tcp: Tcp,
    wire: &Arc<Wire>,
) -> anyhow::Result<()> {
    let started = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), tcp).await?;
    {
        let hello = started.client_hello();
        let offered: Vec<String> = hello
            .alpn()
            .into_iter()
            .flatten()
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        let name = hello.server_name().map(str::to_owned);
        server.log.change(wire.id, |found| {
            found.alpn_offered = offered;
            found.server_name = name;
        });
    }
    let tls = started.into_stream(server.tls()).await?;
    let session = tls.get_ref().1;
    let chain: Vec<CertificateDer<'static>> = session
        .peer_certificates()
        .unwrap_or_default()
        .iter()
        .map(|cert| cert.clone().into_owned())
        .collect();
    let alpn = session
        .alpn_protocol()
        .map(|name| String::from_utf8_lossy(name).into_owned());
    let http2 = alpn.as_deref() == Some("h2");
    server.log.change(wire.id, |found| {
        found.alpn = alpn;
        found.certificate = chain.first().map(|cert| {
            super::authn::subject(cert)
                .map(|subject| subject.common_name)
                .unwrap_or_default()
        });
    });
    let peer = Peer {
        wire: Arc::clone(wire),
        presented: Arc::new(Presented::new(chain)),
    };
    if http2 {
        wire.http2.store(true, Ordering::Relaxed);
        http2_connection(server, tls, peer).await
    } else {
        http1_connection(server, tls, peer).await
    }
}

async fn http1_connection(
    server: &Arc<Server>,
    tls: TlsStream<Tcp>,
    peer: Peer,
) -> anyhow::Result<()> {
    let wire = Arc::clone(&peer.wire);
    let service = service_fn(|request| serve::serve(Arc::clone(server), peer.clone(), request));
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(5000)
        // Go's slop above MaxHeaderBytes.
        .max_header_size(HEADER_LIMIT + 4096)
        .max_buf_size(2 * HEADER_LIMIT)
        .half_close(true);
    let mut connection = std::pin::pin!(
        builder
            .serve_connection(TokioIo::new(tls), service)
            .with_upgrades()
    );
    loop {
        tokio::select! {
            ended = connection.as_mut() => return Ok(ended?),
            () = wire.goaway_sent.notified() => connection.as_mut().graceful_shutdown(),
        }
    }
}

async fn http2_connection(
    server: &Arc<Server>,
    tls: TlsStream<Tcp>,
    peer: Peer,
) -> anyhow::Result<()> {
    let wire = Arc::clone(&peer.wire);
    if server.refuses_next_stream() {
        wire.goaway.refuse_next();
    }
    let service = service_fn(|request| serve::serve(Arc::clone(server), peer.clone(), request));
    let limits = server.limits();
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .initial_stream_window_size(limits.stream_window)
        .initial_connection_window_size(limits.connection_window)
        .max_frame_size(256 * 1024)
        .max_header_list_size(1 << 20)
        .max_pending_accept_reset_streams(1000);
    let io = TokioIo::new(Frames::new(tls, Arc::clone(&wire.goaway)));
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let closing = async {
        wire.goaway_sent.notified().await;
        loop {
            wire.drained().await;
            tokio::time::sleep(AFTER_GOAWAY).await;
            if wire.in_flight.load(Ordering::SeqCst) == 0 {
                break;
            }
        }
        wire.goaway.finish();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = connection.as_mut() => Ok(ended?),
        () = closing => Ok(()),
    }
}
