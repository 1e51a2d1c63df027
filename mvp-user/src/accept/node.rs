//! The addresses of this node, from the kernel.

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A list younger than this is believed.
const FRESH: Duration = Duration::from_secs(5);
/// Not read more often than this, whoever asks: the question comes from the network.
const LEAST: Duration = Duration::from_secs(1);

/// The node's own addresses, read when they are asked for and the last list is old. Shared by the accepting threads;
/// one that reads the list (about 50 us) lets the others wait.
#[derive(Debug, Default)]
pub(super) struct NodeAddresses(Mutex<Option<(Instant, HashSet<IpAddr>)>>);

impl NodeAddresses {
    /// Whether `address` is one of this node: loopback, or on one of its interfaces.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        if address.is_loopback() {
            return true;
        }
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read, known)) = &*list {
            let age = read.elapsed();
            let found = known.contains(&address);
            if (found && age < FRESH) || age < LEAST {
                return found;
            }
        }
        match read() {
            Ok(addresses) => {
                let found = addresses.contains(&address);
                *list = Some((Instant::now(), addresses));
                found
            }
            Err(error) => {
                tracing::warn!(%error, "the node's own addresses cannot be read");
                list.as_ref()
                    .is_some_and(|(_, known)| known.contains(&address))
            }
        }
    }
}

fn read() -> nix::Result<HashSet<IpAddr>> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    Ok(interfaces
        .filter_map(|interface| interface.address)
        .filter_map(|address| {
            let v4 = address
                .as_sockaddr_in()
                .map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| {
                address
                    .as_sockaddr_in6()
                    .map(|address| IpAddr::V6(address.ip()))
            })
        })
        .map(|address| address.to_canonical())
        .collect())
}
