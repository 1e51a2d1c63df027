//! String types, damaged certificates, and values that must arrive unchanged.

use proptest::prelude::*;

use super::{super::subject::go_string, *};

/// `parseASN1String` of Go's crypto/x509.
#[test]
fn string_types_are_read_as_go_reads_them() {
    let table: [(u32, &[u8], Option<&str>); 17] = [
        (12, "zoë".as_bytes(), Some("zoë")),
        (12, b"\xff", None),
        (12, b"", Some("")),
        (19, b"a*&'", Some("a*&'")),
        (19, b"a@b", None),
        (18, b"12 3", Some("12 3")),
        (18, b"1a", None),
        (22, b"a@b", Some("a@b")),
        (22, b"\x80", None),
        (20, b"zo\xeb", Some("zoë")),
        (30, b"\0a\0b", Some("ab")),
        (30, b"\0a\0\0", Some("a")),
        (30, b"\0a\0", None),
        (30, b"\xd8\0\xdc\0", None),
        (30, b"\xff\xfe", None),
        (28, b"\0\0\0a", None),
        (26, b"visible", None),
    ];
    for (tag, bytes, expected) in table {
        assert_eq!(
            go_string(tag, bytes).as_deref(),
            expected,
            "{tag} {bytes:?}"
        );
    }
}

/// A name of one RDN per attribute, in DER.
fn der_name(attributes: &[(&[u8], u8, &[u8])]) -> Vec<u8> {
    fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        let length = content.len();
        if length < 128 {
            out.push(u8::try_from(length).unwrap());
        } else {
            out.push(0x82);
            out.extend(u16::try_from(length).unwrap().to_be_bytes());
        }
        out.extend(content);
        out
    }
    let sets = attributes.iter().flat_map(|(oid, tag, value)| {
        let pair = [tlv(6, oid), tlv(*tag, value)].concat();
        tlv(0x31, &tlv(0x30, &pair))
    });
    tlv(0x30, &sets.collect::<Vec<u8>>())
}

const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATION: &[u8] = &[0x55, 4, 10];
const UID: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];

fn read_name(attributes: &[(&[u8], u8, &[u8])]) -> Result<Leaf, Reason> {
    let der = der_name(attributes);
    let (_, name) = x509_parser::x509::X509Name::from_der(&der).unwrap();
    Leaf::read(&name)
}

#[test]
fn empty_values_and_foreign_types_spoil_a_certificate() {
    let certificate = &fixture("alice")[0];
    let user = |attributes: &[(&[u8], u8, &[u8])]| {
        read_name(attributes).and_then(|leaf| leaf.user(certificate))
    };
    assert_eq!(
        user(&[(ORGANIZATION, 12, b""), (COMMON_NAME, 12, b"x")]),
        Err(Reason::NotRepresentable)
    );
    assert_eq!(
        user(&[(COMMON_NAME, 12, b"x"), (UID, 12, b"")]),
        Err(Reason::BadUid)
    );
    assert_eq!(
        user(&[(COMMON_NAME, 12, b"x"), (UID, 12, b"a"), (UID, 12, b"a")]),
        Err(Reason::BadUid)
    );
    // Any attribute of any name, as in Go: UniversalString, VisibleString, OCTET STRING, a context tag.
    for tag in [28, 26, 4, 0x80, 0x2c] {
        assert_eq!(
            user(&[(&[0x55, 4, 6], tag, b"x"), (COMMON_NAME, 12, b"x")]),
            Err(Reason::Malformed)
        );
    }
    // The last CN counts, even if it is empty.
    assert_eq!(
        read_name(&[(COMMON_NAME, 12, b"x"), (COMMON_NAME, 12, b"")])
            .unwrap()
            .common_name,
        ""
    );
}

proptest! {
    #[test]
    fn any_bytes_are_a_chain_without_an_identity(bytes: Vec<u8>, second: Vec<u8>) {
        let chain = [CertificateDer::from(bytes), CertificateDer::from(second)];
        let mut presented = Presented::new(&chain).unwrap();
        let caller = presented.caller(&HeaderMap::new(), &authorities(), &names(), today());
        prop_assert!(matches!(caller, Caller::Rejected(_)));
        prop_assert!(presented.subject().is_empty());
    }

    #[test]
    fn a_damaged_certificate_yields_no_identity(index: prop::sample::Index, bits in 1..=255_u8, cut: bool) {
        let mut der = fixture("groups")[0].to_vec();
        let at = index.index(der.len());
        if cut { der.truncate(at) } else { der[at] ^= bits }
        let mut presented = Presented::new(&[CertificateDer::from(der)]).unwrap();
        let caller = presented.caller(&HeaderMap::new(), &authorities(), &names(), today());
        prop_assert!(matches!(caller, Caller::Rejected(_)));
    }

    #[test]
    fn no_value_is_trimmed_or_folded(name in ".{0,20}", groups in prop::collection::vec(".{0,20}", 0..5)) {
        let mut attributes: Vec<(&[u8], u8, &[u8])> = groups
            .iter()
            .map(|group| (ORGANIZATION, 12, group.as_bytes()))
            .collect();
        attributes.push((COMMON_NAME, 12, name.as_bytes()));
        let leaf = read_name(&attributes).unwrap();
        prop_assert_eq!(&leaf.common_name, &name);
        prop_assert_eq!(&leaf.organizations, &groups);
        match leaf.user(&fixture("alice")[0]) {
            Ok(user) => {
                let mut headers = HeaderMap::new();
                forward_identity(&Caller::User(Arc::new(user)), &mut headers, &names());
                prop_assert_eq!(lines(&headers, "x-remote-user"), [name]);
                prop_assert_eq!(lines(&headers, "x-remote-group"), groups);
            }
            Err(reason) => {
                prop_assert_eq!(reason, Reason::NotRepresentable);
                let bad = |value: &String| {
                    value.is_empty()
                        || value.trim_matches([' ', '\t']) != value
                        || value.bytes().any(|byte| byte < 0x20 || byte == 0x7f)
                };
                prop_assert!(bad(&name) || groups.iter().any(bad));
            }
        }
    }

    #[test]
    fn any_name_bytes_are_read_without_panic(bytes: Vec<u8>, tag: u32) {
        go_string(tag % 32, &bytes);
        if let Ok((_, name)) = x509_parser::x509::X509Name::from_der(&bytes) {
            drop(Leaf::read(&name));
        }
    }
}
