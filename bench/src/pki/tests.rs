//! What the hand-written encoder makes must be what ordinary parsers read.

use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{Authority, ClusterPki, Leaf, StaticPod, StringKind, Subject};

#[test]
fn a_subject_keeps_repeats_order_and_odd_values() {
    let ca = Authority::new("test").unwrap();
    let subject = Subject::new()
        .cn("first")
        .o("b")
        .o(" a")
        .o("b")
        .cn("last")
        .uid("42");
    let issued = ca.issue(&Leaf::client(subject)).unwrap();
    let (rest, cert) = X509Certificate::from_der(&issued.der).unwrap();
    assert!(rest.is_empty());
    let groups: Vec<&str> = cert
        .subject()
        .iter_organization()
        .map(|o| o.as_str().unwrap())
        .collect();
    assert_eq!(groups, ["b", " a", "b"]);
    let names: Vec<&str> = cert
        .subject()
        .iter_common_name()
        .map(|o| o.as_str().unwrap())
        .collect();
    assert_eq!(names, ["first", "last"]);
    assert_eq!(
        cert.subject()
            .iter_attributes()
            .last()
            .unwrap()
            .as_str()
            .unwrap(),
        "42"
    );
}

#[test]
fn chains_verify_with_webpki_and_version_1_has_no_extensions() {
    let pki = ClusterPki::new().unwrap();
    let good = pki.client("alice", &["dev"]).unwrap();
    let roots = [webpki::anchor_from_trusted_cert(&pki.ca.certificate.der).unwrap()];
    let end_entity = webpki::EndEntityCert::try_from(&good.der).unwrap();
    end_entity
        .verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &roots,
            &[],
            rustls_pki_types::UnixTime::now(),
            webpki::KeyUsage::client_auth(),
            None,
            None,
        )
        .unwrap();
    let old = pki
        .ca
        .issue(&Leaf::client(Subject::new().cn("old")).version1())
        .unwrap();
    let (_, cert) = X509Certificate::from_der(&old.der).unwrap();
    assert_eq!((cert.version().0, cert.extensions().len()), (0, 0));
}

#[test]
fn every_string_type_is_written_with_its_own_tag() {
    let ca = Authority::new("test").unwrap();
    for kind in [
        StringKind::Printable,
        StringKind::Teletex,
        StringKind::Ia5,
        StringKind::Bmp,
    ] {
        let subject = Subject::new().attribute(&[2, 5, 4, 3], kind, "name");
        let issued = ca.issue(&Leaf::client(subject)).unwrap();
        X509Certificate::from_der(&issued.der).unwrap();
    }
}

#[test]
fn the_directory_has_kubeadms_names_and_the_manifest_its_flags() {
    let directory = tempfile::tempdir().unwrap();
    ClusterPki::new()
        .unwrap()
        .write(directory.path(), &["10.0.0.1".parse().unwrap()])
        .unwrap();
    for name in [
        "ca.crt",
        "front-proxy-ca.crt",
        "apiserver.key",
        "front-proxy-client.key",
        "admin.crt",
    ] {
        assert!(directory.path().join(name).exists(), "{name} is missing");
    }
    let pod = StaticPod::kubeadm(
        "v1.34.2",
        "10.0.0.1".parse().unwrap(),
        6443,
        directory.path(),
    );
    assert!(pod.yaml().contains("    - --secure-port=6443\n"));
}
