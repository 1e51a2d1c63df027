//! Which addresses are peers': those of the endpoints of `default/kubernetes` (anybody who may write them can name any), and
//! those that the operator gave. Not for what becomes of them (`roster`).

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
};

use tracing::warn;

/// Peers at most: far more than a control plane has. Each costs two probes a second while it does not answer, and a
/// slice alone can hold 100,000 addresses.
const MAX_PEERS: usize = 64;

/// Keeps [`MAX_PEERS`] addresses, those that were read before others; returns how many are left out.
pub(super) fn bound(
    peers: &mut BTreeSet<SocketAddr>,
    is_known: impl Fn(SocketAddr) -> bool,
) -> usize {
    let ignored = peers.len().saturating_sub(MAX_PEERS);
    if ignored > 0 {
        let (known, others): (Vec<_>, Vec<_>) = std::mem::take(peers)
            .into_iter()
            .partition(|address| is_known(*address));
        *peers = known.into_iter().chain(others).take(MAX_PEERS).collect();
    }
    ignored
}

/// What an address of the endpoints is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Endpoint {
    Peer,
    /// One of this node's: local.
    Own,
    /// Nothing that another node can have: loopback, link-local, unspecified, multicast, port 0.
    Impossible,
}

/// What `address` is on a node that has the addresses `own`.
pub(super) fn classify(address: SocketAddr, own: &HashSet<IpAddr>) -> Endpoint {
    let ip = address.ip().to_canonical();
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if ip.is_loopback()
        || ip.is_unspecified()
        || ip.is_multicast()
        || link_local
        || address.port() == 0
    {
        Endpoint::Impossible
    } else if own.contains(&ip) {
        Endpoint::Own
    } else {
        Endpoint::Peer
    }
}

/// The addresses of this node, and the one that its kube-apiserver advertises.
pub(super) fn own_addresses(advertised: Option<IpAddr>) -> HashSet<IpAddr> {
    let interfaces = match nix::ifaddrs::getifaddrs() {
        Ok(interfaces) => Some(interfaces),
        Err(error) => {
            warn!(%error, "Cannot read the addresses of this node");
            None
        }
    };
    interfaces
        .into_iter()
        .flatten()
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .chain(advertised)
        .map(|address| address.to_canonical())
        .collect()
}

/// Whether a static peer is this node's own server: as `--local` has it, or by an address of the node. Other servers of
/// the loopback are believed.
pub(super) fn is_local(
    peer: SocketAddr,
    local: SocketAddr,
    port: u16,
    own: &HashSet<IpAddr>,
) -> bool {
    let ip = peer.ip().to_canonical();
    peer == local || peer.port() == port && !ip.is_loopback() && own.contains(&ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_list_of_static_peers_does_for_all_nodes() {
        let own = HashSet::from(["10.0.0.1".parse().unwrap(), "127.0.0.1".parse().unwrap()]);
        let local = "127.0.0.1:6443".parse().unwrap();
        let ours = |peer: &str| is_local(peer.parse().unwrap(), local, 6443, &own);
        assert!(ours("127.0.0.1:6443"));
        assert!(ours("10.0.0.1:6443"));
        assert!(!ours("10.0.0.1:7443"));
        assert!(!ours("10.0.0.2:6443"));
        assert!(!ours("127.0.0.1:7443"));
    }

    #[test]
    fn only_addresses_that_another_node_can_have_are_peers() {
        let own = HashSet::from(["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]);
        let judge = |address: &str| classify(address.parse().unwrap(), &own);
        for peer in ["10.0.0.2:6443", "[fd00::2]:6443", "192.168.1.1:443"] {
            assert_eq!(judge(peer), Endpoint::Peer, "{peer}");
        }
        for ours in ["10.0.0.1:6443", "[fd00::1]:6443", "[::ffff:10.0.0.1]:6443"] {
            assert_eq!(judge(ours), Endpoint::Own, "{ours}");
        }
        for bad in [
            "127.0.0.1:6443",
            "[::1]:6443",
            "0.0.0.0:6443",
            "[::]:6443",
            "169.254.1.1:6443",
            "[fe80::1]:6443",
            "224.0.0.1:6443",
            "255.255.255.255:6443",
            "10.0.0.2:0",
            "[::ffff:127.0.0.1]:6443",
        ] {
            assert_eq!(judge(bad), Endpoint::Impossible, "{bad}");
        }
    }

    #[test]
    fn a_flood_of_addresses_does_not_displace_who_is_known() {
        let address = |last: u32| SocketAddr::from((std::net::Ipv4Addr::from(last), 6443));
        let mut peers: BTreeSet<_> = (0x0a00_0001..=0x0a00_1000).map(address).collect();
        let known = address(0x0a00_0fff);
        assert_eq!(bound(&mut peers, |it| it == known), 0x1000 - MAX_PEERS);
        assert_eq!(peers.len(), MAX_PEERS);
        assert!(peers.contains(&known));
        assert_eq!(bound(&mut peers, |_| false), 0);
        assert_eq!(peers.len(), MAX_PEERS);
    }

    #[test]
    fn the_addresses_of_this_node_contain_loopback_and_the_advertised_one() {
        let advertised = "10.99.0.1".parse().unwrap();
        let own = own_addresses(Some(advertised));
        assert!(own.contains(&"127.0.0.1".parse().unwrap()));
        assert!(own.contains(&advertised));
    }
}
