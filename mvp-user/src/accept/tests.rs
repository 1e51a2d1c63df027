//! Connections over real loopback sockets, and what becomes of them.

use std::{cell::RefCell, net::IpAddr};

use rustls::version::{TLS12, TLS13};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
    task::LocalSet,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::*;
use crate::{
    api::ServerId,
    table::Server,
    tls::{Presenting, Protocol, fixtures::Pki},
};

mod first_words;
mod threads;

/// An acceptor with one listener, and the connections that it yields.
struct Rig {
    pki: Pki,
    acceptor: Arc<Acceptor>,
    address: SocketAddr,
    connections: RefCell<mpsc::UnboundedReceiver<Connection>>,
    stop: watch::Sender<bool>,
    ended: RefCell<Option<tokio::task::JoinHandle<JoinSet<()>>>>,
}

impl Rig {
    /// Inside a `LocalSet`.
    async fn new(bound: Bound) -> Self {
        let pki = Pki::new();
        let local = Server::new(ServerId::Local, "127.0.0.1:6443".parse().unwrap());
        let table = Arc::new(Table::new(Arc::new(local)));
        let acceptor = Acceptor::new(pki.load(), table, bound, 6443);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let (sender, receiver) = mpsc::unbounded_channel();
        let run = Arc::clone(&acceptor).run(vec![listener], stopped, move |connection| {
            let sender = sender.clone();
            async move {
                sender.send(connection).unwrap();
            }
        });
        Self {
            pki,
            acceptor,
            address,
            connections: RefCell::new(receiver),
            stop,
            ended: RefCell::new(Some(tokio::task::spawn_local(run))),
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    #[expect(clippy::await_holding_refcell_ref, reason = "one test, one task")]
    async fn next(&self) -> Connection {
        let mut connections = self.connections.borrow_mut();
        timeout(Duration::from_secs(5), connections.recv())
            .await
            .unwrap()
            .unwrap()
    }

    /// A whole connection: what the acceptor made of it, and the client's side.
    async fn tls(
        &self,
        config: rustls::ClientConfig,
    ) -> (
        Box<TlsConnection>,
        tokio_rustls::client::TlsStream<TcpStream>,
    ) {
        let name = ServerName::try_from("kubernetes.default.svc").unwrap();
        let client = TlsConnector::from(Arc::new(config)).connect(name, self.connect().await);
        let (client, server) = tokio::join!(client, self.next());
        match server {
            Connection::Tls(server) => (server, client.unwrap()),
            Connection::Raw { why, .. } => panic!("raw: {why:?}"),
        }
    }

    /// Sends a ClientHello and gives back its bytes and what became of it.
    async fn raw(
        &self,
        config: Arc<rustls::ClientConfig>,
        sni: &str,
    ) -> (Vec<u8>, Connection, TcpStream) {
        let name = ServerName::try_from(sni.to_owned()).unwrap();
        let mut client = rustls::ClientConnection::new(config, name).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        let mut stream = self.connect().await;
        stream.write_all(&hello).await.unwrap();
        let connection = self.next().await;
        (hello, connection, stream)
    }

    async fn counted(&self, outcome: Outcome, times: u64) {
        let counted = async {
            while self.acceptor.metrics.get(outcome) < times {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(5), counted)
            .await
            .unwrap_or_else(|_| panic!("{outcome:?}"));
        assert_eq!(self.acceptor.metrics.get(outcome), times, "{outcome:?}");
    }
}

fn in_local_set(test: impl AsyncFnOnce(Rig)) {
    in_local_set_with(Bound::Steering(100), test);
}

fn in_local_set_with(bound: Bound, test: impl AsyncFnOnce(Rig)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async move { test(Rig::new(bound).await).await });
}

#[test]
fn at_its_bound_a_listener_of_its_own_lets_clients_wait_until_one_has_left() {
    in_local_set_with(Bound::Accepting(2), async |rig| {
        let config = || rig.pki.client(&TLS13, None, &[]);
        let first = rig.tls(config()).await;
        let _second = rig.tls(config()).await;
        let mut third = Box::pin(rig.tls(config()));
        let waits = timeout(Duration::from_millis(300), &mut third).await;
        assert!(waits.is_err(), "although the kernel has connected it");
        assert_eq!(rig.acceptor.room().open(), 2);
        drop(first);
        let _third = third.await;
        assert_eq!(rig.acceptor.room().open(), 2);
    });
}

#[test]
fn a_connection_is_terminated_and_its_ends_are_known() {
    in_local_set(async |rig| {
        for version in [&TLS12, &TLS13] {
            for (alpn, h2) in [
                (&[&b"h2"[..], b"http/1.1"][..], true),
                (&[&b"http/1.1"[..]], false),
                (&[], false),
            ] {
                let leaf = rig.pki.ca.issue("alice", &[]);
                let config = rig.pki.client(version, Some(leaf.certified()), alpn);
                let (mut server, mut client) = rig.tls(config).await;
                assert_eq!(server.h2, h2);
                assert!(!server.decided);
                assert_eq!(server.peer, client.get_ref().0.local_addr().unwrap());
                assert_eq!(server.local, rig.address);
                assert_eq!(server.chain().unwrap().len(), 1);
                assert!(server.io.get_ref().0.stream().nodelay().unwrap());
                client.write_all(b"to").await.unwrap();
                let mut two = [0; 2];
                server.io.read_exact(&mut two).await.unwrap();
                assert_eq!(&two, b"to");
            }
        }
        rig.counted(Outcome::Terminated, 6).await;
    });
}

#[test]
fn client_keys_of_every_kind_and_resumed_sessions_keep_the_chain() {
    in_local_set(async |rig| {
        let file = |name: &str| {
            let path = format!(
                "{}/src/identity/fixtures/{name}",
                env!("CARGO_MANIFEST_DIR")
            );
            std::fs::read_to_string(path).unwrap()
        };
        let v1 = crate::tls::fixtures::Leaf {
            certificate: file("v1.pem"),
            key: file("v1.key"),
        };
        let mut leaves = vec![v1];
        for algorithm in [
            &rcgen::PKCS_RSA_SHA256,
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ED25519,
        ] {
            leaves.push(rig.pki.ca.issue_with("alice", &[], algorithm, |_| ()));
        }
        for version in [&TLS12, &TLS13] {
            for leaf in &leaves {
                let config = rig.pki.client(version, Some(leaf.certified()), &[]);
                let mut kinds = Vec::new();
                for _ in 0..2 {
                    let (mut server, mut client) = rig.tls(config.clone()).await;
                    assert_eq!(server.chain().unwrap(), leaf.certified().cert);
                    kinds.push(server.io.get_ref().1.handshake_kind().unwrap());
                    // The ticket of TLS 1.3 comes behind the handshake.
                    server.io.write_all(b"x").await.unwrap();
                    client.read_u8().await.unwrap();
                }
                assert_eq!(
                    kinds,
                    [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed]
                );
            }
        }
    });
}

#[test]
fn a_key_that_is_not_the_certificates_fails_the_handshake() {
    in_local_set(async |rig| {
        let mut stolen = rig.pki.ca.issue("alice", &[]).certified();
        stolen.key = rig.pki.ca.issue("eve", &[]).certified().key;
        let config = rig.pki.client(&TLS12, Some(stolen), &[]);
        let name = ServerName::try_from("kubernetes.default.svc").unwrap();
        let client = TlsConnector::from(Arc::new(config)).connect(name, rig.connect().await);
        client.await.unwrap_err();
        rig.counted(Outcome::BadCertificate, 1).await;
        assert_eq!(rig.acceptor.room().open(), 0);
    });
}

#[test]
fn kube_apiservers_own_client_is_passed_raw_with_every_byte() {
    in_local_set(async |rig| {
        let config = Arc::new(rig.pki.client(&TLS13, None, &[b"h2"]));
        let (hello, connection, mut client) = rig.raw(config, "apiserver-loopback-client").await;
        let Connection::Raw {
            mut stream,
            head,
            why,
            ..
        } = connection
        else {
            panic!("terminated");
        };
        assert_eq!(why, RawReason::Loopback);
        assert_eq!(&head[..], hello);
        client.write_all(b"more").await.unwrap();
        let mut more = [0; 4];
        stream.read_exact(&mut more).await.unwrap();
        assert_eq!(&more, b"more");
        rig.counted(Outcome::Raw(RawReason::Loopback), 1).await;
    });
}

#[test]
fn a_decided_connection_of_this_node_is_passed_raw() {
    in_local_set(async |rig| {
        let material = rig.pki.load().current();
        for protocol in [Protocol::Any, Protocol::Http1] {
            let config = material.client(Presenting::FrontProxy, protocol).unwrap();
            let (hello, connection, _client) = rig.raw(config, "kubernetes.default.svc").await;
            match connection {
                Connection::Raw {
                    head,
                    why: RawReason::Direct,
                    ..
                } => assert_eq!(&head[..], hello),
                other => panic!("{other:?}"),
            }
        }
    });
}

/// A ClientHello as rustls reads it.
fn parsed(config: Arc<rustls::ClientConfig>, sni: &str) -> rustls::server::Accepted {
    let name = ServerName::try_from(sni.to_owned()).unwrap();
    let mut client = rustls::ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let mut acceptor = rustls::server::Acceptor::default();
    acceptor.read_tls(&mut hello.as_slice()).unwrap();
    acceptor.accept().ok().flatten().unwrap()
}

#[test]
fn whether_a_connection_is_raw_depends_on_where_it_comes_from() {
    let pki = Pki::new();
    let peer = |address: &str| {
        Arc::new(Server::new(
            ServerId::Peer(address.parse().unwrap()),
            address.parse().unwrap(),
        ))
    };
    let table = Table::new(Arc::new(Server::new(
        ServerId::Local,
        "127.0.0.1:6443".parse().unwrap(),
    )));
    let departed = peer("198.51.100.7:6443");
    departed.set_membership(crate::table::Membership::Departed);
    table.set_peers(vec![peer("198.51.100.6:6443"), departed]);
    let node = NodeAddresses::default();
    let material = pki.load().current();
    let plain = || Arc::new(pki.client(&TLS13, None, &[b"h2"]));
    let direct = || material.client(Presenting::Nothing, Protocol::Any).unwrap();
    const SVC: &str = "kubernetes.default.svc";
    let table_of = [
        (
            plain(),
            SVC,
            "127.0.0.1",
            Verdict::Terminate { decided: false },
        ),
        (
            plain(),
            LOOPBACK,
            "127.0.0.1",
            Verdict::Raw(RawReason::Loopback),
        ),
        (plain(), LOOPBACK, "::1", Verdict::Raw(RawReason::Loopback)),
        (
            plain(),
            "APISERVER-loopback-client",
            "::1",
            Verdict::Raw(RawReason::Loopback),
        ),
        (
            plain(),
            LOOPBACK,
            "198.51.100.6",
            Verdict::Terminate { decided: false },
        ),
        (
            direct(),
            SVC,
            "127.77.86.80",
            Verdict::Raw(RawReason::Direct),
        ),
        (
            direct(),
            SVC,
            "198.51.100.6",
            Verdict::Raw(RawReason::Direct),
        ),
        (
            direct(),
            SVC,
            "198.51.100.7",
            Verdict::Raw(RawReason::Direct),
        ),
        (
            direct(),
            SVC,
            "198.51.100.8",
            Verdict::Terminate { decided: true },
        ),
        (
            direct(),
            LOOPBACK,
            "198.51.100.8",
            Verdict::Terminate { decided: true },
        ),
    ];
    for (config, sni, from, expected) in table_of {
        let accepted = parsed(config, sni);
        let from: IpAddr = from.parse().unwrap();
        let verdict = hello::judge(&accepted.client_hello(), from, &node, &table);
        assert_eq!(verdict, expected, "{sni} from {from}");
    }
}

const LOOPBACK: &str = crate::api::LOOPBACK_SNI;

#[test]
fn the_nodes_addresses_come_from_the_kernel() {
    let node = NodeAddresses::default();
    assert!(node.has("127.0.0.1".parse().unwrap()) && node.has("::1".parse().unwrap()));
    assert!(node.has("::ffff:127.0.0.1".parse().unwrap()));
    assert!(!node.has("198.51.100.1".parse().unwrap()));
    let own = nix::ifaddrs::getifaddrs().unwrap().filter_map(|interface| {
        interface
            .address?
            .as_sockaddr_in()
            .map(nix::sys::socket::SockaddrIn::ip)
    });
    for address in own {
        assert!(NodeAddresses::default().has(address.into()), "{address}");
    }
}

/// Time stands still but for the timers, so these see the deadlines at once.
fn with_paused_time(test: impl AsyncFnOnce(Rig)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async move {
        test(Rig::new(Bound::Steering(100)).await).await;
    });
}

#[test]
fn after_a_stop_what_is_on_its_way_is_still_accepted_and_then_the_listener_closes() {
    with_paused_time(async |rig| {
        let start = Instant::now();
        rig.stop.send_replace(true);
        sleep(Duration::from_secs(2)).await;
        let (server, _client) = rig.tls(rig.pki.client(&TLS13, None, &[])).await;
        let ended = rig.ended.borrow_mut().take().unwrap();
        drop(ended.await.unwrap());
        let elapsed = start.elapsed();
        assert!(
            elapsed >= LINGER && elapsed <= LINGER_AT_MOST,
            "{elapsed:?}"
        );
        TcpStream::connect(rig.address).await.unwrap_err();
        assert_eq!(rig.acceptor.room().open(), 1);
        drop(server);
        assert_eq!(rig.acceptor.room().open(), 0);
    });
}

#[test]
fn a_reloaded_certificate_is_shown_to_new_connections() {
    in_local_set(async |rig| {
        let first = rig.tls(rig.pki.client(&TLS13, None, &[])).await.1;
        let next = rig.pki.ca.issue("next", &["kubernetes.default.svc"]);
        rig.pki.write_pair("apiserver", &next);
        assert!(rig.acceptor.tls.reload());
        let second = rig.tls(rig.pki.client(&TLS13, None, &[])).await.1;
        let shown = |stream: &tokio_rustls::client::TlsStream<TcpStream>| {
            stream.get_ref().1.peer_certificates().unwrap()[0].clone()
        };
        assert_ne!(shown(&first), shown(&second));
        assert_eq!(shown(&second), next.certified().cert[0]);
    });
}
