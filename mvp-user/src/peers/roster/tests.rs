//! The book under a clock that only the tests move.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 6443))
}

fn id(last: u8) -> ServerId {
    ServerId::Peer(address(last))
}

fn addresses(last: &[u8]) -> BTreeSet<SocketAddr> {
    last.iter().copied().map(address).collect()
}

fn roster() -> Roster {
    Roster::new(30 * SECOND, 600 * SECOND)
}

fn membership(roster: &Roster, last: u8) -> Option<Membership> {
    roster
        .servers()
        .find(|server| server.id == id(last))
        .map(|server| server.membership())
}

#[test]
fn ready_needs_the_list_and_one_read_of_local_and_of_every_listed_peer() {
    let t = Instant::now();
    let mut roster = roster();
    roster.read(ServerId::Local);
    assert!(!roster.is_ready(t + 3600 * SECOND), "the list was not read");
    roster.list(&addresses(&[2, 3]), t);
    roster.read(id(2));
    assert!(!roster.is_ready(t));
    roster.read(id(3));
    assert!(roster.is_ready(t));
}

#[test]
fn a_peer_that_cannot_be_read_holds_up_readiness_only_until_the_deadline() {
    let t = Instant::now();
    let mut roster = roster();
    roster.list(&addresses(&[2]), t);
    roster.read(ServerId::Local);
    assert!(!roster.is_ready(t + 29 * SECOND));
    assert!(roster.is_ready(t + 30 * SECOND));
    // A new peer has a deadline of its own.
    roster.list(&addresses(&[2, 3]), t + 40 * SECOND);
    assert!(!roster.is_ready(t + 69 * SECOND));
    assert!(roster.is_ready(t + 70 * SECOND));
    assert_eq!(roster.unread().count(), 2);
}

#[test]
fn a_peer_that_comes_and_goes_unread_holds_up_readiness_no_longer_than_one_that_stays() {
    let t = Instant::now();
    for known in [false, true] {
        let mut roster = roster();
        if known {
            // By the state file: it is kept when it leaves.
            roster.restore(address(2), Some(SECOND), t);
        }
        roster.list(&addresses(&[]), t);
        roster.read(ServerId::Local);
        let comes = |roster: &mut Roster, at| {
            roster.list(&addresses(&[2]), at);
        };
        let goes = |roster: &mut Roster, at| {
            roster.list(&addresses(&[]), at);
            if !known {
                roster.forget(address(2));
            }
        };
        // There for ten seconds of every twenty.
        for round in 0..3_u32 {
            let t = t + round * 20 * SECOND;
            comes(&mut roster, t);
            assert!(!roster.is_ready(t + 9 * SECOND), "{round}");
            goes(&mut roster, t + 10 * SECOND);
            assert!(roster.is_ready(t + 10 * SECOND), "{round}");
        }
        comes(&mut roster, t + 60 * SECOND);
        assert!(roster.is_ready(t + 60 * SECOND), "it has had its time");
        goes(&mut roster, t + 61 * SECOND);
        // Long after, it is like any other.
        roster.expire(t + 661 * SECOND);
        comes(&mut roster, t + 661 * SECOND);
        assert!(!roster.is_ready(t + 690 * SECOND));
        assert!(roster.is_ready(t + 691 * SECOND));
    }
}

#[test]
fn a_peer_that_leaves_is_departed_until_it_is_listed_and_read_again() {
    let t = Instant::now();
    let mut roster = roster();
    roster.list(&addresses(&[2]), t);
    roster.read(id(2));
    let changes = roster.list(&addresses(&[]), t + SECOND);
    assert_eq!(changes.left.len(), 1);
    assert_eq!(membership(&roster, 2), Some(Membership::Departed));
    // It may still answer while it shuts down: that does not bring it back.
    assert!(!roster.read(id(2)));
    assert_eq!(membership(&roster, 2), Some(Membership::Departed));
    let changes = roster.list(&addresses(&[2]), t + 20 * SECOND);
    assert_eq!(changes.returned.len(), 1);
    assert_eq!(membership(&roster, 2), Some(Membership::Departed));
    assert!(roster.read(id(2)));
    assert_eq!(membership(&roster, 2), Some(Membership::Listed));
    assert!(roster.expire(t + 3600 * SECOND).is_empty());
}

#[test]
fn a_departed_peer_is_dropped_after_the_grace_period() {
    let t = Instant::now();
    let mut roster = roster();
    roster.list(&addresses(&[2]), t);
    roster.list(&addresses(&[]), t + SECOND);
    assert!(roster.expire(t + 600 * SECOND).is_empty());
    let gone = roster.expire(t + 601 * SECOND);
    assert_eq!(gone.len(), 1);
    assert_eq!(roster.servers().count(), 0);
}

#[test]
fn coming_back_without_being_readable_does_not_prolong_the_grace_period() {
    let t = Instant::now();
    let mut roster = roster();
    roster.list(&addresses(&[2]), t);
    roster.list(&addresses(&[]), t);
    roster.list(&addresses(&[2]), t + 300 * SECOND);
    assert!(
        roster.expire(t + 700 * SECOND).is_empty(),
        "listed ones are not dropped"
    );
    roster.list(&addresses(&[]), t + 700 * SECOND);
    assert_eq!(roster.expire(t + 700 * SECOND).len(), 1);
}

#[test]
fn the_grace_period_goes_on_over_a_restart() {
    let t = Instant::now();
    let mut roster = roster();
    let server = roster.restore(address(2), Some(500 * SECOND), t);
    assert_eq!(server.membership(), Membership::Departed);
    roster.restore(address(3), None, t);
    assert_eq!(membership(&roster, 3), Some(Membership::Listed));
    // What the file listed and the list does not have has left.
    let changes = roster.list(&addresses(&[4]), t);
    assert_eq!(changes.left.len(), 1);
    assert_eq!(changes.new.len(), 1);
    assert_eq!(roster.expire(t + 100 * SECOND).len(), 1);
    assert_eq!(membership(&roster, 3), Some(Membership::Departed));
}

#[test]
fn only_peers_that_are_not_listed_can_be_forgotten() {
    let t = Instant::now();
    let mut roster = roster();
    roster.list(&addresses(&[2, 3]), t);
    roster.list(&addresses(&[2]), t);
    assert!(roster.forget(address(2)).is_none());
    assert!(roster.forget(address(3)).is_some());
    assert!(roster.forget(address(9)).is_none());
}
