//! A request while it is being answered: what was asked, by whom, of which server.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::{
    accept::{self, Accept},
    authn::User,
    info::{self, Info},
    log::Entry,
    reply::{Reply, indented, status_reply},
    server::Server,
    status::Status,
    wire::Peer,
};

/// kube-apiserver's bound on request bodies (apiserver `server/config.go`).
const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// A request while it is being answered.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) server: Arc<Server>,
    pub(crate) method: Method,
    pub(crate) info: Info,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    pub(crate) accept: Accept,
    pub(crate) user: User,
    pub(crate) entry: Option<Arc<Entry>>,
    pub(crate) peer: Peer,
    pub(super) body: Option<Incoming>,
    pub(super) upgrade: Option<hyper::upgrade::OnUpgrade>,
}

impl Call {
    /// The request's body, within kube-apiserver's bound.
    pub(crate) async fn body(&mut self) -> Result<Bytes, Status> {
        let Some(mut body) = self.body.take() else {
            return Ok(Bytes::new());
        };
        let mut out = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                Status::bad_request(format!("the body cannot be read: {error}"))
            })?;
            if let Ok(data) = frame.into_data() {
                if let Some(entry) = &self.entry {
                    entry.read(data.len());
                }
                out.extend_from_slice(&data);
                if out.len() > BODY_LIMIT {
                    return Err(Status::too_large());
                }
            }
        }
        Ok(out.freeze())
    }

    /// The connection's future raw stream, for an upgrade.
    pub(crate) fn take_upgrade(&mut self) -> Option<hyper::upgrade::OnUpgrade> {
        self.upgrade.take()
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        info::parameter(&self.query, name)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        info::flag(&self.query, name)
    }

    /// JSON bytes as the caller's program likes them.
    pub(crate) fn json(&self, compact: Bytes) -> Bytes {
        if accept::pretty(&self.headers, &self.query) {
            indented(&compact)
        } else {
            compact
        }
    }

    /// A `Status` in the caller's encoding.
    pub(crate) fn status(&self, status: &Status) -> Reply {
        status_reply(&self.accept, &self.headers, &self.query, status)
    }
}
