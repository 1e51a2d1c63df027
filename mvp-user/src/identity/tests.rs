//! Certificates made by OpenSSL, judged by Go, read here (`fixtures/make.sh`); headers; and no panic on any bytes.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use http::{HeaderName, header};
use proptest::prelude::*;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;

use super::{subject::go_string, *};
use crate::tls::Anchors;

const DAY: Duration = Duration::from_secs(86400);

fn fixture(name: &str) -> Vec<CertificateDer<'static>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/identity/fixtures");
    CertificateDer::pem_file_iter(path.join(format!("{name}.pem")))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap()
}

fn anchors(names: &[&str]) -> Anchors {
    let list: Vec<_> = names.iter().flat_map(|name| fixture(name)).collect();
    Anchors::from_certificates(&list)
}

/// The roots that `go.go` uses, and a front-proxy CA.
fn authorities() -> Authorities {
    Authorities {
        generation: 1,
        client: Some(anchors(&["ca", "short-ca", "no-sign-ca", "pathlen-ca"])),
        requestheader: Some(anchors(&["proxy-ca"])),
        allowed_names: vec!["front-proxy-client".to_owned()],
    }
}

fn names() -> RequestHeaders {
    RequestHeaders {
        username: vec![HeaderName::from_static("x-remote-user")],
        uid: vec![HeaderName::from_static("x-remote-uid")],
        group: vec![HeaderName::from_static("x-remote-group")],
        extra_prefix: vec!["x-remote-extra-".to_owned()],
    }
}

/// One day after the fixtures were made.
fn today() -> SystemTime {
    bounds("ca").0 + DAY
}

fn bounds(name: &str) -> (SystemTime, SystemTime) {
    let (first, last) = validity(&fixture(name)[0]).unwrap();
    let time = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    (time(first), time(last))
}

fn map(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in lines {
        map.append(
            HeaderName::from_static(name),
            HeaderValue::from_str(value).unwrap(),
        );
    }
    map
}

fn ask(name: &str, headers: &HeaderMap) -> Caller {
    let mut presented = Presented::new(&fixture(name)).unwrap();
    presented.caller(headers, &authorities(), &names(), today())
}

#[track_caller]
fn user(name: &str) -> Arc<User> {
    match ask(name, &HeaderMap::new()) {
        Caller::User(user) => user,
        other => panic!("{name}: {other:?}"),
    }
}

#[track_caller]
fn reason(name: &str) -> Reason {
    match ask(name, &HeaderMap::new()) {
        Caller::Rejected(reason) => reason,
        other => panic!("{name}: {other:?}"),
    }
}

#[derive(Deserialize, Debug)]
struct Said {
    verified: bool,
    #[serde(default)]
    name: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    uids: Vec<String>,
    id: String,
}

fn go() -> BTreeMap<String, Said> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/identity/fixtures/go.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn every_subject_is_read_as_go_reads_it() {
    let go = go();
    assert!(go.len() > 40);
    for (name, said) in go {
        let leaf = Leaf::parse(&fixture(&name)[0]).unwrap();
        assert_eq!(leaf.common_name, said.name, "{name}");
        assert_eq!(leaf.organizations, said.groups, "{name}");
        assert_eq!(leaf.uids, said.uids, "{name}");
    }
}

#[test]
fn nobody_is_let_in_whom_go_refuses_and_the_difference_is_known() {
    for (name, said) in go() {
        match ask(&name, &HeaderMap::new()) {
            Caller::User(user) => {
                assert!(said.verified, "{name}");
                assert_eq!(user.name(), said.name, "{name}");
                assert_eq!(user.groups(), said.groups, "{name}");
                assert_eq!(user.uid(), said.uids.first().map(String::as_str), "{name}");
                assert_eq!(user.credential_id(), said.id, "{name}");
            }
            Caller::Rejected(reason) if said.verified => assert!(
                matches!(
                    reason,
                    Reason::Undecidable
                        | Reason::NotRepresentable
                        | Reason::BadUid
                        | Reason::NoCommonName
                ),
                "{name}: {reason:?}"
            ),
            Caller::Rejected(_) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn the_last_common_name_and_every_organization_in_order_make_the_user() {
    assert_eq!(user("alice").groups(), ["dev", "qa"]);
    assert_eq!(user("order").groups(), ["b", "a", "b"]);
    assert_eq!(user("two-cns").name(), "second");
    assert_eq!(user("one-rdn").name(), "m");
    assert_eq!(user("comma").groups(), ["dev,qa"]);
    assert_eq!(user("inner-space").name(), "e v e");
    assert_eq!(user("utf8").name(), "zoë 😀");
    for name in ["t61", "bmp"] {
        assert_eq!(user(name).name(), "zoë", "{name}");
    }
    let many = user("groups");
    assert_eq!(many.groups().len(), 150);
    assert_eq!(many.groups()[149], "group-150");
}

#[test]
fn a_certificate_without_an_identity_is_rejected_with_its_reason() {
    let table = [
        ("no-cn", Reason::NoCommonName),
        ("leading-space", Reason::NotRepresentable),
        ("trailing-space", Reason::NotRepresentable),
        ("uid-space", Reason::NotRepresentable),
        ("control", Reason::NotRepresentable),
        ("newline", Reason::NotRepresentable),
        ("two-uids", Reason::BadUid),
        ("v1", Reason::Undecidable),
        ("critical-unknown", Reason::Undecidable),
        ("ca-as-leaf", Reason::Undecidable),
        ("server-usage", Reason::WrongUsage),
        ("via-between-no-sign", Reason::WrongUsage),
        ("via-between-pathlen", Reason::WrongUsage),
        ("stranger", Reason::UnknownIssuer),
        ("no-sign", Reason::UnknownIssuer),
        ("front-proxy-stranger", Reason::NameNotAllowed),
    ];
    for (name, expected) in table {
        assert_eq!(reason(name), expected, "{name}");
        // With a token the request goes on with the token, in either form.
        let bearer = map(&[("authorization", "bearer t")]);
        assert!(matches!(ask(name, &bearer), Caller::Token), "{name}");
        // Other authentication schemes are none to kube-apiserver.
        let basic = map(&[("authorization", "Basic dTpw")]);
        assert!(matches!(ask(name, &basic), Caller::Rejected(_)), "{name}");
    }
    assert_eq!(user("uid").uid(), Some("8d1f"));
    for name in ["any-usage", "no-usage", "via-between"] {
        assert_eq!(user(name).name(), "alice", "{name}");
    }
}

#[test]
fn a_valid_certificate_wins_over_a_token() {
    let headers = map(&[("authorization", "Bearer t")]);
    assert!(matches!(ask("alice", &headers), Caller::User(_)));
}

#[test]
fn a_front_proxy_is_one_only_while_it_names_a_user() {
    let named = map(&[("x-remote-user", "bob")]);
    assert!(matches!(ask("front-proxy", &named), Caller::FrontProxy));
    // As measured on kube-apiserver: 401, not anonymous; an empty header is none.
    for headers in [
        map(&[]),
        map(&[("x-remote-user", "")]),
        map(&[("x-remote-group", "g")]),
    ] {
        assert!(matches!(
            ask("front-proxy", &headers),
            Caller::Rejected(Reason::UnknownIssuer)
        ));
    }
    assert!(matches!(
        ask("front-proxy-stranger", &named),
        Caller::Rejected(Reason::NameNotAllowed)
    ));
    // An ordinary user's claim is not looked at.
    match ask("alice", &named) {
        Caller::User(user) => assert_eq!(user.name(), "alice"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_the_first_line_of_each_user_header_counts_and_the_first_not_empty_name_wins() {
    let mut names = names();
    names.username.push(HeaderName::from_static("x-auth-user"));
    let mut presented = Presented::new(&fixture("front-proxy")).unwrap();
    let mut headers = map(&[("x-remote-user", ""), ("x-remote-user", "bob")]);
    let caller = presented.caller(&headers, &authorities(), &names, today());
    assert!(matches!(caller, Caller::Rejected(_)));
    headers.append("x-auth-user", HeaderValue::from_static("bob"));
    let caller = presented.caller(&headers, &authorities(), &names, today());
    assert!(matches!(caller, Caller::FrontProxy));
}

#[test]
fn with_one_ca_for_both_a_front_proxy_without_a_user_is_its_own_common_name() {
    let both = Authorities {
        client: Some(anchors(&["proxy-ca"])),
        ..authorities()
    };
    let mut presented = Presented::new(&fixture("front-proxy")).unwrap();
    match presented.caller(&HeaderMap::new(), &both, &names(), today()) {
        Caller::User(user) => assert_eq!(user.name(), "front-proxy-client"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn where_no_authenticator_errs_the_caller_is_anonymous_as_in_kube_apiserver() {
    let none = Authorities::default();
    let mut presented = Presented::new(&fixture("stranger")).unwrap();
    let caller = presented.caller(&HeaderMap::new(), &none, &names(), today());
    assert!(matches!(caller, Caller::Anonymous));
    let only_client = Authorities {
        requestheader: None,
        ..authorities()
    };
    let mut presented = Presented::new(&fixture("no-cn")).unwrap();
    let caller = presented.caller(&HeaderMap::new(), &only_client, &names(), today());
    assert!(matches!(caller, Caller::Anonymous));
    assert!(matches!(
        without_certificate(&HeaderMap::new()),
        Caller::Anonymous
    ));
}

#[test]
fn the_verdict_changes_with_time_and_with_the_cas() {
    let mut presented = Presented::new(&fixture("short")).unwrap();
    let mut at = |authorities: &Authorities, now| {
        let caller = presented.caller(&HeaderMap::new(), authorities, &names(), now);
        match caller {
            Caller::User(_) => None,
            Caller::Rejected(reason) => Some(reason),
            other => panic!("{other:?}"),
        }
    };
    let (_, end_of_ca) = bounds("short-ca");
    let (start, end) = bounds("short");
    assert_eq!(at(&authorities(), start - DAY), Some(Reason::NotYetValid));
    assert_eq!(at(&authorities(), start), None);
    assert_eq!(at(&authorities(), end_of_ca), None);
    // Go checks the validity of roots too.
    let second = Duration::from_secs(1);
    assert_eq!(
        at(&authorities(), end_of_ca + second),
        Some(Reason::Expired)
    );
    assert_eq!(at(&authorities(), end + second), Some(Reason::Expired));
    assert_eq!(at(&authorities(), start + DAY), None);
    let removed = Authorities {
        generation: 2,
        client: Some(anchors(&["ca"])),
        ..authorities()
    };
    assert_eq!(at(&removed, start + DAY), Some(Reason::UnknownIssuer));
}

#[test]
fn the_verdict_is_cached_within_its_bounds() {
    let mut presented = Presented::new(&fixture("alice")).unwrap();
    let mut ask = |now| match presented.caller(&HeaderMap::new(), &authorities(), &names(), now) {
        Caller::User(user) => user,
        other => panic!("{other:?}"),
    };
    assert!(Arc::ptr_eq(&ask(today()), &ask(today() + DAY)));
}

#[test]
fn a_certificate_that_is_itself_in_the_ca_file_is_undecidable() {
    let pinned = Authorities {
        client: Some(anchors(&["ca", "stranger"])),
        ..authorities()
    };
    let mut presented = Presented::new(&fixture("stranger")).unwrap();
    let caller = presented.caller(&HeaderMap::new(), &pinned, &names(), today());
    assert!(matches!(caller, Caller::Rejected(Reason::Undecidable)));
}

#[test]
fn users_whose_connections_are_ended_need_a_pair_of_their_own() {
    for (name, expected) in [
        ("alice", false),
        ("anonymous", true),
        ("unauthenticated", true),
    ] {
        let caller = ask(name, &HeaderMap::new());
        assert_eq!(
            ends_connections(&caller, &HeaderMap::new(), &names()),
            expected,
            "{name}"
        );
    }
    let proxied = |lines: &[(&'static str, &str)]| {
        ends_connections(&Caller::FrontProxy, &map(lines), &names())
    };
    assert!(!proxied(&[
        ("x-remote-user", "bob"),
        ("x-remote-group", "g")
    ]));
    assert!(proxied(&[("x-remote-user", "system:anonymous")]));
    assert!(proxied(&[
        ("x-remote-user", "bob"),
        ("x-remote-group", "g"),
        ("x-remote-group", "system:unauthenticated")
    ]));
}

fn lines(headers: &HeaderMap, name: &str) -> Vec<String> {
    headers
        .get_all(name)
        .iter()
        .map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap())
        .collect()
}

#[test]
fn a_user_is_written_as_kube_apiserver_reads_it() {
    let mut headers = map(&[
        ("authorization", "Bearer t"),
        ("impersonate-user", "root"),
        ("accept", "*/*"),
    ]);
    let caller = ask("utf8", &headers);
    forward_identity(&caller, &mut headers, &names());
    assert_eq!(lines(&headers, "x-remote-user"), ["zoë 😀"]);
    assert_eq!(lines(&headers, "x-remote-group"), ["группа"]);
    assert!(!headers.contains_key("x-remote-uid"));
    let id = lines(
        &headers,
        "x-remote-extra-authentication.kubernetes.io%2fcredential-id",
    );
    assert_eq!(id.len(), 1);
    assert!(id[0].starts_with("X509SHA256=") && id[0].len() == 11 + 64);
    assert!(!headers.contains_key(header::AUTHORIZATION));
    assert_eq!(lines(&headers, "impersonate-user"), ["root"]);
    assert_eq!(lines(&headers, "accept"), ["*/*"]);

    let mut headers = HeaderMap::new();
    forward_identity(&ask("groups", &headers), &mut headers, &names());
    assert_eq!(lines(&headers, "x-remote-group").len(), 150);
    let mut headers = HeaderMap::new();
    forward_identity(&ask("uid", &headers), &mut headers, &names());
    assert_eq!(lines(&headers, "x-remote-uid"), ["8d1f"]);
}

#[test]
fn the_first_configured_names_are_written() {
    let names = RequestHeaders {
        username: vec![
            HeaderName::from_static("x-auth-user"),
            HeaderName::from_static("x-remote-user"),
        ],
        uid: Vec::new(),
        group: vec![HeaderName::from_static("x-auth-group")],
        extra_prefix: vec!["x-auth-extra-".to_owned()],
    };
    let mut headers = HeaderMap::new();
    forward_identity(&ask("uid", &headers), &mut headers, &names);
    let mut written: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
    written.sort_unstable();
    assert_eq!(
        written,
        [
            "x-auth-extra-authentication.kubernetes.io%2fcredential-id",
            "x-auth-group",
            "x-auth-user",
            "x-remote-uid"
        ]
    );
}

/// cases.md B4: only some of the names, other case, several extras, near misses.
#[test]
fn an_ordinary_client_gets_no_identity_header_through() {
    let names = RequestHeaders {
        username: vec![HeaderName::from_static("x-auth-user")],
        ..names()
    };
    let forged = [
        "x-remote-user",
        "x-remote-uid",
        "x-remote-group",
        "x-remote-extra-scopes",
        "x-remote-extra-",
        "x-auth-user",
        "x_remote_user",
        "x-remote_uid",
        "x_remote_extra_scopes",
        "x_auth_user",
    ];
    for caller in [
        ask("alice", &HeaderMap::new()),
        Caller::Token,
        Caller::Anonymous,
        Caller::Rejected(Reason::Expired),
    ] {
        let mut headers = map(&[
            ("x-remote-host", "kept"),
            ("x-remote", "kept"),
            ("authorization", "Bearer t"),
        ]);
        for name in forged {
            for _ in 0..2 {
                headers.append(
                    HeaderName::from_static(name),
                    HeaderValue::from_static("root"),
                );
            }
        }
        forward_identity(&caller, &mut headers, &names);
        assert!(
            !headers.iter().any(|(_, value)| value == "root"),
            "{caller:?}: {headers:?}"
        );
        assert!(headers.contains_key("x-remote-host") && headers.contains_key("x-remote"));
        assert_eq!(
            headers.contains_key(header::AUTHORIZATION),
            !matches!(caller, Caller::User(_))
        );
    }
}

#[test]
fn a_front_proxys_headers_pass_and_its_token_does_not() {
    let mut headers = map(&[
        ("x-remote-user", "bob"),
        ("x-remote-group", "a"),
        ("x-remote-group", "b"),
        ("x-remote-extra-scopes", "s"),
        ("authorization", "Bearer t"),
    ]);
    forward_identity(&Caller::FrontProxy, &mut headers, &names());
    assert_eq!(lines(&headers, "x-remote-group"), ["a", "b"]);
    assert_eq!(lines(&headers, "x-remote-user"), ["bob"]);
    assert_eq!(lines(&headers, "x-remote-extra-scopes"), ["s"]);
    assert!(!headers.contains_key(header::AUTHORIZATION));
}

#[test]
fn the_bearer_subprotocol_is_a_token_and_goes_where_a_certificate_wins() {
    let lines_of = |value: &'static [&'static str]| {
        let mut headers = map(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
        ]);
        for line in value {
            headers.append(
                header::SEC_WEBSOCKET_PROTOCOL,
                HeaderValue::from_static(line),
            );
        }
        headers
    };
    let two = lines_of(&[
        "base64url.bearer.authorization.k8s.io.dA",
        "v5.channel.k8s.io, v4.channel.k8s.io",
    ]);
    assert!(matches!(without_certificate(&two), Caller::Token));
    let one = lines_of(&["v5.channel.k8s.io,base64url.bearer.authorization.k8s.io.dA"]);
    assert!(matches!(without_certificate(&one), Caller::Token));
    assert!(matches!(
        without_certificate(&lines_of(&["v5.channel.k8s.io"])),
        Caller::Anonymous
    ));
    let mut plain = two.clone();
    plain.remove(header::UPGRADE);
    assert!(matches!(without_certificate(&plain), Caller::Anonymous));

    // Passed on unchanged where the upstream is to judge it.
    let mut passed = two.clone();
    forward_identity(&Caller::Token, &mut passed, &names());
    assert_eq!(passed, two);
    let alice = ask("alice", &HeaderMap::new());
    for (mut headers, expected) in [
        (two, vec!["v5.channel.k8s.io, v4.channel.k8s.io"]),
        (one, vec!["v5.channel.k8s.io"]),
        (
            lines_of(&["base64url.bearer.authorization.k8s.io.dA"]),
            vec![],
        ),
    ] {
        forward_identity(&alice, &mut headers, &names());
        assert_eq!(lines(&headers, "sec-websocket-protocol"), expected);
    }
}

/// `bearertoken_test.go` of kube-apiserver.
#[test]
fn the_authorization_header_is_read_as_kube_apiserver_reads_it() {
    let table = [
        ("Bearer t", true),
        ("bearer t more", true),
        ("BEARER t", true),
        ("  Bearer t", true),
        ("Bearer  t", false),
        ("Bearer", false),
        ("Bearer ", false),
        ("Bearert", false),
        ("Basic t", false),
        ("", false),
    ];
    for (value, expected) in table {
        let found = matches!(
            without_certificate(&map(&[("authorization", value)])),
            Caller::Token
        );
        assert_eq!(found, expected, "{value:?}");
    }
    // Only the first line is read.
    let second = map(&[("authorization", "Basic t"), ("authorization", "Bearer t")]);
    assert!(matches!(without_certificate(&second), Caller::Anonymous));
}

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
