//! What can be told about the embedded object and the shared types without privileges.

use std::{
    collections::{HashMap, HashSet},
    net::Ipv4Addr,
};

use aya_obj::{Object, ProgramSection};
use mvp_ebpf::{LOGGING_PROGRAM, MAX_SLOTS, Outcome, SteerKey, maps, share};

use super::*;

fn object() -> Object {
    assert!(
        !OBJECT.is_empty(),
        "built with AYA_BUILD_SKIP: a binary that cannot steer must not pass for a tested one"
    );
    Object::parse(OBJECT).expect("the embedded object is an eBPF object")
}

#[test]
fn the_embedded_object_has_every_map_and_the_program_by_the_shared_names() {
    let object = object();
    for map in maps::ALL {
        assert!(object.maps.contains_key(map), "map {map}");
    }
    for name in [PROGRAM, LOGGING_PROGRAM] {
        let program = object.programs.get(name).expect("the program");
        assert!(matches!(program.section, ProgramSection::SkLookup));
        assert_eq!(program.license.to_str(), Ok("Dual MIT/GPL"));
    }
    assert_eq!(object.programs.len(), 2);
}

#[test]
fn the_program_never_changes_a_part_of_a_word_on_its_stack() {
    // Verifiers up to 6.8 refuse it, with no more than CAP_BPF, where they follow what is in the word: anything stored as
    // a whole, and a bounded number stored at its beginning (`mvp-ebpf/src/ctx.rs`). So a word has one kind of store.
    // BPF_ST and BPF_STX are the classes 2 and 3, BPF_MEM the mode 0x60; register 10 is the frame.
    let object = object();
    let mut words: HashMap<i16, HashSet<(i16, u8)>> = HashMap::new();
    let functions = object.functions.values();
    for function in functions.filter(|it| it.name != LOGGING_PROGRAM) {
        for code in &function.instructions {
            let store = matches!(code.code & 0x07, 2 | 3) && code.code & 0xe0 == 0x60;
            if store && code.dst_reg() == 10 {
                let word = code.off.div_euclid(8);
                words
                    .entry(word)
                    .or_default()
                    .insert((code.off, code.code & 0x18));
            }
        }
    }
    assert!(words.len() > 3, "this test reads the wrong thing");
    for (word, stores) in words {
        let whole = stores.iter().all(|(_, size)| *size == 0x18);
        let one = stores.len() == 1 && stores.iter().all(|(at, _)| at.rem_euclid(8) != 0);
        assert!(whole || one, "{word}: {stores:?}");
    }
}

#[test]
fn the_maps_of_the_embedded_object_have_the_shared_sizes() {
    let object = object();
    let map = |name: &str| &object.maps[name];
    for (name, key, value, entries) in [
        (maps::PORTS, 4, size_of::<Port>(), 65536),
        (maps::KEYS, size_of::<SteerKey>(), 2, mvp_ebpf::MAX_KEYS),
        (maps::SETTINGS, 4, size_of::<Settings>(), 1),
        (maps::LISTENERS, 4, 4, 2),
        (maps::HEARTBEATS, 4, 8, MAX_SLOTS),
        (maps::EXEMPT_V4, 8, 4, mvp_ebpf::MAX_CIDRS),
        (maps::CANARY_V6, 20, 4, mvp_ebpf::MAX_CIDRS),
        (maps::COUNTERS, 4, 8, Outcome::COUNT),
    ] {
        assert_eq!(map(name).key_size() as usize, key, "key of {name}");
        assert_eq!(map(name).value_size() as usize, value, "value of {name}");
        assert_eq!(map(name).max_entries(), entries, "entries of {name}");
    }
}

#[test]
fn only_an_sk_lookup_program_is_embedded() {
    for (name, program) in &object().programs {
        assert!(
            matches!(program.section, ProgramSection::SkLookup),
            "{name}"
        );
    }
}

#[test]
fn keys_hold_addresses_as_they_lie_on_the_wire() {
    let word = u32::from_ne_bytes;
    assert_eq!(
        SteerKey::new(Ipv4Addr::new(10, 9, 0, 1).into(), 6443),
        SteerKey::of(mvp_ebpf::AF_INET, 6443, [word([10, 9, 0, 1]), 0, 0, 0])
    );
    assert_eq!(
        SteerKey::new("fd09::2:1".parse().unwrap(), 1),
        SteerKey::of(
            mvp_ebpf::AF_INET6,
            1,
            [word([0xfd, 9, 0, 0]), 0, 0, word([0, 2, 0, 1])]
        )
    );
    let [one, other] = [6443, 6444].map(|port| SteerKey::new(Ipv4Addr::LOCALHOST.into(), port));
    assert_ne!(one, other);
}

#[test]
fn a_mapped_address_has_the_key_of_its_ipv4_address() {
    assert_eq!(
        key("[::ffff:10.9.0.1]:6443".parse().unwrap()),
        key("10.9.0.1:6443".parse().unwrap())
    );
}

#[test]
fn outcomes_have_distinct_names_and_stand_at_their_index() {
    let mut names: Vec<_> = Outcome::ALL.iter().map(|o| o.name()).collect();
    for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
        assert_eq!(outcome as usize, index);
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Outcome::ALL.len());
}

#[test]
fn shares_are_spread_evenly_over_neighbouring_addresses() {
    let v4: fn(u16) -> [u32; 4] = |i| {
        let [high, low] = i.to_be_bytes();
        [u32::from_ne_bytes([10, 0, high, low]), 0, 0, 0]
    };
    let v6: fn(u16) -> [u32; 4] = |i| [0xfd09_0000, 0, 0, u32::from(i).to_be()];
    for spread in [v4, v6] {
        let mut counts = [0_u32; 100];
        for i in 0..10_000_u16 {
            counts[share(&spread(i)) as usize] += 1;
        }
        // 100 expected in each; six standard deviations.
        assert!(counts.iter().all(|n| (40..=160).contains(n)), "{counts:?}");
    }
}
