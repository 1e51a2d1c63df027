//! A peer whose packets vanish: no FIN, no RST, no ICMP (cases of kubernetes/kubernetes#87615). Another peer serves the same.

use std::time::{Duration, Instant};

use bench::standin::{Handle, Release};
use http_body_util::BodyExt as _;

use super::{
    load::ask,
    world::{Host, NEW, in_world},
};

/// A link-layer address that nobody has.
const NOBODY: &str = "02:00:00:00:00:99";

/// From now on, what the node sends to `peer` reaches nobody.
fn swallow(node: &Host, peer: &Host) {
    node.ip(&format!(
        "neigh replace {} lladdr {NOBODY} dev br0 nud permanent",
        peer.address
    ));
}

fn asked(server: &Handle, query: &str) -> bool {
    let requests = server.requests();
    requests.iter().any(|seen| seen.target.contains(query))
}

#[test]
fn a_peer_behind_a_black_hole_is_found_and_passed_and_its_watch_ends_within_a_minute() {
    in_world(|world| {
        let _old = world.serve(&world.node, Release::V1_34);
        world.new_certificate(&world.outside);
        let peers =
            [&world.peer, &world.outside].map(|host| (host, world.serve(host, Release::V1_36)));
        let mvp = world.mvp(&world.node, &["--steer=always"]);
        mvp.settled(3, "on");

        // A watch through the node, and which peer has it.
        let (client, to) = (world.admin.clone(), world.node.server());
        let mut watch = world.node.run(async move {
            let mut connection = client.connect(to).await.unwrap();
            let path = format!("{NEW}?watch=1&here=1");
            let request = client.request("GET", &path, &[], "").unwrap();
            let answer = connection.start(request).await.unwrap();
            assert_eq!(answer.status(), 200);
            (connection, answer)
        });
        let (host, _server) = peers
            .iter()
            .find(|(_, server)| asked(server, "here=1"))
            .expect("a peer has the watch");
        swallow(&world.node, host);
        let swallowed = Instant::now();
        // A request that is sent into the hole now waits for the PING, as the watch does: it may be worked on.
        mvp.until("the peer is found down", |status| {
            let servers = status["servers"].as_array().unwrap();
            servers.iter().any(|server| server["health"] == "down")
        });
        let found = swallowed.elapsed();
        assert!(found < Duration::from_secs(5), "{found:?}");

        // New connections and one that is kept, from the node itself: the way there is open.
        let client = world.admin.clone();
        let slowest = world.node.run(async move {
            let (mut slowest, mut kept) = (Duration::ZERO, None);
            while swallowed.elapsed() < found + Duration::from_secs(4) {
                for connection in [&mut kept, &mut None] {
                    let began = Instant::now();
                    assert_eq!(ask(&client, connection, to, NEW).await, Ok(200));
                    slowest = slowest.max(began.elapsed());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            slowest
        });
        assert!(slowest < Duration::from_secs(3), "{slowest:?}");

        let ended = world.node.run(async move {
            let body = watch.1.body_mut();
            let end = async { while let Some(Ok(_)) = body.frame().await {} };
            tokio::time::timeout(Duration::from_mins(1), end)
                .await
                .is_ok()
        });
        assert!(ended, "the watch hangs");
        eprintln!(
            "black hole: found after {found:?}, slowest new request {slowest:?}, watch ended after {:?}",
            swallowed.elapsed()
        );
    });
}
