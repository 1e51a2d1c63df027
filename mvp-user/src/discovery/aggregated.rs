//! Completed aggregated documents: built once per change of their inputs, then served from memory.
//!
//! What is kept for each answering server is its own document, by its `ETag`, and what came out of merging it with the
//! catalogues of the others. Only [`Authorised`] answers reach either.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use dashmap::DashMap;
use http::{HeaderValue, Response, header};
use sha2::{Digest as _, Sha512};

use super::{
    Case, Counters, Document,
    answer::{Authorised, Comparison, Completion, Plain, Unread, compress},
};
use crate::{
    api::{
        ServerId,
        discovery::{Form, GROUP, GroupList, KIND},
        wire::{Encoding, MAX_DOCUMENT},
    },
    body::Body,
    table::Table,
};

mod others;

pub(super) use others::{Inputs, Others};

/// Documents beyond this are parsed and merged on another thread, so that no request waits behind them.
pub(super) const BLOCKING_FROM: usize = 64 << 10;
/// Bytes of an entry of a document (a version, a resource), about.
const ENTRY: usize = 300;
/// Slots are swept when there are more.
const MAX_SLOTS: usize = 64;

/// Which document of which server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub(super) server: ServerId,
    /// `/api`, else `/apis`.
    pub(super) core: bool,
    pub(super) form: Form,
    pub(super) own: Own,
}

/// Where the server's own document comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Own {
    /// Its answer to the request that is being completed.
    Answer,
    /// Its catalogue: the request was for another document, or for none (HEAD).
    Catalogue,
}

/// A server's own document.
#[derive(Debug)]
pub(super) struct Base {
    etag: HeaderValue,
    form: Form,
    list: GroupList,
    size: usize,
}

/// A merged document in every representation that was asked for.
#[derive(Debug)]
pub(super) struct Completed {
    inputs: Inputs,
    form: Form,
    list: GroupList,
    etag: HeaderValue,
    /// Whether the others add anything.
    adds: bool,
    renderings: [OnceLock<Option<Rendering>>; 5],
}

/// Bytes of a document, plain and, if they are many, compressed.
pub(super) type Rendering = (Bytes, Option<Bytes>);

#[derive(Debug, Default)]
struct Slot {
    base: ArcSwapOption<Base>,
    completed: ArcSwapOption<Completed>,
    building: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
pub(super) struct Aggregated {
    slots: DashMap<Key, Arc<Slot>>,
}

impl Aggregated {
    /// What the server is to be asked with instead of the client's If-None-Match, if what it answers is known: the `ETag`
    /// of its own document. `None`: without.
    pub(super) fn known(
        &self,
        key: Key,
        client: Option<&HeaderValue>,
    ) -> Option<(Arc<Base>, HeaderValue)> {
        let slot = Arc::clone(&*self.slots.get(&key)?);
        let base = slot.base.load_full()?;
        let completed = slot.completed.load();
        let adds = completed.as_ref().is_none_or(|completed| completed.adds);
        // Where nothing is added the answer goes through as it is: 304 only to who has it, a body to others.
        if !adds && client != Some(&base.etag) {
            return None;
        }
        let etag = base.etag.clone();
        Some((base, etag))
    }

    /// Completes a server's answer of this form.
    pub(super) async fn complete(
        &self,
        case: Case<'_>,
        form: Form,
        mut answer: Authorised,
    ) -> Response<Body> {
        let Case {
            plan,
            from,
            table,
            counters,
        } = case;
        let core = plan.document == Document::Api;
        let mut key = Key {
            server: from,
            core,
            form,
            own: Own::Answer,
        };
        let mut slot = self.slot(key, table);
        let encoding = if answer.is_unchanged() {
            plan.wanted.first().map(|wanted| wanted.encoding)
        } else {
            answer.text(&header::CONTENT_TYPE).and_then(Encoding::of)
        };
        let Some(mut encoding) = encoding else {
            return answer.relay();
        };
        let known = if answer.is_unchanged() {
            plan.base.clone()
        } else {
            slot.base.load_full()
        };
        let known = known.filter(|base| {
            answer.etag().is_none_or(|etag| *etag == base.etag) && base.form == key.form
        });
        let base = match known {
            // A body in the way of a known document may still be indented, and must be looked at.
            Some(base) if (answer.etag().is_some() && !plan.pretty) || answer.is_unchanged() => {
                base
            }
            _ if answer.is_unchanged() => return answer.relay(),
            _ if plan.client.head => {
                // What was learnt may be older than what the server's ETag names: what is made of it is kept apart.
                key.own = Own::Catalogue;
                slot = self.slot(key, table);
                match slot.learnt(key, table) {
                    Some(base) if answer.etag().is_some() => base,
                    _ => return answer.relay(),
                }
            }
            _ => match read(&mut answer, encoding, key.form, counters).await {
                Ok((base, indented)) => {
                    if indented {
                        encoding = Encoding::PrettyJson;
                    }
                    slot.base.store(Some(Arc::clone(&base)));
                    base
                }
                Err(Unread::Broken) => return answer.broken(),
                Err(Unread::Opaque(error)) => {
                    counters.unreadable(key.server, &error);
                    return answer.relay();
                }
            },
        };
        let Some(completed) = slot.completed(&base, key, table, counters).await else {
            return answer.relay();
        };
        let has_it = plan.client.if_none_match.as_ref() == Some(&base.etag);
        if !completed.adds && has_it {
            return answer.unchanged();
        }
        if !completed.adds && !answer.is_unchanged() {
            return answer.relay();
        }
        let Some((bytes, gzip)) = completed.rendering(encoding).await else {
            return answer.relay();
        };
        let Ok(content_type) = HeaderValue::try_from(format!(
            "{};g={GROUP};v={};as={KIND}",
            encoding.media_type(),
            key.form.version()
        )) else {
            return answer.relay();
        };
        answer.complete(
            &plan.client,
            Completion {
                plain: Plain::Bytes(bytes),
                gzip,
                content_type,
                etag: Some(completed.etag.clone()),
                comparison: Comparison::Exact,
            },
        )
    }

    /// What all servers together serve, by their catalogues: for documents that are not aggregated discovery. `None` if
    /// nothing is known.
    pub(super) async fn known_to_all(
        &self,
        _authorised: &Authorised,
        case: Case<'_>,
        core: bool,
    ) -> Option<Arc<Completed>> {
        let (table, authority) = (case.table, case.plan.authority);
        let key = Key {
            server: authority,
            core,
            form: Form::V2,
            own: Own::Catalogue,
        };
        let slot = self.slot(key, table);
        let base = slot.learnt(key, table).unwrap_or_else(|| {
            Arc::new(Base {
                etag: HeaderValue::from(0),
                form: key.form,
                list: GroupList::default(),
                size: 0,
            })
        });
        slot.completed(&base, key, table, case.counters).await
    }

    fn slot(&self, key: Key, table: &Table) -> Arc<Slot> {
        if self.slots.len() > MAX_SLOTS {
            let members = table.members();
            self.slots.retain(|key, _| {
                key.server == members.local.id
                    || members.peers.iter().any(|peer| peer.id == key.server)
            });
        }
        Arc::clone(&*self.slots.entry(key).or_default())
    }
}

async fn read(
    answer: &mut Authorised,
    encoding: Encoding,
    form: Form,
    counters: &Counters,
) -> Result<(Arc<Base>, bool), Unread> {
    let body = answer.read(MAX_DOCUMENT).await?;
    counters.parse();
    let etag = answer.etag().cloned();
    let indented = encoding == Encoding::Json && body.starts_with(b"{\n");
    let media_type = encoding.media_type();
    let size = body.len();
    let (read_form, list) = blocking(size, move || GroupList::parse(media_type, &body))
        .await
        .unwrap_or_else(|| {
            Err(crate::api::wire::WireError::Syntax(
                "document",
                "the parser failed".to_owned(),
            ))
        })
        .map_err(Unread::Opaque)?;
    if read_form != form {
        return Err(Unread::Opaque(crate::api::wire::WireError::Kind(
            KIND.to_owned(),
            read_form.api_version().to_owned(),
        )));
    }
    // A server that gives no ETag is told apart by what it says.
    let etag = etag
        .or_else(|| etag_of(&list))
        .unwrap_or_else(|| HeaderValue::from_static(""));
    Ok((
        Arc::new(Base {
            etag,
            form,
            list,
            size,
        }),
        indented,
    ))
}

/// Runs it here if it is short, else on a thread for such work. `None` if it failed to run.
pub(super) async fn blocking<T: Send + 'static>(
    size: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if size < BLOCKING_FROM {
        return Some(work());
    }
    tokio::task::spawn_blocking(work).await.ok()
}

impl Slot {
    /// The server's own document as it was learnt; its tag is the catalogue's generation. `None`: it was never read.
    fn learnt(&self, key: Key, table: &Table) -> Option<Arc<Base>> {
        let catalogue = table.catalogue(key.server)?;
        let etag = HeaderValue::from(catalogue.generation);
        let known = self.base.load_full().filter(|base| base.etag == etag);
        if known.is_some() {
            return known;
        }
        let documents = &catalogue.documents;
        let list = if key.core {
            documents.core.clone()
        } else {
            documents.groups.clone()
        };
        let size = list.items.len() * 1024;
        let base = Arc::new(Base {
            etag,
            form: key.form,
            list,
            size,
        });
        self.base.store(Some(Arc::clone(&base)));
        Some(base)
    }

    /// The document completed from `base`, built by one caller while the others wait; also if that one leaves meanwhile.
    async fn completed(
        self: &Arc<Self>,
        base: &Arc<Base>,
        key: Key,
        table: &Table,
        counters: &Counters,
    ) -> Option<Arc<Completed>> {
        let others = Others::of(table, key.server);
        let inputs = others.inputs(&base.etag);
        let current = || {
            self.completed
                .load_full()
                .filter(|completed| completed.inputs == inputs)
        };
        if let Some(completed) = current() {
            counters.hit();
            return Some(completed);
        }
        let building = Arc::clone(&self.building).lock_owned().await;
        if let Some(completed) = current() {
            counters.hit();
            return Some(completed);
        }
        counters.build();
        let base = Arc::clone(base);
        let size = base.size + others.weight();
        let slot = Arc::clone(self);
        blocking(size, move || {
            let list = others.merge(&base.list, key.core);
            let adds = list != base.list;
            let etag = etag_of(&list)?;
            let renderings = Default::default();
            let completed = Arc::new(Completed {
                inputs,
                form: base.form,
                list,
                etag,
                adds,
                renderings,
            });
            slot.completed.store(Some(Arc::clone(&completed)));
            drop(building);
            Some(completed)
        })
        .await?
    }
}

impl Completed {
    /// What is served by anyone.
    pub(super) fn list(&self) -> &GroupList {
        &self.list
    }

    /// The bytes, plain and perhaps compressed; written once.
    async fn rendering(self: &Arc<Self>, encoding: Encoding) -> Option<Rendering> {
        let place = self.renderings.get(encoding as usize)?;
        if let Some(done) = place.get() {
            return done.clone();
        }
        let this = Arc::clone(self);
        let size = weight(&self.list);
        blocking(size, move || {
            let place = this.renderings.get(encoding as usize)?;
            place
                .get_or_init(|| {
                    let bytes = this.list.write(this.form, encoding).ok()?;
                    let gzip = compress(&bytes);
                    Some((bytes.into(), gzip))
                })
                .clone()
        })
        .await?
    }
}

/// About how many bytes the document has. A few groups may have thousands of resources.
pub(super) fn weight(list: &GroupList) -> usize {
    let versions = list.items.iter().flat_map(|group| &group.versions);
    let entries = versions.map(|version| 1 + version.resources.len());
    entries.sum::<usize>() * ENTRY
}

/// kube-apiserver's: upper hexadecimal SHA-512 of the JSON without `kind` and `apiVersion`
/// (`k8s.io/apiserver/pkg/endpoints/discovery/aggregated/etag.go`).
pub(super) fn etag_of(list: &GroupList) -> Option<HeaderValue> {
    let json = serde_json::to_vec(list).ok()?;
    HeaderValue::try_from(quoted_hash(&json)).ok()
}

/// `"` and upper hexadecimal SHA-512 and `"`.
pub(super) fn quoted_hash(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(130);
    text.push('"');
    for byte in Sha512::digest(bytes) {
        // Writing to a string does not fail.
        let _infallible = write!(text, "{byte:02X}");
    }
    text.push('"');
    text
}
