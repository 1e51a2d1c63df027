//! Misbehaviour on command: which requests, what happens to them, how often.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Which requests a fault concerns. Unset fields match everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct On {
    /// Method.
    pub method: Option<String>,
    /// Raw path without query; a `*` at the end matches any rest.
    pub path: Option<String>,
    /// A header (lower-case name) that must contain the text.
    pub header: Option<(String, String)>,
}

impl On {
    /// Requests for a path (`*` at its end: any rest).
    pub fn path(path: &str) -> Self {
        Self {
            path: Some(path.to_owned()),
            ..Self::default()
        }
    }

    /// The same, for one method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    fn matches(&self, method: &str, path: &str, headers: &http::HeaderMap) -> bool {
        self.method.as_ref().is_none_or(|wanted| wanted == method)
            && self
                .path
                .as_ref()
                .is_none_or(|wanted| match wanted.strip_suffix('*') {
                    Some(prefix) => path.starts_with(prefix),
                    None => wanted == path,
                })
            && self.header.as_ref().is_none_or(|(name, text)| {
                headers
                    .get_all(name.as_str())
                    .iter()
                    .any(|value| String::from_utf8_lossy(value.as_bytes()).contains(text.as_str()))
            })
    }
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is never answered.
    Hang,
    /// It is answered this many milliseconds later.
    Delay(u64),
    /// It is answered with this instead, without its body being read (an early final response).
    Answer {
        /// Status code.
        code: u16,
        /// Header lines.
        headers: Vec<(String, String)>,
        /// Body.
        body: String,
    },
    /// The shutting-down 429 of kube-apiserver, with Retry-After: 5 and Connection: close.
    ShuttingDown,
    /// An HTML page with 200.
    Html,
    /// 200, `application/json`, and bytes that are none.
    Garbage,
    /// `Content-Encoding: gzip` and half of a gzip stream.
    TruncatedGzip,
    /// A JSON document of about this many bytes: an `APIGroupDiscoveryList` with very many groups.
    Huge(u64),
    /// These header lines are added to the answer.
    Headers(Vec<(String, String)>),
    /// These trailers follow the body.
    Trailers(Vec<(String, String)>),
    /// The answer's head and this many bytes of its body, then nothing more.
    HangBody(u64),
    /// The body breaks off after this many bytes (`RST_STREAM`, or an aborted HTTP/1.1 connection).
    Truncate(u64),
    /// The TCP connection is reset after this many bytes of the body.
    Reset(u64),
    /// The body comes in pieces of `bytes`, one every `every_ms`.
    Drip {
        /// Bytes of a piece.
        bytes: usize,
        /// Pause before each piece, milliseconds.
        every_ms: u64,
    },
    /// The HTTP/2 stream is reset with this code (7: `REFUSED_STREAM`) before it is looked at.
    ResetStream(u32),
    /// Answered as usual, and GOAWAY with the highest stream seen (HTTP/2; HTTP/1.1: the connection closes).
    GoAway,
    /// The request body is read at once, whoever asks (so `100 Continue` comes early), then as usual.
    ReadBody,
}

/// A fault: which requests, what happens, how many times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Which requests.
    #[serde(default)]
    pub on: On,
    /// What happens.
    pub action: Action,
    /// How many times; none: until it is cleared.
    #[serde(default)]
    pub times: Option<u32>,
}

/// The faults of one server.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    pub(crate) fn add(&self, fault: Fault) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(fault);
    }

    pub(crate) fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// The actions for a request, in the order the faults were added.
    pub(crate) fn take(&self, method: &str, path: &str, headers: &http::HeaderMap) -> Vec<Action> {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut actions = Vec::new();
        faults.retain_mut(|fault| {
            if fault.on.matches(method, path, headers) {
                actions.push(fault.action.clone());
                if let Some(times) = &mut fault.times {
                    *times = times.saturating_sub(1);
                    return *times > 0;
                }
            }
            true
        });
        actions
    }
}
