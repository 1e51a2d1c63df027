//! A [`Wire`] against tokio-rustls at the other end: what is sent when, and that nothing is lost or held.

use std::{future::poll_fn, sync::Arc, time::Duration};

use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, server::TlsStream};

use super::*;
use crate::tls::fixtures::Pki;

/// A wire, and the other end of its connection.
async fn pair() -> (Wire, Outlet, TlsStream<TcpStream>) {
    let pki = Pki::new();
    let leaf = pki.ca.issue("server", &["kubernetes.default.svc"]);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(
            leaf.certified(),
        )));
    let client = pki.client(&rustls::version::TLS13, None, &[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let name = ServerName::try_from("kubernetes.default.svc").unwrap();
    let accepted = async {
        let (tcp, _) = listener.accept().await.unwrap();
        TlsAcceptor::from(Arc::new(server)).accept(tcp).await
    };
    let connected = TlsConnector::from(Arc::new(client)).connect(name, tcp);
    let (server, client) = tokio::join!(accepted, connected);
    let (tcp, tls) = client.unwrap().into_inner();
    let (wire, outlet) = Wire::new(tcp, tls);
    (wire, outlet, server.unwrap())
}

async fn flush(outlet: &Outlet) {
    poll_fn(|cx| {
        assert!(!outlet.flush(cx));
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn what_is_written_goes_out_with_the_flush_and_together() {
    let (mut wire, outlet, mut other) = pair().await;
    for part in ["one ", "two ", "three"] {
        wire.write_all(part.as_bytes()).await.unwrap();
        wire.flush().await.unwrap();
    }
    let mut got = [0; 64];
    let early = timeout(Duration::from_millis(50), other.read(&mut got)).await;
    early.expect_err("nothing before the flush");
    flush(&outlet).await;
    let length = other.read(&mut got).await.unwrap();
    assert_eq!(&got[..length], b"one two three", "one record");
}

#[tokio::test]
async fn large_data_passes_both_ways_while_the_reader_is_slow() {
    let (mut wire, outlet, mut other) = pair().await;
    let sent: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let echo = async {
        let mut got = vec![0; sent.len()];
        for part in got.chunks_mut(70_001) {
            tokio::task::yield_now().await;
            other.read_exact(part).await.unwrap();
        }
        assert!(got == sent, "what was sent came");
        other.write_all(&got).await.unwrap();
        other.shutdown().await.unwrap();
    };
    let asker = async {
        let mut back = Vec::new();
        wire.write_all(&sent).await.unwrap();
        poll_fn(|cx| wire.0.borrow_mut().push(cx)).await.unwrap();
        assert!(!outlet.heard());
        wire.read_to_end(&mut back).await.unwrap();
        assert!(back == sent, "what came back is what was sent");
        assert!(outlet.heard() && !outlet.heard());
    };
    tokio::join!(echo, asker);
    wire.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_end_without_goodbye_is_not_an_end() {
    let (mut wire, _outlet, other) = pair().await;
    // Without close_notify.
    drop(other.into_inner().0);
    let error = wire.read(&mut [0; 16]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn who_polls_hears_that_nothing_can_be_sent_any_more() {
    let (mut wire, outlet, other) = pair().await;
    let tcp = other.into_inner().0;
    tcp.set_zero_linger().unwrap();
    drop(tcp);
    // Until the reset is here.
    poll_fn(|cx| wire.0.borrow().tcp.poll_read_ready(cx))
        .await
        .unwrap();
    wire.write_all(b"into the void").await.unwrap();
    let mut pending = true;
    let mut connection = poll_fn(|_| {
        // Pending at first, as h2 is; then it asks the wire, which must know.
        if std::mem::take(&mut pending) {
            Poll::Pending
        } else {
            Poll::Ready(wire.0.borrow().usable())
        }
    });
    let end = poll_fn(|cx| driven(Pin::new(&mut connection), &outlet, cx)).await;
    end.unwrap_err();
}

#[tokio::test]
async fn an_idle_wire_holds_no_buffer() {
    let (mut wire, outlet, mut other) = pair().await;
    wire.write_all(b"ping").await.unwrap();
    flush(&outlet).await;
    other.write_all(b"pong").await.unwrap();
    wire.read_exact(&mut [0; 4]).await.unwrap();
    let waits = timeout(Duration::from_millis(20), wire.read(&mut [0; 4])).await;
    waits.expect_err("nothing more came");
    let inner = wire.0.borrow();
    assert!(inner.inbound.is_none() && inner.outbound.capacity() == 0);
}
