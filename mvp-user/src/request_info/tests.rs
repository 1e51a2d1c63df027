//! The first three tables are re-expressed from `requestinfo_test.go` of kubernetes/kubernetes (Apache-2.0); the rest is
//! what Go's URL parser and kube-apiserver's mux do with unusual paths.

use proptest::prelude::*;

use super::*;

fn parse(method: &str, uri: &str) -> RequestInfo {
    let uri: Uri = uri.parse().unwrap();
    RequestInfo::parse(&method.parse().unwrap(), &uri).unwrap()
}

/// Method, URI, verb, group, version, namespace, resource, subresource, name, parts.
type Row = (
    &'static str,
    &'static str,
    Verb,
    [&'static str; 6],
    &'static [&'static str],
);

#[rustfmt::skip]
const RESOURCES: &[Row] = &[
    ("GET", "/api/v1/namespaces", Verb::List, ["", "v1", "", "namespaces", "", ""], &["namespaces"]),
    ("GET", "/api/v1/namespaces/other", Verb::Get, ["", "v1", "other", "namespaces", "", "other"], &["namespaces", "other"]),
    ("GET", "/api/v1/namespaces/other/pods", Verb::List, ["", "v1", "other", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/namespaces/other/pods/foo", Verb::Get, ["", "v1", "other", "pods", "", "foo"], &["pods", "foo"]),
    ("HEAD", "/api/v1/namespaces/other/pods/foo", Verb::Get, ["", "v1", "other", "pods", "", "foo"], &["pods", "foo"]),
    ("GET", "/api/v1/pods", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("HEAD", "/api/v1/pods", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("PATCH", "/api/v1/namespaces/new-namespace", Verb::Patch, ["", "v1", "new-namespace", "namespaces", "", "new-namespace"], &["namespaces", "new-namespace"]),
    // Verbs in the path.
    ("GET", "/api/v1/proxy/namespaces/other/pods/foo", Verb::Proxy, ["", "v1", "other", "pods", "", "foo"], &["pods", "foo"]),
    ("GET", "/api/v1/proxy/namespaces/other/pods/foo/subpath/not/a/subresource", Verb::Proxy, ["", "v1", "other", "pods", "", "foo"], &["pods", "foo", "subpath", "not", "a", "subresource"]),
    ("GET", "/api/v1/watch/pods", Verb::Watch, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods?watch=true", Verb::Watch, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods?watch=false", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/watch/namespaces/other/pods", Verb::Watch, ["", "v1", "other", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/namespaces/other/pods?watch=1", Verb::Watch, ["", "v1", "other", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/namespaces/other/pods?watch=0", Verb::List, ["", "v1", "other", "pods", "", ""], &["pods"]),
    // Subresources.
    ("GET", "/api/v1/namespaces/other/pods/foo/status", Verb::Get, ["", "v1", "other", "pods", "status", "foo"], &["pods", "foo", "status"]),
    ("GET", "/api/v1/namespaces/other/pods/foo/proxy/subpath", Verb::Get, ["", "v1", "other", "pods", "proxy", "foo"], &["pods", "foo", "proxy", "subpath"]),
    ("PUT", "/api/v1/namespaces/other/finalize", Verb::Update, ["", "v1", "other", "namespaces", "finalize", "other"], &["namespaces", "other", "finalize"]),
    ("PUT", "/api/v1/namespaces/other/status", Verb::Update, ["", "v1", "other", "namespaces", "status", "other"], &["namespaces", "other", "status"]),
    // Verbs of methods.
    ("PATCH", "/api/v1/namespaces/other/pods/foo", Verb::Patch, ["", "v1", "other", "pods", "", "foo"], &["pods", "foo"]),
    ("DELETE", "/api/v1/namespaces/other/pods/foo", Verb::Delete, ["", "v1", "other", "pods", "", "foo"], &["pods", "foo"]),
    ("POST", "/api/v1/namespaces/other/pods", Verb::Create, ["", "v1", "other", "pods", "", ""], &["pods"]),
    ("DELETE", "/api/v1/nodes", Verb::DeleteCollection, ["", "v1", "", "nodes", "", ""], &["nodes"]),
    ("DELETE", "/api/v1/namespaces", Verb::DeleteCollection, ["", "v1", "", "namespaces", "", ""], &["namespaces"]),
    ("DELETE", "/api/v1/namespaces/other/pods", Verb::DeleteCollection, ["", "v1", "other", "pods", "", ""], &["pods"]),
    ("DELETE", "/apis/extensions/v1/namespaces/other/pods", Verb::DeleteCollection, ["extensions", "v1", "other", "pods", "", ""], &["pods"]),
    // Groups and versions.
    ("POST", "/apis/extensions/v1/namespaces/other/pods", Verb::Create, ["extensions", "v1", "other", "pods", "", ""], &["pods"]),
    ("POST", "/apis/extensions/v1beta3/namespaces/other/pods", Verb::Create, ["extensions", "v1beta3", "other", "pods", "", ""], &["pods"]),
    // Field selectors.
    ("GET", "/apis/group/version/resource", Verb::List, ["group", "version", "", "resource", "", ""], &["resource"]),
    ("GET", "/apis/group/version/resource?fieldSelector=metadata.name=name1", Verb::List, ["group", "version", "", "resource", "", "name1"], &["resource"]),
    ("GET", "/apis/group/version/resource?watch=true&fieldSelector=metadata.name=name1", Verb::Watch, ["group", "version", "", "resource", "", "name1"], &["resource"]),
    ("GET", "/apis/group/version/resource?fieldSelector=foo=bar", Verb::List, ["group", "version", "", "resource", "", ""], &["resource"]),
    ("GET", "/apis/group/version/resource?fieldSelector=metadata.name=name1,foo", Verb::List, ["group", "version", "", "resource", "", ""], &["resource"]),
    ("GET", "/apis/group/version/resource?fieldSelector=metadata.name=name1,foo&watch=true", Verb::Watch, ["group", "version", "", "resource", "", ""], &["resource"]),
    ("GET", "/apis/group/version/resource?fieldSelector=metadata.name=name1,foo&watch=false", Verb::List, ["group", "version", "", "resource", "", ""], &["resource"]),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dname1", Verb::List, ["", "v1", "", "pods", "", "name1"], &["pods"]),
    ("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn%2Cmetadata.name%3D%3Dname1", Verb::List, ["", "v1", "", "pods", "", "name1"], &["pods"]),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name!%3Dname1", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Da%2Fb", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods?limit=many&fieldSelector=metadata.name%3Dname1", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    // Queries as Go reads them.
    ("GET", "/api/v1/pods?watch", Verb::Watch, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods?watch=FALSE", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods?watch=0&watch=1", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods?watch=1;x", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods?watch=%zz", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods?w%61tch=1", Verb::Watch, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods?nowatch=1&rewatch=1", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods/foo?watch=1", Verb::Get, ["", "v1", "", "pods", "", "foo"], &["pods", "foo"]),
    ("OPTIONS", "/api/v1/pods", Verb::Other, ["", "v1", "", "pods", "", ""], &["pods"]),
    // The decoded path is what is split (cases C11).
    ("GET", "/apis/g%2Fx/v1/r", Verb::Get, ["g", "x", "", "v1", "", "r"], &["v1", "r"]),
    ("GET", "/api/v1/namespaces/d/services/s:80/proxy/a%2Fb//c/../d?x=1;y=2", Verb::Get, ["", "v1", "d", "services", "proxy", "s:80"], &["services", "s:80", "proxy", "a", "b", "", "c", "..", "d"]),
    ("GET", "/%61pi/v1/%70ods", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/pods/a+b", Verb::Get, ["", "v1", "", "pods", "", "a+b"], &["pods", "a+b"]),
    // Slashes: trimmed at both ends, an empty part within.
    ("GET", "//api/v1/pods//", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1/namespaces//pods", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
    ("GET", "/api/v1//pods", Verb::Get, ["", "v1", "", "", "", "pods"], &["", "pods"]),
    ("DELETE", "/api/v1/pods//status", Verb::DeleteCollection, ["", "v1", "", "pods", "status", ""], &["pods", "", "status"]),
    ("GET", "http://apiserver:6443/api/v1/pods", Verb::List, ["", "v1", "", "pods", "", ""], &["pods"]),
];

#[test]
fn resource_requests_are_read_as_kube_apiserver_reads_them() {
    for (method, uri, verb, [group, version, namespace, resource, subresource, name], parts) in
        RESOURCES
    {
        let info = parse(method, uri);
        let case = format!("{method} {uri}");
        assert_eq!(info.class(), Class::Resource, "{case}");
        assert_eq!(info.verb(), *verb, "{case}");
        let wanted = GvrRef {
            group,
            version,
            resource,
        };
        assert_eq!(info.resource(), Some(wanted), "{case}");
        assert_eq!(info.group_version(), Some(wanted.group_version()), "{case}");
        assert_eq!(info.namespace().unwrap_or_default(), *namespace, "{case}");
        assert_eq!(
            info.subresource().unwrap_or_default(),
            *subresource,
            "{case}"
        );
        assert_eq!(info.name().unwrap_or_default(), *name, "{case}");
        assert_eq!(info.parts().collect::<Vec<_>>(), *parts, "{case}");
    }
}

#[rustfmt::skip]
const CLASSES: &[(&str, Class, Option<&str>, Option<&str>)] = &[
    ("/", Class::Other, None, None),
    ("/nothing", Class::Other, None, None),
    ("/badprefix/version/resource", Class::Other, None, None),
    ("/apiss/version/resource", Class::Other, None, None),
    ("/api", Class::Discovery(DiscoveryPath::Api), None, None),
    ("/api/", Class::Discovery(DiscoveryPath::Api), None, None),
    ("/api?timeout=32s", Class::Discovery(DiscoveryPath::Api), None, None),
    ("/apis", Class::Discovery(DiscoveryPath::Apis), None, None),
    ("/apis/", Class::Discovery(DiscoveryPath::Apis), None, None),
    ("/apis//", Class::Other, None, None),
    ("//apis", Class::Other, None, None),
    ("/apis/batch", Class::Discovery(DiscoveryPath::Group), Some("batch"), None),
    ("/apis/batch/", Class::Discovery(DiscoveryPath::Group), Some("batch"), None),
    ("/api/v1", Class::Discovery(DiscoveryPath::GroupVersion), None, Some("v1")),
    ("/api/version/", Class::Discovery(DiscoveryPath::GroupVersion), None, Some("version")),
    ("/apis/extensions/v1beta1", Class::Discovery(DiscoveryPath::GroupVersion), Some("extensions"), Some("v1beta1")),
    ("/apis/group/version/", Class::Discovery(DiscoveryPath::GroupVersion), Some("group"), Some("version")),
    ("/%61pis/b%61tch/v1", Class::Discovery(DiscoveryPath::GroupVersion), Some("batch"), Some("v1")),
    ("/openapi/v2", Class::OpenApi(OpenApiPath::V2), None, None),
    ("/openapi/v3", Class::OpenApi(OpenApiPath::V3Index), None, None),
    ("/openapi/v3/apis/batch/v1?hash=A", Class::OpenApi(OpenApiPath::V3Document), Some("batch"), Some("v1")),
    ("/openapi/v3/apis/batch", Class::OpenApi(OpenApiPath::V3Document), Some("batch"), None),
    ("/openapi/v3/api/v1", Class::OpenApi(OpenApiPath::V3Document), None, Some("v1")),
    ("/openapi/v3/version", Class::OpenApi(OpenApiPath::V3Document), None, None),
    ("/openapi/v4", Class::Other, None, None),
    ("/healthz", Class::LocalOnly, None, None),
    ("/readyz/etcd", Class::LocalOnly, None, None),
    ("/livez?verbose", Class::LocalOnly, None, None),
    ("/metrics/slis", Class::LocalOnly, None, None),
    ("/version", Class::LocalOnly, None, None),
    ("/version/", Class::LocalOnly, None, None),
    ("/debug/pprof/profile", Class::LocalOnly, None, None),
    ("/logs/kube-apiserver.log", Class::LocalOnly, None, None),
    ("/statusz", Class::LocalOnly, None, None),
    ("/flagz", Class::LocalOnly, None, None),
    ("/healthzz", Class::Other, None, None),
    // kube-apiserver fails to read these (500): it shall say so itself.
    ("/api/v1/watch", Class::Other, None, None),
    ("/apis/batch/v1/proxy/", Class::Other, None, None),
    ("*", Class::Other, None, None),
];

#[test]
fn other_paths_fall_into_their_class() {
    for (uri, class, group, version) in CLASSES {
        let info = parse("GET", uri);
        assert_eq!(info.class(), *class, "{uri}");
        assert_eq!(info.resource(), None, "{uri}");
        assert_eq!(info.verb(), Verb::Other, "{uri}");
        let wanted = version.map(|version| GvRef {
            group: group.unwrap_or_default(),
            version,
        });
        assert_eq!(info.group_version(), wanted, "{uri}");
        assert_eq!(info.group(), *group, "{uri}");
    }
}

#[test]
fn an_invalid_escape_is_a_bad_path() {
    for path in [
        "/%",
        "/api/v1/pods/%2",
        "/api/v1/pods/%zz",
        "/%g1",
        "/a%2%20",
    ] {
        let uri: Uri = path.parse().unwrap();
        assert_eq!(
            RequestInfo::parse(&Method::GET, &uri).unwrap_err(),
            BadPath::Escape,
            "{path}"
        );
    }
}

#[test]
fn bytes_that_are_not_utf8_match_no_resource_and_do_no_harm() {
    let info = parse("GET", "/api/v1/%ff%fe");
    assert_eq!(info.resource().unwrap().resource, "\u{fffd}\u{fffd}");
}

#[test]
fn what_connects_is_not_safe() {
    let rows = [
        ("GET", "/api/v1/namespaces/d/pods/p", true),
        ("POST", "/api/v1/namespaces/d/pods", false),
        ("GET", "/api/v1/namespaces/d/pods?watch=1", true),
        ("GET", "/api/v1/namespaces/d/pods/p/log", true),
        ("GET", "/api/v1/namespaces/d/pods/p/log?follow=true", true),
        ("GET", "/api/v1/namespaces/d/pods/p/exec?command=rm", false),
        ("GET", "/api/v1/namespaces/d/pods/p/attach", false),
        ("POST", "/api/v1/namespaces/d/pods/p/portforward", false),
        ("GET", "/api/v1/namespaces/d/services/s/proxy/x", false),
        ("GET", "/api/v1/proxy/nodes/n", false),
        ("OPTIONS", "/apis", true),
        ("DELETE", "/healthz", false),
    ];
    for (method, uri, safe) in rows {
        assert_eq!(parse(method, uri).is_safe(), safe, "{method} {uri}");
    }
}

#[test]
fn what_reads_one_object_is_neither_a_list_nor_a_log_nor_does_it_last() {
    let rows = [
        ("GET", "/api/v1/namespaces/d/pods/p", true),
        ("HEAD", "/apis/apps/v1/namespaces/d/deployments/x", true),
        ("GET", "/api/v1/namespaces/d/pods/p/status", true),
        ("GET", "/api/v1/namespaces/d", true),
        ("PUT", "/api/v1/namespaces/d/pods/p", false),
        ("OPTIONS", "/api/v1/namespaces/d/pods/p", false),
        ("GET", "/api/v1/namespaces/d/pods", false),
        ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dp", false),
        ("GET", "/api/v1/namespaces/d/pods?watch=1", false),
        ("GET", "/api/v1/watch/namespaces/d/pods/p", false),
        ("GET", "/api/v1/namespaces/d/pods/p/log", false),
        ("GET", "/api/v1/namespaces/d/pods/p/exec", false),
        ("GET", "/api/v1/namespaces/d/services/s/proxy/x", false),
        ("GET", "/apis/apps/v1", false),
        ("GET", "/openapi/v2", false),
        ("GET", "/readyz", false),
    ];
    for (method, uri, one) in rows {
        assert_eq!(parse(method, uri).reads_one(), one, "{method} {uri}");
    }
}

#[test]
fn the_longest_uri_is_read() {
    let uri = format!("/api/v1/namespaces/d/pods/{}", "x".repeat(65_000));
    assert_eq!(parse("GET", &uri).name().unwrap().len(), 65_000);
}

proptest! {
    #[test]
    fn no_path_makes_it_panic(path in "/[ -~]{0,80}", method in "GET|HEAD|POST|DELETE|BREW") {
        if let Ok(uri) = path.parse::<Uri>()
            && let Ok(info) = RequestInfo::parse(&method.parse().unwrap(), &uri)
        {
            drop((info.resource().map(|it| it.to_string()), info.group_version(), info.parts().count()));
            let _unused = (info.name(), info.namespace(), info.subresource(), info.is_safe());
            prop_assert_eq!(info.class() == Class::Resource, info.resource().is_some());
        }
    }

    #[test]
    fn no_likely_path_makes_it_panic(
        parts in proptest::collection::vec("|api|apis|v1|watch|proxy|namespaces|status|finalize|pods|%2F|%25|x", 0..9),
        query in "(\\?(watch|fieldSelector|follow)=[a-z.=,%0-9;&\\\\]{0,20})?",
    ) {
        let text = format!("/{}{query}", parts.join("/"));
        if let Ok(uri) = text.parse::<Uri>()
            && let Ok(info) = RequestInfo::parse(&Method::GET, &uri)
        {
            // The same parts, split the slow way.
            let decoded = percent_encoding::percent_decode_str(uri.path()).decode_utf8_lossy().into_owned();
            let trimmed = decoded.trim_matches('/');
            let all: Vec<&str> = trimmed.split('/').collect();
            let resource = match all[..] {
                ["api", _, verb, _, ..] if verb == "watch" || verb == "proxy" => true,
                ["apis", _, _, verb, _, ..] if verb == "watch" || verb == "proxy" => true,
                ["api", _, verb] | ["apis", _, _, verb] if verb == "watch" || verb == "proxy" => false,
                ["api", _, _, ..] | ["apis", _, _, _, ..] => true,
                _ => false,
            };
            prop_assert_eq!(info.class() == Class::Resource, resource, "{}", text);
            let parts: Vec<&str> = info.parts().collect();
            prop_assert!(all.ends_with(&parts));
        }
    }
}
