//! OpenAPI documents of other servers: fetched when somebody needs them after a change, conditionally, once for all who
//! wait, and kept until the next change. The last good one is kept through failures.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use dashmap::DashMap;
use http::{HeaderValue, StatusCode, header};
use tokio::{runtime::Handle, sync::watch, time::Instant};

use super::{
    format::{Dialect, Format},
    index::Index,
};
use crate::{
    api::{ServerId, wire::decompress},
    table::Server,
};

/// Bound on one document, compressed and not (design 6).
pub(super) const MAX_DOCUMENT: usize = 64 << 20;
/// After a failure the server is left alone for this long.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Nobody waits for a fetch that has taken this long already, if there is something to go on with.
const SLOW: Duration = Duration::from_secs(2);
/// Answers beyond this are looked at on another thread than the side room's.
const BLOCKING_FROM: usize = 64 << 10;
/// Kept documents; a cluster has some hundred group-versions in two representations.
const MAX_SHELVES: usize = 4096;

/// A GET that the side room is to make, with mvp's own identity.
#[derive(Debug)]
pub struct FetchRequest {
    /// Path; no query.
    pub path: String,
    /// Accept.
    pub accept: &'static str,
    /// What is here already.
    pub if_none_match: Option<HeaderValue>,
    /// Bound on the body in bytes.
    pub limit: usize,
}

/// The answer; any status.
#[derive(Debug)]
pub struct Fetched {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: http::HeaderMap,
    /// The body as it came, at most the limit.
    pub body: Bytes,
}

/// Takes the outcome of a fetch.
pub type Done = Box<dyn FnOnce(Result<Fetched, String>) + Send>;

/// Fetches documents of other servers. Runs each request to its end, whoever still waits for it, and calls `done` once.
pub trait Fetch: Send + Sync + std::fmt::Debug {
    /// Begins to fetch; must not block.
    fn fetch(&self, server: Arc<Server>, request: FetchRequest, done: Done);
}

/// A document of another server.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) etag: Option<HeaderValue>,
    /// `None`: the server has no such document.
    body: Mutex<Option<Kept>>,
}

#[derive(Clone, Debug)]
struct Kept {
    bytes: Bytes,
    gzip: bool,
}

#[derive(Clone, Debug, Default)]
struct State {
    stored: Option<Arc<Stored>>,
    /// Generation of the server's catalogue that it is of.
    generation: u64,
    /// Since when it is being fetched.
    fetching: Option<Instant>,
    failed: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Library {
    shelves: DashMap<(ServerId, String, &'static str), Arc<watch::Sender<State>>>,
}

impl Library {
    /// The server's document as of this generation of its catalogue. `None` if it cannot be had now.
    pub(super) async fn get(
        &self,
        fetch: &dyn Fetch,
        server: &Arc<Server>,
        (generation, live): (u64, bool),
        path: &str,
        accept: &'static str,
    ) -> Option<Arc<Stored>> {
        if self.shelves.len() >= MAX_SHELVES {
            self.shelves.clear();
        }
        let shelf = Arc::clone(
            &*self
                .shelves
                .entry((server.id, path.to_owned(), accept))
                .or_default(),
        );
        let mut state = shelf.subscribe();
        loop {
            let now = state.borrow_and_update().clone();
            if now.stored.is_some() && (now.generation == generation || !live) {
                return now.stored;
            }
            let lately = now
                .failed
                .is_some_and(|failed| failed.elapsed() < RETRY_AFTER);
            let slow = now.fetching.is_some_and(|begun| begun.elapsed() >= SLOW);
            if !live || lately && now.fetching.is_none() || slow && now.stored.is_some() {
                // Another generation is better than nothing.
                return now.stored;
            }
            if now.fetching.is_none() {
                let begun = shelf.send_if_modified(|state| {
                    let begun = state.fetching.is_none();
                    state.fetching.get_or_insert_with(Instant::now);
                    begun
                });
                if begun {
                    let request = FetchRequest {
                        path: path.to_owned(),
                        accept,
                        if_none_match: now.stored.as_ref().and_then(|stored| stored.etag.clone()),
                        limit: MAX_DOCUMENT,
                    };
                    let report = Report {
                        shelf: Arc::clone(&shelf),
                        server: server.id,
                        path: path.to_owned(),
                        accept,
                        generation,
                        given: false,
                    };
                    fetch.fetch(
                        Arc::clone(server),
                        request,
                        Box::new(move |outcome| report.give(outcome)),
                    );
                    continue;
                }
            }
            state.changed().await.ok()?;
        }
    }

    /// The server's document as it is here, of whatever generation. `None` if it was never had.
    pub(super) fn kept(
        &self,
        server: ServerId,
        path: &str,
        accept: &'static str,
    ) -> Option<Arc<Stored>> {
        let shelf = Arc::clone(&*self.shelves.get(&(server, path.to_owned(), accept))?);
        let stored = shelf.borrow().stored.clone();
        stored.filter(|stored| stored.exists())
    }

    /// Forgets documents of servers that are no more.
    pub(super) fn retain(&self, is_known: impl Fn(ServerId) -> bool) {
        self.shelves.retain(|(server, ..), _| is_known(*server));
    }
}

/// Puts the outcome of a fetch on its shelf, whatever becomes of the fetch.
struct Report {
    shelf: Arc<watch::Sender<State>>,
    server: ServerId,
    path: String,
    accept: &'static str,
    generation: u64,
    given: bool,
}

impl Report {
    fn give(self, outcome: Result<Fetched, String>) {
        let is_large = |fetched: &Fetched| fetched.body.len() >= BLOCKING_FROM;
        match Handle::try_current() {
            Ok(runtime) if outcome.as_ref().is_ok_and(is_large) => {
                runtime.spawn_blocking(move || self.judge(outcome));
            }
            _ => self.judge(outcome),
        }
    }

    fn judge(mut self, outcome: Result<Fetched, String>) {
        self.given = true;
        let outcome = outcome.and_then(|fetched| {
            check(&self.path, self.accept, &fetched)?;
            Ok(fetched)
        });
        self.put(outcome);
    }

    fn put(&self, outcome: Result<Fetched, String>) {
        self.shelf
            .send_modify(|state| state.take(self.server, &self.path, self.generation, outcome));
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if !self.given {
            self.put(Err("the fetch was given up".to_owned()));
        }
    }
}

impl State {
    fn take(
        &mut self,
        server: ServerId,
        path: &str,
        generation: u64,
        outcome: Result<Fetched, String>,
    ) {
        self.fetching = None;
        let trouble = match outcome {
            Ok(fetched) => match fetched.status {
                StatusCode::NOT_MODIFIED if self.stored.is_some() => None,
                StatusCode::OK => match Kept::of(&fetched) {
                    Ok(kept) => {
                        let etag = fetched.headers.get(header::ETAG).cloned();
                        self.stored = Some(Arc::new(Stored {
                            etag,
                            body: Mutex::new(Some(kept)),
                        }));
                        None
                    }
                    Err(error) => Some(error),
                },
                StatusCode::NOT_FOUND => {
                    self.stored = Some(Arc::new(Stored {
                        etag: None,
                        body: Mutex::new(None),
                    }));
                    None
                }
                status => Some(format!("it answers {status}")),
            },
            Err(error) => Some(error),
        };
        match trouble {
            None => {
                self.failed = None;
                self.generation = generation;
            }
            Some(error) => {
                // Once until it works again.
                if self.failed.is_none() {
                    tracing::warn!(%server, path, error, "OpenAPI document not fetched");
                }
                self.failed = Some(Instant::now());
            }
        }
    }
}

impl Kept {
    fn of(fetched: &Fetched) -> Result<Self, String> {
        let gzip = match fetched
            .headers
            .get(header::CONTENT_ENCODING)
            .map(HeaderValue::as_bytes)
        {
            None | Some(b"identity") => false,
            Some(b"gzip") => true,
            Some(_) => return Err("its content encoding is not known".to_owned()),
        };
        if fetched.body.len() > MAX_DOCUMENT {
            return Err("it is too large".to_owned());
        }
        Ok(Self {
            bytes: fetched.body.clone(),
            gzip,
        })
    }

    fn plain(self) -> Result<Bytes, String> {
        if !self.gzip {
            return Ok(self.bytes);
        }
        decompress(Some("gzip"), &self.bytes, MAX_DOCUMENT)
            .map(Bytes::from)
            .map_err(|error| error.to_string())
    }
}

/// An error unless a 200 has the document that was asked for: what is here already is better than anything else.
fn check(path: &str, accept: &str, fetched: &Fetched) -> Result<(), String> {
    if fetched.status != StatusCode::OK {
        return Ok(());
    }
    let plain = Kept::of(fetched)?.plain()?;
    if path == "/openapi/v3" {
        // As text, by kube-openapi.
        let index: Index = serde_json::from_slice(&plain).map_err(|error| error.to_string())?;
        return if index.is_one() {
            Ok(())
        } else {
            Err("it is no index of OpenAPI documents".to_owned())
        };
    }
    let dialect = if path == "/openapi/v2" {
        Dialect::V2
    } else {
        Dialect::V3
    };
    let wanted = Format {
        dialect,
        protobuf: accept.contains("protobuf"),
    };
    let content_type = fetched.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    if content_type.and_then(|text| Format::of(dialect, text)) != Some(wanted) {
        return Err(format!("its Content-Type is {content_type:?}"));
    }
    let document = wanted.parse(&plain).map_err(|error| error.to_string())?;
    if document.is_openapi(wanted) {
        Ok(())
    } else {
        Err("it is no OpenAPI document".to_owned())
    }
}

impl Stored {
    /// Whether the server has such a document.
    pub(super) fn exists(&self) -> bool {
        self.kept().is_some()
    }

    /// The hash in its `ETag`; empty if it has none.
    pub(super) fn hash(&self) -> &str {
        let etag = self.etag.as_ref().and_then(|etag| etag.to_str().ok());
        etag.unwrap_or_default().trim_matches('"')
    }

    /// The plain bytes. Slow for large documents: not for data threads.
    pub(super) fn plain(&self) -> Option<Bytes> {
        self.kept()?.plain().ok()
    }

    /// Keeps it compressed from now on.
    pub(super) fn shrink(&self) {
        let Some(kept) = self.kept() else { return };
        if !kept.gzip
            && let Some(bytes) = super::super::answer::compress(&kept.bytes)
        {
            *self.body.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Kept { bytes, gzip: true });
        }
    }

    fn kept(&self) -> Option<Kept> {
        self.body
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
