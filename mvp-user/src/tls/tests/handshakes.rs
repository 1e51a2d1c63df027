//! The handshakes that configurations make, in memory.

use rustls::{
    ClientConnection, ServerConnection,
    pki_types::CertificateDer,
    version::{TLS12, TLS13},
};
use rustls_pki_types::pem::PemObject as _;

use super::*;

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
fn upstreams_are_offered_aes_of_128_bits_first() {
    let material = Pki::new().load().current();
    let client = material.client(Presenting::FrontProxy, Protocol::Any);
    let client = ClientConfig::clone(&client.unwrap());
    let (server, _) = handshake(&material.server, client, "kubernetes.default.svc").unwrap();
    assert_eq!(
        server.negotiated_cipher_suite().unwrap().suite(),
        rustls::CipherSuite::TLS13_AES_128_GCM_SHA256
    );
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
