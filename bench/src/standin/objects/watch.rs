//! Watches: initial events, changes as they happen, bookmarks, and the ends a watch can have.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    super::{
        body::Body,
        call::Call,
        reply::{Reply, with_body},
        server::{Phase, Server},
        status::Status,
        store::{Event, StoreError, Stored},
    },
    Target,
    read::partial,
    select::Selection,
};

/// kube-apiserver sends bookmarks about once a minute.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// Without timeoutSeconds a watch lasts between 30 and 60 minutes (`--min-request-timeout`); here always this long.
const DEFAULT_TIMEOUT: u64 = 45 * 60;

struct Watch {
    server: Arc<Server>,
    target: Target,
    selection: Selection,
    partial: bool,
    bookmarks: bool,
    prefix: String,
    after: u64,
    queue: VecDeque<Bytes>,
    until: Instant,
    next_bookmark: Instant,
    failed: bool,
}

pub(super) async fn watch(call: &Call, target: &Target) -> Result<Reply, Status> {
    let revision = call.parameter("resourceVersion").unwrap_or_default();
    let bookmarks = call.flag("allowWatchBookmarks");
    let initial = call.flag("sendInitialEvents");
    let seconds = call
        .parameter("timeoutSeconds")
        .and_then(|text| text.parse().ok())
        .filter(|seconds| *seconds > 0);
    let mut watch = Watch {
        server: Arc::clone(&call.server),
        target: target.clone(),
        selection: Selection::of(call)?,
        partial: call.accept.partial_metadata(),
        bookmarks,
        prefix: target.prefix(),
        after: 0,
        queue: VecDeque::new(),
        until: Instant::now() + Duration::from_secs(seconds.unwrap_or(DEFAULT_TIMEOUT)),
        next_bookmark: Instant::now() + BOOKMARK_EVERY,
        failed: false,
    };
    if revision.is_empty() || revision == "0" || initial {
        let (all, now) = call.server.store.list(&watch.prefix).await?;
        for stored in all
            .iter()
            .filter(|stored| watch.selection.matches(&stored.value))
        {
            let line = watch.line("ADDED", stored);
            watch.queue.push_back(line);
        }
        watch.after = now;
        if initial && bookmarks {
            let line = watch.bookmark(true);
            watch.queue.push_back(line);
        }
    } else {
        watch.after = revision.parse().map_err(|error| {
            Status::bad_request(format!("invalid resource version {revision:?}: {error}"))
        })?;
    }
    let events = futures_util::stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((Ok::<_, Infallible>(line), watch))
    });
    Ok(with_body(
        StatusCode::OK,
        "application/json",
        Body::events(events),
    ))
}

impl Watch {
    /// The next line; none: the watch is over.
    async fn next(&mut self) -> Option<Bytes> {
        let server = Arc::clone(&self.server);
        let mut phase = server.phase.subscribe();
        loop {
            if let Some(line) = self.queue.pop_front() {
                return Some(line);
            }
            if self.failed {
                return None;
            }
            let wake = if self.bookmarks {
                self.until.min(self.next_bookmark)
            } else {
                self.until
            };
            tokio::select! {
                changes = server.store.changes(&self.prefix, self.after) => self.take(changes),
                () = tokio::time::sleep_until(wake) => {
                    if Instant::now() >= self.until {
                        return None;
                    }
                    self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                    let line = self.bookmark(false);
                    self.queue.push_back(line);
                }
                _ = phase.wait_for(|phase| *phase >= Phase::Stopping) => return None,
            }
        }
    }

    fn take(&mut self, changes: Result<(Vec<Event>, u64), StoreError>) {
        match changes {
            Ok((events, now)) => {
                for event in events {
                    if let Some(line) = self.event(&event) {
                        self.queue.push_back(line);
                    }
                }
                self.after = now;
            }
            Err(StoreError::Compacted) => {
                let line = json!({"type": "ERROR", "object": Status::expired()});
                self.queue.push_back(Bytes::from(format!("{line}\n")));
                self.failed = true;
            }
            Err(error) => {
                tracing::warn!(%error, "A watch lost the store");
                self.failed = true;
            }
        }
    }

    fn event(&self, event: &Event) -> Option<Bytes> {
        let before = event
            .previous
            .as_ref()
            .is_some_and(|stored| self.selection.matches(&stored.value));
        let now = !event.deleted && self.selection.matches(&event.object.value);
        let kind = match (before, now) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(self.line(kind, &event.object))
    }

    fn line(&self, kind: &str, stored: &Stored) -> Bytes {
        let object = if self.partial {
            Bytes::from(partial(stored, true).to_string())
        } else {
            self.target.shown(stored)
        };
        let mut line = Vec::with_capacity(object.len() + 48);
        line.extend(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
        line.extend_from_slice(&object);
        line.extend(b"}\n");
        Bytes::from(line)
    }

    fn bookmark(&self, initial: bool) -> Bytes {
        let mut metadata =
            json!({"resourceVersion": self.after.to_string(), "creationTimestamp": null});
        if initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object: Value = json!({
            "kind": self.target.resource.kind(), "apiVersion": self.target.api_version(), "metadata": metadata,
        });
        Bytes::from(format!(
            "{}\n",
            json!({"type": "BOOKMARK", "object": object})
        ))
    }
}
