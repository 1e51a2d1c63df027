//! The generator against the origin, in one process: every kind of work does what it says.

use std::{net::SocketAddr, path::Path, time::Duration};

use tokio::task::{LocalSet, spawn_local};

use super::{Identity, LOOPBACK_NAME, Outcome, Pace, Plan, Shot, Silent, Work, origin, run};
use crate::pki::ClusterPki;

const SHORT: Duration = Duration::from_millis(200);

fn plan(pki: &Path, to: SocketAddr, http2: bool, work: Work) -> Plan {
    Plan {
        to,
        ca: pki.join("ca.crt"),
        identity: Identity::Certificate(pki.join("admin.crt"), pki.join("admin.key")),
        http2,
        connections: 2,
        streams: if http2 { 3 } else { 1 },
        work,
    }
}

/// Runs each plan that `plans` makes against one origin.
fn against_an_origin(
    plans: impl Fn(&Path, SocketAddr) -> Vec<Plan>,
) -> Vec<anyhow::Result<Outcome>> {
    let directory = tempfile::tempdir().unwrap();
    let pki = directory.path();
    let cluster = ClusterPki::new().unwrap();
    let addresses = ["127.0.0.1".parse().unwrap()];
    cluster.write(pki, &addresses).unwrap();
    let serving = cluster.serving_also(&[LOOPBACK_NAME], &addresses).unwrap();
    serving.write(pki, "apiserver").unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let settings = origin::Settings {
        listen: vec![free],
        pki: pki.to_owned(),
        off: vec!["batch/v1".to_owned()],
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(LocalSet::new().run_until(async move {
        let (here, told) = tokio::sync::oneshot::channel();
        let serving = spawn_local(async move {
            origin::serve(&settings, || here.send(()).unwrap())
                .await
                .unwrap();
        });
        told.await.unwrap();
        let mut outcomes = Vec::new();
        for plan in plans(directory.path(), free) {
            outcomes.push(run(&plan, &mut Silent).await);
        }
        serving.abort();
        outcomes
    }))
}

fn requests(shots: Vec<Shot>, pace: Pace) -> Work {
    Work::Requests {
        shots,
        pace,
        warm: Duration::from_millis(50),
        run: SHORT,
    }
}

#[test]
fn requests_of_every_kind_are_answered_over_both_protocols() {
    let outcomes = against_an_origin(|pki, to| {
        let shots = vec![
            Shot::get("/api/v1/namespaces/a/configmaps/b?bytes=2000"),
            Shot::post("/api/v1/namespaces/a/configmaps", 70_000),
            Shot::get("/apis")
                .accepting(origin::AGGREGATED)
                .conditional(),
        ];
        let mut token = plan(
            pki,
            to,
            true,
            requests(vec![Shot::get("/api/v1/pods?bytes=300000")], Pace::Closed),
        );
        token.identity = Identity::Token(origin::TOKEN.to_owned());
        vec![
            plan(pki, to, true, requests(shots.clone(), Pace::Closed)),
            plan(pki, to, false, requests(shots, Pace::Closed)),
            token,
        ]
    });
    for outcome in outcomes {
        let outcome = outcome.unwrap();
        assert_eq!(outcome.failure, None);
        assert!(outcome.done > 10 && outcome.bytes > 10_000, "{outcome:?}");
        assert!(outcome.latency.at(50.0).unwrap() > 0.0);
    }
}

#[test]
fn an_unknown_caller_fails() {
    let outcomes = against_an_origin(|pki, to| {
        let mut nobody = plan(
            pki,
            to,
            true,
            requests(vec![Shot::get("/api/v1/pods")], Pace::Closed),
        );
        nobody.identity = Identity::Token("somebody-else".to_owned());
        vec![nobody]
    });
    let outcome = outcomes[0].as_ref().unwrap();
    assert_eq!(outcome.done, 0);
    assert!(
        outcome.failure.as_deref().unwrap().contains("401"),
        "{outcome:?}"
    );
}

#[test]
fn an_open_pace_is_kept_whatever_the_answers_do() {
    let rate = 500.0;
    let outcomes = against_an_origin(|pki, to| {
        vec![plan(
            pki,
            to,
            true,
            requests(
                vec![Shot::get("/api/v1/namespaces/a/pods/b")],
                Pace::Open(rate),
            ),
        )]
    });
    let outcome = outcomes[0].as_ref().unwrap();
    assert_eq!(outcome.failed, 0);
    // 200 ms at 500 a second; every due request is sent, late ones too.
    assert_eq!(outcome.done, 100);
    assert_eq!(outcome.lag.points.len(), outcome.latency.points.len());
}

#[test]
fn a_slow_server_is_not_the_askers_lateness() {
    let outcomes = against_an_origin(|pki, to| {
        vec![plan(
            pki,
            to,
            false,
            requests(
                vec![Shot::get("/api/v1/pods?bytes=2000000")],
                Pace::Open(500.0),
            ),
        )]
    });
    let outcome = outcomes[0].as_ref().unwrap();
    assert_eq!(outcome.done, 100);
    // 1 GB a second is more than this server gives: requests wait for a stream, and the asker has handed them out.
    let (latency, lag) = (&outcome.latency, &outcome.lag);
    assert!(
        lag.at(50.0).unwrap() < latency.at(50.0).unwrap() / 2.0,
        "{outcome:?}"
    );
}

#[test]
fn connections_readers_tunnels_and_watches_do_what_they_are_for() {
    let outcomes = against_an_origin(|pki, to| {
        vec![
            plan(pki, to, true, Work::Storm { run: SHORT }),
            plan(pki, to, false, Work::Idle),
            plan(
                pki,
                to,
                true,
                Work::Slow {
                    bytes: 1 << 30,
                    rate: 1 << 20,
                    hold: SHORT,
                },
            ),
            plan(
                pki,
                to,
                false,
                Work::Tunnels {
                    bytes: 1 << 20,
                    raw: false,
                },
            ),
            plan(
                pki,
                to,
                true,
                Work::Watches {
                    events: 3,
                    every: Duration::from_millis(10),
                    origin: to,
                },
            ),
            plan(
                pki,
                to,
                true,
                Work::First {
                    shot: Shot::get("/apis"),
                },
            ),
            plan(
                pki,
                to,
                false,
                Work::Tunnels {
                    bytes: 1 << 20,
                    raw: true,
                },
            ),
        ]
    });
    let outcomes: Vec<Outcome> = outcomes.into_iter().map(Result::unwrap).collect();
    for outcome in &outcomes {
        assert_eq!(outcome.failure, None, "{outcome:?}");
    }
    assert!(outcomes[0].done > 1);
    assert_eq!(outcomes[1].done, 2);
    let read = outcomes[2].bytes;
    assert!(read > 0 && read < 100 << 20, "{read}");
    assert_eq!((outcomes[3].done, outcomes[3].bytes >> 20), (2, 2));
    // Two connections of three watches, three events each.
    assert_eq!(outcomes[4].done, 18);
    assert_eq!(outcomes[5].done, 2);
    assert_eq!((outcomes[6].done, outcomes[6].bytes >> 20), (2, 2));
}
