//! A completed OpenAPI document as the client sees it: whole, unchanged, or elsewhere.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response};

use super::{Merged, OpenPlan, hash::immutable};
use crate::{
    body::Body,
    discovery::{
        Plan,
        answer::{Authorised, Comparison, Completion, Plain},
    },
};

/// What became of an answer.
pub(super) enum Outcome {
    /// Nobody adds anything; its own hash.
    Own {
        hash: Option<String>,
    },
    Merged(Arc<Merged>),
    /// To HEAD: all of the completed document but its bytes, which nobody has asked for yet.
    Unbuilt(Merged),
    /// To HEAD: there is nothing to say of the completed document.
    Bare,
    Index {
        bytes: Bytes,
    },
}

/// The completed document, judged by the hash that the client named (`handler3.HandleGroupVersion` of kube-openapi).
pub(super) fn respond(
    plan: &Plan,
    open: &OpenPlan,
    answer: Authorised,
    merged: &Merged,
) -> Response<Body> {
    if open.hash.as_ref().is_some_and(|hash| *hash != merged.hash) {
        return answer.redirect(&format!("{}?hash={}", open.path, merged.hash));
    }
    let Ok(etag) = HeaderValue::try_from(format!("\"{}\"", merged.hash)) else {
        return answer.broken();
    };
    let bytes = merged.bytes.clone();
    let (plain, gzip) = match (merged.length, merged.gzip) {
        (0, _) => (Plain::Unknown, None),
        (_, false) => (Plain::Bytes(bytes), None),
        (length, true) => (Plain::Packed(bytes.clone(), length), Some(bytes)),
    };
    let response = answer.complete(
        &plan.client,
        Completion {
            plain,
            gzip,
            content_type: merged.content_type.clone(),
            etag: Some(etag),
            comparison: Comparison::Weak,
        },
    );
    if open.hash.is_some() {
        immutable(response)
    } else {
        response
    }
}
