//! `--steer=auto`: nothing is steered while servers are alike, and what begins and ends it. The long forms, which take
//! minutes, are run by `cargo xtask test soak`.

use std::{
    thread,
    time::{Duration, Instant},
};

use bench::{client::Connection, standin::Release};

use super::{
    load::{Load, Seen, ask},
    world::{Daemon, NEW, PODS, World, in_world, killed, restarted},
};

/// Short, so that tests need not wait a minute for calm.
const AUTO: [&str; 2] = ["--steer=auto", "--steer-off-delay=2s"];
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A connection to a server that has answered one request.
fn connected(world: &World, client: &bench::client::Client) -> Connection {
    let (client, to) = (client.clone(), world.node.server());
    world.outside.run(async move {
        let mut open = Some(client.connect(to).await.unwrap());
        assert_eq!(ask(&client, &mut open, to, PODS).await, Ok(200));
        open.unwrap()
    })
}

/// The connections, after one more request on each of them.
fn used(world: &World, mut held: Vec<Connection>) -> Vec<Connection> {
    let client = world.admin.clone();
    world.outside.run(async move {
        for connection in &mut held {
            let request = client.request("GET", PODS, &[], "").unwrap();
            assert_eq!(connection.send(request).await.unwrap().status, 200);
        }
        held
    })
}

fn is_closed(connection: &Connection) -> bool {
    match connection {
        Connection::Http1(send) => send.is_closed(),
        Connection::Http2(send) => send.is_closed(),
    }
}

/// How often steering began.
fn switched(log: &str) -> usize {
    log.matches("Steering switch=On").count()
}

fn why(mvp: &Daemon) -> String {
    mvp.status()["steering"]["why"].as_str().unwrap().to_owned()
}

#[test]
fn without_a_difference_no_new_connection_touches_mvp() {
    in_world(|world| {
        let _one = world.serve(&world.node, Release::V1_34);
        let _two = world.serve(&world.peer, Release::V1_34);
        let mvp = world.mvp(&world.node, &AUTO);
        mvp.settled(2, "off");
        mvp.until("it is calm", |status| {
            status["steering"]["why"] == "no_skew"
        });
        let (steered, off) = (mvp.lookups("steered"), mvp.lookups("off"));
        let load = Load::start(world, world.node.server(), PODS);
        thread::sleep(Duration::from_secs(2));
        let (seen, during) = load.stop();
        seen.none_refused(during);
        seen.all_answered(200);
        assert_eq!(mvp.lookups("steered"), steered);
        let passed = mvp.lookups("off") - off;
        assert!(
            passed >= seen.opened,
            "{passed} look-ups of {} connections",
            seen.opened
        );
        // Nobody but mvp itself was ever accepted, and no request was walked.
        assert_eq!(mvp.status()["steering"]["lookups"]["steered"], steered);
        let metrics = world.metrics(&world.node);
        let walked = metrics
            .lines()
            .filter(|line| line.starts_with("mvp_requests_total") && !line.ends_with(" 0"));
        assert_eq!(walked.count(), 0, "{metrics}");
        eprintln!(
            "no skew: {} connections, {passed} passed, 0 steered",
            seen.opened
        );
    });
}

#[test]
fn a_difference_starts_steering_and_its_end_sends_everybody_back() {
    in_world(|world| {
        let old = world.serve(&world.node, Release::V1_34);
        let two = world.serve(&world.peer, Release::V1_34);
        let mvp = world.mvp(&world.node, &AUTO);
        mvp.settled(2, "off");
        mvp.until("it is calm", |status| {
            status["steering"]["why"] == "no_skew"
        });
        assert_eq!(world.get(world.node.server(), NEW), Ok(404));
        drop(killed(&world.peer, two));
        let _new = world.serve(&world.peer, Release::V1_36);
        mvp.until("it steers", |status| status["steering"]["state"] == "on");
        assert_eq!(why(&mvp), "skew");
        assert!(switched(&mvp.log()) > 0);
        let said = mvp.say(&["status"]).unwrap();
        assert!(said.contains("skew: 10.8.0.2:6443 serves"), "{said}");
        assert_eq!(world.get(world.node.server(), NEW), Ok(200));

        let at_mvp = [&world.admin, &world.admin_h1].map(|client| connected(world, client));
        assert!(mvp.status()["connections"]["open"].as_u64() >= Some(2));
        let load = Load::start(world, world.node.server(), PODS);
        drop(killed(&world.node, old));
        let _newer = world.serve(&world.node, Release::V1_36);
        mvp.until("it is calm again", |status| {
            status["steering"]["why"] == "no_skew" && status["steering"]["state"] == "off"
        });
        let start = Instant::now();
        while !at_mvp.iter().all(is_closed) {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "they stay: {at_mvp:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_millis(500));
        let (seen, during) = load.stop();
        let refused = seen.refused.len();
        eprintln!(
            "skew ended: {} connections, {refused} refused, {}",
            seen.opened,
            Seen::summary(seen.all())
        );
        seen.none_refused(during);
        seen.all_answered(200);
        let steered = mvp.lookups("steered");
        assert_eq!(world.get(world.node.server(), NEW), Ok(200));
        assert_eq!(
            mvp.lookups("steered"),
            steered,
            "answered by the server itself"
        );
    });
}

/// The only capable server is away for so long; through the node what it alone has is 503 with a hint, never 404.
fn absence(period: Duration, graceful: bool, rate: u32) {
    in_world(|world| {
        let _old = world.serve(&world.node, Release::V1_34);
        let mut new = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(&world.node, &AUTO);
        mvp.settled(2, "on");
        let load = Load::at_rate(world, world.node.server(), NEW, rate);
        thread::sleep(Duration::from_millis(500));
        let from = Instant::now();
        if graceful {
            new = world.peer.run(async move {
                new.stop_gracefully().await;
                new
            });
        } else {
            new = killed(&world.peer, new);
        }
        let gone = Instant::now();
        thread::sleep(period);
        let until = Instant::now();
        assert_eq!(mvp.status()["steering"]["state"], "on");
        let _new = restarted(&world.peer, new);
        mvp.settled(2, "on");
        thread::sleep(Duration::from_secs(1));
        let (seen, during) = load.stop();
        seen.none_refused(during);
        // A look-up that finds no fresh heartbeat goes past mvp, as it must, and the old server says what it knows. That is
        // for a machine on which mvp does not get to run for two seconds; else there is none.
        let stale = mvp.lookups("stale");
        let (past, at_mvp): (Vec<_>, Vec<_>) = seen
            .fresh
            .iter()
            .partition(|asked| asked.outcome == Ok(404));
        assert!(
            past.len() as u64 <= stale,
            "{} of {stale}\n{}",
            past.len(),
            mvp.log()
        );
        let at_mvp = || at_mvp.iter().copied().chain(&seen.steady);
        let other: Vec<_> = at_mvp()
            .filter(|asked| !matches!(asked.outcome, Ok(200 | 503)))
            .collect();
        assert!(other.is_empty(), "{}\n{}", Seen::summary(other), mvp.log());
        let away: Vec<_> = at_mvp()
            .filter(|asked| asked.at > gone && asked.at + asked.took < until)
            .collect();
        assert!(
            away.iter().all(|asked| asked.outcome == Ok(503)),
            "{}",
            Seen::summary(away)
        );
        assert_eq!(seen.steady.last().unwrap().outcome, Ok(200));
        eprintln!(
            "away for {:?} (graceful: {graceful}): {} connections, {}; {stale} look-ups were stale",
            gone - from + period,
            seen.opened,
            Seen::summary(seen.all())
        );
    });
}

#[test]
fn while_the_only_capable_server_is_stopped_auto_steers_and_it_is_503() {
    absence(Duration::from_secs(4), true, 500);
}

/// A CRD is created and deleted once a second for so long; it is no difference, and nobody is disturbed.
fn churn(period: Duration, rate: u32) {
    in_world(|world| {
        let _one = world.serve(&world.node, Release::V1_36);
        let _two = world.serve(&world.peer, Release::V1_36);
        let mvp = world.mvp(&world.node, &[&AUTO[..], &["--drain-idle=1s"]].concat());
        mvp.settled(2, "off");
        mvp.until("it is calm", |status| {
            status["steering"]["why"] == "no_skew"
        });
        let (steered, calm) = (mvp.lookups("steered"), mvp.log().len());
        let mut held: Vec<_> = [&world.admin, &world.admin_h1]
            .map(|client| connected(world, client))
            .into();
        let load = Load::at_rate(world, world.node.server(), PODS, rate);
        let (start, mut rounds) = (Instant::now(), 0_u32);
        while start.elapsed() < period {
            let next = start + Duration::from_secs(1) * (rounds + 1);
            // Through one server and the other in turn.
            let host = [&world.node, &world.peer][rounds as usize % 2];
            let name = format!("things.group{}.example.com", rounds % 7);
            let definition = crd(&name);
            let (client, to) = (world.admin.clone(), host.server());
            world.outside.run(async move {
                let json = [("content-type", "application/json")];
                let made = client.once_with(to, "POST", CRDS, &json, definition).await;
                assert_eq!(made.unwrap().status, 201);
                tokio::time::sleep(Duration::from_millis(400)).await;
                let gone = client.once(to, "DELETE", &format!("{CRDS}/{name}")).await;
                assert!(gone.unwrap().status.is_success());
            });
            let why = why(&mvp);
            assert!(
                ["no_skew", "local_down", "quiet"].contains(&why.as_str()),
                "{why}\n{}",
                mvp.log()
            );
            // Used now and then: a server ends what is idle for 90 s.
            if rounds.is_multiple_of(10) {
                held = used(world, held);
            }
            rounds += 1;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let (seen, during) = load.stop();
        seen.none_refused(during);
        seen.all_answered(200);
        drop(used(world, held));
        // On a machine too busy for the server to say that it is ready, steering begins for that: never for a definition.
        let log = mvp.log();
        let ill = log[calm..].contains("local_down");
        if !ill {
            assert_eq!(switched(&log[calm..]), 0, "{log}");
            assert_eq!(mvp.lookups("steered"), steered);
        }
        eprintln!(
            "{rounds} definitions in {period:?}: {} connections, steered for none of them (local was ill: {ill})",
            seen.opened
        );
    });
}

fn crd(name: &str) -> String {
    let (_, group) = name.split_once('.').unwrap();
    serde_json::json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": name },
        "spec": {
            "group": group,
            "names": { "plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList" },
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object" } },
            }],
        },
    })
    .to_string()
}

#[test]
fn definitions_that_come_and_go_are_no_difference() {
    churn(Duration::from_secs(6), 500);
}

#[test]
#[ignore = "takes 6 minutes: cargo xtask test soak"]
fn soak_the_only_capable_server_is_stopped_for_five_minutes() {
    absence(Duration::from_mins(5), true, 40);
}

#[test]
#[ignore = "takes 6 minutes: cargo xtask test soak"]
fn soak_the_only_capable_server_is_killed_for_five_minutes() {
    absence(Duration::from_mins(5), false, 40);
}

#[test]
#[ignore = "takes 2 minutes: cargo xtask test soak"]
fn soak_definitions_come_and_go_for_two_minutes() {
    churn(Duration::from_mins(2), 40);
}
