//! Files that are good, bad and changing; and the handshakes that their configurations make, in memory.

use std::{fs, time::Duration};

use rustls::{
    ClientConnection, ServerConnection,
    pki_types::CertificateDer,
    version::{TLS12, TLS13},
};
use rustls_pki_types::pem::PemObject as _;

use super::{
    fixtures::{Ca, Pki, join},
    *,
};
use crate::config::SniCertificate;

/// Both ends, or the server's error.
fn handshake(
    server: &Arc<ServerConfig>,
    client: ClientConfig,
    name: &str,
) -> Result<(ServerConnection, ClientConnection), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    for _ in 0..10 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut wire = wire.as_slice();
        while !wire.is_empty() {
            server.read_tls(&mut wire).unwrap();
            server.process_new_packets()?;
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut wire = wire.as_slice();
        while !wire.is_empty() {
            client.read_tls(&mut wire).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!server.is_handshaking() && !client.is_handshaking());
    Ok((server, client))
}

fn shown(client: &ClientConnection) -> Vec<String> {
    let leaf = &client.peer_certificates().unwrap()[0];
    let certificate = webpki::EndEntityCert::try_from(leaf).unwrap();
    certificate.valid_dns_names().map(str::to_owned).collect()
}

#[track_caller]
fn errors(config: &TlsConfig) -> Vec<TlsError> {
    Tls::load(config).map(|_| ()).unwrap_err()
}

#[test]
fn a_good_set_loads_without_a_warning() {
    let material = Pki::new().load().current();
    assert_eq!(material.warnings, []);
    assert!(material.can_forward());
    assert_eq!(material.certificates.len(), 5);
    assert_eq!(
        material.certificates[0].names,
        ["kubernetes.default.svc", "127.0.0.1"]
    );
}

#[test]
fn every_fault_of_every_file_is_reported_at_once() {
    let pki = Pki::new();
    pki.write("empty.crt", "");
    pki.write(
        "garbage.key",
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    );
    pki.write(
        "broken.crt",
        "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n",
    );
    pki.write_pair("other", &pki.ca.issue("other", &[]));
    let config = TlsConfig {
        cert_file: pki.path("missing.crt"),
        private_key_file: pki.path("garbage.key"),
        sni: vec![SniCertificate {
            certificate: pki.path("apiserver.crt"),
            key: pki.path("apiserver.crt"),
            names: Vec::new(),
        }],
        cipher_suites: vec!["TLS_NONSENSE".to_owned()],
        client_ca_file: Some(pki.path("empty.crt")),
        requestheader_client_ca_file: Some(pki.path("broken.crt")),
        proxy_client_key_file: Some(pki.path("other.key")),
        peer_ca_file: pki.path("other.crt"),
        peer_server_name: "not a name".to_owned(),
        ..pki.config()
    };
    let errors = errors(&config);
    let text = join(&errors);
    for expected in [
        "--tls-cert-file",
        "missing.crt: cannot be read: No such file or directory",
        "garbage.key: the private key cannot be used",
        "apiserver.crt: holds no private key",
        "--tls-cipher-suites: TLS_NONSENSE is not the name of a cipher suite",
        "empty.crt: holds no certificate",
        "broken.crt: is not valid PEM",
        "other.key: the private key does not belong to the certificate in",
        "front-proxy-client.crt",
        "other.crt: no certificate in it can be used as a CA",
        "--peer-server-name",
    ] {
        assert!(text.contains(expected), "{expected} in:\n{text}");
    }
    assert_eq!(errors.len(), 9, "{text}");
}

#[test]
fn one_half_of_the_front_proxy_pair_is_an_error_and_none_means_no_forwarding() {
    let pki = Pki::new();
    let half = TlsConfig {
        proxy_client_cert_file: None,
        ..pki.config()
    };
    assert_eq!(
        join(&errors(&half)),
        "--proxy-client-cert-file: is needed beside --proxy-client-key-file"
    );
    let none = TlsConfig {
        proxy_client_key_file: None,
        ..half
    };
    let material = Tls::load(&none).unwrap().current();
    assert!(!material.can_forward());
    assert!(
        material
            .client(Presenting::FrontProxy, Protocol::Any)
            .is_none()
    );
    assert!(
        material
            .client(Presenting::Nothing, Protocol::Any)
            .is_some()
    );
}

#[test]
fn an_expired_certificate_and_an_unusable_ca_are_warnings() {
    let pki = Pki::new();
    let expired = pki.ca.issue_with(
        "old",
        &["kubernetes.default.svc"],
        &rcgen::PKCS_ECDSA_P256_SHA256,
        |params| {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        },
    );
    pki.write_pair("apiserver", &expired);
    let leaf = pki.ca.issue("leaf", &[]);
    pki.write("ca.crt", &[pki.ca.pem.as_str(), &leaf.certificate].concat());
    let warnings = join(&pki.load().current().warnings);
    assert!(
        warnings.contains("apiserver.crt: certificate 1 (CN=old) has expired at Jan  1"),
        "{warnings}"
    );
    assert!(
        warnings.contains("--client-ca-file") && warnings.contains("--peer-ca-file"),
        "{warnings}"
    );
    assert!(
        warnings.contains("certificate 2 (CN=leaf) is not used as a CA"),
        "{warnings}"
    );
    assert_eq!(warnings.lines().count(), 3, "{warnings}");
}

#[test]
fn key_possession_is_checked_and_nothing_else() {
    let pki = Pki::new();
    let server = Arc::clone(&pki.load().current().server);
    let stranger = Ca::new("stranger");
    let v1 = |name| {
        fs::read_to_string(format!(
            "{}/src/identity/fixtures/{name}",
            env!("CARGO_MANIFEST_DIR")
        ))
        .unwrap()
    };
    let v1 = fixtures::Leaf {
        certificate: v1("v1.pem"),
        key: v1("v1.key"),
    };
    for version in [&TLS12, &TLS13] {
        let mut leaves = vec![
            stranger.issue("x", &[]),
            stranger.issue("x", &["server.example"]),
            v1.clone(),
        ];
        for algorithm in [
            &rcgen::PKCS_RSA_SHA256,
            &rcgen::PKCS_ED25519,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_ECDSA_P521_SHA512,
        ] {
            leaves.push(pki.ca.issue_with("alice", &[], algorithm, |_| ()));
        }
        for leaf in &leaves {
            let client = pki.client(version, Some(leaf.certified()), &[b"h2"]);
            let (server, _) = handshake(&server, client, "kubernetes.default.svc").unwrap();
            let expected = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
            assert_eq!(server.peer_certificates().unwrap(), [expected]);
            assert_eq!(server.alpn_protocol(), Some(&b"h2"[..]));
        }
        // Somebody else's certificate.
        let mut stolen = leaves[0].certified();
        stolen.key = leaves[1].certified().key;
        let client = pki.client(version, Some(stolen), &[]);
        let error = handshake(&server, client, "kubernetes.default.svc").unwrap_err();
        assert!(
            matches!(error, rustls::Error::InvalidCertificate(_)),
            "{error:?}"
        );
        let (server, _) = handshake(
            &server,
            pki.client(version, None, &[]),
            "kubernetes.default.svc",
        )
        .unwrap();
        assert!(server.peer_certificates().is_none());
    }
}

#[test]
fn the_names_of_both_cas_are_hints() {
    #[derive(Debug)]
    struct Hints(Mutex<Vec<Vec<u8>>>);
    impl rustls::client::ResolvesClientCert for Hints {
        fn resolve(
            &self,
            hints: &[&[u8]],
            _: &[rustls::SignatureScheme],
        ) -> Option<Arc<rustls::sign::CertifiedKey>> {
            *self.0.lock().unwrap() = hints.iter().map(|hint| hint.to_vec()).collect();
            None
        }
        fn has_certs(&self) -> bool {
            true
        }
    }
    let pki = Pki::new();
    let hints = Arc::new(Hints(Mutex::default()));
    let mut client = pki.client(&TLS13, None, &[]);
    client.client_auth_cert_resolver = Arc::<Hints>::clone(&hints);
    handshake(
        &pki.load().current().server,
        client,
        "kubernetes.default.svc",
    )
    .unwrap();
    let subject = |ca: &Ca| {
        let der = CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap();
        let anchor = webpki::anchor_from_trusted_cert(&der).unwrap().to_owned();
        rustls::DistinguishedName::in_sequence(&anchor.subject)
            .as_ref()
            .to_vec()
    };
    assert_eq!(
        *hints.0.lock().unwrap(),
        [subject(&pki.ca), subject(&pki.proxy_ca)]
    );
}

#[test]
fn a_resumed_session_brings_the_client_certificate() {
    let pki = Pki::new();
    let server = Arc::clone(&pki.load().current().server);
    for version in [&TLS12, &TLS13] {
        let alice = pki.ca.issue("alice", &[]);
        let client = pki.client(version, Some(alice.certified()), &[]);
        let (first, _) = handshake(&server, client.clone(), "kubernetes.default.svc").unwrap();
        let (second, _) = handshake(&server, client, "kubernetes.default.svc").unwrap();
        assert_eq!(first.handshake_kind(), Some(rustls::HandshakeKind::Full));
        assert_eq!(
            second.handshake_kind(),
            Some(rustls::HandshakeKind::Resumed)
        );
        assert_eq!(second.peer_certificates(), first.peer_certificates());
        assert!(second.peer_certificates().is_some());
    }
}

#[test]
fn sni_certificates_are_chosen_as_kube_apiserver_chooses_them() {
    let pki = Pki::new();
    pki.write_pair(
        "one",
        &pki.ca
            .issue("one.example", &["one.example", "also.example"]),
    );
    pki.write_pair(
        "two",
        &pki.ca.issue("two", &["own.example", "*.wild.example"]),
    );
    let sni = |name: &str, names: &[&str]| SniCertificate {
        certificate: pki.path(&format!("{name}.crt")),
        key: pki.path(&format!("{name}.key")),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let config = TlsConfig {
        sni: vec![
            sni("one", &[]),
            sni("two", &["*.wild.example", "ONE.example", "10.0.0.9"]),
        ],
        ..pki.config()
    };
    let material = Tls::load(&config).unwrap().current();
    let shown = |name: &str| {
        let client = pki.client(&TLS13, None, &[]);
        // The client may refuse what it is shown; what it was shown is the question.
        let mut client = client;
        client
            .dangerous()
            .set_certificate_verifier(Arc::new(AnyServer));
        shown(&handshake(&material.server, client, name).unwrap().1)
    };
    assert_eq!(shown("kubernetes.default.svc")[0], "kubernetes.default.svc");
    assert_eq!(shown("unknown.example")[0], "kubernetes.default.svc");
    assert_eq!(shown("one.example")[0], "one.example");
    assert_eq!(shown("also.example")[0], "one.example");
    assert_eq!(shown("a.wild.example")[0], "own.example");
    assert_eq!(shown("own.example")[0], "own.example");
    let by_address = |address: &str, sni| material.server_for(address.parse().unwrap(), sni);
    assert!(Arc::ptr_eq(&by_address("10.0.0.8", None), &material.server));
    assert!(Arc::ptr_eq(
        &by_address("10.0.0.9", Some("x")),
        &material.server
    ));
    let special = by_address("::ffff:10.0.0.9", None);
    assert!(!Arc::ptr_eq(&special, &material.server));
    let mut client = pki.client(&TLS13, None, &[]);
    client.enable_sni = false;
    assert_eq!(
        self::shown(&handshake(&special, client, "own.example").unwrap().1)[0],
        "own.example"
    );
}

#[derive(Debug)]
struct AnyServer;

impl rustls::client::danger::ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[test]
fn versions_and_suites_follow_the_flags() {
    let pki = Pki::new();
    let agreed = |config: &TlsConfig, version| {
        let server = Arc::clone(&Tls::load(config).unwrap().current().server);
        handshake(
            &server,
            pki.client(version, None, &[]),
            "kubernetes.default.svc",
        )
        .ok()
        .and_then(|(server, _)| server.negotiated_cipher_suite())
        .map(|suite| suite.suite())
    };
    let suites = |names: &[&str]| TlsConfig {
        cipher_suites: names.iter().map(|name| (*name).to_owned()).collect(),
        ..pki.config()
    };
    assert!(agreed(&pki.config(), &TLS12).is_some());
    let only = TlsConfig {
        only_tls13: true,
        ..pki.config()
    };
    assert_eq!(agreed(&only, &TLS12), None);
    assert!(agreed(&only, &TLS13).is_some());
    let one = suites(&[
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        "TLS_RSA_WITH_AES_128_GCM_SHA256",
    ]);
    assert_eq!(
        agreed(&one, &TLS12),
        Some(rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256)
    );
    assert!(agreed(&one, &TLS13).is_some());
    let warnings = join(&Tls::load(&one).unwrap().current().warnings);
    assert!(
        warnings.contains("TLS_RSA_WITH_AES_128_GCM_SHA256"),
        "{warnings}"
    );
    // As in Go: TLS 1.3 suites are always on, and alone they leave none for TLS 1.2.
    let new = suites(&["TLS_AES_128_GCM_SHA256"]);
    assert_eq!(agreed(&new, &TLS12), None);
    assert!(agreed(&new, &TLS13).is_some());
    let weak = join(&errors(&suites(&["TLS_RSA_WITH_3DES_EDE_CBC_SHA"])));
    assert!(
        weak.contains("TLS_RSA_WITH_3DES_EDE_CBC_SHA lack"),
        "{weak}"
    );
}

#[test]
fn upstreams_are_verified_by_ca_and_name_and_offered_mvp_direct_last() {
    let pki = Pki::new();
    let material = pki.load().current();
    let offered = |protocol| {
        material
            .client(Presenting::Nothing, protocol)
            .unwrap()
            .alpn_protocols
            .clone()
    };
    assert_eq!(
        offered(Protocol::Any),
        [&b"h2"[..], b"http/1.1", b"mvp-direct"]
    );
    assert_eq!(offered(Protocol::Http1), [&b"http/1.1"[..], b"mvp-direct"]);
    let client =
        |presenting| ClientConfig::clone(&material.client(presenting, Protocol::Any).unwrap());
    let (server, _) = handshake(
        &material.server,
        client(Presenting::FrontProxy),
        "kubernetes.default.svc",
    )
    .unwrap();
    let front_proxy = CertificateDer::from_pem_file(pki.path("front-proxy-client.crt")).unwrap();
    assert_eq!(server.peer_certificates().unwrap(), [front_proxy]);
    assert_eq!(server.alpn_protocol(), Some(&b"h2"[..]));
    let (server, _) = handshake(
        &material.server,
        client(Presenting::Nothing),
        "kubernetes.default.svc",
    )
    .unwrap();
    assert!(server.peer_certificates().is_none());
    assert!(handshake(&material.server, client(Presenting::Nothing), "other.svc").is_err());
    let foreign = Pki::new().load().current();
    assert!(
        handshake(
            &foreign.server,
            client(Presenting::FrontProxy),
            "kubernetes.default.svc"
        )
        .is_err()
    );
}

#[test]
fn what_changed_is_taken_over_and_what_is_broken_stays_as_it_was() {
    let pki = Pki::new();
    let tls = pki.load();
    let first = tls.current();
    assert!(!tls.reload());
    // A half-written pair: counted once, and the old one stays.
    let next = pki
        .ca
        .issue("next", &["kubernetes.default.svc", "next.example"]);
    pki.write("apiserver.crt", &next.certificate);
    assert!(!tls.reload() && !tls.reload());
    assert_eq!(tls.failures.get(), 1);
    assert!(Arc::ptr_eq(&tls.current(), &first));
    // A new client CA beside it is used all the same.
    let new_ca = Ca::new("new");
    pki.write("ca.crt", &new_ca.pem);
    assert!(tls.reload());
    let second = tls.current();
    assert!(Arc::ptr_eq(&tls.look(), &second));
    assert_eq!(second.generation, first.generation + 1);
    assert_ne!(second.authorities.client, first.authorities.client);
    assert_eq!(second.authorities.generation, second.generation);
    assert!(Arc::ptr_eq(&second.servers.default, &second.server));
    // The pair is whole again.
    pki.write("apiserver.key", &next.key);
    let mut generations = tls.generations();
    generations.borrow_and_update();
    assert!(tls.reload());
    let third = tls.current();
    assert!(generations.has_changed().unwrap());
    assert!(Arc::ptr_eq(&third.authorities, &second.authorities));
    let same = |presenting| {
        let get = |material: &Material| material.client(presenting, Protocol::Any).unwrap();
        Arc::ptr_eq(&get(&third), &get(&second))
    };
    assert!(same(Presenting::FrontProxy) && same(Presenting::Nothing));
    // A file that is gone: everything stays.
    fs::remove_file(pki.path("front-proxy-client.key")).unwrap();
    assert!(!tls.reload());
    assert!(tls.current().can_forward());
    assert_eq!(tls.failures.get(), 2);
}

/// As the kubelet updates a Secret: the files are links through `..data`, which is renamed over.
#[tokio::test]
async fn a_swapped_symbolic_link_is_noticed() {
    use std::os::unix::fs::symlink;
    let pki = Pki::new();
    let (old, new) = (pki.path("..old"), pki.path("..new"));
    for dir in [&old, &new] {
        fs::create_dir(dir).unwrap();
        let leaf = pki.ca.issue("x", &["kubernetes.default.svc"]);
        fs::write(dir.join("tls.crt"), &leaf.certificate).unwrap();
        fs::write(dir.join("tls.key"), &leaf.key).unwrap();
    }
    symlink("..old", pki.path("..data")).unwrap();
    symlink("..data/tls.crt", pki.path("tls.crt")).unwrap();
    symlink("..data/tls.key", pki.path("tls.key")).unwrap();
    let config = TlsConfig {
        cert_file: pki.path("tls.crt"),
        private_key_file: pki.path("tls.key"),
        ..pki.config()
    };
    let tls = Tls::load(&config).unwrap();
    let mut generations = tls.generations();
    let swap = async {
        // Once the watch is there: it is set up when the task is first polled.
        tokio::task::yield_now().await;
        symlink("..new", pki.path("..tmp")).unwrap();
        fs::rename(pki.path("..tmp"), pki.path("..data")).unwrap();
        generations.changed().await.unwrap();
    };
    // Well below the ten seconds of polling: the event did it.
    tokio::select! {
        biased;
        () = Arc::clone(&tls).watch_files() => {}
        done = tokio::time::timeout(Duration::from_secs(5), swap) => done.unwrap(),
    }
    assert_eq!(tls.current().generation, 2);
}
