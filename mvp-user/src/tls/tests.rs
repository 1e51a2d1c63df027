//! Files that are good, bad and changing.

use std::{fs, time::Duration};

use super::{
    fixtures::{Ca, Pki, join},
    *,
};
use crate::config::SniCertificate;

mod handshakes;

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
