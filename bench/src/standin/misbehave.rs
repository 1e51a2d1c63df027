//! What faults do to a request and its answer.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::{
    body::{Body, End},
    call::Call,
    clock,
    faults::Action,
    reply::{Reply, reply, shutting_down},
};

/// The stream is reset instead of answered.
#[derive(Debug, thiserror::Error)]
#[error("the stream is reset on command")]
pub(crate) struct StreamReset(#[source] pub(crate) h2::Error);

/// Faults that come before the answer, or instead of it.
pub(crate) async fn misbehave(
    call: &mut Call,
    action: &Action,
) -> Result<Option<Reply>, StreamReset> {
    Ok(match action {
        Action::Hang => {
            std::future::pending::<()>().await;
            None
        }
        Action::Delay(millis) => {
            tokio::time::sleep(Duration::from_millis(*millis)).await;
            None
        }
        Action::Answer {
            code,
            headers,
            body,
        } => {
            let mut reply = Response::new(Body::bytes(body.clone()));
            *reply.status_mut() =
                StatusCode::from_u16(*code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            append(reply.headers_mut(), headers);
            Some(reply)
        }
        Action::ShuttingDown => Some(shutting_down()),
        Action::Html => Some(reply(
            StatusCode::OK,
            "text/html; charset=utf-8",
            Bytes::from_static(b"<!DOCTYPE html><html><body><h1>It works!</h1></body></html>\n"),
        )),
        Action::Garbage => {
            let mut bytes = vec![0_u8; 512];
            bytes
                .iter_mut()
                .zip(clock::random::<512>())
                .for_each(|(to, from)| *to = from);
            Some(reply(
                StatusCode::OK,
                "application/json",
                Bytes::from(bytes),
            ))
        }
        Action::TruncatedGzip => {
            let mut reply = reply(StatusCode::OK, "application/json", truncated_gzip());
            reply
                .headers_mut()
                .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            Some(reply)
        }
        Action::Huge(bytes) => Some(reply(
            StatusCode::OK,
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            huge(*bytes),
        )),
        Action::ResetStream(code) => {
            return Err(StreamReset(h2::Error::from(h2::Reason::from(*code))));
        }
        Action::ReadBody => {
            if let Ok(bytes) = call.body().await {
                tracing::debug!(bytes = bytes.len(), "Read the body at once");
            }
            None
        }
        Action::Headers(_)
        | Action::Trailers(_)
        | Action::HangBody(_)
        | Action::Truncate(_)
        | Action::Reset(_)
        | Action::Drip { .. }
        | Action::GoAway => None,
    })
}

/// Faults of the answer itself.
pub(crate) fn spoil(mut reply: Reply, actions: &[Action]) -> Reply {
    for action in actions {
        match action {
            Action::Headers(lines) => append(reply.headers_mut(), lines),
            Action::Trailers(lines) => {
                let mut trailers = HeaderMap::new();
                append(&mut trailers, lines);
                let names: Vec<&str> = lines.iter().map(|(name, _)| name.as_str()).collect();
                // HTTP/1.1 sends only announced trailers, and needs a chunked body for them.
                if let Ok(names) = HeaderValue::try_from(names.join(", ")) {
                    reply.headers_mut().insert(header::TRAILER, names);
                }
                reply = reply.map(|body| body.trailers(trailers));
            }
            Action::HangBody(after) => reply = reply.map(|body| body.ending(*after, End::Hang)),
            Action::Truncate(after) => reply = reply.map(|body| body.ending(*after, End::Error)),
            Action::Reset(after) => reply = reply.map(|body| body.ending(*after, End::Reset)),
            Action::Drip { bytes, every_ms } => {
                reply = reply.map(|body| body.paced(*bytes, Duration::from_millis(*every_ms)));
            }
            _ => {}
        }
    }
    reply
}

fn append(headers: &mut HeaderMap, lines: &[(String, String)]) {
    for (name, value) in lines {
        if let (Ok(name), Ok(value)) = (
            HeaderName::try_from(name.as_str()),
            HeaderValue::try_from(value.as_str()),
        ) {
            headers.append(name, value);
        } else {
            tracing::warn!(name, "This header line cannot be sent");
        }
    }
}

fn truncated_gzip() -> Bytes {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    // Writing to a Vec cannot fail.
    drop(encoder.write_all(&clock::random::<4096>()));
    let whole = encoder.finish().unwrap_or_default();
    Bytes::from(whole[..whole.len() / 2].to_vec())
}

fn huge(bytes: u64) -> Bytes {
    let mut out = String::from(
        r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":["#,
    );
    let mut at = 0_u64;
    while (out.len() as u64) < bytes {
        if at > 0 {
            out.push(',');
        }
        out.push_str(r#"{"metadata":{"name":"g"#);
        out.push_str(&at.to_string());
        out.push_str(r#".example.com"},"versions":[{"version":"v1","resources":[{"resource":"things","responseKind":{"group":"","version":"","kind":"Thing"},"scope":"Namespaced","singularResource":"thing","verbs":["get","list"]}],"freshness":"Current"}]}"#);
        at += 1;
    }
    out.push_str("]}\n");
    Bytes::from(out)
}
