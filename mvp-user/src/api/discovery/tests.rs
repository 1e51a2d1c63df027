//! Every recorded document is read, and written again byte for byte; what nobody should send is an error.

use super::*;
use crate::api::recorded;

#[test]
fn recorded_documents_survive_being_read_and_written_in_every_representation() {
    let mut seen = std::collections::BTreeMap::new();
    for version in recorded::ALL {
        let json = recorded::answer(version, "apis__v2-nopeer");
        let (_, want) = GroupList::parse("application/json", &json.body).unwrap();
        assert!(want.items.len() >= 20, "{version}");
        for answer in recorded::recorded(version) {
            let content_type = answer
                .headers
                .get("content-type")
                .map_or("", |value| value.to_str().unwrap());
            if answer.status != 200
                || !content_type.contains("as=APIGroupDiscoveryList")
                || answer.body.is_empty()
            {
                continue;
            }
            let encoding = Encoding::of(content_type).unwrap();
            let (form, list) = GroupList::parse(content_type, &answer.body)
                .unwrap_or_else(|error| panic!("{version} {}: {error}", answer.name));
            assert_eq!(form, Form::V2);
            if answer.path.starts_with("/apis") {
                assert_eq!(list, want, "{version} {}", answer.name);
            }
            let written = list.write(form, encoding).unwrap();
            {
                assert!(
                    written == answer.body,
                    "{version} {} is written otherwise",
                    answer.name
                );
            }
            *seen.entry(format!("{encoding:?}")).or_insert(0) += 1;
        }
    }
    assert!(
        seen["Json"] > 100 && seen["Protobuf"] >= 24 && seen["Yaml"] >= 12,
        "{seen:?}"
    );
}

#[test]
fn cbor_is_read_as_it_is_written_and_with_byte_strings() {
    let list = GroupList::parse(
        "application/json",
        &recorded::answer("1.36", "apis__v2").body,
    )
    .unwrap()
    .1;
    let bytes = list.write(Form::V2, Encoding::Cbor).unwrap();
    assert_eq!(bytes[..3], [0xd9, 0xd9, 0xf7]);
    assert_eq!(
        GroupList::parse("application/cbor", &bytes).unwrap(),
        (Form::V2, list.clone())
    );
    // kube-apiserver writes Go strings as byte strings.
    fn bytes_for_text(value: ciborium::Value) -> ciborium::Value {
        use ciborium::Value;
        match value {
            Value::Text(text) => Value::Bytes(text.into_bytes()),
            Value::Array(items) => Value::Array(items.into_iter().map(bytes_for_text).collect()),
            Value::Map(pairs) => Value::Map(
                pairs
                    .into_iter()
                    .map(|(key, value)| (bytes_for_text(key), bytes_for_text(value)))
                    .collect(),
            ),
            Value::Tag(_, inner) => bytes_for_text(*inner),
            other => other,
        }
    }
    let value = bytes_for_text(ciborium::from_reader(bytes.as_slice()).unwrap());
    let mut bytes = Vec::new();
    ciborium::into_writer(&value, &mut bytes).unwrap();
    assert_eq!(
        GroupList::parse("application/cbor", &bytes).unwrap().1,
        list
    );
}

#[test]
fn yaml_keeps_words_that_older_yaml_takes_for_truth_values() {
    let mut list = GroupList::parse(
        "application/json",
        &recorded::answer("1.36", "api__v2").body,
    )
    .unwrap()
    .1;
    list.items[0].versions[0].resources[0].short_names =
        ["no", "on", "y", "1e3", "0x1", "null", "~"]
            .map(str::to_owned)
            .to_vec();
    let yaml = String::from_utf8(list.write(Form::V2, Encoding::Yaml).unwrap()).unwrap();
    for word in ["no", "on", "y", "1e3", "0x1", "null", "~"] {
        assert!(
            yaml.contains(&format!("- '{word}'")) || yaml.contains(&format!("- \"{word}\"")),
            "{word} in {yaml:.900}"
        );
    }
}

#[test]
fn what_is_not_aggregated_discovery_is_an_error_that_says_so() {
    let parse = |content_type: &str, body: &[u8]| {
        GroupList::parse(content_type, body)
            .unwrap_err()
            .to_string()
    };
    assert!(parse("text/html", b"<html>").contains("text/html"));
    assert!(parse("application/json", b"<html>").contains("JSON"));
    assert!(
        parse(
            "application/json",
            br#"{"kind":"APIGroupList","apiVersion":"v1"}"#
        )
        .contains("APIGroupList")
    );
    assert!(
        parse(
            "application/json",
            br#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v3"}"#
        )
        .contains("v3")
    );
    assert!(parse("application/json", br#"{"items":[]"#).contains("JSON"));
    assert!(parse("application/vnd.kubernetes.protobuf", b"\x0a\x02").contains("envelope"));
    assert!(
        parse(
            "application/vnd.kubernetes.protobuf",
            b"k8s\0\xff\xff\xff\xff\xff\xff"
        )
        .contains("protobuf")
    );
    assert!(parse("application/yaml", b"a: [").contains("YAML"));
    assert!(parse("application/cbor", b"\xff").contains("CBOR"));
    assert!(parse("application/json", &vec![b' '; wire::MAX_DOCUMENT + 1]).contains("larger"));
    let many = format!(r#"{{"items":[{}{{}}]}}"#, "{},".repeat(1_000_000));
    assert!(parse("application/json", many.as_bytes()).contains("more than"));
    let bomb = "[".repeat(100_000);
    assert!(parse("application/json", bomb.as_bytes()).contains("JSON"));
    let pb = &recorded::answer("1.36", "apis__v2-proto").body;
    for cut in (0..pb.len()).step_by(97) {
        assert!(
            GroupList::parse("application/vnd.kubernetes.protobuf", &pb[..cut]).is_err(),
            "cut at {cut}"
        );
    }
}

#[test]
fn unknown_fields_are_ignored_and_duplicates_and_impossible_names_dropped() {
    let body = br#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","future":1,"items":[
        {"metadata":{"name":"a","creationTimestamp":null,"uid":"x"},"versions":[
            {"version":"v1","freshness":"Current","resources":[
                {"resource":"x","scope":"Cluster","verbs":["get"],"color":"red","subresources":[{"subresource":"s","verbs":null},{"subresource":"s","verbs":["get"]},{"subresource":"../s","verbs":[]}]},
                {"resource":"x","scope":"Namespaced","verbs":["list"]},
                {"resource":"y/z","verbs":["get"]},{"resource":"","verbs":[]}]},
            {"version":"v1","resources":[{"resource":"w","verbs":["get"]}]}]},
        {"metadata":{"name":"a/b"},"versions":[]},
        {"metadata":{"name":"a"},"versions":[{"version":"v2","resources":null}]}]}"#;
    let (_, list) = GroupList::parse("application/json; charset=utf-8", body).unwrap();
    let json = serde_json::to_value(&list).unwrap();
    assert_eq!(
        json["items"],
        serde_json::json!([{"metadata":{"name":"a"},"versions":[
            {"version":"v1","freshness":"Current","resources":[
                {"resource":"x","scope":"Cluster","singularResource":"","verbs":["get"],"subresources":[{"subresource":"s","verbs":[]}]},
                {"resource":"w","scope":"","singularResource":"","verbs":["get"]}]},
            {"version":"v2"}]}])
    );
}

#[test]
fn compressed_bombs_are_bounded() {
    use std::io::Write as _;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    for _ in 0..100 {
        gzip.write_all(&vec![b' '; 1 << 20]).unwrap();
    }
    let bomb = gzip.finish().unwrap();
    assert_eq!(
        wire::decompress(Some("gzip"), &bomb, 1 << 20),
        Err(WireError::TooLarge(1 << 20))
    );
    assert!(matches!(
        wire::decompress(Some("gzip"), &bomb[..500], 200 << 20),
        Err(WireError::Syntax("gzip", _))
    ));
    assert!(matches!(
        wire::decompress(Some("br"), b"x", 10),
        Err(WireError::ContentEncoding(_))
    ));
    assert_eq!(wire::decompress(None, b"x", 10), Ok(b"x".to_vec()));
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300), cut in 0usize..9000, flip in 0usize..9000) {
        use proptest::prelude::*;
        for content_type in ["application/json", "application/yaml", "application/cbor", "application/vnd.kubernetes.protobuf"] {
            let _any = GroupList::parse(content_type, &bytes);
            let mut enveloped = b"k8s\0".to_vec();
            enveloped.extend_from_slice(&bytes);
            let _any = GroupList::parse(content_type, &enveloped);
        }
        thread_local! {
            static GOOD: Vec<u8> = recorded::answer("1.36", "apis__v2-proto").body.to_vec();
        }
        let mut broken = GOOD.with(Clone::clone);
        let place = flip % broken.len();
        broken[place] ^= 0x55;
        broken.truncate(cut.max(1));
        if let Ok((form, list)) = GroupList::parse("application/vnd.kubernetes.protobuf", &broken) {
            // Whatever was read can be written, and is then read the same.
            let again = list.write(form, Encoding::Json).unwrap();
            prop_assert_eq!(GroupList::parse("application/json", &again).unwrap().1, list);
        }
    }
}
