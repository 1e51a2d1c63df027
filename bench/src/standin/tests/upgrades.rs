//! WebSocket and SPDY: handshakes by hand, bytes compared.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use super::Cluster;

const EXEC: &str = "/api/v1/namespaces/default/pods/p/exec?command=sh&stdin=true";

async fn pod(cluster: &Cluster) {
    let pod = serde_json::json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}});
    assert_eq!(
        cluster
            .send("POST", "/api/v1/namespaces/default/pods", &pod)
            .await
            .status,
        201
    );
}

async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut out = Vec::new();
    while !out.ends_with(b"\r\n\r\n") {
        out.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(out).unwrap()
}

#[tokio::test]
async fn websocket_frames_come_back_unmasked() {
    let cluster = Cluster::new().await;
    pod(&cluster).await;
    let mut stream = cluster.admin.tls(cluster.server.address()).await.unwrap();
    let request = format!(
        "GET {EXEC} HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n\r\n"
    );
    // The first frame comes with the request: no byte may be lost.
    let frame = [
        0x82,
        0x85,
        1,
        2,
        3,
        4,
        b'h' ^ 1,
        b'e' ^ 2,
        b'l' ^ 3,
        b'l' ^ 4,
        b'o' ^ 1,
    ];
    stream
        .write_all(&[request.as_bytes(), &frame].concat())
        .await
        .unwrap();
    let answer = head(&mut stream).await.to_lowercase();
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    assert!(
        answer.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="),
        "{answer}"
    );
    assert!(
        answer.contains("sec-websocket-protocol: v5.channel.k8s.io"),
        "{answer}"
    );
    let mut echoed = [0; 7];
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"\x82\x05hello");
    stream
        .write_all(&[0x89, 0x80, 0, 0, 0, 0, 0x88, 0x80, 0, 0, 0, 0])
        .await
        .unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, [0x8a, 0, 0x88, 0]);
}

#[tokio::test]
async fn spdy_bytes_come_back_after_a_half_close() {
    let cluster = Cluster::new().await;
    pod(&cluster).await;
    let mut stream = cluster.admin.tls(cluster.server.address()).await.unwrap();
    let request = format!(
        "POST {EXEC} HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\
         content-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = head(&mut stream).await.to_lowercase();
    assert!(
        answer.starts_with("http/1.1 101 ") && answer.contains("upgrade: spdy/3.1"),
        "{answer}"
    );
    let data: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = async {
        write.write_all(&data).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut echoed = Vec::new();
    let (read, ()) = tokio::join!(read.read_to_end(&mut echoed), sending);
    read.unwrap();
    assert!(
        echoed == data,
        "{} of {} bytes came back",
        echoed.len(),
        data.len()
    );
}

#[tokio::test]
async fn what_cannot_be_upgraded_is_refused_in_kube_apiservers_words() {
    let cluster = Cluster::new().await;
    let missing = cluster
        .get("/api/v1/namespaces/default/pods/missing/exec")
        .await;
    assert_eq!(
        missing.json().unwrap()["message"],
        "pods \"missing\" not found"
    );
    pod(&cluster).await;
    let plain = cluster.get(EXEC).await;
    assert_eq!(
        (
            plain.status.as_u16(),
            plain.json().unwrap()["message"].clone()
        ),
        (400, "Upgrade request required".into())
    );
}

#[tokio::test]
async fn a_token_in_the_subprotocol_is_taken_out() {
    let cluster = Cluster::with(|builder| {
        builder.token("good", crate::standin::User::new("ws", &["system:masters"]))
    })
    .await;
    pod(&cluster).await;
    for (token, status) in [("Z29vZA", 101), ("YmFk", 401)] {
        let mut stream = cluster
            .anonymous
            .tls(cluster.server.address())
            .await
            .unwrap();
        let request = format!(
            "GET {EXEC} HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: base64url.bearer.authorization.k8s.io.{token}, \
             v5.channel.k8s.io\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = head(&mut stream).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        assert!(!answer.contains("base64url"), "{answer}");
    }
}

#[tokio::test]
async fn a_command_without_stdin_prints_itself_and_succeeds() {
    let cluster = Cluster::new().await;
    pod(&cluster).await;
    let mut stream = cluster.admin.tls(cluster.server.address()).await.unwrap();
    let request = "GET /api/v1/namespaces/default/pods/p/exec?command=echo&command=hi HTTP/1.1\r\nhost: a\r\n\
                   connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                   sec-websocket-protocol: v5.channel.k8s.io\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    head(&mut stream).await;
    let mut output = [0; 10];
    stream.read_exact(&mut output).await.unwrap();
    assert_eq!(&output, b"\x82\x09\x01echo hi");
}
