//! The side room against stand-in kube-apiservers: what is learnt of them, how they are, and when that changes.

mod cluster;
mod room;

use std::time::{Duration, Instant};

use bench::{
    pki::{ClusterPki, Leaf, Subject},
    standin::{Action, Fault, Handle, On, Release, Standin, Timing},
};
use mvp_user::{
    api::{GvrRef, ServerId, Verb},
    config::LocalDown,
    peers::skew::{Policy, Reason},
    table::{Freshness, Health, Membership, Proof, Table},
};
use room::Room;

/// What 1.36 has and 1.34 lacks by default.
const NEW: GvrRef<'static> = GvrRef {
    group: "admissionregistration.k8s.io",
    version: "v1",
    resource: "mutatingadmissionpolicies",
};

const SECOND: Duration = Duration::from_secs(1);

fn serves(table: &Table, id: ServerId, resource: GvrRef<'_>) -> Option<bool> {
    table
        .catalogue(id)
        .map(|catalogue| catalogue.serves(resource, None, Verb::List))
}

fn freshness(table: &Table, id: ServerId) -> Option<Freshness> {
    table.catalogue(id).map(|catalogue| catalogue.freshness)
}

fn peer(of: &Handle) -> ServerId {
    ServerId::Peer(of.address())
}

async fn old_and_new(pki: &ClusterPki) -> (Handle, Handle) {
    let old = Standin::builder(pki).release(Release::V1_34).start().await;
    let new = Standin::builder(pki).release(Release::V1_36).start().await;
    (old.unwrap(), new.unwrap())
}

fn fault(server: &Handle, on: On, action: Action) {
    server.fault(Fault {
        on,
        action,
        times: None,
    });
}

#[tokio::test]
async fn two_versions_are_learnt_and_their_difference_is_a_reason_to_steer() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let room = Room::new(&pki, &old, &[&new]).start();
    let table = room.table();
    room.until("the table is ready", Table::is_ready).await;
    assert_eq!(serves(table, ServerId::Local, NEW), Some(false));
    assert_eq!(serves(table, peer(&new), NEW), Some(true));
    room.until("both are up and proven", |table| {
        let members = table.members();
        members
            .peers
            .iter()
            .chain([&members.local])
            .all(|server| server.health() == Health::Up && server.proof() == Proof::Proven)
    })
    .await;
    let versions =
        [ServerId::Local, peer(&new)].map(|id| table.catalogue(id).unwrap().version.to_string());
    assert!(
        versions[0].starts_with("v1.34.") && versions[1].starts_with("v1.36."),
        "{versions:?}"
    );
    let reason = Policy::new(LocalDown::Failover, 60 * SECOND).judge(
        table,
        &room.learner().view(),
        true,
        tokio::time::Instant::now(),
    );
    let Some(Reason::Skew(missing)) = reason else {
        panic!("{reason:?}")
    };
    assert_eq!(missing.server, peer(&new));
    // Nobody but the marker user was ever seen, and every connection says that its decision is taken.
    for server in [&old, &new] {
        for seen in server.requests() {
            let user = seen.user.unwrap();
            assert_eq!(user.name, "mvp:probe", "{}", seen.target);
            assert!(user.groups.contains(&"mvp:probes".to_owned()));
        }
        assert!(
            server
                .connections()
                .iter()
                .all(|it| it.alpn_offered == ["http/1.1", "mvp-direct"])
        );
    }
}

#[tokio::test]
async fn a_killed_local_is_down_at_the_next_probe_and_up_two_seconds_after_it_is_back() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let room = Room::new(&pki, &old, &[&new]).start();
    room.until_local(Health::Up).await;
    old.kill().await;
    let killed = Instant::now();
    room.until_local(Health::Down).await;
    assert!(killed.elapsed() < SECOND, "{:?}", killed.elapsed());
    let _back = old.restart().await.unwrap();
    let back = Instant::now();
    room.until_local(Health::Starting).await;
    room.until_local(Health::Up).await;
    let took = back.elapsed();
    assert!(
        took >= 1900 * SECOND / 1000 && took < 4 * SECOND,
        "{took:?}"
    );
    assert_eq!(room.table().members().local.proof(), Proof::Proven);
    room.until("local was read again", |table| {
        freshness(table, ServerId::Local) == Some(Freshness::Fresh)
    })
    .await;
}

#[tokio::test]
async fn a_stopping_local_is_draining_and_a_silent_one_is_down() {
    let pki = ClusterPki::new().unwrap();
    let timing = Timing {
        delaying: 2 * SECOND,
        ..Timing::prompt()
    };
    let local = Standin::builder(&pki).timing(timing).start().await.unwrap();
    let room = Room::new(&pki, &local, &[]).start();
    room.until_local(Health::Up).await;
    local.silence(true);
    let silenced = Instant::now();
    room.until_local(Health::Down).await;
    assert!(silenced.elapsed() < 4 * SECOND, "{:?}", silenced.elapsed());
    local.silence(false);
    room.until_local(Health::Up).await;
    let ((), ()) = tokio::join!(local.stop_gracefully(), async {
        room.until_local(Health::Draining).await;
        room.until_local(Health::Down).await;
    });
}

#[tokio::test]
async fn what_traffic_reports_is_true_at_once_and_looked_into() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let room = Room::new(&pki, &old, &[&new]).start();
    room.until_local(Health::Up).await;
    let local = std::sync::Arc::clone(&room.table().members().local);
    room.prober().report(&local, Health::Down);
    assert_eq!(local.health(), Health::Down);
    let reported = Instant::now();
    room.until_local(Health::Up).await;
    assert!(
        reported.elapsed() >= 1900 * SECOND / 1000,
        "{:?}",
        reported.elapsed()
    );
    room.prober().local_replaced();
    assert_eq!(local.health(), Health::Starting);
    room.until_local(Health::Up).await;
}

#[tokio::test]
async fn a_refusal_of_the_front_proxy_certificate_is_found_by_one_shared_probe() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let room = Room::new(&pki, &old, &[&new]).start();
    room.until("local is proven", |table| {
        table.members().local.proof() == Proof::Proven
    })
    .await;
    let local = std::sync::Arc::clone(&room.table().members().local);
    let mut kept = None;
    old.set_authentication(|it| kept = it.request_header.take())
        .unwrap();
    old.take_requests();
    let prober = room.prober();
    let results = futures_util::future::join_all((0..20).map(|_| prober.prove_now(&local))).await;
    assert!(
        results.iter().all(|result| *result == Proof::Refused),
        "{results:?}"
    );
    assert_eq!(local.proof(), Proof::Refused);
    let reviews = old
        .take_requests()
        .into_iter()
        .filter(|seen| seen.target.contains("selfsubjectreviews"))
        .count();
    assert_eq!(reviews, 1);
    old.set_authentication(|it| it.request_header = kept)
        .unwrap();
    room.until("local is proven again", |table| {
        table.members().local.proof() == Proof::Proven
    })
    .await;
}

#[tokio::test]
async fn an_admission_webhook_that_denies_everything_does_not_hide_who_we_are() {
    let pki = ClusterPki::new().unwrap();
    let local = Standin::builder(&pki).start().await.unwrap();
    let denied = Action::Answer {
        code: 403,
        headers: vec![("content-type".into(), "application/json".into())],
        body: r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"admission webhook \"all.example.com\" denied the request: no","code":403}"#.into(),
    };
    fault(&local, On::path("/apis/authentication.k8s.io/*"), denied);
    let room = Room::new(&pki, &local, &[]).start();
    room.until("local is proven", |table| {
        table.members().local.proof() == Proof::Proven
    })
    .await;
}

#[tokio::test]
async fn a_changed_front_proxy_certificate_is_proven_at_once() {
    let pki = ClusterPki::new().unwrap();
    let local = Standin::builder(&pki).start().await.unwrap();
    let room = Room::new(&pki, &local, &[]).start();
    let is = |proof| move |table: &Table| table.members().local.proof() == proof;
    room.until("local is proven", is(Proof::Proven)).await;
    let changed = Instant::now();
    // Of the right authority, but not one of the allowed names.
    let stranger = Leaf::client(Subject::new().cn("stranger"));
    let stranger = pki.front_proxy_ca.issue(&stranger).unwrap();
    room.replace("front-proxy-client.crt", &stranger.cert_pem());
    room.replace("front-proxy-client.key", &stranger.key_pem());
    room.until("local refuses", is(Proof::Refused)).await;
    let again = pki.front_proxy_client().unwrap();
    room.replace("front-proxy-client.crt", &again.cert_pem());
    room.replace("front-proxy-client.key", &again.key_pem());
    room.until("local is proven again", is(Proof::Proven)).await;
    // Well before the next plain proof.
    assert!(changed.elapsed() < 20 * SECOND, "{:?}", changed.elapsed());
}

#[tokio::test]
async fn refreshes_of_one_server_are_shared_and_begin_at_most_once_a_second() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let room = Room::new(&pki, &old, &[&new]).start();
    room.until("the table is ready", Table::is_ready).await;
    let server = std::sync::Arc::clone(&room.table().members().peers[0]);
    new.take_requests();
    let began = Instant::now();
    let learner = room.learner();
    for _ in 0..2 {
        let after = tokio::time::Instant::now();
        let all = (0..50).map(|_| learner.refresh(&server, after));
        let results = futures_util::future::join_all(all).await;
        assert!(results.iter().all(Result::is_ok));
        assert!(room.table().catalogue(peer(&new)).unwrap().read_at >= after);
    }
    assert!(began.elapsed() >= 900 * SECOND / 1000);
    let reads = new.take_requests();
    let reads: Vec<_> = reads.iter().filter(|seen| seen.target == "/apis").collect();
    // One for each of the two, and one more if a plain interval fell in between.
    assert!((2..=3).contains(&reads.len()), "{}", reads.len());
    assert!(reads.iter().all(|read| read.status == 304), "conditional");
    new.kill().await;
    assert!(
        learner
            .refresh(&server, tokio::time::Instant::now())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn no_bad_answer_removes_what_a_server_was_known_to_serve() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let room = Room::new(&pki, &old, &[&new]).start();
    room.until("the table is ready", Table::is_ready).await;
    let server = std::sync::Arc::clone(&room.table().members().peers[0]);
    let answer = |code| Action::Answer {
        code,
        headers: vec![("location".into(), "https://127.0.0.1:1/apis".into())],
        body: String::new(),
    };
    let faults = [
        answer(503),
        answer(429),
        answer(301),
        answer(403),
        Action::Html,
        Action::Garbage,
        Action::TruncatedGzip,
        Action::Huge(40 << 20),
    ];
    for action in faults {
        let words = format!("{action:?}");
        fault(&new, On::path("/apis"), action);
        let refreshed = room
            .learner()
            .refresh(&server, tokio::time::Instant::now())
            .await;
        assert!(refreshed.is_err(), "{words}");
        assert_eq!(serves(room.table(), peer(&new), NEW), Some(true), "{words}");
        assert_eq!(
            freshness(room.table(), peer(&new)),
            Some(Freshness::Stale),
            "{words}"
        );
        new.clear_faults();
    }
    let refreshed = room
        .learner()
        .refresh(&server, tokio::time::Instant::now())
        .await;
    assert!(refreshed.is_ok());
    assert_eq!(freshness(room.table(), peer(&new)), Some(Freshness::Fresh));
}

#[tokio::test]
async fn an_answer_that_breaks_off_or_never_ends_is_no_answer() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    for action in [
        Action::Truncate(100),
        Action::Reset(100),
        Action::HangBody(100),
    ] {
        let words = format!("{action:?}");
        fault(&new, On::path("/apis"), action);
        let room = Room::new(&pki, &old, &[&new]).start();
        room.until("local was read", |table| {
            table.catalogue(ServerId::Local).is_some()
        })
        .await;
        tokio::time::sleep(SECOND).await;
        assert!(room.table().catalogue(peer(&new)).is_none(), "{words}");
        assert!(!room.table().is_ready(), "{words}");
        new.clear_faults();
        room.until("the table is ready", Table::is_ready).await;
    }
}

#[tokio::test]
async fn a_server_that_starts_is_not_believed_before_it_is_ready() {
    let pki = ClusterPki::new().unwrap();
    let local = Standin::builder(&pki).start().await.unwrap();
    let timing = Timing {
        incomplete: 2 * SECOND,
        ..Timing::prompt()
    };
    let builder = Standin::builder(&pki).timing(timing);
    let starting = builder.start_without_waiting().await.unwrap();
    let room = Room::new(&pki, &local, &[&starting]).start();
    room.until_local(Health::Up).await;
    tokio::time::sleep(SECOND).await;
    assert!(room.table().catalogue(peer(&starting)).is_none());
    assert!(!room.table().is_ready());
    room.until("the table is ready", Table::is_ready).await;
    assert_eq!(serves(room.table(), peer(&starting), NEW), Some(true));
}

#[tokio::test]
async fn a_server_without_aggregated_discovery_is_learnt_group_version_by_group_version() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let on = On {
        header: Some(("accept".into(), "as=APIGroupDiscoveryList".into())),
        ..On::default()
    };
    let answer = Action::Answer {
        code: 406,
        headers: Vec::new(),
        body: String::new(),
    };
    fault(&new, on, answer);
    let room = Room::new(&pki, &old, &[&new]).start();
    room.until("the table is ready", Table::is_ready).await;
    assert_eq!(serves(room.table(), peer(&new), NEW), Some(true));
    // What both serve alike is known alike: verbs, subresources, and nothing that is only listed.
    let (one, two) = (
        room.table().catalogue(ServerId::Local).unwrap(),
        room.table().catalogue(peer(&new)).unwrap(),
    );
    for (resource, served) in &one.resources {
        assert_eq!(two.resources.get(resource), Some(served), "{resource:?}");
    }
    assert_eq!(two.resources.len(), one.resources.len() + 2);
}

#[tokio::test]
async fn a_restarted_mvp_knows_what_the_last_one_learnt_but_believes_it_only_as_stale() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let room = Room::new(&pki, &old, &[&new]);
    let (files, room) = (room.files(), room.start());
    room.until("the table is ready", Table::is_ready).await;
    room.until_file(|text| text.contains("mutatingadmissionpolicies"))
        .await;
    drop(room);
    for server in [&old, &new] {
        server.kill().await;
    }
    let room = Room::again(&old, &[&new], files).start();
    room.until("the file was read", |table| {
        table.catalogue(ServerId::Local).is_some() && !table.members().peers.is_empty()
    })
    .await;
    for (id, has) in [(ServerId::Local, false), (peer(&new), true)] {
        assert_eq!(serves(room.table(), id, NEW), Some(has));
        assert_eq!(freshness(room.table(), id), Some(Freshness::Stale));
    }
    assert!(!room.table().is_ready());
    assert_eq!(room.table().members().peers[0].proof(), Proof::Unproven);
}

#[tokio::test]
async fn a_peer_that_left_is_kept_as_departed_until_its_grace_is_over_or_it_is_forgotten() {
    let pki = ClusterPki::new().unwrap();
    let (old, new) = old_and_new(&pki).await;
    let other = Standin::builder(&pki).start().await.unwrap();
    let room = Room::new(&pki, &old, &[&new]);
    let (files, room) = (room.files(), room.start());
    room.until("the table is ready", Table::is_ready).await;
    room.until_file(|text| text.contains("mutatingadmissionpolicies"))
        .await;
    drop(room);
    for forgotten in [true, false] {
        let room = Room::again(&old, &[&other], std::sync::Arc::clone(&files));
        let room = room.with(|config| config.peer_grace = 600 * SECOND).start();
        room.until("the table is ready", Table::is_ready).await;
        // It answers, but it is not listed: it stays departed, and what it serves stays known.
        tokio::time::sleep(2 * SECOND).await;
        let gone = room
            .table()
            .members()
            .peers
            .iter()
            .find(|it| it.id == peer(&new))
            .map(std::sync::Arc::clone);
        assert_eq!(gone.unwrap().membership(), Membership::Departed);
        assert_eq!(serves(room.table(), peer(&new), NEW), Some(true));
        assert_eq!(room.learner().view().departed.len(), 1);
        if forgotten {
            // The file still has it for the second round.
            let kept = std::fs::read(files.path().join("state.json")).unwrap();
            assert!(
                !room.learner().forget(other.address()).await,
                "it is listed"
            );
            assert!(room.learner().forget(new.address()).await);
            assert!(room.table().catalogue(peer(&new)).is_none());
            drop(room);
            std::fs::write(files.path().join("state.json"), kept).unwrap();
        } else {
            drop(room);
            let room = Room::again(&old, &[&other], std::sync::Arc::clone(&files));
            // Three seconds after it left, which was before this run.
            let room = room.with(|config| config.peer_grace = 3 * SECOND).start();
            room.until("it is dropped", |table| {
                table.is_ready() && table.members().peers.len() == 1
            })
            .await;
            assert!(room.table().catalogue(peer(&new)).is_none());
        }
    }
}
