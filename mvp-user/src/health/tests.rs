//! Tests of the handle and of reading `/readyz`; the loops run against a stand-in in `tests/it/learning.rs`.

use http::HeaderMap;

use super::*;
use crate::{config::RequestHeaders, tls::fixtures::Pki};

fn answer(status: u16, body: &'static str) -> Answer {
    Answer {
        status: StatusCode::from_u16(status).unwrap(),
        headers: HeaderMap::new(),
        body: body.into(),
    }
}

#[test]
fn readyz_tells_a_leaving_server_from_one_that_is_not_ready_yet() {
    assert_eq!(read_readyz(&answer(200, "ok")), Seen::Ready);
    let stopping = "[+]ping ok\n[-]shutdown failed: reason withheld\nreadyz check failed\n";
    let starting = "[+]ping ok\n[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\n";
    assert_eq!(
        read_readyz(&answer(500, stopping)),
        Seen::NotReady { leaving: true }
    );
    assert_eq!(
        read_readyz(&answer(500, starting)),
        Seen::NotReady { leaving: false }
    );
    assert_eq!(
        read_readyz(&answer(429, "")),
        Seen::NotReady { leaving: true }
    );
    assert_eq!(
        read_readyz(&answer(403, "forbidden")),
        Seen::NotReady { leaving: false }
    );
}

/// Local, and what its loops and those who wait for them share; no loop runs.
fn warded() -> (Arc<Server>, Prober, Arc<Ward>) {
    let local = Arc::new(Server::new(
        ServerId::Local,
        "127.0.0.1:6443".parse().unwrap(),
    ));
    let prober = Prober::new(Arc::new(Table::new(Arc::clone(&local))));
    let ward = Arc::new(Ward::new());
    prober.wards.insert(ServerId::Local, Arc::clone(&ward));
    (local, prober, ward)
}

#[tokio::test(start_paused = true)]
async fn waiters_share_one_proof_that_began_after_they_asked() {
    let (local, prober, ward) = warded();
    // A round that began before anybody asked must not answer.
    ward.rounds.send_replace(Round {
        began: Some(Instant::now()),
        result: Some(Proof::Proven),
        decided: None,
    });
    tokio::time::advance(Duration::from_millis(10)).await;
    let answer = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        ward.rounds.send_replace(Round {
            began: Some(Instant::now()),
            result: Some(Proof::Refused),
            decided: None,
        });
    };
    let (first, second, ()) =
        tokio::join!(prober.prove_now(&local), prober.prove_now(&local), answer);
    assert_eq!((first, second), (Proof::Refused, Proof::Refused));
    // Nobody answers: the wait is bounded.
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(prober.prove_now(&local).await, Proof::Unproven);
}

#[tokio::test(start_paused = true)]
async fn waiters_share_one_look_that_began_after_they_asked() {
    let (local, prober, ward) = warded();
    ward.looks.send_replace(Some(Instant::now()));
    tokio::time::advance(Duration::from_millis(10)).await;
    let after = Instant::now();
    let looked = async {
        ward.probe.notified().await;
        let waited = after.elapsed();
        ward.looks.send_replace(Some(Instant::now()));
        waited
    };
    let (waited, (), ()) = tokio::join!(
        looked,
        prober.look_now(&local, after),
        prober.look_now(&local, after)
    );
    assert_eq!(waited, Duration::from_millis(90), "spaced");
}

#[tokio::test]
async fn that_this_node_cannot_ask_says_nothing_about_a_server() {
    let pki = Pki::new();
    // No address of this node: no connection can be prepared, as when no descriptor is free.
    let dialer = Dialer::new([192, 0, 2, 1].into(), pki.load(), None);
    let probing = Probing {
        dialer: Arc::new(dialer),
        marker: Marker::new(&RequestHeaders::default()),
    };
    let local = Arc::new(Server::new(ServerId::Local, ([127, 0, 0, 1], 1).into()));
    let table = Table::new(Arc::clone(&local));
    let ward = Ward::new();
    let probe = keep_probing(&table, &local, &ward, &probing);
    assert!(timeout(PROBE_INTERVAL, probe).await.is_err());
    assert!(!local.is_seen());
    local.set_health(Health::Up);
    let probe = keep_probing(&table, &local, &ward, &probing);
    assert!(timeout(PROBE_INTERVAL, probe).await.is_err());
    assert_eq!(local.health(), Health::Up);
}

#[test]
fn a_report_is_true_at_once() {
    let local = Arc::new(Server::new(
        ServerId::Local,
        "127.0.0.1:6443".parse().unwrap(),
    ));
    local.set_health(Health::Up);
    let table = Arc::new(Table::new(Arc::clone(&local)));
    let before = *table.changed.borrow();
    let prober = Prober::new(Arc::clone(&table));
    prober.report(&local, Health::Draining);
    assert_eq!(local.health(), Health::Draining);
    assert_ne!(*table.changed.borrow(), before);
    prober.local_replaced();
    assert_eq!(local.health(), Health::Starting);
}

#[test]
fn where_nothing_can_be_proven_a_server_recovers_without_a_proof() {
    let t = Instant::now();
    let later = t + Duration::from_secs(3);
    let mut vitals = Vitals::default();
    vitals.report(Health::Down, t);
    vitals.observe(Seen::Ready, t, t, last_word(None, false, t));
    let word = last_word(None, false, later);
    assert_eq!(vitals.observe(Seen::Ready, later, later, word), Health::Up);
    assert!(!vitals.wants_proof(word));
    assert_eq!(last_word(None, true, later), None);
}
