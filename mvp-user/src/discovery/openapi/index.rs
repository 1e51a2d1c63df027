//! The index of OpenAPI v3 (`/openapi/v3`): which documents there are, each by a URL with the hash of its content. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::missing::Contributor;
use crate::{
    api::{GvRef, ServerId},
    discovery::aggregated::quoted_hash,
};

/// The document.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub(super) struct Index {
    #[serde(default)]
    pub(super) paths: BTreeMap<String, Entry>,
}

/// Where a document is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub(super) struct Entry {
    #[serde(rename = "serverRelativeURL", default)]
    pub(super) url: String,
}

impl Index {
    /// Whether it says where documents are.
    pub(super) fn is_one(&self) -> bool {
        !self.paths.is_empty()
            && self
                .paths
                .values()
                .all(|entry| entry.url.starts_with("/openapi/v3/"))
    }
}

impl Entry {
    /// The hash that its URL carries.
    pub(super) fn hash(&self) -> Option<&str> {
        self.url.split_once("?hash=").map(|(_, hash)| hash)
    }
}

/// The name of a group-version's document, without `/openapi/v3/`.
pub(super) fn name_of(group_version: GvRef<'_>) -> String {
    if group_version.group.is_empty() {
        format!("api/{}", group_version.version)
    } else {
        format!("apis/{group_version}")
    }
}

/// The hash of a completed document: of its inputs, not of its bytes, so that the index needs none of the documents.
/// `None` if nobody contributes, and the document's own hash holds.
pub(super) fn completed_hash<'a>(
    own: &str,
    contributions: impl Iterator<Item = (&'a Contributor, &'a str)>,
) -> Option<String> {
    let mut inputs = own.to_owned();
    let mut any = false;
    for (contributor, hash) in contributions {
        any = true;
        inputs.push('\n');
        inputs.push_str(hash);
        inputs.push('\n');
        inputs.push_str(&contributor.text());
    }
    any.then(|| quoted_hash(inputs.as_bytes()).trim_matches('"').to_owned())
}

/// `own` with the documents that it lacks, and with completed hashes where others contribute. `others` are their indices,
/// each with whether its server can be asked; `versions` says who adds to which document.
pub(super) fn complete(
    own: &Index,
    others: &[(ServerId, bool, Index)],
    versions: &[(String, Vec<Contributor>)],
) -> Index {
    let mut completed = own.clone();
    for (name, contributors) in versions {
        let index_of = |contributor: &Contributor| {
            others
                .iter()
                .find(|(server, ..)| *server == contributor.server)
                .map(|(_, live, index)| (*live, index))
        };
        if let Some(entry) = completed.paths.get_mut(name) {
            let contributions = contributors.iter().filter_map(|contributor| {
                Some((
                    contributor,
                    index_of(contributor)?.1.paths.get(name)?.hash()?,
                ))
            });
            if let Some(hash) = entry
                .hash()
                .and_then(|own| completed_hash(own, contributions))
            {
                entry.url = format!("/openapi/v3/{name}?hash={hash}");
            }
            continue;
        }
        // A document, or a whole group, that is only elsewhere: listed while it can be fetched.
        let group = name
            .rsplit_once('/')
            .map_or(name.as_str(), |(group, _)| group);
        for (live, index) in contributors.iter().filter_map(index_of) {
            for name in [name.as_str(), group] {
                if live
                    && !completed.paths.contains_key(name)
                    && let Some(entry) = index.paths.get(name)
                {
                    completed.paths.insert(name.to_owned(), entry.clone());
                }
            }
        }
    }
    completed
}
