//! The same work with more and more connections or watches: what it costs as it grows. Not part of a normal run
//! (`--curves`); routes and peers, which need no network, are curves of `cargo bench -p mvp-user --bench route`.

use std::time::Duration;

use super::{Against, Kind, Scenario, table::SMALL};
use crate::load::Shot;

/// Name, connections, streams on each.
const CONNECTIONS: [(&str, usize); 5] = [
    ("curve-connections-1", 1),
    ("curve-connections-10", 10),
    ("curve-connections-100", 100),
    ("curve-connections-1000", 1000),
    ("curve-connections-5000", 5000),
];
const WATCHES: [(&str, usize, usize); 6] = [
    ("curve-watches-1", 1, 1),
    ("curve-watches-10", 1, 10),
    ("curve-watches-100", 1, 100),
    ("curve-watches-1000", 10, 100),
    ("curve-watches-10000", 100, 100),
    ("curve-watches-20000", 200, 100),
];
const WHO: &[Against] = &[Against::Haproxy];

/// All of them; the last part of a name is how many.
pub fn curves() -> Vec<Scenario> {
    let get = || Kind::Requests(vec![Shot::get(SMALL)]);
    let connections = CONNECTIONS.into_iter().map(|(name, count)| {
        Scenario::new(
            name,
            "1 KiB GET, HTTP/2, client certificate, one stream on each connection",
            get(),
        )
        .shape(count, 1)
        .against(WHO)
    });
    let watches = WATCHES.into_iter().map(|(name, connections, streams)| {
        let kind = Kind::Watches {
            events: 4,
            every: Duration::from_secs(1),
        };
        Scenario::new(name, "watches, 4 events to each", kind)
            .shape(connections, streams)
            .against(WHO)
    });
    connections.chain(watches).collect()
}
