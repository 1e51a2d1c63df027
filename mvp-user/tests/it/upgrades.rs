//! Upgrades and raw connections: what passes, what is refused, and bytes in both directions to the end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bench::{client::Client, pki::ClusterPki};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use crate::{
    fake::{Fake, Speaks},
    plane::{Plane, token, user},
};

/// Reads until `end` is seen or the connection ends.
async fn read_until(io: &mut (impl tokio::io::AsyncRead + Unpin), end: &str) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 1024];
    while !String::from_utf8_lossy(&text).contains(end) {
        let read = timeout(Duration::from_secs(5), io.read(&mut buffer))
            .await
            .expect("silence");
        match read {
            Ok(0) | Err(_) => break,
            Ok(read) => text.extend_from_slice(&buffer[..read]),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// A server that answers the head of a request with `answer`, then echoes until the client's end, then says `bye`.
async fn echo(
    pki: &ClusterPki,
    answer: &'static str,
    heads: Arc<std::sync::Mutex<Vec<String>>>,
) -> Fake {
    Fake::raw(pki, Speaks::Both, Arc::default(), move |mut io, _| {
        let heads = Arc::clone(&heads);
        async move {
            assert_ne!(
                io.get_ref().1.alpn_protocol(),
                Some(b"h2".as_slice()),
                "an upgrade over HTTP/2"
            );
            let certificate = io.get_ref().1.peer_certificates().is_some();
            let head = read_until(&mut io, "\r\n\r\n").await;
            let rest = head
                .split_once("\r\n\r\n")
                .map(|(_, rest)| rest.to_owned())
                .unwrap_or_default();
            heads
                .lock()
                .unwrap()
                .push(format!("certificate: {certificate}\r\n{head}"));
            io.write_all(answer.as_bytes()).await.unwrap();
            if !answer.starts_with("HTTP/1.1 101") {
                io.flush().await.unwrap();
                sleep(Duration::from_secs(5)).await;
                return;
            }
            io.write_all(rest.as_bytes()).await.unwrap();
            io.flush().await.unwrap();
            let mut buffer = [0; 1024];
            loop {
                match io.read(&mut buffer).await {
                    Ok(0) => break,
                    Ok(read) => {
                        io.write_all(&buffer[..read]).await.unwrap();
                        io.flush().await.unwrap();
                    }
                    Err(_) => return,
                }
            }
            sleep(Duration::from_millis(50)).await;
            io.write_all(b"bye").await.unwrap();
            io.shutdown().await.unwrap();
        }
    })
    .await
}

const SPDY: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\nearly:";
const WEBSOCKET: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: abc\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\nearly:";

async fn exec(
    client: &Client,
    to: SocketAddr,
    head: &str,
) -> (tokio_rustls::client::TlsStream<TcpStream>, String) {
    let mut io = client.tls(to).await.unwrap();
    io.write_all(head.as_bytes()).await.unwrap();
    io.flush().await.unwrap();
    let answer = read_until(&mut io, "\r\n\r\n").await;
    (io, answer)
}

const PATH: &str = "/api/v1/namespaces/d/pods/p/exec?command=sh&stdin=true";

#[tokio::test]
async fn spdy_and_websocket_tunnel_to_local_and_to_a_peer_with_the_callers_identity() {
    let pki = ClusterPki::new().unwrap();
    for (protocol, answer, method) in [("SPDY/3.1", SPDY, "POST"), ("websocket", WEBSOCKET, "GET")]
    {
        for at_peer in [false, true] {
            let heads = Arc::default();
            let server = echo(&pki, answer, Arc::clone(&heads)).await;
            let other = Fake::named(&pki, Speaks::Both, "other").await;
            let plane = if at_peer {
                Plane::start(
                    &pki,
                    (other.address(), &["v1/nodes"]),
                    &[(server.address(), &["v1/pods"])],
                )
                .await
            } else {
                Plane::start(&pki, (server.address(), &["v1/pods"]), &[]).await
            };
            for (client, by_certificate) in [
                (user(&pki, "jane", &["dev"], false), true),
                (token(&pki, "t", false), false),
            ] {
                let authorization = if by_certificate {
                    "X-Remote-User: admin\r\n"
                } else {
                    "Authorization: Bearer t\r\n"
                };
                // Early bytes of the client's, in the same packet as the head.
                let head = format!(
                    "{method} {PATH} HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nConnection: upgrade\r\nUpgrade: {protocol}\r\n{authorization}\
                     X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\n\
                     X-Stream-Protocol-Version: v4.channel.k8s.io\r\nX-Stream-Protocol-Version: v3.channel.k8s.io\r\n\
                     X-Stream-Protocol-Version: v2.channel.k8s.io\r\nX-Stream-Protocol-Version: channel.k8s.io\r\n\r\nfirst,"
                );
                let (mut io, text) = exec(&client, plane.address, &head).await;
                assert!(text.starts_with("HTTP/1.1 101"), "{text}");
                let lower = text.to_lowercase();
                assert!(
                    lower.contains("connection: upgrade\r\n")
                        && lower.contains(&format!("upgrade: {}\r\n", protocol.to_lowercase())),
                    "{text}"
                );
                io.write_all(b"second,").await.unwrap();
                io.flush().await.unwrap();
                let early = text.split_once("\r\n\r\n").unwrap().1.to_owned();
                let echoed = early + &read_until(&mut io, "second,").await;
                assert_eq!(echoed, "early:first,second,");
                // The client ends its direction; what the server still has to say arrives.
                io.shutdown().await.unwrap();
                assert_eq!(read_until(&mut io, "bye").await, "bye");
                assert_eq!(io.read(&mut [0; 1]).await.unwrap(), 0, "a clean end");
                let head: String = std::mem::take(&mut *heads.lock().unwrap()).pop().unwrap();
                let lines: Vec<String> =
                    head.to_lowercase().lines().map(ToOwned::to_owned).collect();
                let all = |name: &str| {
                    lines
                        .iter()
                        .filter_map(|line| line.strip_prefix(&format!("{name}: ")))
                        .map(ToOwned::to_owned)
                        .collect::<Vec<_>>()
                };
                assert_eq!(all("connection"), ["upgrade"]);
                assert_eq!(all("upgrade"), [protocol.to_lowercase()]);
                assert_eq!(
                    all("x-stream-protocol-version"),
                    [
                        "v4.channel.k8s.io",
                        "v3.channel.k8s.io",
                        "v2.channel.k8s.io",
                        "channel.k8s.io"
                    ]
                );
                assert_eq!(all("x-forwarded-for"), ["1.2.3.4, 5.6.7.8, 127.0.0.1"]);
                assert_eq!(all("certificate"), [by_certificate.to_string()]);
                assert_eq!(all("x-kubernetes-peer-proxied").len(), usize::from(at_peer));
                if by_certificate {
                    assert_eq!(
                        (all("x-remote-user"), all("x-remote-group")),
                        (vec!["jane".into()], vec!["dev".into()])
                    );
                } else {
                    assert_eq!(
                        (all("x-remote-user"), all("authorization")),
                        (vec![], vec!["bearer t".into()])
                    );
                }
                assert!(
                    head.contains(&format!("{method} {PATH} HTTP/1.1")),
                    "{head}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_websocket_token_passes_with_its_protocols_and_is_dropped_for_a_certificate() {
    let pki = ClusterPki::new().unwrap();
    let heads = Arc::default();
    let server = echo(&pki, WEBSOCKET, Arc::clone(&heads)).await;
    let plane = Plane::start(&pki, (server.address(), &["v1/pods"]), &[]).await;
    let head = format!(
        "GET {PATH} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c2VjcmV0\r\nSec-WebSocket-Protocol: v5.channel.k8s.io, v4.channel.k8s.io\r\n\r\n"
    );
    for (client, lines) in [
        (
            crate::plane::anonymous(&pki, false),
            vec![
                "base64url.bearer.authorization.k8s.io.c2VjcmV0",
                "v5.channel.k8s.io, v4.channel.k8s.io",
            ],
        ),
        (
            user(&pki, "jane", &[], false),
            vec!["v5.channel.k8s.io, v4.channel.k8s.io"],
        ),
    ] {
        let (_io, answer) = exec(&client, plane.address, &head).await;
        assert!(
            answer.starts_with("HTTP/1.1 101")
                && answer
                    .to_lowercase()
                    .contains("sec-websocket-protocol: v5.channel.k8s.io"),
            "{answer}"
        );
        let head: String = std::mem::take(&mut *heads.lock().unwrap()).pop().unwrap();
        let sent: Vec<&str> = head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-protocol"))
            .map(|(_, value)| value)
            .collect();
        assert_eq!(sent, lines);
    }
}

#[tokio::test]
async fn answers_that_are_no_101_are_relayed_or_refused_and_both_sides_close() {
    let pki = ClusterPki::new().unwrap();
    let head = format!(
        "GET {PATH} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    let cases = [
        (
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\nX-Mine: 1\r\n\r\nnope",
            "HTTP/1.1 403",
            "nope",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 200",
            "ok",
        ),
        (
            "HTTP/1.1 302 Found\r\nLocation: https://evil/\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 503",
            "redirection",
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
            "HTTP/1.1 503",
            "invalid answer",
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "HTTP/1.1 503",
            "invalid answer",
        ),
    ];
    for (answer, status, body) in cases {
        let server = echo(&pki, answer, Arc::default()).await;
        let plane = Plane::start(&pki, (server.address(), &["v1/pods"]), &[]).await;
        let (mut io, mut text) = exec(&user(&pki, "jane", &[], false), plane.address, &head).await;
        if status != "HTTP/1.1 503" {
            text += &read_until(&mut io, "<never>").await;
            assert!(text.to_lowercase().contains("connection: close"), "{text}");
        } else if !text.contains(body) {
            text += &read_until(&mut io, body).await;
        }
        assert!(text.starts_with(status) && text.contains(body), "{text}");
        assert!(
            !text.to_lowercase().contains("location") && !text.contains("evil"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn raw_connections_reach_local_byte_for_byte() {
    let pki = ClusterPki::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let local = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        loop {
            let (mut tcp, from) = listener.accept().await.unwrap();
            assert_eq!(from.ip().to_string(), "127.77.86.80", "the exempt source");
            tokio::spawn(async move {
                let mut all = Vec::new();
                tcp.read_to_end(&mut all).await.unwrap();
                let size = u32::try_from(all.len()).unwrap();
                tcp.write_all(&size.to_be_bytes()).await.unwrap();
                tcp.write_all(&all).await.unwrap();
            });
        }
    });
    let plane = Plane::start(&pki, (local, &["v1/pods"]), &[]).await;
    // A real ClientHello with the loopback SNI, cut in three, and what follows it.
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::aws_lc_rs::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_root_certificates(rustls::RootCertStore::empty())
    .with_no_client_auth();
    for (name, alpn) in [
        ("apiserver-loopback-client", "h2"),
        ("kubernetes.default.svc", "mvp-direct"),
    ] {
        config.alpn_protocols = vec![b"http/1.1".to_vec(), alpn.as_bytes().to_vec()];
        let mut hello = Vec::new();
        rustls::ClientConnection::new(Arc::new(config.clone()), name.try_into().unwrap())
            .unwrap()
            .write_tls(&mut hello)
            .unwrap();
        hello.extend((0..100_000_u32).map(|i| u8::try_from(i % 253).unwrap()));
        let mut tcp = TcpStream::connect(plane.address).await.unwrap();
        for part in [&hello[..7], &hello[7..100], &hello[100..]] {
            tcp.write_all(part).await.unwrap();
            sleep(Duration::from_millis(20)).await;
        }
        // Half-close: only now does the server answer.
        tcp.shutdown().await.unwrap();
        let mut answer = Vec::new();
        timeout(Duration::from_secs(5), tcp.read_to_end(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            answer[..4],
            u32::try_from(hello.len()).unwrap().to_be_bytes(),
            "{name}"
        );
        assert!(answer[4..] == hello, "{name}");
    }
    // Local down: closed, not served by anybody else.
    server.abort();
    drop(server.await);
    let mut hello = Vec::new();
    let name = "apiserver-loopback-client".try_into().unwrap();
    rustls::ClientConnection::new(Arc::new(config), name)
        .unwrap()
        .write_tls(&mut hello)
        .unwrap();
    let mut tcp = TcpStream::connect(plane.address).await.unwrap();
    tcp.write_all(&hello).await.unwrap();
    let end = timeout(Duration::from_secs(5), tcp.read(&mut [0; 16]))
        .await
        .unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}
