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
