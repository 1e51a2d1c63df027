//! Whole walks among servers of any state, as properties: they end, and nothing is sent where it must not go.

use proptest::prelude::*;

use super::*;

fn healths() -> impl Strategy<Value = Health> {
    prop_oneof![
        Just(Health::Up),
        Just(Health::Starting),
        Just(Health::Draining),
        Just(Health::Down)
    ]
}

type ServerState = (Health, bool, bool, u8);

fn servers() -> impl Strategy<Value = Vec<ServerState>> {
    proptest::collection::vec((healths(), any::<bool>(), any::<bool>(), 0..3u8), 4..=12)
}

const QUESTIONS: [&str; 7] = [
    PODS,
    THINGS,
    RESIZE,
    NOPES,
    "GET /apis",
    "GET /apis/new.k8s.io/v1",
    "GET /readyz",
];

proptest! {
    #[test]
    fn a_walk_ends_and_keeps_its_promises(
        states in servers(),
        question in 0..QUESTIONS.len(),
        kind in prop_oneof![Just(AskerKind::User), Just(AskerKind::FrontProxy), Just(AskerKind::Token), Just(AskerKind::Anonymous)],
        marker: bool,
        decided: bool,
        ready: bool,
        outcomes in proptest::collection::vec(0..4u8, 16),
        refuse: bool,
    ) {
        let mut world = World::new();
        world.peers = (1..states.len())
            .map(|number| {
                let address = SocketAddr::from((Ipv4Addr::new(10, 0, 0, u8::try_from(number).unwrap()), 6443));
                Arc::new(Server::new(ServerId::Peer(address), address))
            })
            .collect();
        world.table.set_peers(world.peers.clone());
        world.table.set_ready(ready);
        for (number, (health, proven, listed, what)) in states.iter().enumerate() {
            let server = world.server(number);
            server.set_health(*health);
            server.set_proof(if *proven { Proof::Proven } else { Proof::Unproven });
            if number > 0 && !listed {
                server.set_membership(Membership::Departed);
            }
            match what {
                0 => world.table.forget(world.server(number).id),
                1 => world.serve(number, OLD),
                _ => world.serve(number, NEW),
            }
        }
        world.asker = Asker { kind, marker, decided, ..world.asker };
        world.local_down = if refuse { LocalDown::Refuse } else { LocalDown::Failover };
        world.now += Duration::from_secs(3);
        let mut steps = 0;
        loop {
            steps += 1;
            prop_assert!(steps <= MAX_TRIES + 3, "the walk does not end");
            match world.ask(QUESTIONS[question]).to {
                To::Server(server) => {
                    prop_assert!(server.membership() == Membership::Listed, "sent to a departed server");
                    prop_assert!(world.evidence.outcome(server.id).is_none(), "sent twice");
                    let is_local = server.id == ServerId::Local;
                    prop_assert!(is_local || !marker && !decided, "marked or decided, but not local");
                    prop_assert!(is_local || !kind.needs_proof() || server.proof() == Proof::Proven, "user sent to an unproven peer");
                    match outcomes[steps % outcomes.len()] {
                        0 => world.evidence.add(server.id, Outcome::Unprocessed),
                        1 => world.evidence.add(server.id, Outcome::Unreachable),
                        2 => world.evidence.add(server.id, Outcome::Refused),
                        _ => { let now = world.now; world.evidence.not_found(server.id, now); }
                    }
                }
                To::Refresh => {
                    prop_assert_eq!(world.evidence.refresh(), Refreshed::No);
                    world.evidence.refreshed(outcomes[0] < 2);
                }
                To::Relay => {
                    prop_assert!(world.evidence.any_not_found(), "no answer to relay");
                    break;
                }
                To::Refuse(_) => break,
            }
        }
    }
}
