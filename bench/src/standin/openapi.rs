//! Answers to OpenAPI requests, v3 and v2. Not spoken: protobuf, but for the recorded documents.

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

use super::{
    call::Call,
    reply::{Reply, not_found, reply},
    schemas::{Document, OpenApi},
    status::Status,
};

const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The answer, if the path is one of OpenAPI's.
pub(crate) fn answer(call: &Call) -> Option<Reply> {
    let path = call.info.path.as_str();
    let documents = call.server.documents.load_full();
    if path == "/openapi/v3" || path == "/openapi/v3/" {
        let openapi = documents.openapi()?;
        let mut answer = reply(
            StatusCode::OK,
            "text/plain; charset=utf-8",
            openapi.index.clone(),
        );
        dated(&mut answer, openapi);
        return Some(answer);
    }
    if let Some(name) = path.strip_prefix("/openapi/v3/") {
        let openapi = documents.openapi()?;
        return Some(
            openapi
                .documents
                .get(name)
                .map_or_else(not_found, |found| v3(call, openapi, name, found)),
        );
    }
    if path == "/openapi/v2" {
        let openapi = documents.openapi()?;
        let mut answer = body(call, &openapi.v2, V2_PROTOBUF);
        let headers = answer.headers_mut();
        headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        headers.append(header::VARY, HeaderValue::from_static("Accept"));
        tag(&mut answer, &openapi.v2);
        dated(&mut answer, openapi);
        return Some(answer);
    }
    None
}

fn dated(answer: &mut Reply, openapi: &OpenApi) {
    let headers = answer.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Ok(made) = HeaderValue::try_from(openapi.made.as_str()) {
        headers.insert(header::LAST_MODIFIED, made);
    }
}

fn tag(answer: &mut Reply, document: &Document) {
    if let Ok(etag) = HeaderValue::try_from(format!("\"{}\"", document.hash)) {
        answer.headers_mut().insert(header::ETAG, etag);
    }
}

fn body(call: &Call, document: &Document, protobuf: &'static str) -> Reply {
    let accept = call
        .headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("*/*");
    let unchanged = call
        .headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|value| value.as_bytes() == format!("\"{}\"", document.hash).as_bytes());
    if unchanged {
        let mut answer = reply(StatusCode::NOT_MODIFIED, "application/json", Bytes::new());
        answer.headers_mut().remove(header::CONTENT_TYPE);
        return answer;
    }
    for range in accept
        .split(',')
        .map(|clause| clause.split(';').next().unwrap_or_default().trim())
    {
        match range {
            "*/*" | "application/*" | "application/json" => {
                return reply(StatusCode::OK, "application/json", document.json.clone());
            }
            range if range.replace('@', ".") == protobuf => {
                if let Some(bytes) = &document.protobuf {
                    return reply(StatusCode::OK, protobuf, bytes.clone());
                }
            }
            _ => {}
        }
    }
    call.status(&Status::not_acceptable(false))
}

fn v3(call: &Call, openapi: &OpenApi, name: &str, document: &Document) -> Reply {
    let given = call.parameter("hash");
    if let Some(given) = given
        && given != document.hash
    {
        let mut answer = reply(
            StatusCode::MOVED_PERMANENTLY,
            "text/html; charset=utf-8",
            Bytes::new(),
        );
        let location = format!("/openapi/v3/{name}?hash={}", document.hash);
        if let Ok(location) = HeaderValue::try_from(location) {
            answer.headers_mut().insert(header::LOCATION, location);
        }
        return answer;
    }
    let mut answer = body(call, document, V3_PROTOBUF);
    answer
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("Accept"));
    if given.is_some() {
        answer.headers_mut().insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("public, immutable"),
        );
        let year = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * 365);
        if let Ok(expires) =
            HeaderValue::try_from(year.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string())
        {
            answer.headers_mut().insert(header::EXPIRES, expires);
        }
    }
    tag(&mut answer, document);
    dated(&mut answer, openapi);
    answer
}
