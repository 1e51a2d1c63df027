//! Completes OpenAPI: the v3 index and documents, and v2, in JSON and protobuf (design 6).
//!
//! A kind is described by the server that requests for it go to: what the answering server serves, it describes itself;
//! the rest is taken from the first other server that is up. New kinds are thus explained through an old node, new fields
//! of a kind that it serves are not: it would not store them. Documents that need nothing from others are not touched.
//! Whatever goes wrong with other servers' documents, the server's own answer goes out as it is.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use dashmap::DashMap;
use http::{HeaderValue, Request, Response, header};
use tokio::time::{Instant, timeout_at};

use super::{
    Case,
    aggregated::{Inputs, Others},
    answer::{Authorised, Comparison, Completion, Plain, Unread},
};
use crate::{
    api::{GroupVersion, ServerId},
    body::Body,
    request_info::{OpenApiPath, RequestInfo},
    table::{Server, Table},
};

#[cfg(test)]
mod archive;
mod document;
mod format;
mod hash;
mod index;
mod library;
mod missing;
mod respond;
mod spec;
#[cfg(test)]
mod tests;
mod wireformat;

use format::{Format, SpecError};
use hash::{immutable, take_hash};
use index::{Index, name_of};
pub use library::{Done, Fetch, FetchRequest, Fetched};
use library::{Library, MAX_DOCUMENT, Stored};
use missing::{Contributor, Missing};
use respond::{Outcome, respond};

/// How long a client waits for other servers' documents and for the merge before it gets the server's own answer.
const WITHIN: Duration = Duration::from_secs(2);
/// Kept results: group-versions that differ, in two representations.
const MAX_KEPT: usize = 1024;
/// The longest Accept header that results are kept by: it is the client's, and may have a megabyte.
const MAX_ACCEPT: usize = 512;

/// What is kept between requests.
#[derive(Debug, Default)]
pub(super) struct OpenApi {
    fetch: std::sync::OnceLock<Arc<dyn Fetch>>,
    library: Library,
    missing: DashMap<ServerId, Arc<(Inputs, Arc<Missing>)>>,
    merged: Arc<DashMap<(ServerId, String, Format), Arc<Merged>>>,
    /// The same by what the client accepts: what a 304 to such a request would be about.
    recent: DashMap<(ServerId, String, HeaderValue), Arc<Merged>>,
    indices: DashMap<ServerId, Arc<DoneIndex>>,
    /// One merge at a time, in one blocking thread.
    merging: Arc<tokio::sync::Mutex<()>>,
}

/// How an OpenAPI answer is to be completed.
#[derive(Debug)]
pub(super) struct OpenPlan {
    kind: OpenApiPath,
    /// Path of the document.
    path: String,
    group_version: Option<GroupVersion>,
    /// The hash that the client believes it to have.
    hash: Option<String>,
    accept: HeaderValue,
    missing: Arc<Missing>,
    merged: Option<Arc<Merged>>,
}

/// A completed document.
#[derive(Clone, Debug)]
struct Merged {
    base_etag: HeaderValue,
    hash: String,
    missing: Arc<Missing>,
    content_type: HeaderValue,
    /// Compressed if it is large enough.
    bytes: Bytes,
    gzip: bool,
    /// Of the plain bytes; 0: nobody has built it.
    length: usize,
}

/// A completed index and what it was made of.
#[derive(Debug)]
struct DoneIndex {
    input: Bytes,
    missing: Arc<Missing>,
    stored: Vec<Arc<Stored>>,
    output: Bytes,
}

impl OpenApi {
    /// Documents of other servers are fetched with this from now on.
    pub(super) fn set_fetch(&self, fetch: Arc<dyn Fetch>) {
        // The first one stays; the daemon sets one.
        let _second = self.fetch.set(fetch);
    }

    /// As [`super::Discovery::prepare`]: `None` if the document needs nothing from others.
    pub(super) fn prepare<B>(
        &self,
        info: &RequestInfo,
        kind: OpenApiPath,
        table: &Table,
        server: &Server,
        request: &mut Request<B>,
    ) -> Option<OpenPlan> {
        self.fetch.get()?;
        let missing = self.missing(table, server.id)?;
        let path = info.path().to_owned();
        let mut group_version = None;
        if kind == OpenApiPath::V3Document {
            let asked = info.group_version()?;
            if path.strip_prefix("/openapi/v3/") != Some(&name_of(asked)) {
                return None;
            }
            if !missing.versions().any(|known| known == asked) {
                return None;
            }
            group_version = Some(GroupVersion::new(asked.group, asked.version));
        }
        let hash = if kind == OpenApiPath::V3Document {
            take_hash(request.uri_mut()).ok()?
        } else {
            None
        };
        let headers = request.headers_mut();
        for name in [
            header::IF_MODIFIED_SINCE,
            header::IF_UNMODIFIED_SINCE,
            header::IF_MATCH,
            header::IF_RANGE,
            header::RANGE,
            header::ACCEPT_ENCODING,
        ] {
            headers.remove(name);
        }
        let accept = headers
            .get(header::ACCEPT)
            .cloned()
            .unwrap_or_else(|| HeaderValue::from_static(""));
        let merged = self
            .recent
            .get(&(server.id, path.clone(), accept.clone()))
            .map(|merged| Arc::clone(&*merged))
            .filter(|merged| Arc::ptr_eq(&merged.missing, &missing));
        // A 304 to what the client has would leave nothing to complete.
        headers.remove(header::IF_NONE_MATCH);
        if let Some(merged) = &merged {
            headers.insert(header::IF_NONE_MATCH, merged.base_etag.clone());
        }
        Some(OpenPlan {
            kind,
            path,
            group_version,
            hash,
            accept,
            missing,
            merged,
        })
    }

    /// What others add to this server; `None` if nothing.
    fn missing(&self, table: &Table, server: ServerId) -> Option<Arc<Missing>> {
        let catalogue = table.catalogue(server)?;
        let others = Others::of(table, server);
        let inputs = others.inputs(&HeaderValue::from(catalogue.generation));
        let known = self.missing.get(&server).map(|known| Arc::clone(&*known));
        let known = if let Some(known) = known.filter(|known| known.0 == inputs) {
            known
        } else {
            let missing = Arc::new(Missing::of(&catalogue.documents, &others));
            let known = Arc::new((inputs, missing));
            self.missing.insert(server, Arc::clone(&known));
            self.sweep(table);
            known
        };
        (!known.1.is_empty()).then(|| Arc::clone(&known.1))
    }

    /// Forgets what belongs to servers that are no more.
    fn sweep(&self, table: &Table) {
        let members = table.members();
        let is_member =
            |id: ServerId| id == members.local.id || members.peers.iter().any(|peer| peer.id == id);
        self.library.retain(is_member);
        self.missing.retain(|id, _| is_member(*id));
        self.indices.retain(|id, _| is_member(*id));
        self.merged.retain(|(id, ..), _| is_member(*id));
        self.recent.retain(|(id, ..), _| is_member(*id));
        if self.merged.len() > MAX_KEPT {
            self.merged.clear();
        }
        if self.recent.len() > MAX_KEPT {
            self.recent.clear();
        }
    }

    /// As [`super::Discovery::complete`].
    pub(super) async fn complete(
        &self,
        case: Case<'_>,
        open: &OpenPlan,
        mut answer: Authorised,
    ) -> Response<Body> {
        let Case { plan, from, .. } = case;
        let completed = match open.kind {
            OpenApiPath::V3Index => self.complete_index(case, open, &mut answer).await,
            OpenApiPath::V2 | OpenApiPath::V3Document => {
                self.complete_document(case, open, &mut answer).await
            }
        };
        match completed {
            Ok(Outcome::Own { hash }) if open.hash.is_some() && open.hash == hash => {
                immutable(answer.relay())
            }
            Ok(Outcome::Own { .. }) => answer.relay(),
            Ok(Outcome::Merged(merged)) => {
                self.remember(open, from, &merged);
                respond(plan, open, answer, &merged)
            }
            Ok(Outcome::Unbuilt(merged)) => respond(plan, open, answer, &merged),
            Ok(Outcome::Bare) => answer.bare(),
            Ok(Outcome::Index { bytes }) => {
                let content_type = answer
                    .content_type()
                    .cloned()
                    .unwrap_or_else(|| HeaderValue::from_static("application/json"));
                answer.complete(
                    &plan.client,
                    Completion {
                        plain: Plain::Bytes(bytes),
                        gzip: None,
                        content_type,
                        etag: None,
                        comparison: Comparison::Weak,
                    },
                )
            }
            Err(Trouble::Broken) => answer.broken(),
            Err(trouble) => {
                case.counters.openapi_fallback(from, &trouble);
                match (&open.merged, answer.is_unchanged()) {
                    // The server's own answer has no body: what was completed last is the best there is.
                    (Some(merged), true) => respond(plan, open, answer, merged),
                    _ => answer.relay(),
                }
            }
        }
    }

    async fn complete_index(
        &self,
        case: Case<'_>,
        open: &OpenPlan,
        answer: &mut Authorised,
    ) -> Result<Outcome, Trouble> {
        let Case { plan, from, .. } = case;
        if plan.client.head {
            return Ok(Outcome::Bare);
        }
        let input = answer.read(MAX_DOCUMENT).await?;
        let contributors = open.missing.contributors(None);
        let deadline = Instant::now() + WITHIN;
        let shelf = self
            .gather(
                case,
                &contributors,
                deadline,
                "/openapi/v3",
                "application/json",
            )
            .await?;
        let stored: Vec<Arc<Stored>> = shelf.iter().map(|(_, stored)| Arc::clone(stored)).collect();
        if let Some(done) = self.indices.get(&from)
            && done.input == input
            && Arc::ptr_eq(&done.missing, &open.missing)
            && done.stored.len() == stored.len()
            && done
                .stored
                .iter()
                .zip(&stored)
                .all(|(a, b)| Arc::ptr_eq(a, b))
        {
            return Ok(Outcome::Index {
                bytes: done.output.clone(),
            });
        }
        let own: Index = serde_json::from_slice(&input).map_err(SpecError::Json)?;
        let mut others = Vec::new();
        for (contributor, stored) in &shelf {
            // One bad index does not spoil the others.
            if let Some(bytes) = stored.plain()
                && let Ok(index) = serde_json::from_slice::<Index>(&bytes)
            {
                others.push((contributor.server, contributor.live, index));
            }
        }
        let versions: Vec<(String, Vec<Contributor>)> = open
            .missing
            .versions()
            .map(|group_version| {
                (
                    name_of(group_version),
                    open.missing.contributors(Some(group_version)),
                )
            })
            .collect();
        let completed = index::complete(&own, &others, &versions);
        let output = Bytes::from(serde_json::to_vec(&completed).map_err(SpecError::Json)?);
        let done = DoneIndex {
            input,
            missing: Arc::clone(&open.missing),
            stored,
            output: output.clone(),
        };
        self.indices.insert(from, Arc::new(done));
        Ok(Outcome::Index { bytes: output })
    }

    /// The contributors' documents that can be had in time. Servers that cannot be asked and whose document is not here add
    /// nothing; one that fails does not spoil the others.
    async fn gather<'a>(
        &self,
        case: Case<'_>,
        contributors: &'a [Contributor],
        deadline: Instant,
        path: &str,
        accept: &'static str,
    ) -> Result<Vec<(&'a Contributor, Arc<Stored>)>, Trouble> {
        let fetch = self.fetch.get().ok_or(Trouble::Unknown)?;
        let members = case.table.members().clone();
        let all = contributors.iter().map(async |contributor| {
            let server = std::iter::once(&members.local)
                .chain(members.peers.iter())
                .find(|server| server.id == contributor.server);
            let Some(server) = server else {
                return Ok(None);
            };
            let of = (contributor.generation, contributor.live);
            let got = self.library.get(fetch.as_ref(), server, of, path, accept);
            match timeout_at(deadline, got).await {
                // A server that is slow now is described as it was before, like one that fails.
                Err(_elapsed) => self
                    .library
                    .kept(server.id, path, accept)
                    .map(|stored| Some((contributor, stored)))
                    .ok_or(Trouble::Late),
                Ok(Some(stored)) => Ok(Some((contributor, stored))),
                Ok(None) if contributor.live => Err(Trouble::Unfetched),
                Ok(None) => Ok(None),
            }
        });
        let mut gathered = Vec::new();
        let mut trouble = None;
        for outcome in futures_util::future::join_all(all).await {
            match outcome {
                Ok(got) => gathered.extend(got),
                Err(error) => trouble = Some(error),
            }
        }
        match trouble {
            Some(trouble) if gathered.is_empty() => Err(trouble),
            Some(trouble) => {
                case.counters.openapi_fallback(case.from, &trouble);
                Ok(gathered)
            }
            None => Ok(gathered),
        }
    }

    /// What the next 304 to a request that accepts the same would be about.
    fn remember(&self, open: &OpenPlan, from: ServerId, merged: &Arc<Merged>) {
        if open.accept.len() > MAX_ACCEPT {
            return;
        }
        // A copy: the request's own value would keep the whole head that it was read with.
        let Ok(accept) = HeaderValue::from_bytes(open.accept.as_bytes()) else {
            return;
        };
        let key = (from, open.path.clone(), accept);
        if self.recent.len() >= MAX_KEPT && !self.recent.contains_key(&key) {
            self.recent.clear();
        }
        self.recent.insert(key, Arc::clone(merged));
    }
}

/// Why an answer goes out as it is.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("it broke off")]
    Broken,
    #[error("another server's document could not be fetched")]
    Unfetched,
    #[error("the completed document is not there in time")]
    Late,
    #[error("it is not in a form that can be completed")]
    Unknown,
    #[error(transparent)]
    Unreadable(#[from] crate::api::wire::WireError),
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl From<Unread> for Trouble {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Broken => Self::Broken,
            Unread::Opaque(error) => Self::Unreadable(error),
        }
    }
}
