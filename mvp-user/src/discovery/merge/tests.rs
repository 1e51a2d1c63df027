//! The tables of kube-apiserver's own tests, its recorded answers, and properties over random catalogues.

use proptest::prelude::*;

use super::*;
use crate::api::{
    GroupVersion,
    discovery::{GroupMeta, GroupVersionKind},
};

pub(crate) fn group(name: &str, versions: &[(&str, &[&str])]) -> Group {
    Group {
        metadata: GroupMeta {
            name: name.to_owned(),
            ..GroupMeta::default()
        },
        versions: versions
            .iter()
            .map(|(name, resources)| version(name, resources))
            .collect(),
    }
}

fn version(name: &str, resources: &[&str]) -> Version {
    Version {
        version: name.to_owned(),
        resources: resources
            .iter()
            .map(|name| resource(name, &["get"], &[]))
            .collect(),
        freshness: CURRENT.to_owned(),
    }
}

fn resource(name: &str, verbs: &[&str], subresources: &[&str]) -> Resource {
    Resource {
        resource: name.to_owned(),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        subresources: subresources
            .iter()
            .map(|name| Subresource {
                subresource: (*name).to_owned(),
                ..Subresource::default()
            })
            .collect(),
        ..Resource::default()
    }
}

fn with(resource: Resource) -> Group {
    let mut group = group("g1", &[("v1", &[])]);
    group.versions[0].resources.push(resource);
    group
}

const fn source(groups: &GroupList, live: bool) -> Source<'_> {
    Source {
        groups,
        live,
        fresh: true,
    }
}

fn merged(base: &[Group], others: &[&[Group]]) -> Vec<Group> {
    let lists: Vec<GroupList> = others
        .iter()
        .map(|items| GroupList::new(items.to_vec()))
        .collect();
    let sources: Vec<Source<'_>> = lists.iter().map(|groups| source(groups, true)).collect();
    merge(
        &GroupList::new(base.to_vec()),
        &sources,
        &SharedGroups::default(),
    )
    .items
}

/// `TestMergeResources` of `peer_aggregated_handler_test.go` (kubernetes 1.36), as rows of local, peers, result.
#[test]
fn the_table_of_kube_apiservers_merge_holds() {
    let g1 = || group("g1", &[("v1", &["r1"])]);
    let g2 = || group("g2", &[("v1", &["r1"])]);
    let row = |name: &str, base: &[Group], others: &[&[Group]], want: &[Group]| {
        assert_eq!(merged(base, others), want, "{name}");
    };
    row("no peers", &[g1(), g2()], &[], &[g1(), g2()]);
    row(
        "peer adds nothing",
        &[g1(), g2()],
        &[&[g1(), g2()]],
        &[g1(), g2()],
    );
    row(
        "peer adds a resource",
        &[g1()],
        &[&[group("g1", &[("v1", &["r2"])])]],
        &[group("g1", &[("v1", &["r1", "r2"])])],
    );
    row(
        "peer adds a version",
        &[g1()],
        &[&[group("g1", &[("v2", &["r1"])])]],
        &[group("g1", &[("v1", &["r1"]), ("v2", &["r1"])])],
    );
    row("peer adds a group", &[g1()], &[&[g2()]], &[g1(), g2()]);
    row(
        "peer has another order",
        &[g1(), g2()],
        &[&[g2(), g1()]],
        &[g1(), g2()],
    );
    row(
        "seen from the other server",
        &[g2()],
        &[&[g1()]],
        &[g1(), g2()],
    );
    row(
        "peer adds a verb",
        &[with(resource("pods", &["get", "list"], &[]))],
        &[&[with(resource("pods", &["get", "watch"], &[]))]],
        &[with(resource("pods", &["get", "list", "watch"], &[]))],
    );
    row(
        "peer adds a subresource",
        &[with(resource("pods", &[], &["status"]))],
        &[&[with(resource("pods", &[], &["log"]))]],
        &[with(resource("pods", &[], &["log", "status"]))],
    );
    row("local is empty", &[], &[&[g1()]], &[g1()]);
}

#[test]
fn a_resource_is_described_by_the_first_who_knows_more_than_its_subresources() {
    let mut placeholder = resource("pods", &[], &["requests"]);
    placeholder.response_kind = Some(GroupVersionKind::default());
    let mut whole = resource("pods", &["get"], &[]);
    whole.response_kind = Some(GroupVersionKind {
        kind: "Pod".to_owned(),
        ..GroupVersionKind::default()
    });
    let want = whole.response_kind.clone();
    let have = merged(&[with(placeholder)], &[&[with(whole)]]);
    let pods = &have[0].versions[0].resources[0];
    assert_eq!(pods.response_kind, want);
    assert_eq!(pods.verbs, ["get"]);
    assert_eq!(pods.subresources[0].subresource, "requests");
}

#[test]
fn relative_order_is_kept_and_the_alphabet_breaks_ties() {
    let row = |lists: &[&[&str]], want: &[&str]| {
        let lists: Vec<Vec<&str>> = lists.iter().map(|list| list.to_vec()).collect();
        assert_eq!(order(&lists), want, "{lists:?}");
    };
    row(&[&["a", "b", "c"], &["b", "c"]], &["a", "b", "c"]);
    row(&[&["a", "c"], &["b", "c"]], &["a", "b", "c"]);
    row(&[&["z", "b"], &["c"]], &["c", "z", "b"]);
    // Contradictions: the earlier list wins.
    row(&[&["a", "b"], &["b", "a"]], &["a", "b"]);
    row(&[&["b", "a", "x"], &["a", "b", "y"]], &["b", "a", "x", "y"]);
    row(&[], &[]);
}

fn fixture(case: &str, node: &str, file: &str) -> Option<GroupList> {
    let path = format!(
        "{}/tests/fixtures/native-merged/{case}.{node}.{file}.json.gz",
        env!("CARGO_MANIFEST_DIR")
    );
    let bytes = std::fs::read(path).ok()?;
    let json = crate::api::wire::decompress(Some("gzip"), &bytes, 1 << 20).unwrap();
    Some(GroupList::parse("application/json", &json).unwrap().1)
}

#[test]
fn native_merged_documents_are_reproduced_byte_for_byte() {
    let mut compared = 0;
    for case in [
        "group-missing",
        "peer-old-all",
        "three-versions",
        "version-missing",
    ] {
        let nodes: Vec<(&str, GroupList)> = ["cp1", "cp2", "cp3"]
            .into_iter()
            .filter_map(|node| Some((node, fixture(case, node, "apis__v2-nopeer")?)))
            .collect();
        for (place, (node, base)) in nodes.iter().enumerate() {
            // 1.34 and 1.35 do not merge: their recorded answer is their own.
            if (case, *node) == ("peer-old-all", "cp2") || *node == "cp3" {
                continue;
            }
            let others: Vec<Source<'_>> = nodes
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != place)
                .map(|(_, (_, groups))| source(groups, true))
                .collect();
            let want = fixture(case, node, "apis__v2").unwrap();
            let have = merge(base, &others, &SharedGroups::default());
            assert_eq!(have, want, "{case} through {node}");
            compared += 1;
        }
    }
    assert_eq!(compared, 7);
}

#[test]
fn only_what_no_live_server_has_is_stale() {
    let base = GroupList::new(vec![group("a", &[("v1", &["x"])])]);
    let departed = GroupList::new(vec![
        group("a", &[("v1", &["x", "y"]), ("v2", &["x"])]),
        group("b", &[("v1", &["x"])]),
    ]);
    let up = GroupList::new(vec![group("b", &[("v1", &["x"])])]);
    let freshness = |others: &[Source<'_>]| -> Vec<(String, String)> {
        merge(&base, others, &SharedGroups::default())
            .items
            .iter()
            .flat_map(|group| {
                group.versions.iter().map(|version| {
                    (
                        format!("{}/{}", group.name(), version.version),
                        version.freshness.clone(),
                    )
                })
            })
            .collect()
    };
    let row = |name: &str, freshness: &str| (name.to_owned(), freshness.to_owned());
    let departed = source(&departed, false);
    assert_eq!(
        freshness(&[departed]),
        [row("a/v1", CURRENT), row("a/v2", STALE), row("b/v1", STALE)]
    );
    assert_eq!(
        freshness(&[departed, source(&up, true)]),
        [
            row("a/v1", CURRENT),
            row("a/v2", STALE),
            row("b/v1", CURRENT)
        ]
    );
}

#[test]
fn shared_groups_are_the_first_servers_but_for_new_ones() {
    let shared = SharedGroups {
        owned: [
            GroupVersion::new("crd", "v1"),
            GroupVersion::new("new", "v1"),
        ]
        .into_iter()
        .collect(),
        deleted: [
            (
                GroupVersion::new("crd", "v1"),
                vec![(Some("gone".into()), tokio::time::Instant::now())],
            ),
            (
                GroupVersion::new("old", "v1"),
                vec![(None, tokio::time::Instant::now())],
            ),
        ]
        .into_iter()
        .collect(),
    };
    let mut base = GroupList::new(vec![group("crd", &[("v1", &["mine"])])]);
    base.items[0].versions[0].freshness = STALE.to_owned();
    let mut peer = GroupList::new(vec![
        group("crd", &[("v1", &["mine", "gone", "fresh"])]),
        group("new", &[("v1", &["x"])]),
        group("old", &[("v1", &["x"])]),
    ]);
    peer.items[0].versions[0].resources[0]
        .verbs
        .push("patch".to_owned());
    let names = |live, fresh| -> Vec<String> {
        let peer = Source {
            groups: &peer,
            live,
            fresh,
        };
        let merged = merge(&base, &[peer], &shared);
        assert_eq!(
            merged.items[0].versions[0].freshness, STALE,
            "local's word on its backend"
        );
        assert_eq!(merged.items[0].versions[0].resources[0].verbs, ["get"]);
        merged
            .items
            .iter()
            .flat_map(|group| {
                group.versions.iter().flat_map(|version| {
                    version
                        .resources
                        .iter()
                        .map(|resource| format!("{}/{}", group.name(), resource.resource))
                })
            })
            .collect()
    };
    assert_eq!(
        names(true, true),
        ["crd/mine", "crd/fresh", "new/x"].map(str::to_owned)
    );
    assert_eq!(names(false, true), ["crd/mine"].map(str::to_owned));
    assert_eq!(names(true, false), ["crd/mine"].map(str::to_owned));
}

/// Lists that agree on one overall order, as servers of one lineage do, or not.
pub(in super::super) fn catalogue(shuffled: bool) -> impl Strategy<Value = GroupList> {
    let names = |stem: &'static str, least: usize, most: usize| {
        let all: Vec<String> = (0..most).map(|n| format!("{stem}{n}")).collect();
        let some = proptest::sample::subsequence(all, least..=most);
        if shuffled {
            some.prop_shuffle().boxed()
        } else {
            some.boxed()
        }
    };
    let verbs = || proptest::sample::subsequence(vec!["create", "get", "list", "watch"], 0..=4);
    let resource = (
        verbs(),
        proptest::sample::subsequence(vec!["log", "scale", "status"], 0..=3),
    )
        .prop_map(|(verbs, subs)| resource("", &verbs, &subs));
    let version = (
        names("r", 0, 4),
        proptest::collection::vec(resource, 4),
        any::<bool>(),
    )
        .prop_map(|(names, resources, stale)| {
            let mut version = version("", &[]);
            version.resources = names
                .into_iter()
                .zip(resources)
                .map(|(name, resource)| Resource {
                    response_kind: Some(GroupVersionKind {
                        kind: name.to_uppercase(),
                        ..GroupVersionKind::default()
                    }),
                    resource: name,
                    ..resource
                })
                .collect();
            if stale {
                version.freshness = STALE.to_owned();
            }
            version
        });
    let group =
        (names("v", 1, 3), proptest::collection::vec(version, 3)).prop_map(|(names, versions)| {
            let versions = names
                .into_iter()
                .zip(versions)
                .map(|(version, of)| Version { version, ..of })
                .collect();
            Group {
                metadata: GroupMeta::default(),
                versions,
            }
        });
    (names("g", 0, 4), proptest::collection::vec(group, 4)).prop_map(|(names, groups)| {
        GroupList::new(
            names
                .into_iter()
                .zip(groups)
                .map(|(name, group)| Group {
                    metadata: GroupMeta {
                        name,
                        ..GroupMeta::default()
                    },
                    ..group
                })
                .collect(),
        )
    })
}

/// The same for the core group.
pub(in super::super) fn core() -> impl Strategy<Value = GroupList> {
    catalogue(false).prop_map(|mut list| {
        list.items.truncate(1);
        for group in &mut list.items {
            group.metadata.name.clear();
            group.versions.truncate(1);
            for version in &mut group.versions {
                version.version = "v1".to_owned();
            }
        }
        list
    })
}

fn facts(list: &GroupList) -> BTreeSet<String> {
    let mut facts = BTreeSet::new();
    for group in &list.items {
        for version in &group.versions {
            facts.insert(format!("{}/{}", group.name(), version.version));
            for resource in &version.resources {
                let name = format!("{}/{}/{}", group.name(), version.version, resource.resource);
                facts.extend(resource.verbs.iter().map(|verb| format!("{name} {verb}")));
                facts.extend(
                    resource
                        .subresources
                        .iter()
                        .map(|sub| format!("{name}/{}", sub.subresource)),
                );
                facts.insert(name);
            }
        }
    }
    facts
}

proptest! {
    #[test]
    fn merging_is_an_idempotent_union_that_no_order_of_servers_changes(
        lists in proptest::collection::vec((any::<bool>(), any::<bool>()).prop_flat_map(|(shuffled, live)| (catalogue(shuffled), Just(live))), 1..5),
    ) {
        let shared = SharedGroups::default();
        let (base, others) = lists.split_first().unwrap();
        let sources: Vec<Source<'_>> = others.iter().map(|(groups, live)| source(groups, *live)).collect();
        let once = merge(&base.0, &sources, &shared);
        // A union, nothing more and nothing less.
        let want: BTreeSet<String> = lists.iter().flat_map(|(list, _)| facts(list)).collect();
        prop_assert_eq!(facts(&once), want);
        // Idempotent: the merged document is not changed by its own inputs.
        prop_assert_eq!(&merge(&once, &sources, &shared), &once);
        // Deterministic.
        prop_assert_eq!(&merge(&base.0, &sources, &shared), &once);
        // Every node sees the same set, whichever server is its own.
        for (place, (own, _)) in lists.iter().enumerate() {
            let rest: Vec<Source<'_>> = lists.iter().enumerate().filter(|(other, _)| *other != place)
                .map(|(_, (groups, _))| source(groups, true)).collect();
            prop_assert_eq!(facts(&merge(own, &rest, &shared)), facts(&once));
        }
    }

    #[test]
    fn servers_of_one_lineage_are_merged_into_one_order_on_every_node(
        lists in proptest::collection::vec(catalogue(false), 1..5),
    ) {
        let shared = SharedGroups::default();
        let names = |list: &GroupList| -> Vec<String> {
            list.items.iter().flat_map(|group| {
                std::iter::once(group.name().to_owned()).chain(group.versions.iter().map(|version| {
                    let resources: Vec<&str> = version.resources.iter().map(|resource| resource.resource.as_str()).collect();
                    format!("{} {}", version.version, resources.join(" "))
                }))
            }).collect()
        };
        let mut seen: Option<Vec<String>> = None;
        for place in 0..lists.len() {
            let rest: Vec<Source<'_>> = lists.iter().enumerate().filter(|(other, _)| *other != place)
                .map(|(_, groups)| source(groups, true)).collect();
            let have = names(&merge(&lists[place], &rest, &shared));
            if let Some(seen) = &seen {
                prop_assert_eq!(&have, seen);
            }
            seen = Some(have);
        }
    }
}
