//! Legacy documents as recorded: read, written again, and compared with the aggregated ones of the same server.

use super::*;
use crate::api::{GroupVersion as Gv, discovery, recorded};

#[test]
fn recorded_documents_survive_being_read_and_written() {
    let mut seen = std::collections::BTreeMap::new();
    for version in recorded::ALL {
        for answer in recorded::recorded(version) {
            let content_type = answer
                .headers
                .get("content-type")
                .map_or("", |value| value.to_str().unwrap());
            let Some(encoding) = Encoding::of(content_type) else {
                continue;
            };
            if answer.status != 200 || content_type.contains("as=") || answer.body.is_empty() {
                continue;
            }
            let Ok(document) = LegacyDocument::parse(encoding, &answer.body) else {
                assert!(
                    !answer.name.ends_with("__proto") || answer.path.contains("namespaces"),
                    "{}",
                    answer.name
                );
                continue;
            };
            let written = document.write(encoding).unwrap();
            {
                assert_eq!(
                    String::from_utf8_lossy(&written),
                    String::from_utf8_lossy(&answer.body),
                    "{version} {}",
                    answer.name
                );
            }
            *seen.entry(format!("{encoding:?}")).or_insert(0) += 1;
        }
    }
    assert!(
        seen["Json"] > 150 && seen["Protobuf"] >= 20 && seen["Yaml"] >= 12,
        "{seen:?}"
    );
}

/// Every recorded list of a group-version, with the server's aggregated document.
fn lists(version: &str) -> Vec<(Gv, ResourceList, Version)> {
    let aggregated = |name| {
        discovery::GroupList::parse("application/json", &recorded::answer(version, name).body)
            .unwrap()
            .1
            .items
    };
    let groups: Vec<_> = aggregated("api__v2")
        .into_iter()
        .chain(aggregated("apis__v2"))
        .collect();
    let mut lists = Vec::new();
    for answer in recorded::recorded(version) {
        if answer.status != 200 || !answer.name.ends_with("__json") {
            continue;
        }
        if let Ok(LegacyDocument {
            legacy: Legacy::Resources(list),
            ..
        }) = LegacyDocument::parse(Encoding::Json, &answer.body)
        {
            let (group, name) = list
                .group_version
                .split_once('/')
                .unwrap_or(("", &list.group_version));
            let of = groups.iter().find(|known| known.name() == group).unwrap();
            let of = of
                .versions
                .iter()
                .find(|known| known.version == name)
                .unwrap()
                .clone();
            lists.push((Gv::new(group, name), list, of));
        }
    }
    lists
}

#[test]
fn aggregated_discovery_yields_the_legacy_lists_and_they_yield_it() {
    for version in ["1.34", "1.35", "1.36"] {
        let lists = lists(version);
        assert!(lists.len() >= 20, "{version}");
        for (group_version, list, aggregated) in lists {
            let mut want = list.clone();
            for resource in &mut want.resources {
                resource.storage_version_hash.clear();
            }
            assert_eq!(
                resources_of(&aggregated.resources),
                want.resources,
                "{version} {group_version}"
            );
            let other = Gv::new("other", "v1");
            assert_eq!(list.clone().into_version(other.as_ref()), None);
            let mut back = list.into_version(group_version.as_ref()).unwrap();
            // Which kinds a subresource accepts beside the one it answers with, only aggregated discovery says.
            for (resource, known) in back.resources.iter_mut().zip(&aggregated.resources) {
                for (sub, known) in resource.subresources.iter_mut().zip(&known.subresources) {
                    sub.accepted_types.clone_from(&known.accepted_types);
                }
            }
            assert_eq!(back, aggregated, "{version} {group_version}");
        }
    }
}

/// Metrics of an adapter (`custom.metrics.k8s.io`), written as kube-aggregator writes them.
#[test]
fn a_resource_that_is_there_for_its_subresources_alone_is_not_listed() {
    let list = ResourceList {
        group_version: "custom.metrics.k8s.io/v1beta1".to_owned(),
        resources: vec![ListedResource {
            name: "pods/requests".to_owned(),
            namespaced: true,
            kind: "MetricValueList".to_owned(),
            verbs: Some(VerbList {
                items: vec!["get".to_owned()],
            }),
            ..ListedResource::default()
        }],
    };
    let json = br#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[
        {"metadata":{"name":"custom.metrics.k8s.io"},"versions":[{"version":"v1beta1","freshness":"Current","resources":[
        {"resource":"pods","responseKind":{"group":"","version":"","kind":""},"scope":"Namespaced","singularResource":"",
        "verbs":null,"subresources":[{"subresource":"requests","verbs":["get"],
        "responseKind":{"group":"","version":"","kind":"MetricValueList"}}]}]}]}]}"#;
    let (_, aggregated) = discovery::GroupList::parse("application/json", json).unwrap();
    let aggregated = &aggregated.items[0].versions[0];
    assert_eq!(resources_of(&aggregated.resources), list.resources);
    let group_version = Gv::new("custom.metrics.k8s.io", "v1beta1");
    let back = list.into_version(group_version.as_ref()).unwrap();
    assert_eq!(&back, aggregated);
}

#[test]
fn a_document_that_would_take_far_more_memory_than_bytes_is_refused() {
    let parse = |encoding, body: &[u8]| LegacyDocument::parse(encoding, body).map(|_read| ());
    const MANY: u32 = 500_001;
    let arrays = "[],".repeat(MANY as usize);
    let json = format!(r#"{{"kind":"APIResourceList","resources":[{arrays}[]]}}"#);
    assert!(matches!(
        parse(Encoding::Json, json.as_bytes()),
        Err(WireError::TooMany(_))
    ));
    let yaml = format!("kind: APIResourceList\nresources: [{arrays}[]]\n");
    assert!(matches!(
        parse(Encoding::Yaml, yaml.as_bytes()),
        Err(WireError::TooMany(_))
    ));
    let aliases = "kind: APIResourceList\ngroupVersion: &a v1\nresources:\n- name: *a\n";
    assert!(matches!(
        parse(Encoding::Yaml, aliases.as_bytes()),
        Err(WireError::Syntax("YAML", _))
    ));
    let mut cbor = b"\xa2\x64kind\x6fAPIResourceList\x69resources\x9a".to_vec();
    cbor.extend(MANY.to_be_bytes());
    cbor.resize(cbor.len() + MANY as usize, 0xa0);
    assert!(matches!(
        parse(Encoding::Cbor, &cbor),
        Err(WireError::TooMany(_))
    ));
    // 2 bytes each: the field that is the list, and a length of none.
    let resources = [0x12_u8, 0x00].repeat(1 << 20);
    let mut protobuf = b"k8s\0\x0a\x15\x0a\x02v1\x12\x0fAPIResourceList\x12".to_vec();
    prost::encode_length_delimiter(resources.len(), &mut protobuf).unwrap();
    protobuf.extend(resources);
    assert!(matches!(
        parse(Encoding::Protobuf, &protobuf),
        Err(WireError::TooLarge(_))
    ));
}

#[test]
fn a_long_list_is_read_in_one_pass() {
    let resources = (0..100_000).flat_map(|number| {
        [format!("r{number}"), format!("r{number}/status")].map(|name| ListedResource {
            name,
            ..ListedResource::default()
        })
    });
    let list = ResourceList {
        group_version: "many/v1".to_owned(),
        resources: resources.collect(),
    };
    let start = tokio::time::Instant::now();
    let version = list.into_version(Gv::new("many", "v1").as_ref()).unwrap();
    assert_eq!(version.resources.len(), 100_000);
    assert!(
        version
            .resources
            .iter()
            .all(|it| it.subresources.len() == 1)
    );
    // To look through all of them for each took more than a minute.
    assert!(start.elapsed() < std::time::Duration::from_secs(20));
}
