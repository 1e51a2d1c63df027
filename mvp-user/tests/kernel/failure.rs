//! Failing open: whatever happens to mvp, new connections reach kube-apiserver.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use mvp_ebpf::Outcome;
use mvp_user::steer::{
    Family, HEARTBEAT_INTERVAL, SteerError, SteerOptions, Steering, Switch, Verdict,
    listen::Listeners,
    privileges::{Needs, drop_capabilities},
};
use nix::sys::signal::Signal;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::support::{
    API, Bind, CLOSED_WITHIN, MVP, Mvp, Process, Server, eventually, in_namespace, patient, reach,
    shut,
};

const TARGET: &str = "127.0.0.1:6443";

/// A program whose heartbeat grows old in the time that production uses.
fn impatient() -> Mvp {
    let mvp = Mvp::start(&SteerOptions::default());
    mvp.key("0.0.0.0:6443", Verdict::Steer);
    mvp.key("[::]:6443", Verdict::Steer);
    mvp
}

#[test]
fn a_heartbeat_that_stops_ends_steering_within_two_seconds() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mut mvp = impatient();
        mvp.heartbeat.beat().unwrap();
        let start = Instant::now();
        assert_eq!(mvp.expect(Outcome::Steered, 1, || reach(TARGET)), Some(MVP));
        eventually(Duration::from_millis(2200), || reach(TARGET) == Some(API));
        assert!(
            start.elapsed() > Duration::from_millis(1900),
            "not before its time"
        );
        assert_eq!(
            mvp.expect(Outcome::Stale, 1, || reach("[::1]:6443")),
            Some(API)
        );
        mvp.heartbeat.beat().unwrap();
        assert_eq!(mvp.expect(Outcome::Steered, 1, || reach(TARGET)), Some(MVP));
    });
}

#[test]
fn one_wedged_thread_of_several_ends_steering() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mut mvp = impatient();
        let wedged = mvp.steering.heartbeat().unwrap();
        assert_eq!(reach(TARGET), Some(MVP));
        eventually(Duration::from_millis(2400), || {
            mvp.heartbeat.beat().unwrap();
            reach(TARGET) == Some(API)
        });
        // A thread that ends in order gives its slot back, and the others count again.
        drop(wedged);
        mvp.heartbeat.beat().unwrap();
        assert_eq!(mvp.expect(Outcome::Steered, 1, || reach(TARGET)), Some(MVP));
    });
}

#[test]
fn a_thread_that_panics_leaves_its_slot_to_grow_old() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mut mvp = impatient();
        let beat = mvp.steering.heartbeat().unwrap();
        let died = thread::spawn(move || {
            let _held = beat;
            panic!("on purpose");
        });
        assert!(died.join().is_err());
        eventually(Duration::from_millis(2400), || {
            mvp.heartbeat.beat().unwrap();
            reach(TARGET) == Some(API)
        });
    });
}

#[test]
fn slots_are_bounded_and_given_back() {
    in_namespace(|| {
        let steering = Steering::attach(&patient()).unwrap();
        let mut beats: Vec<_> = (0..64).map(|_| steering.heartbeat().unwrap()).collect();
        assert!(matches!(steering.heartbeat(), Err(SteerError::Slots)));
        beats.pop();
        assert!(steering.heartbeat().is_ok());
    });
}

#[test]
fn sixty_four_fresh_slots_are_all_looked_at() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mut mvp = impatient();
        let mut beats: Vec<_> = (0..63).map(|_| mvp.steering.heartbeat().unwrap()).collect();
        assert_eq!(mvp.expect(Outcome::Steered, 1, || reach(TARGET)), Some(MVP));
        let _last = beats.pop().unwrap();
        eventually(Duration::from_millis(2400), || {
            mvp.heartbeat.beat().unwrap();
            for beat in &mut beats {
                beat.beat().unwrap();
            }
            reach(TARGET) == Some(API)
        });
    });
}

#[test]
fn a_closed_listener_ends_steering_of_its_family_at_once() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        let closing = Listeners::bind().unwrap().v4.unwrap();
        let address = closing.local_addr().unwrap();
        mvp.steering.set_listener(Family::V4, &closing).unwrap();
        drop(closing);
        eventually(CLOSED_WITHIN, || {
            std::net::TcpStream::connect(address).is_err()
        });
        assert_eq!(
            mvp.expect(Outcome::NoSocket, 1, || reach(TARGET)),
            Some(API)
        );
        assert_eq!(
            mvp.expect(Outcome::Steered, 1, || reach("[::1]:6443")),
            Some(MVP)
        );
        mvp.steering.clear_listener(Family::V6).unwrap();
        mvp.steering.clear_listener(Family::V6).unwrap();
        assert_eq!(
            mvp.expect(Outcome::NoSocket, 1, || reach("[::1]:6443")),
            Some(API)
        );
    });
}

#[test]
fn a_socket_that_no_longer_listens_is_not_used() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        shut(mvp.listeners.v4.as_ref().unwrap());
        // Kernels before 5.16 take such a socket out of the map, newer ones refuse to assign it.
        let failed = || mvp.count(Outcome::AssignError) + mvp.count(Outcome::NoSocket);
        let before = failed();
        assert_eq!(reach(TARGET), Some(API));
        assert_eq!(failed() - before, 1);
    });
}

#[test]
fn dropping_the_guard_detaches_the_program() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        assert_eq!(reach(TARGET), Some(MVP));
        drop(mvp.steering);
        // Although the heartbeat still holds its map.
        eventually(CLOSED_WITHIN, || reach(TARGET) == Some(API));
    });
}

#[test]
fn a_stopped_api_server_is_still_steered() {
    in_namespace(|| {
        let api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        api.stop();
        assert_eq!(mvp.expect(Outcome::Steered, 1, || reach(TARGET)), Some(MVP));
        mvp.steering.set_switch(Switch::Off).unwrap();
        assert_eq!(
            mvp.expect(Outcome::Off, 1, || reach(TARGET)),
            None,
            "the kernel's refusal"
        );
    });
}

#[test]
fn an_api_server_can_bind_its_port_again_while_steered_connections_are_open() {
    in_namespace(|| {
        let api = Server::start(Bind::Plain("[::]:6443"), API);
        let mvp = Mvp::steering_all();
        let open = [TARGET, "[::1]:6443", "10.9.0.1:6443"].map(|target| {
            let address: std::net::SocketAddr = target.parse().unwrap();
            std::net::TcpStream::connect(address).unwrap()
        });
        for target in [TARGET, "[::1]:6443"] {
            assert_eq!(reach(target), Some(MVP), "and one in TIME_WAIT");
        }
        api.stop();
        let _again = Server::start(Bind::Plain("[::]:6443"), API);
        mvp.steering.set_switch(Switch::Off).unwrap();
        assert_eq!(reach(TARGET), Some(API));
        drop(open);
    });
}

/// What the tests below stop and kill; never run by itself.
#[test]
#[ignore = "the child process of other tests"]
fn child_that_steers() {
    if std::env::var_os("MVP_KERNEL_CHILD").is_none() {
        return;
    }
    let mut mvp = impatient();
    writeln!(std::io::stdout(), "\nready").unwrap();
    while mvp.heartbeat.beat().is_ok() {
        thread::sleep(HEARTBEAT_INTERVAL);
    }
}

/// Clients that open 500 connections a second until dropped.
struct Storm {
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
    opened: Arc<AtomicU64>,
    clients: Vec<thread::JoinHandle<()>>,
}

impl Storm {
    fn start() -> Self {
        let (stop, refused, opened) =
            <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let clients = (0..5)
            .map(|_| {
                let (stop, refused, opened) =
                    (Arc::clone(&stop), Arc::clone(&refused), Arc::clone(&opened));
                thread::spawn(move || {
                    let address = TARGET.parse().unwrap();
                    let mut next = Instant::now();
                    while !stop.load(Ordering::Relaxed) {
                        let patience = Duration::from_secs(3);
                        match std::net::TcpStream::connect_timeout(&address, patience) {
                            Ok(stream) => {
                                opened.fetch_add(1, Ordering::Relaxed);
                                // Reset on close, so that no TIME_WAIT uses the ports up.
                                socket2::SockRef::from(&stream)
                                    .set_linger(Some(Duration::ZERO))
                                    .unwrap();
                            }
                            Err(_) => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        next += Duration::from_millis(10);
                        thread::sleep(next.saturating_duration_since(Instant::now()));
                    }
                })
            })
            .collect();
        Self {
            stop,
            refused,
            opened,
            clients,
        }
    }

    /// Connections opened, connections refused.
    fn stop(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
        (
            self.opened.load(Ordering::Relaxed),
            self.refused.load(Ordering::Relaxed),
        )
    }
}

#[test]
fn kill_9_under_500_connections_a_second_refuses_none() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mut process = Process::start("failure::child_that_steers");
        assert_eq!(reach(TARGET), Some(MVP));
        let storm = Storm::start();
        thread::sleep(Duration::from_millis(500));
        process.signal(Signal::SIGKILL);
        process.0.wait().unwrap();
        assert_eq!(reach(TARGET), Some(API), "as soon as the process is gone");
        thread::sleep(Duration::from_millis(500));
        let (opened, refused) = storm.stop();
        assert!(opened > 200, "{opened} connections");
        assert_eq!(refused, 0, "of {opened}");
    });
}

#[test]
fn sigstop_under_500_connections_a_second_goes_direct_within_two_seconds() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let process = Process::start("failure::child_that_steers");
        assert_eq!(reach(TARGET), Some(MVP));
        let storm = Storm::start();
        thread::sleep(Duration::from_millis(500));
        process.signal(Signal::SIGSTOP);
        // Nobody answers what the stopped process has in its queue, so only time is asked.
        thread::sleep(Duration::from_millis(2100));
        assert_eq!(reach(TARGET), Some(API));
        process.signal(Signal::SIGCONT);
        eventually(Duration::from_secs(2), || reach(TARGET) == Some(MVP));
        let (opened, refused) = storm.stop();
        assert!(opened > 500, "{opened} connections");
        assert_eq!(refused, 0, "of {opened}");
    });
}

/// Runs `act` on this thread with these capabilities and no other.
fn with_only(kept: CapabilitySet, act: impl FnOnce()) {
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).unwrap();
    act();
}

#[test]
fn two_capabilities_are_enough_to_attach() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        with_only(CapabilitySet::BPF | CapabilitySet::NET_ADMIN, || {
            let mvp = Mvp::steering_all();
            assert_eq!(mvp.expect(Outcome::Steered, 1, || reach(TARGET)), Some(MVP));
        });
    });
}

#[test]
fn a_missing_capability_is_named() {
    for (kept, named) in [
        (CapabilitySet::NET_ADMIN, "CAP_BPF"),
        (CapabilitySet::BPF, "CAP_NET_ADMIN"),
        (CapabilitySet::empty(), "CAP_BPF"),
    ] {
        in_namespace(move || {
            with_only(kept, || {
                let error = Steering::attach(&patient()).unwrap_err().to_string();
                assert!(error.contains(named), "{error}");
            });
        });
    }
}

#[test]
fn everything_goes_on_after_capabilities_were_dropped() {
    in_namespace(|| {
        let _api = Server::start(Bind::Plain("[::]:6443"), API);
        let mut mvp = Mvp::steering_all();
        let needs = Needs {
            steering: true,
            ..Needs::default()
        };
        drop_capabilities(needs).unwrap();
        mvp.heartbeat.beat().unwrap();
        let second = mvp.steering.heartbeat().unwrap();
        mvp.key("10.9.0.2:6443", Verdict::Pass);
        mvp.steering.set_percent(100).unwrap();
        mvp.steering
            .exempt_tuple("[::1]:9".parse().unwrap())
            .unwrap();
        let v4 = mvp.listeners.v4.as_ref().unwrap();
        mvp.steering.set_listener(Family::V4, v4).unwrap();
        assert_eq!(mvp.expect(Outcome::Steered, 1, || reach(TARGET)), Some(MVP));
        drop(second);
        mvp.steering.detach().unwrap();
        eventually(CLOSED_WITHIN, || reach(TARGET) == Some(API));
        assert!(Steering::attach(&patient()).is_err(), "no way back");
    });
}
