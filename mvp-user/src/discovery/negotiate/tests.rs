//! Accept headers as recorded from kube-apiserver, and some that nobody should send.

use super::*;

fn headers(accept: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, accept.parse().unwrap());
    headers
}

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const BETA: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
const PROTO: &str =
    "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[test]
fn accept_headers_are_read_as_kube_apiserver_reads_them() {
    let wanted = |encoding, form, nopeer| Wanted {
        encoding,
        form,
        nopeer,
    };
    let json = wanted(Encoding::Json, Form::V2, false);
    let row =
        |accept: &str, want: &[Wanted]| assert_eq!(aggregated(&headers(accept)), want, "{accept}");
    row(V2, &[json]);
    row("application/json", &[]);
    row("*/*", &[]);
    row("text/plain", &[]);
    row(&V2.replace("v=v2", "v=v3"), &[]);
    row(PROTO, &[wanted(Encoding::Protobuf, Form::V2, false)]);
    row(
        &format!("{V2};profile=nopeer"),
        &[wanted(Encoding::Json, Form::V2, true)],
    );
    row(&format!("{V2};profile=bogus"), &[json]);
    // client-go, a peer's learning, JSON first, and qualities: v2 wins whenever it is listed.
    row(
        &format!("{V2},{BETA},application/json"),
        &[json, wanted(Encoding::Json, Form::V2Beta1, false)],
    );
    row(
        &format!("{V2};profile=nopeer,{V2},application/json"),
        &[wanted(Encoding::Json, Form::V2, true), json],
    );
    row(&format!("application/json,{V2}"), &[json]);
    row(&format!("application/json;q=0.5,{V2};q=0.1"), &[json]);
    row(
        &format!("{V2};q=0.1 , {PROTO};q=0.9"),
        &[wanted(Encoding::Protobuf, Form::V2, false), json],
    );
    row(&format!("{V2};sv=v1"), &[]);
    row(&format!("{V2};q=0"), &[]);
    row(
        ",,;;,=,/;q=x,application/json/x;as=APIGroupDiscoveryList",
        &[],
    );
    assert_eq!(aggregated(&HeaderMap::new()), []);
}

#[test]
fn the_server_is_asked_for_its_own_document() {
    let rewritten = |accept: &str| {
        without_peers(&headers(accept))
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(rewritten(V2), format!("{V2};profile=nopeer"));
    assert_eq!(
        rewritten(&format!("{V2};profile=bogus;q=0.5, application/json")),
        format!("{V2};q=0.5;profile=nopeer,application/json")
    );
    assert_eq!(rewritten("application/yaml"), "application/yaml");
}

#[test]
fn gzip_and_indentation_are_recognised() {
    let mut map = HeaderMap::new();
    assert!(!takes_gzip(&map) && !is_pretty(&map, Some("timeout=32s")));
    map.insert(
        header::ACCEPT_ENCODING,
        "deflate, gzip;q=1.0, *;q=0.5".parse().unwrap(),
    );
    map.insert(header::USER_AGENT, "curl/8.5".parse().unwrap());
    assert!(takes_gzip(&map) && is_pretty(&map, None));
    map.insert(header::ACCEPT_ENCODING, "gzip;q=0".parse().unwrap());
    map.insert(header::USER_AGENT, "kubectl/v1.36".parse().unwrap());
    assert!(!takes_gzip(&map) && !is_pretty(&map, None) && is_pretty(&map, Some("pretty=1")));
}

proptest::proptest! {
    #[test]
    fn no_accept_header_makes_the_reader_panic(accept in "[ -~]{0,120}", clauses in proptest::collection::vec("[;=,/*q a-z0-9.]{0,30}", 0..6)) {
        for text in [accept, clauses.join(",application/json;as=APIGroupDiscoveryList;")] {
            let map = headers(&text);
            let _wanted = aggregated(&map);
            let rewritten = without_peers(&map).unwrap();
            let mut again = HeaderMap::new();
            again.insert(header::ACCEPT, rewritten.clone());
            // Asking for the own document twice is asking for it once.
            proptest::prop_assert_eq!(without_peers(&again).unwrap(), rewritten);
        }
    }
}
