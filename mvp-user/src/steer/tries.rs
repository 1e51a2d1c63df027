//! Sets of address prefixes in the kernel's tries. Not here: what a set means.

use aya::{
    Ebpf, Pod,
    maps::{LpmTrie, MapData, MapError, lpm_trie::Key},
};
use mvp_ebpf::{AF_INET, words};

use super::{
    SteerError,
    error::{absent_is_fine, in_map},
    program::open,
};
use crate::config::Cidr;

/// Two tries, one per family, that hold one set of prefixes.
pub(super) struct Tries {
    v4: LpmTrie<MapData, u32, u32>,
    v6: LpmTrie<MapData, [u32; 4], u32>,
    names: [&'static str; 2],
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
        replace_trie(&mut self.v6, &v6).map_err(in_map(self.names[1]))
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
