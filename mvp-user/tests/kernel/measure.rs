//! What a decision costs, by the kernel's own run-time statistics. Printed, not asserted: the
//! figure belongs to the machine. (`cargo xtask bench` compares it with its bound.)

use std::{fs, io::Write as _, net::UdpSocket, time::Duration};

use mvp_ebpf::Outcome;
use mvp_user::steer::Switch;

use crate::support::{API, Bind, Mvp, Server, eventually, in_namespace, reach};

const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";
const ROUNDS: usize = 20;
const ACTS: u64 = 100;

#[test]
fn the_cost_of_a_decision_is_measured() {
    in_namespace(|| {
        let before = fs::read_to_string(STATISTICS).unwrap();
        fs::write(STATISTICS, "1").unwrap();
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        let measure = |what: &str, outcome: Outcome, act: &dyn Fn()| {
            let mut rounds: Vec<Duration> = (0..ROUNDS)
                .map(|_| {
                    let counted = mvp.count(outcome);
                    let (time, runs) = mvp.steering.run_time().unwrap();
                    for _ in 0..ACTS {
                        act();
                    }
                    // A busy machine looks a datagram up after the call that sent it, and packets that
                    // come too late for a closed socket are looked up as well, with another outcome.
                    eventually(Duration::from_secs(5), || {
                        mvp.count(outcome) - counted >= ACTS
                    });
                    let (after, now) = mvp.steering.run_time().unwrap();
                    let runs = now - runs;
                    assert!(runs >= ACTS);
                    after.saturating_sub(time) / u32::try_from(runs).unwrap()
                })
                .collect();
            rounds.sort_unstable();
            let (best, median) = (rounds[0], rounds[ROUNDS / 2]);
            // Past libtest's capture of print macros.
            let line = format!("steer decision, {what}: median {median:?}, best {best:?}");
            writeln!(std::io::stderr(), "{line}").unwrap();
        };
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let datagram = || drop(udp.send_to(&[0], "127.0.0.1:6443"));
        measure("not TCP (the floor)", Outcome::NoKey, &datagram);
        let connect = |target| move || assert!(reach(target).is_some());
        measure(
            "steered, IPv4",
            Outcome::Steered,
            &connect("127.0.0.1:6443"),
        );
        measure("steered, IPv6", Outcome::Steered, &connect("[::1]:6443"));
        mvp.steering.set_switch(Switch::Off).unwrap();
        measure("off", Outcome::Off, &connect("127.0.0.1:6443"));
        let _other = Server::start(Bind::Plain("[::]:8443"), b'O');
        measure("another port", Outcome::NoKey, &connect("127.0.0.1:8443"));
        fs::write(STATISTICS, before.trim()).unwrap();
    });
}
