//! What a client says first: in pieces, wrong, without end, or nothing.

use super::*;

#[test]
fn a_hello_in_small_pieces_and_with_more_behind_it_is_kept_whole() {
    in_local_set(async |rig| {
        let config = Arc::new(rig.pki.client(&TLS13, None, &[b"h2"]));
        let name = ServerName::try_from("apiserver-loopback-client").unwrap();
        let mut client = rustls::ClientConnection::new(config, name).unwrap();
        let mut sent = Vec::new();
        client.write_tls(&mut sent).unwrap();
        let mut stream = rig.connect().await;
        stream.set_nodelay(true).unwrap();
        for byte in &sent {
            stream.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let Connection::Raw { head, .. } = rig.next().await else {
            panic!("terminated")
        };
        assert_eq!(&head[..], sent);

        // A second record in the same packet (a change cipher spec, as middleboxes like it) is read with the first.
        sent.extend([0x14, 3, 3, 0, 1, 1]);
        let mut stream = rig.connect().await;
        stream.write_all(&sent).await.unwrap();
        let Connection::Raw { head, .. } = rig.next().await else {
            panic!("terminated")
        };
        assert_eq!(&head[..], sent);
    });
}

#[test]
fn plain_http_is_answered_as_go_answers_it() {
    in_local_set(async |rig| {
        for request in [
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "POST /apis HTTP/1.1\r\n\r\n",
        ] {
            let mut stream = rig.connect().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert_eq!(
                answer,
                "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
            );
        }
        rig.counted(Outcome::PlainHttp, 2).await;
    });
}

#[test]
fn what_is_not_tls_is_counted_by_kind_and_closed() {
    in_local_set(async |rig| {
        drop(rig.connect().await);
        rig.counted(Outcome::Probe, 1).await;
        let mut stream = rig.connect().await;
        stream.write_all(&[0x16, 3, 1]).await.unwrap();
        drop(stream);
        rig.counted(Outcome::Closed, 1).await;
        for garbage in [
            &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
            &[0x16, 3, 1, 0xff, 0xff],
            &[0; 200],
        ] {
            let mut stream = rig.connect().await;
            stream.write_all(garbage).await.unwrap();
            let mut rest = Vec::new();
            timeout(Duration::from_secs(5), stream.read_to_end(&mut rest))
                .await
                .unwrap()
                .unwrap();
            // An alert, not an answer.
            assert_eq!(rest.first(), Some(&0x15), "{garbage:?}");
        }
        rig.counted(Outcome::Malformed, 3).await;
        // Nothing in common.
        let config = rig.pki.client(&TLS13, None, &[b"spdy/3"]);
        let name = ServerName::try_from("kubernetes.default.svc").unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, rig.connect().await)
            .await
            .unwrap_err();
        rig.counted(Outcome::Incompatible, 1).await;
        // A client that does not trust us.
        let config = Pki::new().client(&TLS12, None, &[]);
        let name = ServerName::try_from("kubernetes.default.svc").unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, rig.connect().await)
            .await
            .unwrap_err();
        rig.counted(Outcome::AlertReceived, 1).await;
        assert_eq!(rig.acceptor.room().open(), 0);
        assert_eq!(rig.acceptor.metrics.get(Outcome::Terminated), 0);
    });
}

#[test]
fn an_endless_hello_is_cut_off() {
    in_local_set(async |rig| {
        let mut stream = rig.connect().await;
        // A handshake message of 16 MiB, in records of 16 KiB.
        let mut record = vec![0x16, 3, 1, 0x40, 0];
        record.extend([1, 0xff, 0xff, 0xff]);
        record.resize(5 + 0x4000, 0);
        let mut sent = 0;
        while sent < 1 << 20 && stream.write_all(&record).await.is_ok() {
            sent += record.len();
            tokio::task::yield_now().await;
        }
        rig.counted(Outcome::Malformed, 1).await;
    });
}

#[test]
fn a_silent_client_is_closed_after_ten_seconds() {
    with_paused_time(async |rig| {
        let start = Instant::now();
        let mut stream = rig.connect().await;
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(start.elapsed().as_secs(), 10);
        rig.counted(Outcome::Timeout, 1).await;
    });
}

#[test]
fn a_handshake_that_does_not_go_on_is_closed_after_32_seconds() {
    with_paused_time(async |rig| {
        let start = Instant::now();
        let config = Arc::new(rig.pki.client(&TLS13, None, &[]));
        let name = ServerName::try_from("kubernetes.default.svc").unwrap();
        let mut client = rustls::ClientConnection::new(config, name).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        let mut stream = rig.connect().await;
        stream.write_all(&hello).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() > 100);
        assert_eq!(start.elapsed().as_secs(), 32);
        rig.counted(Outcome::Timeout, 1).await;
    });
}
