//! Group-versions that all servers share through etcd: those of CRDs and of aggregated APIServices (design 5.3).
//!
//! The local view decides about them, so that a deleted CRD is not kept alive by a peer's old answer: what was deleted
//! is remembered for a grace period, as kube-apiserver's own proxy does (`gv_exclusion_manager.go`). Pure.

use std::{collections::BTreeSet, time::Duration};

use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;

use crate::{api::GroupVersion, table::SharedGroups};

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

    /// Ends the grace of what it is over for; true if there was any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let count = |deleted: &Deleted| deleted.values().map(Vec::len).sum::<usize>();
        let before = count(&self.deleted);
        self.deleted.retain(|_, gone| {
            gone.retain(|(_, until)| *until > now);
            !gone.is_empty()
        });
        count(&self.deleted) != before
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
    use super::*;
    use crate::api::GvrRef;

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
        assert!(!exclusions.expire(t + GRACE - Duration::from_secs(1)));
        assert!(exclusions.expire(t + GRACE));
        assert!(!hides(&exclusions, "v1", "foos"));
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
