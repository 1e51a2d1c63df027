//! What reached a server: every connection and every request, kept in order for tests to read.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
};

use http::{HeaderMap, Version};
use serde::{Deserialize, Serialize};

use super::authn::User;

/// Oldest entries are forgotten beyond this.
const KEPT: usize = 200_000;

/// A connection as a test sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Number, from 1 for each server.
    pub id: u64,
    /// The client's end of the TCP connection.
    pub client: SocketAddr,
    /// Server name the client sent.
    pub server_name: Option<String>,
    /// ALPN entries the client offered, in its order.
    pub alpn_offered: Vec<String>,
    /// The entry that was chosen.
    pub alpn: Option<String>,
    /// Common name of the client certificate, if one was presented (empty: it has none).
    pub certificate: Option<String>,
    /// It has ended.
    pub closed: bool,
    /// Why the TLS handshake failed, if it did.
    pub failure: Option<String>,
}

/// A request as a test sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Number, from 1 for each server.
    pub sequence: u64,
    /// Milliseconds since 1970 when its head had been read.
    pub at_ms: i64,
    /// Method.
    pub method: String,
    /// Path and query, byte for byte.
    pub target: String,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub protocol: String,
    /// Header lines in order, names in lower case, repeats kept (lines of one name are together).
    pub headers: Vec<(String, String)>,
    /// The connection it came on.
    pub connection: u64,
    /// The client's end of that connection.
    pub client: SocketAddr,
    /// A client certificate was presented on it.
    pub client_certificate: bool,
    /// Who asked; none: 401, or not got so far.
    pub user: Option<User>,
    /// Whom they impersonated.
    pub impersonated: Option<User>,
    /// What an audit log would have as sourceIPs.
    pub source_ips: Vec<String>,
    /// Bytes of the request body that were read.
    pub body_bytes: u64,
    /// Status of the answer; 0: none yet.
    pub status: u16,
    /// The answer was sent to its end.
    pub finished: bool,
}

impl Seen {
    /// The values of a header, in order.
    pub fn header(&self, name: &str) -> Vec<&str> {
        self.headers
            .iter()
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// The path without the query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }
}

/// An entry while its request is running.
#[derive(Debug)]
pub(crate) struct Entry {
    first: Seen,
    user: OnceLock<User>,
    impersonated: OnceLock<User>,
    body_bytes: AtomicU64,
    status: AtomicU16,
    finished: AtomicBool,
}

impl Entry {
    pub(crate) fn authenticated(&self, user: &User) {
        // Only the first word counts.
        drop(self.user.set(user.clone()));
    }

    pub(crate) fn impersonated(&self, user: &User) {
        drop(self.impersonated.set(user.clone()));
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.body_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    pub(crate) fn finished(&self) {
        self.finished.store(true, Ordering::Relaxed);
    }

    fn snapshot(&self) -> Seen {
        Seen {
            user: self.user.get().cloned(),
            impersonated: self.impersonated.get().cloned(),
            body_bytes: self.body_bytes.load(Ordering::Relaxed),
            status: self.status.load(Ordering::Relaxed),
            finished: self.finished.load(Ordering::Relaxed),
            ..self.first.clone()
        }
    }
}

/// The log of one server.
#[derive(Debug, Default)]
pub(crate) struct Log {
    requests: Mutex<VecDeque<Arc<Entry>>>,
    connections: Mutex<VecDeque<Connection>>,
    sequence: AtomicU64,
    off: AtomicBool,
}

/// The head of a request, for the log.
pub(crate) struct Head<'a> {
    pub(crate) method: &'a str,
    pub(crate) target: &'a str,
    pub(crate) version: Version,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) connection: u64,
    pub(crate) client: SocketAddr,
    pub(crate) client_certificate: bool,
}

impl Log {
    fn requests(&self) -> MutexGuard<'_, VecDeque<Arc<Entry>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Connection>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops or starts keeping requests (load tests do not want them).
    pub(crate) fn keep(&self, on: bool) {
        self.off.store(!on, Ordering::Relaxed);
    }

    pub(crate) fn request(&self, head: &Head<'_>) -> Option<Arc<Entry>> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        if self.off.load(Ordering::Relaxed) {
            return None;
        }
        let lossy =
            |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers: Vec<(String, String)> = head
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), lossy(value)))
            .collect();
        let first = Seen {
            sequence,
            at_ms: super::clock::unix_millis(),
            method: head.method.to_owned(),
            target: head.target.to_owned(),
            protocol: format!("{:?}", head.version),
            source_ips: source_ips(head),
            headers,
            connection: head.connection,
            client: head.client,
            client_certificate: head.client_certificate,
            user: None,
            impersonated: None,
            body_bytes: 0,
            status: 0,
            finished: false,
        };
        let entry = Arc::new(Entry {
            first,
            user: OnceLock::new(),
            impersonated: OnceLock::new(),
            body_bytes: AtomicU64::new(0),
            status: AtomicU16::new(0),
            finished: AtomicBool::new(false),
        });
        let mut requests = self.requests();
        requests.push_back(Arc::clone(&entry));
        if requests.len() > KEPT {
            requests.pop_front();
        }
        drop(requests);
        Some(entry)
    }

    pub(crate) fn opened(&self, connection: Connection) {
        let mut list = self.list();
        list.push_back(connection);
        if list.len() > KEPT {
            list.pop_front();
        }
    }

    pub(crate) fn change(&self, id: u64, change: impl FnOnce(&mut Connection)) {
        if let Some(found) = self.list().iter_mut().rev().find(|found| found.id == id) {
            change(found);
        }
    }

    /// Copies of all requests so far.
    pub(crate) fn snapshot(&self) -> Vec<Seen> {
        self.requests()
            .iter()
            .map(|entry| entry.snapshot())
            .collect()
    }

    pub(crate) fn snapshot_connections(&self) -> Vec<Connection> {
        self.list().iter().cloned().collect()
    }

    pub(crate) fn clear(&self) {
        self.requests().clear();
    }

    /// How many requests there ever were.
    pub(crate) fn count(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }
}

/// apimachinery `net.SourceIPs`: the first X-Forwarded-For line, X-Real-Ip, then the socket's peer unless it equals the last.
fn source_ips(head: &Head<'_>) -> Vec<String> {
    let line = |name: &str| {
        head.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let address = |text: &str| {
        text.trim()
            .parse::<std::net::IpAddr>()
            .ok()
            .map(|address| address.to_string())
    };
    let mut out: Vec<String> = line("x-forwarded-for")
        .split(',')
        .filter_map(address)
        .collect();
    if let Some(real) = address(line("x-real-ip"))
        && !out.contains(&real)
    {
        out.push(real);
    }
    let peer = head.client.ip().to_canonical().to_string();
    if out.last() != Some(&peer) {
        out.push(peer);
    }
    out
}
