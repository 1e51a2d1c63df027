//! Group-versions that all servers share through etcd: those of CRDs and of aggregated APIServices (design 5.3).
//!
//! The local view decides about them, so that a deleted CRD is not kept alive by a peer's old answer: what was deleted
//! is remembered for a grace period, as kube-apiserver's own proxy does (`gv_exclusion_manager.go`). Pure.

use std::{collections::BTreeSet, time::Duration};

use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;

use crate::{api::GroupVersion, state::SavedShared, table::SharedGroups};

/// How long a peer may still list what was deleted (KEP-4020).
pub const GRACE: Duration = Duration::from_mins(5);

/// A resource of a CRD in one of its served versions.
pub type Defined = (GroupVersion, Box<str>);

/// What was deleted: a resource, or a whole group-version (no name), until when it is remembered.
type Deleted = HashMap<GroupVersion, Vec<(Option<Box<str>>, Instant)>>;

/// What is shared now, and what was lately.
#[derive(Debug, Default)]
pub struct Exclusions {
    defined: BTreeSet<Defined>,
    aggregated: BTreeSet<GroupVersion>,
    deleted: Deleted,
}

impl Exclusions {
    /// Takes in the whole list of CRDs.
    pub fn set_defined(&mut self, defined: BTreeSet<Defined>, now: Instant) {
        let before = std::mem::replace(&mut self.defined, defined);
        for (group_version, resource) in before.difference(&self.defined) {
            remember(&mut self.deleted, group_version, Some(resource), now);
        }
        let group_versions = before.into_iter().map(|(group_version, _)| group_version);
        self.tidy(&group_versions.collect(), now);
    }

    /// Takes in the whole list of group-versions of APIServices with a backend.
    pub fn set_aggregated(&mut self, aggregated: BTreeSet<GroupVersion>, now: Instant) {
        let before = std::mem::replace(&mut self.aggregated, aggregated);
        self.tidy(&before, now);
    }

    /// Ends the grace of what it is over for; true if there was any. What is known to be listed only by reads from before the
    /// grace was over (`is_remembered`, asked with that time) stays deleted: those servers are away, and their catalogues
    /// would bring it back.
    pub fn expire(
        &mut self,
        now: Instant,
        is_remembered: impl Fn(&GroupVersion, Option<&str>, Instant) -> bool,
    ) -> bool {
        let count = |deleted: &Deleted| deleted.values().map(Vec::len).sum::<usize>();
        let before = count(&self.deleted);
        self.deleted.retain(|group_version, gone| {
            gone.retain(|(resource, until)| {
                *until > now || is_remembered(group_version, resource.as_deref(), *until)
            });
            !gone.is_empty()
        });
        count(&self.deleted) != before
    }

    /// To be written down: what is there, and what was deleted and some server may still list.
    pub fn saved(&self) -> SavedShared {
        let defined = self.defined.iter();
        let defined = defined.map(|(group_version, resource)| (group_version, Some(&**resource)));
        let aggregated = self.aggregated.iter().map(|it| (it, None));
        let deleted = self.deleted.iter().flat_map(|(group_version, gone)| {
            gone.iter()
                .map(move |(resource, _)| (group_version, resource.as_deref()))
        });
        let mut saved = SavedShared::default();
        for (group_version, resource) in defined.chain(aggregated).chain(deleted) {
            let group = String::from(&*group_version.group);
            let version = String::from(&*group_version.version);
            match resource {
                Some(resource) => saved.defined.push((group, version, resource.to_owned())),
                None => saved.aggregated.push((group, version)),
            }
        }
        saved
    }

    /// Begins with what an earlier run wrote down. What was deleted since, the first whole lists show.
    pub fn restore(&mut self, saved: &SavedShared) {
        let defined = saved.defined.iter();
        self.defined = defined
            .map(|(group, version, plural)| {
                (GroupVersion::new(group, version), plural.as_str().into())
            })
            .collect();
        let aggregated = saved.aggregated.iter();
        self.aggregated = aggregated
            .map(|(group, version)| GroupVersion::new(group, version))
            .collect();
    }

    /// For the table.
    pub fn shared(&self) -> SharedGroups {
        SharedGroups {
            owned: self.owned(),
            deleted: self.deleted.clone(),
        }
    }

    fn owned(&self) -> HashSet<GroupVersion> {
        self.defined
            .iter()
            .map(|(group_version, _)| group_version)
            .chain(&self.aggregated)
            .cloned()
            .collect()
    }

    /// Remembers group-versions that nobody owns any more, and forgets the deletion of what is there again.
    fn tidy(&mut self, before: &BTreeSet<GroupVersion>, now: Instant) {
        let owned = self.owned();
        let gone: BTreeSet<_> = before.iter().filter(|was| !owned.contains(*was)).collect();
        for group_version in gone {
            remember(&mut self.deleted, group_version, None, now);
        }
        let defined = &self.defined;
        self.deleted.retain(|group_version, gone| {
            gone.retain(|(resource, _)| match resource {
                None => !owned.contains(group_version),
                Some(resource) => !defined.contains(&(group_version.clone(), resource.clone())),
            });
            !gone.is_empty()
        });
    }
}

fn remember(
    deleted: &mut Deleted,
    group_version: &GroupVersion,
    resource: Option<&str>,
    now: Instant,
) {
    let gone = deleted.entry(group_version.clone()).or_default();
    gone.retain(|(known, _)| known.as_deref() != resource);
    gone.push((resource.map(Into::into), now + GRACE));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        api::{Gvr, GvrRef, ServerId},
        table::{Catalogue, Freshness, Served, Server, Table},
    };

    fn crds(all: &[(&str, &str)]) -> BTreeSet<Defined> {
        all.iter()
            .map(|(version, plural)| (GroupVersion::new("example.com", version), (*plural).into()))
            .collect()
    }

    fn hides(exclusions: &Exclusions, version: &str, resource: &str) -> bool {
        exclusions.shared().hides(GvrRef {
            group: "example.com",
            version,
            resource,
        })
    }

    #[test]
    fn a_deleted_crd_is_hidden_for_five_minutes_and_its_neighbours_stay() {
        let t = Instant::now();
        let mut exclusions = Exclusions::default();
        exclusions.set_defined(crds(&[("v1", "foos"), ("v1", "bars")]), t);
        exclusions.set_defined(crds(&[("v1", "bars")]), t);
        assert!(hides(&exclusions, "v1", "foos"));
        assert!(!hides(&exclusions, "v1", "bars"));
        assert!(
            exclusions
                .shared()
                .owned
                .contains(&GroupVersion::new("example.com", "v1"))
        );
        assert!(!exclusions.expire(t + GRACE - Duration::from_secs(1), |_, _, _| false));
        assert!(exclusions.expire(t + GRACE, |_, _, _| false));
        assert!(!hides(&exclusions, "v1", "foos"));
    }

    #[test]
    fn what_a_server_that_is_away_still_lists_stays_deleted_until_it_is_read_or_dropped() {
        let read = Instant::now();
        let deleted = read + Duration::from_secs(1);
        let peer = ServerId::Peer("10.0.0.2:6443".parse().unwrap());
        let local = Server::new(ServerId::Local, "127.0.0.1:6443".parse().unwrap());
        let table = Table::new(Arc::new(local));
        let lists_foos = |id, read_at| {
            let catalogue = Catalogue {
                resources: [(Gvr::new("example.com", "v1", "foos"), Served::default())]
                    .into_iter()
                    .collect(),
                ..Catalogue::new(Arc::default(), "".into(), Freshness::Stale, read_at, 1)
            };
            table.publish(id, Arc::new(catalogue));
        };
        let expire = |exclusions: &mut Exclusions| {
            exclusions.expire(deleted + 2 * GRACE, |group_version, resource, until| {
                table.is_remembered(group_version.as_ref(), resource, until)
            })
        };
        let mut exclusions = Exclusions::default();
        let all = [("v1", "foos"), ("v1", "bars"), ("v1", "stays")];
        for dropped in [false, true] {
            exclusions.set_defined(crds(&all), read);
            exclusions.set_defined(crds(&[("v1", "stays")]), deleted);
            lists_foos(peer, read);
            assert!(expire(&mut exclusions), "nobody lists bars");
            assert!(hides(&exclusions, "v1", "foos"));
            assert!(!hides(&exclusions, "v1", "bars"));
            assert!(!expire(&mut exclusions));
            if dropped {
                table.forget(peer);
            } else {
                // A server that lists it after all that time knows better.
                lists_foos(ServerId::Local, deleted + GRACE);
            }
            assert!(expire(&mut exclusions));
            assert!(!hides(&exclusions, "v1", "foos"));
            table.forget(ServerId::Local);
        }
    }

    #[test]
    fn the_last_crd_of_a_group_version_takes_the_group_version_with_it() {
        let t = Instant::now();
        let mut exclusions = Exclusions::default();
        exclusions.set_defined(crds(&[("v1", "foos"), ("v2", "foos")]), t);
        exclusions.set_defined(crds(&[("v2", "foos")]), t);
        let gone = GroupVersion::new("example.com", "v1");
        assert!(exclusions.shared().hides_version(gone.as_ref()));
        assert!(!hides(&exclusions, "v2", "foos"));
    }

    #[test]
    fn what_is_deleted_while_nobody_watches_is_hidden_by_the_next_run() {
        let t = Instant::now();
        let metrics = GroupVersion::new("metrics.k8s.io", "v1beta1");
        let mut last = Exclusions::default();
        last.set_aggregated([metrics.clone()].into(), t);
        last.set_defined(crds(&[("v1", "foos"), ("v1", "bars"), ("v1", "stays")]), t);
        // A moment before the end.
        last.set_defined(crds(&[("v1", "bars"), ("v1", "stays")]), t);
        let mut next = Exclusions::default();
        next.restore(&last.saved());
        assert!(next.shared().owned.contains(&metrics));
        assert!(!hides(&next, "v1", "bars"));
        next.set_defined(crds(&[("v1", "stays")]), t);
        next.set_aggregated(BTreeSet::new(), t);
        for (resource, hidden) in [("foos", true), ("bars", true), ("stays", false)] {
            assert_eq!(hides(&next, "v1", resource), hidden, "{resource}");
        }
        assert!(next.shared().hides_version(metrics.as_ref()));
    }

    #[test]
    fn what_is_created_again_is_hidden_no_longer() {
        let t = Instant::now();
        let mut exclusions = Exclusions::default();
        exclusions.set_defined(crds(&[("v1", "foos")]), t);
        exclusions.set_defined(crds(&[]), t);
        assert!(hides(&exclusions, "v1", "foos"));
        exclusions.set_defined(crds(&[("v1", "foos")]), t);
        assert!(!hides(&exclusions, "v1", "foos"));
        assert!(exclusions.shared().deleted.is_empty());
    }

    #[test]
    fn an_aggregated_api_that_is_removed_is_hidden_whole() {
        let t = Instant::now();
        let metrics = GroupVersion::new("metrics.k8s.io", "v1beta1");
        let mut exclusions = Exclusions::default();
        exclusions.set_aggregated([metrics.clone()].into(), t);
        assert!(exclusions.shared().owned.contains(&metrics));
        exclusions.set_aggregated(BTreeSet::new(), t);
        assert!(exclusions.shared().hides_version(metrics.as_ref()));
        assert!(exclusions.shared().owned.is_empty());
    }
}
