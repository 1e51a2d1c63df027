//! Tunnels between real TLS connections over loopback, in user space and, where the kernel has TLS, in the kernel. With
//! `MVP_KTLS_TESTS=require` it has to (`cargo xtask vm-test`).

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite,
    crypto::{CryptoProvider, aws_lc_rs, aws_lc_rs::cipher_suite},
};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::tls::fixtures::Ca;

const USER: How = How {
    splice: true,
    ktls: Ktls::Off,
};
const KERNEL: How = How {
    splice: true,
    ktls: Ktls::On,
};
const AUTO: How = How {
    splice: true,
    ktls: Ktls::Auto,
};

/// All that both rustls and kernels know.
const SUITES: [SupportedCipherSuite; 6] = [
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// A tunnel that is not joined yet, and the ends outside of it.
struct Tunnel {
    client: client::TlsStream<TcpStream>,
    upstream: server::TlsStream<TcpStream>,
    halves: (Half, Half),
    tally: Tally,
}

impl Tunnel {
    async fn new(suite: SupportedCipherSuite) -> Self {
        let ca = Ca::new("kubernetes");
        let leaf = ca.issue("kube-apiserver", &["localhost"]).certified();
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![suite],
            ..aws_lc_rs::default_provider()
        });
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap())
            .unwrap();
        let versions = [suite.version()];
        let mut connects = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        connects.enable_secret_extraction = true;
        let mut accepts = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(leaf)));
        accepts.enable_secret_extraction = true;
        accepts.send_tls13_tickets = 4;
        let connector = TlsConnector::from(Arc::new(connects));
        let acceptor = TlsAcceptor::from(Arc::new(accepts));
        let name = ServerName::try_from("localhost").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let pair = async || {
            let (one, other) = tokio::join!(TcpStream::connect(address), listener.accept());
            (one.unwrap(), other.unwrap().0)
        };
        let ((client, inner_client), (inner_upstream, upstream)) = (pair().await, pair().await);
        let (client, inner_client, inner_upstream, upstream) = tokio::try_join!(
            connector.connect(name.clone(), client),
            acceptor.accept(RecordStream::new(inner_client)),
            connector.connect(name.clone(), RecordStream::new(inner_upstream)),
            acceptor.accept(upstream),
        )
        .unwrap();
        let halves = (
            Half {
                io: Io::Client(Box::new(inner_client)),
                early: Bytes::new(),
            },
            Half {
                io: Io::Upstream(Box::new(inner_upstream)),
                early: Bytes::new(),
            },
        );
        Self {
            client,
            upstream,
            halves,
            tally: Tally::default(),
        }
    }

    /// Joins while something happens outside; how the tunnel ended.
    fn while_joined<F: Future<Output = ()> + 'static>(
        self,
        how: How,
        outside: impl FnOnce(client::TlsStream<TcpStream>, server::TlsStream<TcpStream>) -> F,
    ) -> Pin<Box<dyn Future<Output = (io::Result<()>, Tally)>>> {
        let outside = Box::pin(outside(self.client, self.upstream));
        let (client, upstream) = self.halves;
        let tally = self.tally;
        Box::pin(async move {
            let (end, ()) = tokio::join!(Box::pin(join(client, upstream, how, &tally)), outside);
            (end, tally)
        })
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| u8::try_from((at * 7 + at / 251) % 256).unwrap())
        .collect()
}

async fn send(to: &mut (impl AsyncWrite + Unpin), length: usize) {
    to.write_all(&bytes(length)).await.unwrap();
    to.shutdown().await.unwrap();
}

async fn receive(from: &mut (impl AsyncRead + Unpin), length: usize) {
    let mut read = Vec::new();
    from.read_to_end(&mut read).await.unwrap();
    assert!(
        read == bytes(length),
        "{} of {length} bytes, or others",
        read.len()
    );
}

/// `name` of the kernel's counters; there are none without TLS in it.
fn statistic(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/net/tls_stat").unwrap_or_default();
    let mut words = text.split_whitespace();
    words.find(|word| *word == name);
    words.next().map_or(0, |number| number.parse().unwrap())
}

#[test]
fn the_kernel_has_tls_where_that_is_required() {
    if std::env::var("MVP_KTLS_TESTS").is_ok_and(|it| it == "require") {
        assert!(kernel().has_tls());
    }
}

#[tokio::test]
async fn what_arrives_is_what_was_sent_with_every_cipher_wherever_tls_is_done() {
    const LENGTH: usize = 300_001;
    for suite in SUITES {
        for how in [USER, AUTO, KERNEL] {
            let before = statistic("TlsTxSw");
            let tunnel = Tunnel::new(suite).await;
            let (end, tally) = tunnel
                .while_joined(how, async |client, upstream| {
                    let (mut client_read, mut client_write) = tokio::io::split(client);
                    let (mut upstream_read, mut upstream_write) = tokio::io::split(upstream);
                    tokio::join!(
                        send(&mut client_write, LENGTH),
                        send(&mut upstream_write, LENGTH),
                        receive(&mut client_read, LENGTH),
                        receive(&mut upstream_read, LENGTH),
                    );
                })
                .await;
            end.unwrap();
            assert_eq!(tally.up.total(), LENGTH as u64);
            assert_eq!(tally.down.total(), LENGTH as u64);
            let tls12 = suite.tls13().is_none();
            let expected = kernel().has_tls() && (how == KERNEL || (how == AUTO && tls12));
            assert_eq!(tally.in_kernel.get(), expected, "{suite:?} {how:?}");
            let spliced = tally.up.spliced.get().min(tally.down.spliced.get());
            // What was there before the tunnel was is copied.
            assert_eq!(spliced > LENGTH as u64 / 2, expected);
            assert!(!expected || statistic("TlsTxSw") > before);
        }
    }
    assert_eq!(statistic("TlsDecryptError"), 0);
}

#[tokio::test]
async fn a_record_that_was_begun_in_user_space_is_ended_there_and_all_comes_in_order() {
    for how in [USER, KERNEL] {
        let mut tunnel = Tunnel::new(SUITES[0]).await;
        let all: &[u8] = bytes(50_000).leak();
        // Two records that are there at once, of which rustls reads the first and a piece of the second.
        let socket = SockRef::from(tunnel.client.get_ref().0);
        socket.set_tcp_cork(true).unwrap();
        tunnel.client.write_all(&all[..100]).await.unwrap();
        tunnel.client.write_all(&all[100..16_000]).await.unwrap();
        tunnel.client.flush().await.unwrap();
        SockRef::from(tunnel.client.get_ref().0)
            .set_tcp_cork(false)
            .unwrap();
        let mut early = vec![0; 100];
        let Io::Client(inner) = &mut tunnel.halves.0.io else {
            unreachable!();
        };
        inner.read_exact(&mut early).await.unwrap();
        assert!(!inner.get_ref().0.at_an_end(), "this test shows nothing");
        tunnel.halves.0.early = early.into();
        let (end, tally) = tunnel
            .while_joined(how, async move |mut client, mut upstream| {
                let mut read = vec![0; 16_000];
                upstream.read_exact(&mut read).await.unwrap();
                assert!(read == all[..16_000]);
                client.write_all(&all[16_000..]).await.unwrap();
                client.shutdown().await.unwrap();
                read.clear();
                upstream.read_to_end(&mut read).await.unwrap();
                assert!(read == all[16_000..]);
                send(&mut upstream, 10).await;
                receive(&mut client, 10).await;
            })
            .await;
        end.unwrap();
        assert_eq!(
            tally.in_kernel.get(),
            kernel().has_tls() && how.ktls == Ktls::On
        );
    }
}

#[tokio::test]
async fn an_end_of_one_side_leaves_the_other_direction_open() {
    for how in [USER, KERNEL] {
        let tunnel = Tunnel::new(SUITES[0]).await;
        let (end, _) = tunnel
            .while_joined(how, async |mut client, mut upstream| {
                send(&mut client, 1000).await;
                receive(&mut upstream, 1000).await;
                send(&mut upstream, 100_000).await;
                receive(&mut client, 100_000).await;
            })
            .await;
        end.unwrap();
        let tunnel = Tunnel::new(SUITES[0]).await;
        let (end, _) = tunnel
            .while_joined(how, async |mut client, mut upstream| {
                send(&mut upstream, 1000).await;
                receive(&mut client, 1000).await;
                send(&mut client, 100_000).await;
                receive(&mut upstream, 100_000).await;
            })
            .await;
        end.unwrap();
    }
}

/// `kubectl exec -i pod -- psql < dump`, in which one statement takes its time.
#[tokio::test]
async fn a_reader_that_pauses_for_longer_than_the_dialers_time_out_gets_everything() {
    const LENGTH: usize = 4 << 20;
    for how in [USER, KERNEL] {
        let tunnel = Tunnel::new(SUITES[0]).await;
        let Io::Upstream(inner) = &tunnel.halves.1.io else {
            unreachable!();
        };
        // As the dialer does, but shorter.
        SockRef::from(inner.get_ref().0.stream())
            .set_tcp_user_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        SockRef::from(tunnel.upstream.get_ref().0)
            .set_recv_buffer_size(64 * 1024)
            .unwrap();
        let (end, _) = tunnel
            .while_joined(how, async |mut client, mut upstream| {
                let pausing = async {
                    tokio::time::sleep(Duration::from_secs(4)).await;
                    receive(&mut upstream, LENGTH).await;
                };
                tokio::join!(send(&mut client, LENGTH), pausing);
                send(&mut upstream, 10).await;
                receive(&mut client, 10).await;
            })
            .await;
        end.unwrap();
    }
}

#[tokio::test]
async fn an_end_of_tcp_alone_is_a_break_on_the_other_side() {
    for suite in [SUITES[0], SUITES[3]] {
        for how in [USER, KERNEL] {
            let tunnel = Tunnel::new(suite).await;
            let (end, _) = tunnel
                .while_joined(how, async |mut client, mut upstream| {
                    client.write_all(&bytes(5000)).await.unwrap();
                    client.flush().await.unwrap();
                    let mut read = vec![0; 5000];
                    upstream.read_exact(&mut read).await.unwrap();
                    drop(client);
                    upstream.read_exact(&mut read).await.unwrap_err();
                })
                .await;
            end.unwrap_err();
            let tunnel = Tunnel::new(suite).await;
            let (end, _) = tunnel
                .while_joined(how, async |mut client, mut upstream| {
                    upstream.write_all(&bytes(5000)).await.unwrap();
                    upstream.flush().await.unwrap();
                    let mut read = vec![0; 5000];
                    client.read_exact(&mut read).await.unwrap();
                    drop(upstream);
                    client.read_exact(&mut read).await.unwrap_err();
                })
                .await;
            end.unwrap_err();
        }
    }
}

#[tokio::test]
async fn a_key_update_passes_in_user_space_and_ends_a_tunnel_in_the_kernel_as_broken() {
    for how in [USER, AUTO, KERNEL] {
        let in_kernel = kernel().has_tls() && how == KERNEL;
        let tunnel = Tunnel::new(SUITES[0]).await;
        let (end, tally) = tunnel
            .while_joined(how, async move |mut client, mut upstream| {
                client.write_all(&bytes(5000)).await.unwrap();
                client.flush().await.unwrap();
                let mut read = vec![0; 5000];
                upstream.read_exact(&mut read).await.unwrap();
                client.get_mut().1.refresh_traffic_keys().unwrap();
                if in_kernel {
                    client.write_all(b"more").await.unwrap();
                    client.flush().await.unwrap();
                    upstream.read_exact(&mut read).await.unwrap_err();
                } else {
                    send(&mut client, 7000).await;
                    receive(&mut upstream, 7000).await;
                    send(&mut upstream, 10).await;
                    receive(&mut client, 10).await;
                }
            })
            .await;
        assert_eq!(tally.in_kernel.get(), in_kernel);
        assert_eq!(
            end.is_err_and(|error| is_key_update(&error)),
            in_kernel,
            "{how:?}"
        );
    }
}

#[tokio::test]
async fn a_side_that_has_ended_before_the_tunnel_begins_is_heard_to_its_end() {
    for how in [USER, KERNEL] {
        let mut tunnel = Tunnel::new(SUITES[0]).await;
        // With its FIN, after which the kernel takes no protocol for the socket.
        send(&mut tunnel.client, 20_000).await;
        let (end, tally) = tunnel
            .while_joined(how, async |mut client, mut upstream| {
                receive(&mut upstream, 20_000).await;
                send(&mut upstream, 30_000).await;
                receive(&mut client, 30_000).await;
            })
            .await;
        end.unwrap();
        assert!(!tally.in_kernel.get());
    }
}

#[tokio::test]
async fn without_splicing_everything_is_copied() {
    let how = How {
        splice: false,
        ktls: Ktls::On,
    };
    let tunnel = Tunnel::new(SUITES[0]).await;
    let (end, tally) = tunnel
        .while_joined(how, async |mut client, mut upstream| {
            send(&mut client, 1000).await;
            receive(&mut upstream, 1000).await;
            send(&mut upstream, 1000).await;
            receive(&mut client, 1000).await;
        })
        .await;
    end.unwrap();
    assert_eq!((tally.up.spliced.get(), tally.up.copied.get()), (0, 1000));
}
