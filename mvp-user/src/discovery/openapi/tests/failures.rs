//! Peers that are slow, fail, or give something else, and what is kept meanwhile.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_peer_that_becomes_slow_does_not_take_back_what_it_gave() {
    let world = World::new();
    let (first, whole, _) = world.get(GV, &[]).await.unwrap();
    let index = world.index().await;
    world.be(Mode::Silent);
    world.changed(2);
    let begun = Instant::now();
    let (second, same, _) = world.get(GV, &[]).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 2);
    assert!(same == whole);
    assert_eq!(second.headers["etag"], first.headers["etag"]);
    // One client has waited for it; the next ones need not.
    let begun = Instant::now();
    assert!(world.get(GV, &[]).await.unwrap().1 == whole);
    assert_eq!(begun.elapsed().as_secs(), 0);
    assert_eq!(world.index().await, index);
    assert_eq!(world.discovery.counters.openapi_fallbacks(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_peers_fail_to_give_leaves_the_servers_own_answer() {
    for (mode, waits) in [
        (Mode::Fails, 0),
        (Mode::Silent, 2),
        (Mode::Garbage, 0),
        (Mode::Missing, 0),
    ] {
        let world = World::new();
        world.be(mode);
        let begun = Instant::now();
        let (parts, body, _) = world.get(GV, &[]).await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), waits, "{mode:?}");
        assert_eq!(parts.status, StatusCode::OK);
        assert!(
            body == file("1.34/v3__apis_admissionregistration.k8s.io_v1.json"),
            "{mode:?}"
        );
        let own = own_index("1.34");
        let index = if mode == Mode::Missing {
            None
        } else {
            Some(world.index().await)
        };
        assert!(index.is_none_or(|index| index == own), "{mode:?}");
        let expected = match mode {
            Mode::Missing => 0,
            _ => 2,
        };
        assert_eq!(
            world.discovery.counters.openapi_fallbacks(),
            expected,
            "{mode:?}"
        );
        // A failing server is left alone for a while, then asked again.
        if mode == Mode::Fails {
            let before = world.peer.fetched.load(Ordering::Relaxed);
            world.get(GV, &[]).await.unwrap();
            assert_eq!(world.peer.fetched.load(Ordering::Relaxed), before);
            tokio::time::advance(Duration::from_secs(6)).await;
            world.be(Mode::Good);
            assert!(world.get(GV, &[]).await.unwrap().1.len() > body.len());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_asks_the_peer_again_and_the_last_good_document_survives_failures() {
    let world = World::new();
    let (_, first, _) = world.get(GV, &[]).await.unwrap();
    assert_eq!(world.peer.fetched.load(Ordering::Relaxed), 1);
    // Conditionally: it has not changed.
    world.changed(2);
    assert_eq!(world.get(GV, &[]).await.unwrap().1, first);
    assert_eq!(world.peer.fetched.load(Ordering::Relaxed), 2);
    world.be(Mode::Fails);
    world.changed(3);
    assert_eq!(world.get(GV, &[]).await.unwrap().1, first);
    // Away altogether: what is known of it is kept.
    world.other.set_health(crate::table::Health::Down);
    assert_eq!(world.get(GV, &[]).await.unwrap().1, first);
    assert_eq!(world.discovery.counters.builds(), 1);
}
