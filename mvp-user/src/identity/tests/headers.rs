//! Which identity headers leave mvp, and which never do.

use http::header;

use super::*;
use crate::config::OtherHeaders;

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
        ..RequestHeaders::default()
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

#[test]
fn what_only_another_server_takes_an_identity_from_is_taken_from_clients_too() {
    let names = names();
    names.others.store(Arc::new(OtherHeaders {
        names: vec![HeaderName::from_static("x-auth-user")],
        prefixes: vec!["x-auth-extra-".to_owned()],
    }));
    let sent = [
        ("x-auth-user", "root"),
        ("x_auth_extra_scopes", "root"),
        ("x-auth", "kept"),
    ];
    for caller in [
        ask("alice", &HeaderMap::new()),
        Caller::Token,
        Caller::Anonymous,
    ] {
        let mut headers = map(&sent);
        forward_identity(&caller, &mut headers, &names);
        assert!(!headers.contains_key("x-auth-user"), "{caller:?}");
        assert!(!headers.contains_key("x_auth_extra_scopes"), "{caller:?}");
        assert!(headers.contains_key("x-auth"));
    }
    let mut headers = map(&sent);
    forward_identity(&Caller::FrontProxy, &mut headers, &names);
    assert_eq!(headers.len(), sent.len(), "a front proxy's own");
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
