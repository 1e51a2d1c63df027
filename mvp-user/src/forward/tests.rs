//! Header hygiene and recognition as tables and properties; what a user's requests carry.

use std::time::SystemTime;

use bench::pki::ClusterPki;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version, header,
};
use proptest::prelude::*;

use super::{
    Client, Outbound, headers,
    recognise::{self, Meaning},
};
use crate::{
    api::ServerId,
    body::Body,
    config::RequestHeaders,
    identity::{Caller, Presented},
    request_info::RequestInfo,
    table::Server,
    tls::{Anchors, Authorities},
};

fn map(lines: &[(&'static str, &str)]) -> HeaderMap {
    lines
        .iter()
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                value.parse::<HeaderValue>().unwrap(),
            )
        })
        .fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(name, value);
            map
        })
}

/// Header lines of a case.
type Lines<'a> = &'a [(&'a str, &'a str)];

#[test]
fn only_spdy_and_websocket_named_by_connection_over_http_1_1_are_upgrades() {
    let cases: [(Lines<'_>, Version, Option<&str>); 9] = [
        (
            &[("connection", "Upgrade"), ("upgrade", "websocket")],
            Version::HTTP_11,
            Some("websocket"),
        ),
        (
            &[
                ("connection", "keep-alive, UPGRADE"),
                ("upgrade", "SPDY/3.1"),
            ],
            Version::HTTP_11,
            Some("SPDY/3.1"),
        ),
        (
            &[
                ("connection", "close"),
                ("connection", "upgrade"),
                ("upgrade", "spdy/3.1"),
            ],
            Version::HTTP_11,
            Some("spdy/3.1"),
        ),
        (
            &[("connection", "upgrade"), ("upgrade", "h2c, websocket")],
            Version::HTTP_11,
            Some("websocket"),
        ),
        (
            &[
                ("connection", "Upgrade, HTTP2-Settings"),
                ("upgrade", "h2c"),
            ],
            Version::HTTP_11,
            None,
        ),
        (
            &[("connection", "upgrade"), ("upgrade", "TLS/1.0")],
            Version::HTTP_11,
            None,
        ),
        (&[("upgrade", "websocket")], Version::HTTP_11, None),
        (&[("connection", "upgrade")], Version::HTTP_11, None),
        (
            &[("connection", "upgrade"), ("upgrade", "websocket")],
            Version::HTTP_10,
            None,
        ),
    ];
    for (lines, version, expected) in cases {
        let found = headers::upgrade(&map(lines), version);
        assert_eq!(
            found.as_ref().map(|it| it.to_str().unwrap()),
            expected,
            "{lines:?}"
        );
    }
}

#[test]
fn the_authority_comes_from_host_and_the_path_is_untouched() {
    let cases: [(&str, Lines<'_>, Version, Result<&str, &str>); 8] = [
        (
            "/a%2Fb?x;y",
            &[("host", "h:6443")],
            Version::HTTP_11,
            Ok("https://h:6443/a%2Fb?x;y"),
        ),
        (
            "https://h/a",
            &[("host", "other")],
            Version::HTTP_2,
            Ok("https://h/a"),
        ),
        (
            "http://h/a",
            &[("host", "other")],
            Version::HTTP_11,
            Ok("https://h/a"),
        ),
        (
            "/a",
            &[],
            Version::HTTP_10,
            Ok("https://kubernetes.default.svc/a"),
        ),
        (
            "/a",
            &[("host", "")],
            Version::HTTP_11,
            Ok("https://kubernetes.default.svc/a"),
        ),
        (
            "/a",
            &[],
            Version::HTTP_11,
            Err("missing required Host header"),
        ),
        (
            "/a",
            &[("host", "a"), ("host", "b")],
            Version::HTTP_11,
            Err("too many Host headers"),
        ),
        (
            "/a",
            &[("host", "a/b")],
            Version::HTTP_11,
            Err("malformed Host header"),
        ),
    ];
    for (uri, lines, version, expected) in cases {
        let mut headers = map(lines);
        let found = headers::absolute(uri.parse::<Uri>().unwrap(), &mut headers, version);
        assert_eq!(
            found.map(|uri| uri.to_string()),
            expected.map(ToOwned::to_owned),
            "{uri} {lines:?}"
        );
        if expected.is_ok() {
            assert!(!headers.contains_key(header::HOST));
        }
    }
}

proptest! {
    #[test]
    fn nothing_of_a_connection_is_left_whatever_it_names(
        named in prop::collection::vec("[a-z-]{1,12}|content-length|host|x-forwarded-for", 0..6),
        lines in prop::collection::vec(("[a-z][a-z-]{0,12}", "[ -~]{0,20}"), 0..12),
    ) {
        let mut headers = HeaderMap::new();
        for name in &named {
            headers.append(header::CONNECTION, name.parse().unwrap());
            if let Ok(name) = name.parse::<HeaderName>() {
                headers.append(name, "1".parse().unwrap());
            }
        }
        for (name, value) in &lines {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers.append(header::TRANSFER_ENCODING, "chunked".parse().unwrap());
        headers.append(header::CONTENT_LENGTH, "5".parse().unwrap());
        headers::strip_hop_by_hop(&mut headers, Version::HTTP_11, headers::is_end_to_end);
        for gone in ["connection", "transfer-encoding", "content-length", "keep-alive", "upgrade", "te", "proxy-connection"] {
            prop_assert!(!headers.contains_key(gone), "{gone}");
        }
        for name in named {
            let kept = ["host", "x-forwarded-for"].contains(&name.as_str());
            prop_assert!(kept || !headers.contains_key(name.as_str()), "{name}");
        }
    }

    #[test]
    fn the_client_s_address_is_last_in_one_line(lines in prop::collection::vec("[ -~]{0,30}", 0..5)) {
        let mut headers = HeaderMap::new();
        for line in &lines {
            headers.append("x-forwarded-for", line.parse().unwrap());
        }
        headers.append("x-real-ip", "6.6.6.6".parse().unwrap());
        headers::forwarded_for(&mut headers, &headers::address_value([10, 0, 0, 9].into()));
        prop_assert_eq!(headers.get_all("x-forwarded-for").iter().count(), 1);
        let line = headers["x-forwarded-for"].to_str().unwrap();
        prop_assert!(line == "10.0.0.9" || line.ends_with(", 10.0.0.9"), "{}", line);
        prop_assert!(!headers.contains_key("x-real-ip"));
    }
}

#[test]
fn connection_takes_away_nothing_that_says_who_asks() {
    let mut headers = map(&[
        (
            "connection",
            "Upgrade, Impersonate-User, impersonate-extra-a",
        ),
        ("connection", "authorization, x-hop"),
        ("impersonate-user", "bob"),
        ("impersonate-extra-a", "b"),
        ("authorization", "Bearer t"),
        ("x-hop", "1"),
    ]);
    headers::strip_hop_by_hop(&mut headers, Version::HTTP_11, headers::is_end_to_end);
    for kept in ["impersonate-user", "impersonate-extra-a", "authorization"] {
        assert!(headers.contains_key(kept), "{kept}");
    }
    assert!(!headers.contains_key("x-hop") && !headers.contains_key("connection"));
}

#[test]
fn each_header_of_a_connection_goes_though_it_be_the_only_one() {
    for name in [
        "te",
        "connection",
        "keep-alive",
        "proxy-connection",
        "http2-settings",
        "proxy-authorization",
        "proxy-authenticate",
        "upgrade",
        "transfer-encoding",
    ] {
        let mut headers = map(&[("accept", "*/*"), (name, "x")]);
        headers::strip_hop_by_hop(&mut headers, Version::HTTP_11, |_| false);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["accept"], "{name}");
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

fn user(pki: &ClusterPki, name: &str, groups: &[&str]) -> Caller {
    let authority = std::slice::from_ref(&pki.ca.certificate.der);
    let authorities = Authorities {
        client: Some(Anchors::from_certificates(authority)),
        ..Authorities::default()
    };
    let certificate = pki.client(name, groups).unwrap().der;
    let mut presented = Presented::new(&[certificate]).unwrap();
    presented.caller(&HeaderMap::new(), &authorities, &names(), SystemTime::now())
}

#[test]
fn every_request_of_a_connection_says_who_its_user_is_and_where_it_comes_from() {
    let pki = ClusterPki::new().unwrap();
    let client = Client::new([10, 0, 0, 9].into());
    let local = Server::new(ServerId::Local, ([127, 0, 0, 1], 6443).into());
    let sent = |caller: &Caller, lines: Lines<'static>| {
        let request = Request::get("https://h/api/v1/pods").version(Version::HTTP_2);
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        head.headers = map(lines);
        let info = RequestInfo::parse(&head.method, &head.uri).unwrap();
        let outbound = Outbound::new(head, None, &client, &info, caller, &names()).unwrap();
        let [first, again] = [(); 2].map(|()| outbound.request(&local).unwrap());
        assert_eq!(first.headers(), again.headers());
        assert_eq!(first.uri(), "https://h/api/v1/pods");
        first.headers().clone()
    };
    let values = |headers: &HeaderMap, name: &str| -> Vec<String> {
        let all = headers.get_all(name).iter();
        all.map(|it| it.to_str().unwrap().to_owned()).collect()
    };
    let (alice, bob) = (
        user(&pki, "alice", &["devs", "ops"]),
        user(&pki, "bob", &[]),
    );
    for caller in [&alice, &bob, &alice] {
        let headers = sent(
            caller,
            &[
                ("accept", "*/*"),
                ("accept", "text/plain"),
                ("authorization", "Bearer t"),
                ("x-remote-user", "root"),
                ("x-remote-group", "system:masters"),
                ("te", "trailers"),
            ],
        );
        let (name, groups) = match caller {
            Caller::User(user) => (user.name(), user.groups()),
            other => panic!("{other:?}"),
        };
        assert_eq!(values(&headers, "x-remote-user"), [name]);
        assert_eq!(values(&headers, "x-remote-group"), groups);
        assert_eq!(values(&headers, "x-forwarded-for"), ["10.0.0.9"]);
        assert_eq!(values(&headers, "accept"), ["*/*", "text/plain"]);
        for gone in ["authorization", "te"] {
            assert!(!headers.contains_key(gone), "{gone}");
        }
    }
    for caller in [&alice, &Caller::Token] {
        let headers = sent(
            caller,
            &[
                ("x-forwarded-for", "1.1.1.1"),
                ("x-real-ip", "6.6.6.6"),
                ("x-remote-uid", "0"),
            ],
        );
        assert_eq!(values(&headers, "x-forwarded-for"), ["1.1.1.1, 10.0.0.9"]);
        assert!(!headers.contains_key("x-real-ip") && !headers.contains_key("x-remote-uid"));
    }
    let headers = sent(&Caller::Token, &[("authorization", "Bearer t")]);
    assert_eq!(values(&headers, "x-forwarded-for"), ["10.0.0.9"]);
    assert_eq!(values(&headers, "authorization"), ["Bearer t"]);
    assert!(!headers.contains_key("x-remote-user"));
}

#[test]
fn an_ipv4_client_of_an_ipv6_socket_is_written_as_ipv4() {
    let mapped: std::net::IpAddr = "::ffff:10.0.0.9".parse().unwrap();
    assert_eq!(headers::address_value(mapped), "10.0.0.9");
    assert_eq!(
        headers::address_value("fd00::1".parse().unwrap()),
        "fd00::1"
    );
}

#[tokio::test]
async fn only_kube_apiserver_s_own_words_have_a_meaning() {
    const UNKNOWN: &str = r#"{"kind":"Status","message":"the server could not find the requested resource","details":{},"code":404}"#;
    let long = format!("{UNKNOWN}{}", " ".repeat(5000));
    let cases: [(u16, &str, Meaning); 12] = [
        (
            404,
            r#"{"message":"the server could not find the requested resource ( pods/log p)","details":{"name":"p","kind":"pods/log"}}"#,
            Meaning::Answer,
        ),
        (
            404,
            r#"{"message":"admission webhook \"x\" denied the request: the server could not find the requested resource"}"#,
            Meaning::Answer,
        ),
        (
            429,
            r#"{"message":"admission webhook \"x\" denied the request: The apiserver is shutting down"}"#,
            Meaning::Answer,
        ),
        (404, "404 page not found\n", Meaning::Unknown),
        (404, UNKNOWN, Meaning::Unknown),
        (
            404,
            r#"{"message":"pods \"x\" not found","details":{"name":"x"}}"#,
            Meaning::Answer,
        ),
        (404, &long, Meaning::Answer),
        (
            429,
            "The apiserver is shutting down, please try again later.\n",
            Meaning::ShuttingDown,
        ),
        (
            429,
            "Too many requests, please try again later.\n",
            Meaning::Answer,
        ),
        (
            503,
            r#"{"message":"apiserver is shutting down"}"#,
            Meaning::ShuttingDown,
        ),
        (
            503,
            r#"{"message":"the request has been made before all known HTTP paths have been installed, please try again"}"#,
            Meaning::Starting,
        ),
        (503, "service unavailable", Meaning::Answer),
    ];
    for (status, body, expected) in cases {
        let mut answer = Response::new(Body::full(body.to_owned()));
        *answer.status_mut() = StatusCode::from_u16(status).unwrap();
        let (meaning, answer) = recognise::look(&http::Method::GET, answer).await.unwrap();
        assert_eq!(meaning, expected, "{status} {body}");
        let whole = http_body_util::BodyExt::collect(answer.into_body())
            .await
            .unwrap();
        assert_eq!(whole.to_bytes(), body, "the answer must stay whole");
    }
}

#[tokio::test]
async fn who_shuts_down_says_so_before_flow_control_and_all_else_behind_it() {
    for (status, body, expected) in [
        (
            429,
            "The apiserver is shutting down, please try again later.\n",
            Meaning::Answer,
        ),
        (
            503,
            r#"{"message":"apiserver is shutting down"}"#,
            Meaning::Answer,
        ),
        (
            503,
            r#"{"message":"the request has been made before all known HTTP paths have been installed, please try again"}"#,
            Meaning::Starting,
        ),
        (404, "404 page not found\n", Meaning::Unknown),
    ] {
        let mut answer = Response::new(Body::full(body));
        *answer.status_mut() = StatusCode::from_u16(status).unwrap();
        *answer.headers_mut() = map(&[("x-kubernetes-pf-flowschema-uid", "1")]);
        let (meaning, answer) = recognise::look(&http::Method::GET, answer).await.unwrap();
        assert_eq!(meaning, expected, "{status} {body}");
        assert_eq!(answer.status(), status);
    }
}
