//! Looking one thing up in the catalogues of many servers: what is looked up is hashed once for all of them.

use std::{hash::BuildHasher, sync::LazyLock};

use hashbrown::{DefaultHashBuilder, HashMap};

use super::Served;
use crate::api::{Gvr, GvrRef, Verb, Verbs};

/// Each resource of a server with what it offers.
pub type Resources = HashMap<Gvr, Served, ProcessSeed>;

/// Verbs by subresource name.
pub type Subresources = HashMap<Box<str>, Verbs, ProcessSeed>;

/// Hashes a name alike in every map of this process. The seed is random, because users choose names.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessSeed;

static SEED: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);

impl BuildHasher for ProcessSeed {
    type Hasher = <DefaultHashBuilder as BuildHasher>::Hasher;

    #[inline]
    fn build_hasher(&self) -> Self::Hasher {
        SEED.build_hasher()
    }
}

/// A resource, or a subresource of it, with a verb.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a> {
    pub(crate) resource: GvrRef<'a>,
    hash: u64,
    subresource: Option<(&'a str, u64)>,
    verb: Verb,
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(resource: GvrRef<'a>, subresource: Option<&'a str>, verb: Verb) -> Self {
        Self {
            resource,
            hash: ProcessSeed.hash_one(resource),
            subresource: subresource.map(|name| (name, ProcessSeed.hash_one(name))),
            verb,
        }
    }

    /// Whether it is among a server's resources.
    pub(super) fn is_in(&self, resources: &Resources) -> bool {
        let found = resources.raw_entry();
        let Some((_, served)) = found.from_key_hashed_nocheck(self.hash, &self.resource) else {
            return false;
        };
        let Some((name, hash)) = self.subresource else {
            return served.verbs.allow(self.verb);
        };
        let found = served.subresources.raw_entry();
        found
            .from_key_hashed_nocheck(hash, name)
            .is_some_and(|(_, verbs)| verbs.allow(self.verb))
    }
}
