//! Certificates made by OpenSSL, judged by Go, read here (`fixtures/make.sh`); headers; and no panic on any bytes.

use std::{collections::BTreeMap, fs, iter, path::PathBuf, time::Duration};

use http::HeaderName;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;
use tokio::time::Instant;

use super::*;
use crate::tls::{Anchors, fixtures::Ca};

mod headers;
mod values;

const DAY: Duration = Duration::from_hours(24);

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
        ..RequestHeaders::default()
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

/// What `chain` is worth today.
fn judged(chain: &[CertificateDer<'_>]) -> Caller {
    let mut presented = Presented::new(chain).unwrap();
    presented.caller(&HeaderMap::new(), &authorities(), &names(), today())
}

#[test]
fn certificates_beyond_the_longest_path_are_not_looked_at() {
    let chain = fixture("via-between");
    let other = fixture("other-ca").remove(0);
    let after = chain.iter().chain(iter::repeat_n(&other, 100));
    let caller = judged(&after.cloned().collect::<Vec<_>>());
    assert!(matches!(caller, Caller::User(_)), "{caller:?}");
    let (leaf, between) = chain.split_first().unwrap();
    let before = iter::once(leaf)
        .chain(iter::repeat_n(&other, 6))
        .chain(between);
    let caller = judged(&before.cloned().collect::<Vec<_>>());
    assert!(
        matches!(caller, Caller::Rejected(Reason::Undecidable)),
        "{caller:?}"
    );
}

#[test]
fn no_chain_holds_a_thread() {
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut chain = vec![der(&Ca::new("x").issue("alice", &[]).certificate)];
    chain.extend((0..9).map(|_| der(&Ca::new("x").pem)));
    chain.extend(iter::repeat_n(der(&Ca::new("y").pem), 100));
    let start = Instant::now();
    let caller = judged(&chain);
    assert!(
        matches!(caller, Caller::Rejected(Reason::Undecidable)),
        "{caller:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(5));
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
