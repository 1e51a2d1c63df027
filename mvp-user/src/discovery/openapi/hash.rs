//! Hashes in URLs of OpenAPI v3 documents, as kube-openapi's `handler3` judges them. Pure.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, Uri, header, uri::PathAndQuery};

use crate::body::Body;

/// Clients keep a document with a hash in its URL as kube-apiserver tells them to.
const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, immutable");

/// Takes `hash=` out of the query; it is about the completed document. An error if the URI cannot be
/// written again.
pub(super) fn take_hash(uri: &mut Uri) -> Result<Option<String>, http::Error> {
    let Some(query) = uri.query() else {
        return Ok(None);
    };
    let mut hash = None;
    let kept: Vec<&str> = query
        .split('&')
        .filter(|pair| match pair.split_once('=') {
            Some(("hash", value)) => {
                // As Go's `Query().Get`: the first one, and an empty one is none.
                hash.get_or_insert_with(|| value.to_owned());
                false
            }
            _ => *pair != "hash",
        })
        .collect();
    let path = uri.path();
    let rest = if kept.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", kept.join("&"))
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(rest)?);
    *uri = Uri::from_parts(parts)?;
    Ok(hash.filter(|hash: &String| !hash.is_empty()))
}

/// A hash as an `ETag` has it, without quotation marks.
pub(super) fn hash_of(etag: &HeaderValue) -> String {
    etag.to_str()
        .unwrap_or_default()
        .trim_matches('"')
        .to_owned()
}

/// kube-apiserver's headers for a document asked for by its hash.
pub(super) fn immutable(mut response: Response<Body>) -> Response<Body> {
    if !matches!(response.status(), StatusCode::OK | StatusCode::NOT_MODIFIED) {
        return response;
    }
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, IMMUTABLE);
    let year = std::time::SystemTime::now() + Duration::from_hours(365 * 24);
    // RFC 1123 ends in GMT where Go writes UTC; readers take both.
    if let Ok(date) = HeaderValue::try_from(httpdate::fmt_http_date(year)) {
        response.headers_mut().insert(header::EXPIRES, date);
    }
    response
}
