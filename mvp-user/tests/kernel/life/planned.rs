//! Planned ends of mvp under load: a stop, and a replacement by the next process.

use std::{thread, time::Duration};

use bench::standin::Release;
use nix::sys::signal::Signal;

use super::{
    load::{Load, Seen},
    world::{NEW, PODS, in_world},
};

#[test]
fn sigterm_under_500_connections_a_second_fails_nothing() {
    in_world(|world| {
        let _old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let mut mvp = world.mvp(&world.node, &["--steer=always"]);
        mvp.settled(2, "on");
        let load = Load::start(world, world.node.server(), PODS);
        thread::sleep(Duration::from_secs(1));
        let steered = mvp.lookups("steered");
        assert!(steered > 100, "{steered}");
        mvp.signal(Signal::SIGTERM);
        // The clients are sent away when nothing more can arrive, and go: it need not wait for --drain-timeout.
        let status = mvp.ended(Duration::from_secs(15));
        assert!(status.success(), "{status}:\n{}", mvp.log());
        thread::sleep(Duration::from_millis(500));
        let (seen, during) = load.stop();
        seen.none_refused(during);
        seen.all_answered(200);
        assert_eq!(world.get(world.node.server(), NEW), Ok(404), "mvp is gone");
        eprintln!(
            "sigterm: {} connections, {}",
            seen.opened,
            Seen::summary(seen.all())
        );
    });
}

#[test]
fn replacing_each_mvp_by_another_process_fails_nothing_on_its_node_or_through_it() {
    in_world(|world| {
        // The node has the new server: the peer's mvp sends what only that serves to the node, past the node's mvp.
        let _new = world.serve(&world.node, Release::V1_36);
        let _old = world.serve(&world.peer, Release::V1_34);
        let flags = ["--steer=always", "--drain-timeout=4s"];
        let mut first = [&world.node, &world.peer].map(|host| world.mvp(host, &flags));
        for mvp in &first {
            mvp.settled(2, "on");
        }
        let here = Load::start(world, world.node.server(), PODS);
        let through = Load::at_rate(world, world.peer.server(), NEW, 100);
        thread::sleep(Duration::from_secs(1));
        let mut second = Vec::new();
        for (host, mvp) in [&world.node, &world.peer].into_iter().zip(&mut first) {
            let next = world.mvp_as(host, "next", &flags, |_| {});
            next.settled(2, "on");
            mvp.signal(Signal::SIGTERM);
            let status = mvp.ended(Duration::from_secs(20));
            assert!(status.success(), "{status}:\n{}", mvp.log());
            thread::sleep(Duration::from_millis(500));
            assert!(next.lookups("steered") > 10, "it has taken over");
            second.push(next);
        }
        for (load, what) in [(here, "on the node"), (through, "rerouted through it")] {
            let (seen, during) = load.stop();
            eprintln!(
                "replaced, {what}: {} connections, {}",
                seen.opened,
                Seen::summary(seen.all())
            );
            seen.none_refused(during);
            seen.all_answered(200);
        }
    });
}

#[test]
fn the_next_process_knows_a_server_that_has_left_before_it_started() {
    in_world(|world| {
        let _old = world.serve(&world.node, Release::V1_34);
        let new = world.serve(&world.peer, Release::V1_36);
        let first = world.mvp(&world.node, &["--steer=always"]);
        first.settled(2, "on");
        world.peer.run(async move { new.stop_gracefully().await });
        first.until("the peer has departed", |status| {
            status["servers"][1]["membership"] == "departed"
        });
        assert_eq!(world.get(world.node.server(), NEW), Ok(503));
        // The file is written once a second at most.
        let file = world.file(world.node.name).join("state.json");
        crate::support::eventually(Duration::from_secs(5), || {
            let text = std::fs::read(&file).unwrap_or_default();
            serde_json::from_slice::<serde_json::Value>(&text).is_ok_and(|state| {
                let servers = state["servers"].as_array().unwrap();
                servers.iter().any(|server| !server["departedAt"].is_null())
            })
        });
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let mut before = world.mvp_as(
                &world.node,
                &format!("before {signal}"),
                &["--steer=always"],
                |_| {},
            );
            before.settled(1, "on");
            before.signal(signal);
            before.ended(Duration::from_secs(15));
            let after = world.mvp_as(
                &world.node,
                &format!("after {signal}"),
                &["--steer=always"],
                |_| {},
            );
            after.settled(1, "on");
            let status = after.status();
            assert_eq!(
                status["servers"][1]["membership"],
                "departed",
                "{status}\n{}\n{}",
                before.log(),
                after.log()
            );
        }
        drop(first);
        let last = world.mvp_as(&world.node, "last", &["--steer=always"], |_| {});
        last.settled(1, "on");
        assert_eq!(world.get(world.node.server(), NEW), Ok(503), "not 404");
    });
}
