//! Two peers serve what local does not, and die in turns (cases of k3s-io/k3s#7193 and others): one is enough, none is 503,
//! and whoever comes back is used again.

use std::{
    thread,
    time::{Duration, Instant},
};

use bench::standin::Release;

use super::world::{NEW, World, in_world, killed, restarted};

/// How long the answer to a request through the node takes to be this.
fn until(world: &World, status: u16) -> Duration {
    let began = Instant::now();
    loop {
        let answer = world.get(world.node.server(), NEW);
        if answer == Ok(status) {
            return began.elapsed();
        }
        assert_ne!(answer, Ok(404), "an API that a peer serves");
        assert!(began.elapsed() < Duration::from_secs(5), "{answer:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Requests for so long, all of which are answered so.
fn always(world: &World, status: u16, period: Duration) {
    let began = Instant::now();
    while began.elapsed() < period {
        assert_eq!(world.get(world.node.server(), NEW), Ok(status));
        thread::sleep(Duration::from_millis(20));
    }
}

fn alternate(rounds: usize, period: Duration) {
    in_world(|world| {
        let _old = world.serve(&world.node, Release::V1_34);
        world.new_certificate(&world.outside);
        let hosts = [&world.peer, &world.outside];
        let mut servers = hosts.map(|host| Some(world.serve(host, Release::V1_36)));
        let mvp = world.mvp(&world.node, &["--steer=always"]);
        mvp.settled(3, "on");
        let mut slowest = Duration::ZERO;
        for round in 0..rounds {
            let (first, second) = (round % 2, 1 - round % 2);
            let kill = |which: usize, server| Some(killed(hosts[which], server));
            let rise = |which: usize, server| Some(restarted(hosts[which], server));
            servers[first] = servers[first].take().and_then(|server| kill(first, server));
            always(world, 200, period);
            servers[second] = servers[second]
                .take()
                .and_then(|server| kill(second, server));
            until(world, 503);
            always(world, 503, period);
            servers[first] = servers[first].take().and_then(|server| rise(first, server));
            slowest = slowest.max(until(world, 200));
            always(world, 200, period);
            servers[second] = servers[second]
                .take()
                .and_then(|server| rise(second, server));
            always(world, 200, period);
        }
        eprintln!("alternation: {rounds} rounds, 200 again after {slowest:?} at most");
    });
}

#[test]
fn peers_that_die_in_turns_are_replaced_by_each_other_and_used_again() {
    alternate(2, Duration::from_secs(2));
}

#[test]
#[ignore = "twenty minutes: cargo xtask test soak"]
fn soak_peers_die_in_turns_for_half_a_minute_each_ten_times() {
    alternate(10, Duration::from_secs(30));
}
