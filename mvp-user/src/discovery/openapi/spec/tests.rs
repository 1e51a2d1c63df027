//! Recorded documents of two versions, and small ones that contradict each other.

use super::*;
use crate::discovery::openapi::{archive::file, format::Dialect};

const JSON3: Format = Format {
    dialect: Dialect::V3,
    protobuf: false,
};
const PROTO3: Format = Format {
    dialect: Dialect::V3,
    protobuf: true,
};
const JSON2: Format = Format {
    dialect: Dialect::V2,
    protobuf: false,
};
const PROTO2: Format = Format {
    dialect: Dialect::V2,
    protobuf: true,
};

/// Every document in every format, with a path that is new in 1.36.
const DOCUMENTS: [(Format, &str); 4] = [
    (JSON3, "v3__apis_admissionregistration.k8s.io_v1.json"),
    (PROTO3, "v3__apis_admissionregistration.k8s.io_v1.pb"),
    (JSON2, "v2.json"),
    (PROTO2, "v2.pb"),
];

fn is_new(path: &str) -> bool {
    path.contains("mutatingadmissionpolic")
        && path.starts_with("/apis/admissionregistration.k8s.io/v1/")
}

/// References that lead nowhere.
fn dangling(format: Format, doc: &Doc<'_>) -> Vec<String> {
    doc.paths
        .values()
        .chain(doc.definitions.values())
        .flat_map(|piece| format.references(piece).unwrap())
        .filter(|reference| !doc.definitions.contains_key(reference))
        .collect()
}

#[test]
fn documents_survive_being_taken_apart() {
    for (format, name) in DOCUMENTS {
        for version in ["1.34", "1.36"] {
            let bytes = file(&format!("{version}/{name}"));
            let doc = format.parse(&bytes).unwrap();
            assert!(doc.paths.len() > 10 && doc.definitions.len() > 10, "{name}");
            assert_eq!(dangling(format, &doc), Vec::<String>::new(), "{name}");
            let written = format.write(&doc);
            if format.protobuf {
                assert_eq!(written.len(), bytes.len(), "{name}");
                let again = format.parse(&written).unwrap();
                assert!(
                    again.paths == doc.paths && again.definitions == doc.definitions,
                    "{name}"
                );
            } else {
                let value =
                    |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
                assert!(value(&written) == value(&bytes), "{name}");
            }
        }
    }
}

#[test]
fn an_old_document_gets_the_new_kinds_and_all_they_refer_to() {
    for (format, name) in DOCUMENTS {
        let (old, new) = (file(&format!("1.34/{name}")), file(&format!("1.36/{name}")));
        let other = format.parse(&new).unwrap();
        let before = format.parse(&old).unwrap();
        let mut doc = format.parse(&old).unwrap();
        graft(format, &mut doc, &other, is_new).unwrap();
        let added: Vec<&String> = doc
            .paths
            .keys()
            .filter(|path| !before.paths.contains_key(*path))
            .collect();
        assert!(
            added.len() >= 6 && added.iter().all(|path| is_new(path)),
            "{name}: {added:?}"
        );
        let kind = "io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicy";
        assert!(
            doc.definitions
                .keys()
                .any(|reference| reference.ends_with(kind)),
            "{name}"
        );
        assert_eq!(dangling(format, &doc), Vec::<String>::new(), "{name}");
        for (reference, piece) in &before.definitions {
            assert_eq!(
                doc.definitions.get(reference),
                Some(piece),
                "{name}: {reference} was changed"
            );
        }
        // The result is the same each time, and nothing is left to add.
        let written = format.write(&doc);
        let mut again = format.parse(&written).unwrap();
        graft(format, &mut again, &other, is_new).unwrap();
        assert!(format.write(&again) == written, "{name}");
        let mut again = format.parse(&old).unwrap();
        graft(format, &mut again, &other, is_new).unwrap();
        assert!(format.write(&again) == written, "{name}");
    }
}

#[test]
fn json_and_protobuf_of_a_document_are_completed_alike() {
    let names = |format: Format, name: &str| {
        let (old, new) = (file(&format!("1.34/{name}")), file(&format!("1.36/{name}")));
        let other = format.parse(&new).unwrap();
        let mut doc = format.parse(&old).unwrap();
        graft(format, &mut doc, &other, is_new).unwrap();
        // Suffixes are of the content, whose bytes differ.
        let plain = |reference: &String| reference.split('_').next().unwrap_or_default().to_owned();
        let paths: Vec<String> = doc.paths.keys().cloned().collect();
        (paths, doc.definitions.keys().map(plain).collect::<Vec<_>>())
    };
    assert_eq!(
        names(DOCUMENTS[0].0, DOCUMENTS[0].1),
        names(DOCUMENTS[1].0, DOCUMENTS[1].1)
    );
    assert_eq!(
        names(DOCUMENTS[2].0, DOCUMENTS[2].1),
        names(DOCUMENTS[3].0, DOCUMENTS[3].1)
    );
}

/// A document of schemas and of paths that refer to them.
fn small(schemas: &serde_json::Value, paths: &[(&str, &str)]) -> Vec<u8> {
    let paths: serde_json::Map<String, serde_json::Value> = paths
        .iter()
        .map(|(path, schema)| {
            let operation = serde_json::json!({"get": {"responses": {"200": {"schema": {"$ref": format!("#/components/schemas/{schema}")}}}}});
            ((*path).to_owned(), operation)
        })
        .collect();
    serde_json::to_vec(&serde_json::json!({"openapi": "3.0.0", "paths": paths, "components": {"schemas": schemas, "x": 1}})).unwrap()
}

#[test]
fn equal_names_of_other_content_get_a_suffix_and_references_follow() {
    let leaf = |text: &str| serde_json::json!({"type": text});
    let refers = |to: &str| serde_json::json!({"properties": {"x": {"$ref": format!("#/components/schemas/{to}")}}});
    let mut kind = refers("Spec");
    kind["x-kubernetes-group-version-kind"] = serde_json::json!([{"kind": "Old"}]);
    let base = small(
        &serde_json::json!({"Old": kind, "Spec": leaf("string"), "Same": leaf("object"), "Through": refers("Spec")}),
        &[("/apis/g/v/olds", "Old")],
    );
    // `Spec` differs, so `Through` means something else though it reads the same; `New` is new; `Same` is the same; `Loop`
    // refers to itself.
    let other = small(
        &serde_json::json!({"New": {"allOf": [refers("Through"), refers("Same"), refers("Old"), refers("Loop")]}, "Old": kind,
            "Spec": leaf("integer"), "Same": leaf("object"), "Through": refers("Spec"), "Unused": leaf("null"), "Loop": refers("Loop")}),
        &[
            ("/apis/g/v/olds", "Old"),
            ("/apis/g/v/news", "New"),
            ("/apis/g/v/others", "Unused"),
        ],
    );
    let mut doc = JSON3.parse(&base).unwrap();
    graft(JSON3, &mut doc, &JSON3.parse(&other).unwrap(), |path| {
        path.ends_with("/news")
    })
    .unwrap();
    assert_eq!(dangling(JSON3, &doc), Vec::<String>::new());
    let written: serde_json::Value = serde_json::from_slice(&JSON3.write(&doc)).unwrap();
    let schemas = written["components"]["schemas"].as_object().unwrap();
    let mut names: Vec<&str> = schemas
        .keys()
        .map(|name| name.split('_').next().unwrap())
        .collect();
    names.dedup();
    assert_eq!(names, ["Loop", "New", "Old", "Same", "Spec", "Through"]);
    assert_eq!(schemas.len(), 9, "{:?}", schemas.keys());
    assert_eq!(schemas["Spec"], leaf("string"));
    assert_eq!(schemas["Through"], refers("Spec"));
    let suffixed = |stem: &str| {
        schemas
            .iter()
            .find(|(name, _)| name.starts_with(&format!("{stem}_")))
            .unwrap()
    };
    assert_eq!(suffixed("Spec").1, &leaf("integer"));
    assert_eq!(suffixed("Through").1, &refers(suffixed("Spec").0));
    // Two descriptions of one kind would be one too many.
    assert_eq!(
        schemas["Old"]["x-kubernetes-group-version-kind"][0]["kind"],
        "Old"
    );
    assert!(
        suffixed("Old")
            .1
            .get("x-kubernetes-group-version-kind")
            .is_none()
    );
    assert!(written["paths"].get("/apis/g/v/others").is_none());
    assert_eq!(written["components"]["x"], 1);
}

#[test]
fn operations_that_a_path_lacks_are_added_to_it() {
    let doc = |operations: &[&str]| {
        let item: serde_json::Map<String, serde_json::Value> = operations
            .iter()
            .map(|name| ((*name).to_owned(), serde_json::json!({"operationId": name})))
            .collect();
        serde_json::to_vec(
            &serde_json::json!({"paths": {"/apis/g/v/x": item}, "components": {"schemas": {}}}),
        )
        .unwrap()
    };
    let (base, other) = (doc(&["get"]), doc(&["delete", "get"]));
    let mut merged = JSON3.parse(&base).unwrap();
    graft(JSON3, &mut merged, &JSON3.parse(&other).unwrap(), |_| true).unwrap();
    let written: serde_json::Value = serde_json::from_slice(&JSON3.write(&merged)).unwrap();
    assert_eq!(
        written["paths"]["/apis/g/v/x"].as_object().unwrap().len(),
        2
    );
}

#[test]
fn garbage_is_an_error_and_no_panic() {
    for bytes in [
        &b"<html>"[..],
        b"",
        b"[]",
        b"{\"paths\":1}",
        b"{\"paths\":{\"a\":",
        b"\xff\xff",
        b"null",
    ] {
        assert!(JSON3.parse(bytes).is_err(), "{bytes:?}");
        assert!(JSON2.parse(bytes).is_err(), "{bytes:?}");
    }
    let good = file("1.36/v3__apis_admissionregistration.k8s.io_v1.pb");
    for cut in (1..good.len()).step_by(4001) {
        // A cut between two fields of the document is a shorter document.
        if let Ok(doc) = PROTO3.parse(&good[..cut]) {
            let _shorter = PROTO3.write(&doc);
        }
    }
    let mut deep = Vec::new();
    for _ in 0..2000 {
        let mut outer = Vec::new();
        super::super::wireformat::put(&mut outer, 1, &deep);
        outer.extend_from_slice(b"\x12\x03#/a");
        deep = outer;
    }
    assert!(
        PROTO3
            .references(&deep)
            .unwrap()
            .contains(&"#/a".to_owned())
    );
    assert!(
        PROTO3
            .rewrite(&deep, &|_| Some("#/b".to_owned()), true)
            .is_ok()
    );
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_taking_apart_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
        for format in [JSON2, JSON3, PROTO2, PROTO3] {
            if let Ok(doc) = format.parse(&bytes) {
                let written = format.write(&doc);
                let again = format.parse(&written).unwrap();
                proptest::prop_assert!(again.paths == doc.paths && again.definitions == doc.definitions);
            }
            let _any = format.references(&bytes);
            let _any = format.operations(&bytes);
            let _any = format.rewrite(&bytes, &|_| Some("#/x".to_owned()), true);
        }
    }
}
