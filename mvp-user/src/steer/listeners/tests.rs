//! The rules by which listeners become keys.

use super::*;

pub(in crate::steer) fn listener(address: &str, both_families: bool) -> Listener {
    Listener {
        address: address.parse().unwrap(),
        both_families,
        cookie: 1,
        inode: 1,
        uid: 0,
        cgroup: None,
    }
}

fn of(entries: &[(&str, Verdict)]) -> Keys {
    entries
        .iter()
        .map(|(address, verdict)| (address.parse().unwrap(), *verdict))
        .collect()
}

use Verdict::{Pass, Steer};
use Whose::{Local, Other, Unknown};

#[test]
fn each_bind_form_gives_its_own_keys() {
    for (address, both, wanted) in [
        ("0.0.0.0:6443", false, of(&[("0.0.0.0:6443", Steer)])),
        (
            "[::]:6443",
            true,
            of(&[("0.0.0.0:6443", Steer), ("[::]:6443", Steer)]),
        ),
        ("[::]:6443", false, of(&[("[::]:6443", Steer)])),
        ("10.9.0.1:6443", false, of(&[("10.9.0.1:6443", Steer)])),
        ("[fd09::1]:6443", false, of(&[("[fd09::1]:6443", Steer)])),
    ] {
        let found = keys(&[(listener(address, both), Local)], &Keys::new());
        assert_eq!(found, wanted, "{address} {both}");
    }
}

#[test]
fn without_a_listener_seen_there_are_no_keys() {
    assert_eq!(keys(&[], &Keys::new()), Keys::new());
    let unknown = [(listener("[::]:6443", true), Unknown)];
    assert_eq!(keys(&unknown, &Keys::new()), Keys::new());
}

#[test]
fn steer_keys_outlive_the_listener_and_pass_keys_do_not() {
    let before = of(&[("0.0.0.0:6443", Steer), ("10.9.0.2:6443", Pass)]);
    assert_eq!(keys(&[], &before), of(&[("0.0.0.0:6443", Steer)]));
}

#[test]
fn another_program_on_the_same_address_ends_a_kept_steer_key() {
    let before = of(&[("10.9.0.1:6443", Steer)]);
    let found = keys(&[(listener("10.9.0.1:6443", false), Other)], &before);
    assert_eq!(found, of(&[("10.9.0.1:6443", Pass)]));
}

#[test]
fn another_program_on_another_address_leaves_a_kept_steer_key() {
    let before = of(&[("0.0.0.0:6443", Steer)]);
    let found = keys(&[(listener("10.9.0.2:6443", false), Other)], &before);
    assert_eq!(
        found,
        of(&[("0.0.0.0:6443", Steer), ("10.9.0.2:6443", Pass)])
    );
}

#[test]
fn a_listener_that_moved_takes_its_keys_along() {
    let before = of(&[("0.0.0.0:6443", Steer), ("[::]:6443", Steer)]);
    let found = keys(&[(listener("10.9.0.1:6443", false), Local)], &before);
    assert_eq!(found, of(&[("10.9.0.1:6443", Steer)]));
}

#[test]
fn a_listener_that_does_not_answer_keeps_the_verdict_it_had() {
    let before = of(&[("10.9.0.1:6443", Steer), ("10.9.0.2:6443", Pass)]);
    let silent = [
        (listener("10.9.0.1:6443", false), Local),
        (listener("10.9.0.2:6443", false), Unknown),
    ];
    assert_eq!(keys(&silent, &before), before);
}

#[test]
fn a_port_shared_with_another_program_is_the_api_servers() {
    let shared = [
        (listener("0.0.0.0:6443", false), Local),
        (listener("0.0.0.0:6443", false), Other),
    ];
    assert_eq!(keys(&shared, &Keys::new()), of(&[("0.0.0.0:6443", Steer)]));
}

#[test]
fn a_listener_is_dialled_where_it_answers() {
    for (address, both, wanted) in [
        ("0.0.0.0:6443", false, "127.0.0.1:6443"),
        ("[::]:6443", true, "127.0.0.1:6443"),
        ("[::]:6443", false, "[::1]:6443"),
        ("10.9.0.1:6443", false, "10.9.0.1:6443"),
        ("[fd09::1]:6443", false, "[fd09::1]:6443"),
    ] {
        let wanted: SocketAddr = wanted.parse().unwrap();
        assert_eq!(listener(address, both).dial_address(), wanted);
    }
}
