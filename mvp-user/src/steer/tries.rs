//! Sets of address prefixes in the kernel's tries, and which clients they and the share leave to be steered.

use std::net::IpAddr;

use aya::{
    Ebpf, Pod,
    maps::{LpmTrie, MapData, MapError, lpm_trie::Key},
};
use mvp_ebpf::{AF_INET, share, words};

use super::{
    SteerError, Steering,
    error::{absent_is_fine, in_map},
    program::open,
};
use crate::config::Cidr;

/// Two tries, one per family, that hold one set of prefixes.
pub(super) struct Tries {
    v4: LpmTrie<MapData, u32, u32>,
    v6: LpmTrie<MapData, [u32; 4], u32>,
    names: [&'static str; 2],
    /// What they hold.
    cidrs: Vec<Cidr>,
}

impl Steering {
    /// Whether new connections of a client are steered when anybody's are: it is not exempt, and in the canary's networks
    /// and share.
    pub fn chooses(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let (_, addr) = words(client);
        let inner = self.lock();
        (inner.canary.cidrs.is_empty() || inner.canary.cover(client))
            && !inner.exempt.cover(client)
            && share(&addr) < inner.settings.percent
    }
}

impl Tries {
    pub(super) fn open(
        ebpf: &mut Ebpf,
        v4: &'static str,
        v6: &'static str,
    ) -> Result<Self, SteerError> {
        Ok(Self {
            v4: open(ebpf, v4)?,
            v6: open(ebpf, v6)?,
            names: [v4, v6],
            cidrs: Vec::new(),
        })
    }

    /// New prefixes go in before old ones leave, so that no look-up finds less than both hold.
    pub(super) fn replace(&mut self, cidrs: &[Cidr]) -> Result<(), SteerError> {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for cidr in cidrs {
            let (family, data) = words(cidr.address);
            if family == AF_INET {
                v4.push(Key::new(u32::from(cidr.length), data[0]));
            } else {
                v6.push(Key::new(u32::from(cidr.length), data));
            }
        }
        replace_trie(&mut self.v4, &v4).map_err(in_map(self.names[0]))?;
        replace_trie(&mut self.v6, &v6).map_err(in_map(self.names[1]))?;
        self.cidrs = cidrs.to_vec();
        Ok(())
    }

    fn cover(&self, address: IpAddr) -> bool {
        self.cidrs.iter().any(|cidr| cidr.contains(address))
    }
}

fn replace_trie<K: Pod + PartialEq>(
    trie: &mut LpmTrie<MapData, K, u32>,
    keys: &[Key<K>],
) -> Result<(), MapError> {
    for key in keys {
        trie.insert(key, 1, 0)?;
    }
    let old: Vec<Key<K>> = trie.keys().collect::<Result<_, _>>()?;
    for key in old {
        let same = |k: &Key<K>| k.prefix_len() == key.prefix_len() && k.data() == key.data();
        if !keys.iter().any(same) {
            absent_is_fine(trie.remove(&key))?;
        }
    }
    Ok(())
}
