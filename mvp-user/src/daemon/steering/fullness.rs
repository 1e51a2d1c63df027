//! Whether there is room for more connections: in number, descriptors and ports. How full memory is `memory` tells.

use std::time::Duration;

use crate::{accept::Room, upstream::Dialer};

/// How long a connection to local that could not be made counts: the next one may be tried no sooner.
const LACKING: Duration = Duration::from_secs(10);

/// Keeps *full* from flapping: true at 90 % of a bound, false below 80 % of all (design 2).
#[derive(Debug, Default)]
pub(super) struct Fullness {
    full: bool,
}

impl Fullness {
    /// Takes in shares of bounds, in per cent.
    pub(super) fn update(&mut self, percents: impl IntoIterator<Item = u64>) -> bool {
        let worst = percents.into_iter().max().unwrap_or(0);
        self.full = worst >= 90 || self.full && worst >= 80;
        self.full
    }
}

pub(super) fn room_percent(room: &Room) -> u64 {
    if room.exhausted_within(Duration::from_secs(2)) {
        return 100;
    }
    room.open()
        .saturating_mul(100)
        .checked_div(room.max())
        .unwrap_or(0) as u64
}

/// Connections to local come from one address, which has 28,000 ports for it; any process of this node can take them.
pub(super) fn ports_percent(dialer: &Dialer) -> u64 {
    if dialer.lacked_within(LACKING) {
        100
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{api::ServerId, table::Server, tls::fixtures::Pki};

    #[tokio::test]
    async fn without_a_port_towards_local_there_is_no_room() {
        // Where no port is left, the kernel says the same as of an address that is not this node's.
        let dialer = Dialer::new([203, 0, 113, 9].into(), Pki::new().load(), None);
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let peer = Server::new(ServerId::Peer(address), address);
        dialer.raw(&peer).await.unwrap_err();
        assert_eq!(ports_percent(&dialer), 0, "that is the peer's");
        let local = Server::new(ServerId::Local, address);
        dialer.raw(&local).await.unwrap_err();
        assert_eq!(ports_percent(&dialer), 100);
    }

    #[test]
    fn full_begins_at_nine_tenths_and_ends_below_eight() {
        let mut fullness = Fullness::default();
        let seen: Vec<bool> = [89, 90, 85, 80, 79, 89]
            .into_iter()
            .map(|worst| fullness.update([0, worst]))
            .collect();
        assert_eq!(seen, [false, true, true, true, false, false]);
    }
}
