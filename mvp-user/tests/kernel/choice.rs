//! Whom a new connection reaches, by what the maps say; each case with its counter.

use std::sync::Mutex;

use mvp_ebpf::Outcome;
use mvp_user::{
    config::Cidr,
    steer::{Family, SteerOptions, Steering, Switch, Verdict},
};

use crate::support::{
    API, Bind, MVP, Mvp, Server, bound, in_namespace, patient, reach, reach_from,
};

/// Each way a client on this node can name the server.
const TARGETS: [&str; 5] = [
    "127.0.0.1:6443",
    "10.9.0.1:6443",
    "[::ffff:127.0.0.1]:6443",
    "[::1]:6443",
    "[fd09::1]:6443",
];

#[test]
fn connections_to_a_steered_port_reach_mvp_in_every_family() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        for target in TARGETS {
            let who = mvp.expect(Outcome::Steered, 1, || reach(target));
            assert_eq!(who, Some(MVP), "{target}");
        }
    });
}

#[test]
fn other_ports_and_ports_without_keys_are_left_alone() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let _other = Server::start(Bind::Plain("[::]:8443"), b'O');
        let mvp = Mvp::start(&patient());
        for target in TARGETS {
            let who = mvp.expect(Outcome::NoKey, 1, || reach(target));
            assert_eq!(who, Some(API), "{target}");
        }
        mvp.key("0.0.0.0:6443", Verdict::Steer);
        mvp.key("[::]:6443", Verdict::Steer);
        for target in ["127.0.0.1:8443", "[::1]:8443"] {
            let who = mvp.expect(Outcome::NoKey, 1, || reach(target));
            assert_eq!(who, Some(b'O'), "{target}");
        }
        assert_eq!(
            mvp.expect(Outcome::NoKey, 1, || reach("127.0.0.1:9443")),
            None
        );
    });
}

#[test]
fn keys_of_one_family_do_not_touch_the_other() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::start(&patient());
        mvp.key("[::]:6443", Verdict::Steer);
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("[::1]:6443")),
            Some(MVP)
        );
        assert_eq!(
            mvp.expect(Outcome::NoKey, 1, || reach("127.0.0.1:6443")),
            Some(API)
        );
    });
}

#[test]
fn a_specific_pass_key_beats_the_unspecified_steer_key() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        mvp.key("10.9.0.2:6443", Verdict::Pass);
        mvp.key("[fd09::2]:6443", Verdict::Pass);
        for target in ["10.9.0.2:6443", "[fd09::2]:6443"] {
            let who = mvp.expect(Outcome::PassKey, 1, || reach(target));
            assert_eq!(who, Some(API), "{target}");
        }
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("10.9.0.1:6443")),
            Some(MVP)
        );
        mvp.steering
            .remove_key("10.9.0.2:6443".parse().unwrap())
            .unwrap();
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("10.9.0.2:6443")),
            Some(MVP)
        );
    });
}

#[test]
fn a_specific_steer_key_works_without_an_unspecified_one() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("10.9.0.1:6443"), API);
        let mvp = Mvp::start(&patient());
        mvp.key("10.9.0.1:6443", Verdict::Steer);
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("10.9.0.1:6443")),
            Some(MVP)
        );
        assert_eq!(
            mvp.expect(Outcome::NoKey, 1, || reach("10.9.0.2:6443")),
            None
        );
    });
}

#[test]
fn the_exempt_source_reaches_the_api_server_on_every_ipv4_bind() {
    for bind in [
        "127.0.0.1:6443",
        "0.0.0.0:6443",
        "10.9.0.1:6443",
        "[::]:6443",
    ] {
        in_namespace(move || {
            let _api = Server::start(Bind::Plain(bind), API);
            let mvp = Mvp::steering_all();
            let target = if bind.starts_with("10.") {
                bind
            } else {
                "127.0.0.1:6443"
            };
            let who = mvp.expect(Outcome::ExemptSource, 1, || {
                reach_from("127.77.86.80:0", target)
            });
            assert_eq!(who, Some(API), "{bind}");
            assert_eq!(mvp.expect(Outcome::Steered, 1, || reach(target)), Some(MVP));
        });
    }
}

#[test]
fn an_announced_tuple_is_exempt_and_its_neighbours_are_not() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::1]:6443"), API);
        let mvp = Mvp::steering_all();
        let socket = bound("[::1]:0");
        let source = socket.local_addr().unwrap().as_socket().unwrap();
        mvp.steering.exempt_tuple(source).unwrap();
        drop(socket);
        let own = source.to_string();
        let who = mvp.expect(Outcome::ExemptTuple, 1, || reach_from(&own, "[::1]:6443"));
        assert_eq!(who, Some(API));
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("[::1]:6443")),
            Some(MVP)
        );
        // The same port from another address is someone else.
        let other = format!("[fd09::2]:{}", source.port());
        let who = mvp.expect(Outcome::Steered, 1, || reach_from(&other, "[fd09::1]:6443"));
        assert_eq!(who, Some(MVP));
        mvp.steering.forget_tuple(source).unwrap();
        mvp.steering.forget_tuple(source).unwrap();
        let again = format!(
            "[::1]:{}",
            bound("[::1]:0")
                .local_addr()
                .unwrap()
                .as_socket()
                .unwrap()
                .port()
        );
        let who = mvp.expect(Outcome::Steered, 1, || reach_from(&again, "[::1]:6443"));
        assert_eq!(who, Some(MVP));
    });
}

#[test]
fn off_and_full_leave_connections_alone_and_are_counted_apart() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        for (switch, outcome, who) in [
            (Switch::Off, Outcome::Off, API),
            (Switch::Full, Outcome::Full, API),
            (Switch::On, Outcome::Steered, MVP),
            (Switch::Off, Outcome::Off, API),
        ] {
            mvp.steering.set_switch(switch).unwrap();
            for target in ["127.0.0.1:6443", "[::1]:6443"] {
                assert_eq!(
                    mvp.expect(outcome, 1, || reach(target)),
                    Some(who),
                    "{switch:?}"
                );
            }
        }
    });
}

#[test]
fn a_fresh_program_steers_nothing_until_it_is_told_to() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let steering = Steering::attach(&SteerOptions::default()).unwrap();
        steering
            .set_key("0.0.0.0:6443".parse().unwrap(), Verdict::Steer)
            .unwrap();
        assert_eq!(reach("127.0.0.1:6443"), Some(API));
        steering.set_switch(Switch::On).unwrap();
        assert_eq!(reach("127.0.0.1:6443"), Some(API), "no heartbeat");
        let _beat = steering.heartbeat().unwrap();
        assert_eq!(reach("127.0.0.1:6443"), Some(API), "no socket");
        let counters = steering.counters().unwrap();
        for outcome in [Outcome::Off, Outcome::Stale, Outcome::NoSocket] {
            assert_eq!(counters.get(outcome), 1, "{}", outcome.name());
        }
        assert_eq!(counters.get(Outcome::Steered), 0);
    });
}

#[test]
fn exempt_networks_are_never_steered_and_change_at_run_time() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::start(&SteerOptions {
            exempt: vec![cidr("10.9.0.0/31"), cidr("fd09::2/128")],
            ..patient()
        });
        mvp.key("0.0.0.0:6443", Verdict::Steer);
        mvp.key("[::]:6443", Verdict::Steer);
        let from = |source: &str| {
            let target = if source.starts_with('[') {
                "[fd09::1]:6443"
            } else {
                "127.0.0.1:6443"
            };
            reach_from(source, target)
        };
        for source in ["10.9.0.1:0", "[fd09::2]:0"] {
            assert_eq!(
                mvp.expect(Outcome::ExemptCidr, 1, || from(source)),
                Some(API)
            );
        }
        for source in ["10.9.0.2:0", "[fd09::1]:0"] {
            assert_eq!(mvp.expect(Outcome::Steered, 1, || from(source)), Some(MVP));
        }
        mvp.steering
            .set_exempt(&[cidr("10.9.0.2/32"), cidr("fd09::/64")])
            .unwrap();
        for source in ["10.9.0.2:0", "[fd09::1]:0", "[fd09::2]:0"] {
            assert_eq!(
                mvp.expect(Outcome::ExemptCidr, 1, || from(source)),
                Some(API)
            );
        }
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || from("10.9.0.1:0")),
            Some(MVP)
        );
        mvp.steering.set_exempt(&[]).unwrap();
        for source in ["10.9.0.1:0", "10.9.0.2:0", "[fd09::1]:0", "[fd09::2]:0"] {
            assert_eq!(mvp.expect(Outcome::Steered, 1, || from(source)), Some(MVP));
        }
    });
}

#[test]
fn canary_networks_alone_are_steered_when_there_are_any() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        mvp.steering.set_canary(&[cidr("10.9.0.1/32")]).unwrap();
        let v4 = "127.0.0.1:6443";
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach_from("10.9.0.1:0", v4)),
            Some(MVP)
        );
        assert_eq!(
            mvp.expect(Outcome::NotChosen, 1, || reach_from("10.9.0.2:0", v4)),
            Some(API)
        );
        assert_eq!(
            mvp.expect(Outcome::NotChosen, 1, || reach("[::1]:6443")),
            Some(API)
        );
        mvp.steering.set_canary(&[]).unwrap();
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach_from("10.9.0.2:0", v4)),
            Some(MVP)
        );
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("[::1]:6443")),
            Some(MVP)
        );
    });
}

#[test]
fn the_canary_share_is_about_what_was_asked_and_sticky_by_address() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("0.0.0.0:6443"), API);
        let mvp = Mvp::steering_all();
        let sources: Vec<String> = (1..=400)
            .map(|i| format!("127.5.{}.{}:0", i / 200, 1 + i % 200))
            .collect();
        let run = || -> Vec<bool> {
            sources
                .iter()
                .map(|source| reach_from(source, "127.0.0.1:6443") == Some(MVP))
                .collect()
        };
        let mut before = Vec::new();
        for percent in [0, 10, 50, 100] {
            mvp.steering.set_percent(percent).unwrap();
            let steered_before = mvp.count(Outcome::Steered);
            let chosen = run();
            let steered = chosen.iter().filter(|c| **c).count();
            assert_eq!(mvp.count(Outcome::Steered) - steered_before, steered as u64);
            // 400 addresses: the standard deviation is at most 10; five of them.
            let wanted = usize::from(percent) * 4;
            assert!(
                steered.abs_diff(wanted) <= 50,
                "{percent} %: {steered} of 400"
            );
            assert_eq!(run(), chosen, "the same addresses again");
            // Who was steered at a smaller share stays so at a greater one.
            assert!(
                before
                    .iter()
                    .zip(&chosen)
                    .all(|(was, is): (&bool, &bool)| *is || !was)
            );
            before = chosen;
        }
        assert!(before.iter().all(|steered| *steered));
    });
}

/// Keeps what the program said.
struct Heard(Mutex<Vec<String>>);

impl log::Log for Heard {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = record.args().to_string();
        if line.starts_with("port ") {
            self.0.lock().unwrap().push(line); // aya has much to say, too.
        }
    }

    fn flush(&self) {}
}

#[test]
fn each_decision_is_logged_when_that_was_asked_for_and_not_otherwise() {
    static HEARD: Heard = Heard(Mutex::new(Vec::new()));
    in_namespace(|| {
        log::set_logger(&HEARD).unwrap();
        log::set_max_level(log::LevelFilter::Debug);
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        for (log, lines) in [(false, 0), (true, 1)] {
            let mvp = Mvp::start(&SteerOptions { log, ..patient() });
            mvp.key("0.0.0.0:6443", Verdict::Steer);
            assert_eq!(reach("127.0.0.1:6443"), Some(MVP));
            mvp.steering.take_log().unwrap().flush();
            let heard = std::mem::take(&mut *HEARD.0.lock().unwrap());
            assert_eq!(heard.len(), lines, "{heard:?}");
            assert!(
                heard.iter().all(|line| line.contains("port 6443")),
                "{heard:?}"
            );
        }
    });
}

#[test]
fn a_listener_of_the_wrong_family_is_never_used() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        let v4 = mvp.listeners.v4.as_ref().unwrap();
        mvp.steering.set_listener(Family::V6, v4).unwrap();
        let who = mvp.expect(Outcome::WrongFamily, 1, || reach("[::1]:6443"));
        assert_eq!(who, Some(API));
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("127.0.0.1:6443")),
            Some(MVP)
        );
    });
}

fn cidr(text: &str) -> Cidr {
    let (address, length) = text.split_once('/').unwrap();
    Cidr {
        address: address.parse().unwrap(),
        length: length.parse().unwrap(),
    }
}
