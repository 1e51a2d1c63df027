//! The listening sockets of the node, read by `sock_diag`, and the keys that follow from them:
//! each bind form of kube-apiserver with each client family, and other programs on the port.

use std::{cell::Cell, time::Duration};

use mvp_ebpf::Outcome;
use mvp_user::steer::{
    Verdict,
    listeners::{Listener, Watcher, Whose},
};

use crate::support::{
    API, Bind, MVP, Mvp, PORT, Server, eventually, in_namespace, patient, reach, reach_from,
    refresh,
};

const CLIENTS: [&str; 6] = [
    "127.0.0.1:6443",
    "[::ffff:127.0.0.1]:6443",
    "10.9.0.1:6443",
    "10.9.0.2:6443",
    "[::1]:6443",
    "[fd09::1]:6443",
];

/// What a client reaches without mvp, it reaches through mvp; what is refused stays refused.
fn steered_exactly_where_it_listens(bind: Bind) {
    in_namespace(move || {
        let _api = Server::start(bind, API);
        let direct: Vec<_> = CLIENTS.iter().map(|target| reach(target)).collect();
        let mvp = Mvp::start(&patient());
        let mut watcher = Watcher::new(PORT).unwrap();
        refresh(&mut watcher, &mvp);
        for (target, direct) in CLIENTS.iter().zip(direct) {
            let (outcome, wanted) = match direct {
                Some(_) => (Outcome::Steered, Some(MVP)),
                None => (Outcome::NoKey, None),
            };
            assert_eq!(
                mvp.expect(outcome, 1, || reach(target)),
                wanted,
                "{bind:?} {target}"
            );
        }
    });
}

#[test]
fn an_api_server_on_the_ipv4_wildcard_is_steered_where_it_listens() {
    steered_exactly_where_it_listens(Bind::Plain("0.0.0.0:6443"));
}

#[test]
fn an_api_server_on_the_ipv6_wildcard_is_steered_in_both_families() {
    steered_exactly_where_it_listens(Bind::Plain("[::]:6443"));
}

#[test]
fn an_api_server_on_the_ipv6_wildcard_alone_is_steered_in_ipv6() {
    steered_exactly_where_it_listens(Bind::V6Only("[::]:6443"));
}

#[test]
fn an_api_server_on_one_ipv4_address_is_steered_there() {
    steered_exactly_where_it_listens(Bind::Plain("10.9.0.1:6443"));
}

#[test]
fn an_api_server_on_one_ipv6_address_is_steered_there() {
    steered_exactly_where_it_listens(Bind::Plain("[fd09::1]:6443"));
}

#[test]
fn an_api_server_on_loopback_is_steered_there() {
    steered_exactly_where_it_listens(Bind::Plain("127.0.0.1:6443"));
}

#[test]
fn another_program_on_a_second_address_of_the_port_is_left_alone() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("10.9.0.1:6443"), API);
        let _haproxy = Server::start(Bind::Plain("10.9.0.2:6443"), b'H');
        let mvp = Mvp::start(&patient());
        let mut watcher = Watcher::new(PORT).unwrap();
        refresh(&mut watcher, &mvp);
        let who = mvp.expect(Outcome::PassKey, 1, || reach("10.9.0.2:6443"));
        assert_eq!(who, Some(b'H'));
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("10.9.0.1:6443")),
            Some(MVP)
        );
        let others: Vec<_> = watcher
            .listeners()
            .iter()
            .filter(|(_, whose)| *whose == Whose::Other)
            .map(|(listener, _)| listener.address.to_string())
            .collect();
        assert_eq!(others, ["10.9.0.2:6443"], "named by `mvp check`");
    });
}

#[test]
fn another_program_on_a_virtual_address_beside_the_wildcard_is_left_alone() {
    in_namespace(|| {
        let _api = Server::sharing(Bind::Plain("0.0.0.0:6443"), API);
        let haproxy = Server::sharing(Bind::Plain("10.9.0.2:6443"), b'H');
        let mvp = Mvp::start(&patient());
        let mut watcher = Watcher::new(PORT).unwrap();
        refresh(&mut watcher, &mvp);
        let who = mvp.expect(Outcome::PassKey, 1, || reach("10.9.0.2:6443"));
        assert_eq!(who, Some(b'H'));
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("10.9.0.1:6443")),
            Some(MVP)
        );
        // When it goes, the address is kube-apiserver's, and steered like all others.
        haproxy.stop();
        refresh(&mut watcher, &mvp);
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("10.9.0.2:6443")),
            Some(MVP)
        );
    });
}

#[test]
fn keys_outlive_the_api_servers_listener_until_another_program_takes_its_place() {
    in_namespace(|| {
        let api = Server::start(Bind::Plain("0.0.0.0:6443"), API);
        let mvp = Mvp::start(&patient());
        let mut watcher = Watcher::new(PORT).unwrap();
        refresh(&mut watcher, &mvp);
        api.stop();
        refresh(&mut watcher, &mvp);
        assert_eq!(watcher.listeners(), []);
        let who = mvp.expect(Outcome::Steered, 1, || reach("127.0.0.1:6443"));
        assert_eq!(who, Some(MVP), "failover needs the key");
        let other = Server::start(Bind::Plain("0.0.0.0:6443"), b'H');
        refresh(&mut watcher, &mvp);
        let who = mvp.expect(Outcome::PassKey, 1, || reach("127.0.0.1:6443"));
        assert_eq!(who, Some(b'H'));
        other.stop();
        refresh(&mut watcher, &mvp);
        assert!(watcher.keys().is_empty());
        assert_eq!(
            mvp.expect(Outcome::NoKey, 1, || reach("127.0.0.1:6443")),
            None
        );
        let _api = Server::start(Bind::Plain("10.9.0.1:6443"), API);
        refresh(&mut watcher, &mvp);
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("10.9.0.1:6443")),
            Some(MVP)
        );
        assert_eq!(
            mvp.expect(Outcome::NoKey, 1, || reach("127.0.0.1:6443")),
            None
        );
    });
}

#[test]
fn an_api_server_that_ends_while_it_is_asked_leaves_the_keys_of_the_one_before() {
    in_namespace(|| {
        let api = Server::start(Bind::Plain("0.0.0.0:6443"), API);
        let mvp = Mvp::start(&patient());
        let mut watcher = Watcher::new(PORT).unwrap();
        refresh(&mut watcher, &mvp);
        api.stop();
        // It listens long before it serves; without etcd it never does, and ends. Who asks it is reset, as by another program.
        let next = Cell::new(Some(Server::start(Bind::Plain("0.0.0.0:6443"), b'H')));
        let ends = async |_: &Listener| {
            if let Some(next) = next.take() {
                next.stop();
            }
            Whose::Other
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime
            .block_on(watcher.refresh(&mvp.steering, ends))
            .unwrap();
        assert_eq!(watcher.listeners(), []);
        let who = mvp.expect(Outcome::Steered, 1, || reach("127.0.0.1:6443"));
        assert_eq!(who, Some(MVP), "failover needs the key");
    });
}

#[test]
fn without_a_listener_seen_since_the_start_nothing_is_steered() {
    in_namespace(|| {
        let mvp = Mvp::start(&patient());
        let mut watcher = Watcher::new(PORT).unwrap();
        refresh(&mut watcher, &mvp);
        assert!(watcher.keys().is_empty());
        assert_eq!(
            mvp.expect(Outcome::NoKey, 1, || reach("127.0.0.1:6443")),
            None
        );
    });
}

#[test]
fn after_a_certificate_change_others_are_judged_anew_and_the_api_server_keeps_its_keys() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::start(&patient());
        let mut watcher = Watcher::new(PORT).unwrap();
        refresh(&mut watcher, &mvp);
        let _other = Server::start(Bind::Plain("10.9.0.2:7443"), b'H');
        let mut others = Watcher::new(7443).unwrap();
        refresh(&mut others, &mvp);
        let judged = mvp.count(Outcome::ExemptSource) + mvp.count(Outcome::NoKey);
        let before = watcher.keys().clone();
        watcher.forget();
        assert_eq!(watcher.keys(), &before);
        refresh(&mut watcher, &mvp);
        let again = mvp.count(Outcome::ExemptSource) + mvp.count(Outcome::NoKey);
        assert_eq!(again, judged, "its socket is the same");
        others.forget();
        refresh(&mut others, &mvp);
        let again = mvp.count(Outcome::PassKey);
        assert!(again >= 1, "asked once more");
        assert_eq!(watcher.keys(), &before);
        assert!(before.values().all(|verdict| *verdict == Verdict::Steer));
        assert_eq!(reach_from("127.77.86.80:0", "127.0.0.1:6443"), Some(API));
    });
}

#[test]
fn several_ports_are_steered_side_by_side() {
    in_namespace(|| {
        let _first = Server::start(Bind::Plain("0.0.0.0:6443"), API);
        let _second = Server::start(Bind::Plain("0.0.0.0:7443"), API);
        let mvp = Mvp::start(&patient());
        let mut watchers = [6443, 7443].map(|port| Watcher::new(port).unwrap());
        for watcher in &mut watchers {
            refresh(watcher, &mvp);
        }
        for target in ["127.0.0.1:6443", "127.0.0.1:7443"] {
            assert_eq!(mvp.expect(Outcome::Steered, 1, || reach(target)), Some(MVP));
        }
        assert_eq!(watchers[0].keys().len(), 1);
        eventually(Duration::from_secs(1), || reach("127.0.0.1:8443").is_none());
    });
}
