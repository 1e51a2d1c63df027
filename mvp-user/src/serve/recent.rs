//! The last requests that went to a peer, and the last that mvp refused: for people who look now (`mvp ui`).
//!
//! Like requests are one entry with a count, so that a busy client does not push everything else out. Bounded in entries
//! and in bytes; holds no names of objects or users, no query and nothing from a header. Never touched by a request
//! that local answers.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use http::Method;

use crate::{
    api::ServerId,
    request_info::{Class, RequestInfo},
};

/// Entries of each list.
const ENTRIES: usize = 64;
/// Bytes of one part of a name: twice what Kubernetes allows for a resource.
const PART: usize = 128;

/// Requests of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// `GET`, ...; `OTHER` for what is not standard.
    pub method: &'static str,
    /// Group, version, resource and subresource, or the class of another path, or nothing.
    pub what: Box<str>,
    /// Who answered.
    pub server: Option<ServerId>,
    /// Why: the word of a decision or of a refusal.
    pub why: &'static str,
    /// HTTP status.
    pub status: u16,
    /// How many there were since the entry came up.
    pub count: u64,
    /// When the last one was.
    pub last: SystemTime,
}

/// Both lists, newest first.
#[derive(Debug, Default)]
pub struct Recent {
    rerouted: List,
    refused: List,
}

#[derive(Debug, Default)]
struct List(Mutex<VecDeque<Entry>>);

/// What two requests of one kind have in common.
#[derive(Clone, Copy)]
pub(super) struct Kind<'a> {
    pub(super) method: &'a Method,
    /// None: the request was refused before it was read.
    pub(super) info: Option<&'a RequestInfo>,
    pub(super) server: Option<ServerId>,
    pub(super) why: &'static str,
    pub(super) status: u16,
}

impl Recent {
    /// A peer answered.
    pub(super) fn rerouted(&self, kind: Kind<'_>) {
        self.rerouted.note(kind);
    }

    /// mvp answered.
    pub(super) fn refused(&self, kind: Kind<'_>) {
        self.refused.note(kind);
    }

    /// The last requests that a peer answered, newest first.
    pub fn last_rerouted(&self) -> Vec<Entry> {
        self.rerouted.read()
    }

    /// The last requests that mvp refused, newest first.
    pub fn last_refused(&self) -> Vec<Entry> {
        self.refused.read()
    }
}

impl List {
    fn note(&self, kind: Kind<'_>) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = entries.iter().position(|entry| kind.is(entry));
        let mut entry = match known.and_then(|at| entries.remove(at)) {
            Some(entry) => entry,
            None => kind.entry(),
        };
        entry.count += 1;
        entry.last = SystemTime::now();
        entries.truncate(ENTRIES - 1);
        entries.push_front(entry);
    }

    fn read(&self) -> Vec<Entry> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().cloned().collect()
    }
}

impl Kind<'_> {
    fn is(&self, entry: &Entry) -> bool {
        entry.status == self.status
            && entry.why == self.why
            && entry.server == self.server
            && entry.method == word(self.method)
            && self.says(&entry.what)
    }

    /// Whether [`what`] would be `text`, without making it.
    fn says(&self, mut text: &str) -> bool {
        let mut whole = true;
        parts(self.info, |part| match text.strip_prefix(part) {
            Some(rest) if whole => text = rest,
            _ => whole = false,
        });
        whole && text.is_empty()
    }

    fn entry(&self) -> Entry {
        Entry {
            method: word(self.method),
            what: what(self.info),
            server: self.server,
            why: self.why,
            status: self.status,
            count: 0,
            last: SystemTime::UNIX_EPOCH,
        }
    }
}

/// Group, version, resource and subresource, or the class of another path, or nothing: no names of objects.
pub(super) fn what(info: Option<&RequestInfo>) -> Box<str> {
    let mut text = String::new();
    parts(info, |part| text.push_str(part));
    text.into()
}

fn parts(info: Option<&RequestInfo>, mut take: impl FnMut(&str)) {
    let Some(info) = info else {
        return;
    };
    if let Some(resource) = info.resource() {
        if !resource.group.is_empty() {
            take(cut(resource.group));
            take("/");
        }
        take(cut(resource.version));
        take(" ");
        take(cut(resource.resource));
        if let Some(subresource) = info.subresource() {
            take("/");
            take(cut(subresource));
        }
        return;
    }
    take(match info.class() {
        Class::Resource => "resource",
        Class::Discovery(_) => "discovery",
        Class::OpenApi(_) => "OpenAPI",
        Class::LocalOnly => "health, metrics or logs",
        Class::Other => "another path",
    });
    if let Some(version) = info.group_version() {
        take(" of ");
        if !version.group.is_empty() {
            take(cut(version.group));
            take("/");
        }
        take(cut(version.version));
    } else if let Some(group) = info.group() {
        take(" of ");
        take(cut(group));
    }
}

fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "OTHER",
    }
}

/// As much of a name as is kept.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(PART)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(path: &str) -> RequestInfo {
        RequestInfo::parse(&Method::GET, &path.parse().unwrap()).unwrap()
    }

    fn note(recent: &Recent, path: &str) {
        recent.refused(Kind {
            method: &Method::GET,
            info: Some(&info(path)),
            server: None,
            why: "not_ready",
            status: 503,
        });
    }

    fn seen(recent: &Recent) -> Vec<(String, u64)> {
        let all = recent.last_refused();
        all.into_iter()
            .map(|it| (it.what.into(), it.count))
            .collect()
    }

    #[test]
    fn like_requests_are_one_entry_that_names_no_object_and_no_query() {
        let recent = Recent::default();
        note(
            &recent,
            "/apis/apps/v1/namespaces/prod/deployments/web/scale?token=hunter2",
        );
        note(&recent, "/api/v1/namespaces/prod/secrets/password");
        note(
            &recent,
            "/apis/apps/v1/namespaces/dev/deployments/other/scale",
        );
        let wanted = [("apps/v1 deployments/scale", 2), ("v1 secrets", 1)];
        assert_eq!(
            seen(&recent),
            wanted.map(|(what, count)| (what.to_owned(), count))
        );
    }

    #[test]
    fn a_flood_of_names_is_bounded_in_entries_and_in_bytes() {
        let recent = Recent::default();
        for number in 0..2000 {
            let long = "x".repeat(5000);
            note(
                &recent,
                &format!("/apis/{number}{long}/{long}/{long}/n/{long}"),
            );
        }
        let seen = seen(&recent);
        assert_eq!(seen.len(), ENTRIES);
        assert!(seen.iter().all(|(what, _)| what.len() <= 4 * PART + 3));
        assert!(seen[0].0.starts_with("1999x"));
    }

    #[test]
    fn other_paths_and_unread_requests_have_a_word_each() {
        let recent = Recent::default();
        for path in [
            "/apis",
            "/apis/apps/v1",
            "/apis/apps",
            "/openapi/v3",
            "/healthz/x",
            "/secret",
        ] {
            note(&recent, path);
        }
        let odd = Method::from_bytes(b"SECRET-IN-A-METHOD").unwrap();
        recent.refused(Kind {
            method: &odd,
            info: None,
            server: None,
            why: "unauthorized",
            status: 401,
        });
        assert_eq!(recent.last_refused()[0].method, "OTHER");
        let words: Vec<_> = seen(&recent).into_iter().map(|(what, _)| what).collect();
        assert_eq!(
            words,
            [
                "",
                "another path",
                "health, metrics or logs",
                "OpenAPI",
                "discovery of apps",
                "discovery of apps/v1",
                "discovery"
            ]
        );
    }
}
