//! The members carry what the map holds, whoever writes; a lookup finds what a search of everything finds.

use std::{net::Ipv4Addr, sync::Barrier, thread};

use proptest::prelude::*;

use super::*;

fn server(number: u8) -> Arc<Server> {
    let address = SocketAddr::from((Ipv4Addr::new(10, 0, 0, number), 6443));
    let id = match number {
        0 => ServerId::Local,
        _ => ServerId::Peer(address),
    };
    Arc::new(Server::new(id, address))
}

fn catalogue(resources: Resources) -> Arc<Catalogue> {
    Arc::new(Catalogue {
        resources,
        ..Catalogue::new(
            Arc::default(),
            "v1.36.0".into(),
            Freshness::Fresh,
            Instant::now(),
            1,
        )
    })
}

/// What the members should carry.
fn held(table: &Table) -> Vec<(ServerId, Option<*const Catalogue>)> {
    let members = table.members();
    let servers = std::iter::once(&members.local).chain(&members.peers);
    servers
        .map(|server| {
            let held = table.catalogue(server.id);
            (server.id, held.as_ref().map(Arc::as_ptr))
        })
        .collect()
}

fn carried(table: &Table) -> Vec<(ServerId, Option<*const Catalogue>)> {
    let members = table.members();
    let known = members.known.iter();
    known
        .map(|known| {
            let catalogue = known.catalogue.as_ref().map(Arc::as_ptr);
            (known.server.id, catalogue)
        })
        .collect()
}

#[test]
fn no_catalogue_is_lost_when_many_are_published_at_once() {
    let table = Table::new(server(0));
    table.set_peers((1..4).map(server).collect());
    let start = Barrier::new(4);
    for _ in 0..500 {
        thread::scope(|scope| {
            for number in 0..4 {
                let (table, start) = (&table, &start);
                scope.spawn(move || {
                    let catalogue = catalogue(Resources::default());
                    start.wait();
                    table.publish(server(number).id, catalogue);
                });
            }
        });
        assert_eq!(carried(&table), held(&table));
    }
}

const GROUPS: [&str; 2] = ["", "apps"];
const VERSIONS: [&str; 2] = ["v1", "v2"];
const RESOURCES: [&str; 2] = ["pods", "things"];
const SUBRESOURCES: [Option<&str>; 3] = [None, Some("status"), Some("scale")];
const VERBS: [Verb; 3] = [Verb::Get, Verb::Watch, Verb::Other];

/// Group, version, resource, subresource and verb, by number.
type Entry = (usize, usize, usize, usize, usize);

fn entry() -> impl Strategy<Value = Entry> {
    (0..2usize, 0..2usize, 0..2usize, 0..3usize, 0..2usize)
}

fn resources(entries: &[Entry]) -> Resources {
    let mut resources = Resources::default();
    for (group, version, resource, subresource, verb) in entries {
        let served: &mut Served = resources
            .entry(Gvr::new(
                GROUPS[*group],
                VERSIONS[*version],
                RESOURCES[*resource],
            ))
            .or_default();
        let verbs = match SUBRESOURCES[*subresource] {
            None => &mut served.verbs,
            Some(name) => served.subresources.entry(name.into()).or_default(),
        };
        *verbs = verbs.with(VERBS[*verb]);
    }
    resources
}

/// By comparing with everything that is served.
fn is_served(
    catalogue: &Catalogue,
    asked: GvrRef<'_>,
    subresource: Option<&str>,
    verb: Verb,
) -> bool {
    catalogue.resources.iter().any(|(resource, served)| {
        resource.as_ref() == asked
            && match subresource {
                None => served.verbs.allow(verb),
                Some(asked) => served
                    .subresources
                    .iter()
                    .any(|(name, verbs)| **name == *asked && verbs.allow(verb)),
            }
    })
}

proptest! {
    #[test]
    fn the_members_carry_what_the_map_holds(writes in proptest::collection::vec((0..4u8, 0..5u8), 0..30)) {
        let table = Table::new(server(0));
        for (what, number) in writes {
            match what {
                0 => table.forget(server(number).id),
                1 => table.set_peers((1..=number).map(server).collect()),
                _ => table.publish(server(number).id, catalogue(Resources::default())),
            }
            prop_assert_eq!(carried(&table), held(&table));
        }
    }

    #[test]
    fn one_lookup_is_right_in_every_catalogue(
        one in proptest::collection::vec(entry(), 0..20),
        other in proptest::collection::vec(entry(), 0..20),
        (group, version, resource, subresource, _) in entry(),
        verb in 0..VERBS.len(),
    ) {
        let asked = Gvr::new(GROUPS[group], VERSIONS[version], RESOURCES[resource]);
        let (asked, subresource, verb) = (asked.as_ref(), SUBRESOURCES[subresource], VERBS[verb]);
        let lookup = Lookup::new(asked, subresource, verb);
        for entries in [one, other] {
            let catalogue = catalogue(resources(&entries));
            prop_assert_eq!(catalogue.has(&lookup), is_served(&catalogue, asked, subresource, verb));
        }
    }
}
