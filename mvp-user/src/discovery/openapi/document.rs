//! Completes one document, v2 or a group-version's: once for each set of inputs, one at a time, in a blocking thread.

use std::sync::Arc;

use bytes::Bytes;
use tokio::{
    sync::OwnedMutexGuard,
    time::{Instant, timeout_at},
};

use super::{
    Merged, OpenApi, OpenPlan, Trouble, WITHIN,
    format::{Dialect, Format, SpecError},
    hash::hash_of,
    index::completed_hash,
    library::{MAX_DOCUMENT, Stored},
    missing::{Contributor, Missing},
    respond::Outcome,
    spec::graft,
};
use crate::{
    api::{GroupVersion, ServerId},
    discovery::{
        Case, Counters,
        answer::{Authorised, compress},
    },
    request_info::OpenApiPath,
};

impl OpenApi {
    pub(super) async fn complete_document(
        &self,
        case: Case<'_>,
        open: &OpenPlan,
        answer: &mut Authorised,
    ) -> Result<Outcome, Trouble> {
        let Case {
            plan,
            from,
            counters,
            ..
        } = case;
        let dialect = if open.kind == OpenApiPath::V2 {
            Dialect::V2
        } else {
            Dialect::V3
        };
        let content_type = match (&open.merged, answer.is_unchanged()) {
            (Some(merged), true) => merged.content_type.clone(),
            _ => answer.content_type().cloned().ok_or(Trouble::Unknown)?,
        };
        let format = content_type
            .to_str()
            .ok()
            .and_then(|content_type| Format::of(dialect, content_type))
            .ok_or(Trouble::Unknown)?;
        let base_etag = answer.etag().cloned().ok_or(Trouble::Unknown)?;
        let own = hash_of(&base_etag);
        let contributors = open
            .missing
            .contributors(open.group_version.as_ref().map(GroupVersion::as_ref));
        let deadline = Instant::now() + WITHIN;
        let shelf = self
            .gather(case, &contributors, deadline, &open.path, format.accept())
            .await?;
        let contributions = shelf.iter().filter(|(_, stored)| stored.exists());
        let contributions =
            contributions.map(|(contributor, stored)| (*contributor, stored.hash()));
        let Some(hash) = completed_hash(&own, contributions) else {
            return if answer.is_unchanged() {
                Err(Trouble::Unknown)
            } else {
                Ok(Outcome::Own { hash: Some(own) })
            };
        };
        let key = (from, open.path.clone(), format);
        if let Some(merged) = self.current(&key, &hash, &open.missing) {
            counters.hit();
            return Ok(Outcome::Merged(merged));
        }
        if answer.is_unchanged() {
            return Err(Trouble::Unknown);
        }
        let mut new = Merged {
            base_etag,
            hash,
            missing: Arc::clone(&open.missing),
            content_type,
            bytes: Bytes::new(),
            gzip: false,
            length: 0,
        };
        if plan.client.head {
            return Ok(Outcome::Unbuilt(new));
        }
        // Whoever waits here holds nothing: the answer can still be relayed as it comes.
        let merging = timeout_at(deadline, Arc::clone(&self.merging).lock_owned())
            .await
            .map_err(|_elapsed| Trouble::Late)?;
        if let Some(merged) = self.current(&key, &new.hash, &new.missing) {
            counters.hit();
            return Ok(Outcome::Merged(merged));
        }
        // Not within the deadline: half a body could be neither completed nor relayed.
        new.bytes = answer.read(MAX_DOCUMENT).await?;
        let parts = shelf
            .into_iter()
            .map(|(contributor, stored)| (contributor.clone(), stored))
            .collect();
        timeout_at(deadline, self.merge(counters, merging, key, new, parts))
            .await
            .map_err(|_elapsed| Trouble::Late)?
            .map(Outcome::Merged)
    }

    /// The result that is there, if it is of these inputs.
    fn current(
        &self,
        key: &(ServerId, String, Format),
        hash: &str,
        missing: &Arc<Missing>,
    ) -> Option<Arc<Merged>> {
        let merged = self.merged.get(key).map(|merged| Arc::clone(&*merged))?;
        if merged.hash != hash {
            return None;
        }
        if Arc::ptr_eq(&merged.missing, missing) {
            return Some(merged);
        }
        // What is missing was found out anew, with the same result.
        let mut renewed = Merged::clone(&merged);
        renewed.missing = Arc::clone(missing);
        let renewed = Arc::new(renewed);
        self.merged.insert(key.clone(), Arc::clone(&renewed));
        Some(renewed)
    }

    /// Makes `new`, whose bytes are the server's own document, out of it and of the others'. Runs to its end even if nobody
    /// waits any more, so that the next one finds it.
    async fn merge(
        &self,
        counters: &Counters,
        merging: OwnedMutexGuard<()>,
        key: (ServerId, String, Format),
        mut new: Merged,
        parts: Vec<(Contributor, Arc<Stored>)>,
    ) -> Result<Arc<Merged>, Trouble> {
        counters.build();
        let cache = Arc::clone(&self.merged);
        let built = tokio::task::spawn_blocking(move || {
            let _one_at_a_time = merging;
            let document = merge(key.2, &std::mem::take(&mut new.bytes), &parts)?;
            new.length = document.len();
            (new.bytes, new.gzip) = match compress(&document) {
                Some(compressed) => (compressed, true),
                None => (document.into(), false),
            };
            let merged = Arc::new(new);
            cache.insert(key, Arc::clone(&merged));
            for (_, stored) in &parts {
                stored.shrink();
            }
            Ok::<_, SpecError>(merged)
        });
        Ok(built.await.map_err(|_join| Trouble::Unknown)??)
    }
}

/// The document completed from all that could be read.
fn merge(
    format: Format,
    base: &Bytes,
    parts: &[(Contributor, Arc<Stored>)],
) -> Result<Vec<u8>, SpecError> {
    let plain: Vec<(&Contributor, Bytes)> = parts
        .iter()
        .filter_map(|(contributor, stored)| Some((contributor, stored.plain()?)))
        .collect();
    let mut doc = format.parse(base)?;
    for (contributor, bytes) in &plain {
        // One bad document does not spoil the others.
        let grafted = format
            .parse(bytes)
            .and_then(|other| graft(format, &mut doc, &other, |path| contributor.wants(path)));
        if let Err(error) = grafted {
            tracing::warn!(server = %contributor.server, %error, "OpenAPI document left out");
        }
    }
    Ok(format.write(&doc))
}
