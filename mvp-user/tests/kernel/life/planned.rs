//! Planned ends of mvp under load: a stop, and a replacement by the next process.

use std::{net::SocketAddr, thread, time::Duration};

use bench::standin::Release;
use nix::sys::signal::Signal;
use tokio::net::{TcpListener, TcpStream};

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
fn handshakes_that_begin_after_a_stop_do_not_hold_it_up() {
    in_world(|world| {
        let _old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let mut mvp = world.mvp(&world.node, &["--steer=always", "--drain-timeout=6s"]);
        mvp.settled(2, "on");
        // A client that no answer reaches: the node sends it to a link-layer address that nobody has.
        world.outside.ip("addr add 10.8.0.99/24 dev eth0");
        world
            .node
            .ip("neigh replace 10.8.0.99 lladdr 02:00:00:00:00:99 dev br0 nud permanent");
        mvp.signal(Signal::SIGTERM);
        // By then nothing is steered any more: it knocks at kube-apiserver's.
        thread::sleep(Duration::from_millis(500));
        let to = world.node.server();
        let knocking = world.outside.start(async move {
            let mut knocks = tokio::task::JoinSet::new();
            for _ in 0..150 {
                let socket = tokio::net::TcpSocket::new_v4().unwrap();
                let from: SocketAddr = "10.8.0.99:0".parse().unwrap();
                socket.bind(from).unwrap();
                knocks.spawn(socket.connect(to));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let status = mvp.ended(Duration::from_secs(15));
        knocking.abort();
        assert!(status.success(), "{status}:\n{}", mvp.log());
        assert!(!mvp.log().contains("--drain-timeout"), "{}", mvp.log());
    });
}

#[test]
fn a_client_whose_handshake_ends_after_the_farewell_hears_it_too() {
    in_world(|world| {
        let _old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let flags = ["--steer=always", "--drain-timeout=60s"];
        let mut mvp = world.mvp(&world.node, &flags);
        mvp.settled(2, "on");
        let to = world.node.server();
        let clients = [&world.admin, &world.admin_h1].map(|client| {
            let silent = async move { TcpStream::connect(to).await.unwrap() };
            (client.clone(), world.outside.run(silent))
        });
        mvp.signal(Signal::SIGTERM);
        // Longer than mvp accepts, shorter than it waits for a ClientHello.
        thread::sleep(Duration::from_secs(6));
        let held = clients.map(|(client, mut far)| {
            world.outside.run(async move {
                let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let here = door.local_addr().unwrap();
                let mut passing = tokio::task::JoinSet::new();
                passing.spawn(async move {
                    let (mut near, _) = door.accept().await.unwrap();
                    tokio::io::copy_bidirectional(&mut near, &mut far).await
                });
                let mut connection = client.connect(here).await.unwrap();
                let request = client.request("GET", PODS, &[], "").unwrap();
                assert_eq!(connection.send(request).await.unwrap().status, 200);
                (connection, passing)
            })
        });
        let status = mvp.ended(Duration::from_secs(10));
        assert!(status.success(), "{status}:\n{}", mvp.log());
        drop(held);
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
