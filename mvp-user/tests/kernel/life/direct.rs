//! Connections that another mvp has decided about (ALPN entry `mvp-direct`, design 4.4): raw from a known server's
//! address, and from anywhere else ended here, to be answered by local as it is.

use std::{net::SocketAddr, thread, time::Duration};

use bench::standin::{Handle, Release, client};

use super::world::{Host, NEW, PODS, World, in_world, killed};

const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// One request that offers `mvp-direct`, from a host.
fn ask(world: &World, from: &Host, path: &str, headers: &[(&str, &str)]) -> client::Answer {
    let admin = world
        .pki
        .client("kubernetes-admin", &["system:masters"])
        .unwrap();
    let client = client::Client::new(&world.pki.ca.certificate.der)
        .certificate(&admin)
        .alpn(&["h2", "http/1.1", "mvp-direct"]);
    let (to, path) = (world.node.server(), path.to_owned());
    let headers: Vec<(String, String)> = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    from.run(async move {
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        client.send(to, "GET", &path, &headers, b"").await.unwrap()
    })
}

fn accepted(world: &World, outcome: &str) -> u64 {
    let name = format!("mvp_client_connections_accepted_total{{outcome=\"{outcome}\"}} ");
    let metrics = world.metrics(&world.node);
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.map_or(0, |number| number.parse().unwrap())
}

/// The request for `path` that the server saw last: whence it came, and whom it was for.
fn last(server: &Handle, path: &str) -> (SocketAddr, Vec<String>) {
    let requests = server.requests();
    let seen = requests.iter().rfind(|seen| seen.path() == path).unwrap();
    let forwarded = seen.header("x-forwarded-for");
    let forwarded = forwarded.into_iter().map(str::to_owned).collect();
    (seen.client, forwarded)
}

#[test]
fn a_decided_connection_is_raw_from_a_peer_and_answered_by_local_alone_from_anywhere_else() {
    in_world(|world| {
        let old = world.serve(&world.node, Release::V1_34);
        let _new = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(&world.node, &["--steer=always"]);
        mvp.settled(2, "on");

        // From the address of a known server: byte for byte.
        let raw = accepted(world, "raw_direct");
        let answer = ask(
            world,
            &world.peer,
            PODS,
            &[("x-forwarded-for", "192.0.2.7")],
        );
        assert_eq!(answer.status, 200);
        assert_eq!(accepted(world, "raw_direct"), raw + 1);
        let (source, forwarded) = last(&old, PODS);
        assert_eq!(source.ip().to_canonical().to_string(), "127.77.86.80");
        assert_eq!(forwarded, ["192.0.2.7"], "untouched");
        assert_eq!(
            ask(world, &world.peer, NEW, &[]).status,
            404,
            "local's own word"
        );

        // From anywhere else: ended here, but decided.
        let (raw, ended) = (accepted(world, "raw_direct"), accepted(world, "terminated"));
        let answer = ask(
            world,
            &world.outside,
            PODS,
            &[("x-forwarded-for", "192.0.2.7")],
        );
        assert_eq!(answer.status, 200);
        assert_eq!(accepted(world, "raw_direct"), raw);
        assert!(accepted(world, "terminated") > ended);
        let (_, forwarded) = last(&old, PODS);
        assert_eq!(forwarded, ["192.0.2.7, 10.8.0.3"], "joined");
        assert_eq!(
            ask(world, &world.outside, NEW, &[]).status,
            404,
            "not rerouted"
        );
        let accept = [("accept", DISCOVERY)];
        let here = ask(world, &world.outside, "/apis", &accept);
        let raw = ask(world, &world.peer, "/apis", &accept);
        assert_eq!(here.body, raw.body, "not completed");
        let through = {
            let (client, to) = (world.admin.clone(), world.node.server());
            world.outside.run(async move {
                let answer = client.once_with(to, "GET", "/apis", &accept, "").await;
                answer.unwrap().body
            })
        };
        assert_ne!(here.body, through, "as it is for everybody else");

        // Nothing fails over either.
        let _old = killed(&world.node, old);
        mvp.until("local is down", |status| {
            status["servers"][0]["health"] == "down"
        });
        thread::sleep(Duration::from_millis(200));
        assert_eq!(
            world.get(world.node.server(), PODS),
            Ok(200),
            "a peer answers"
        );
        assert_eq!(ask(world, &world.outside, PODS, &[]).status, 503);
    });
}
