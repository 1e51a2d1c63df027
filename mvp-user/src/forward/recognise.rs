//! kube-apiserver's own answers that are not the last word: shutting down, starting, and a path or resource that it does
//! not know. All are small; anything longer is a backend's and is not looked into.

use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;

use crate::body::Body;

/// Longest body that is read.
const LIMIT: u64 = 4096;

/// kube-apiserver's `WithRetryAfter` (429, text), while it shuts down.
const SHUTTING_DOWN: &[u8] = b"apiserver is shutting down";
/// kube-apiserver's `NotFoundHandler` (503, Status), until it is ready to say 404.
const STARTING: &[u8] =
    b"the request has been made before all known HTTP paths have been installed";
/// What flow control (API Priority and Fairness) writes on the answers to what it has let in. kube-apiserver speaks as one that
/// shuts down before that (`DefaultBuildHandlerChain`): behind this header another does, and the request was worked on.
const LET_IN: &str = "x-kubernetes-pf-flowschema-uid";
/// Whose words follow these chose the status as well (`ToStatusErr` of
/// `k8s.io/apiserver/pkg/admission/plugin/webhook/errors`): the server has worked on the request.
const WEBHOOK: &[u8] = b"admission webhook ";
/// An unknown path or group: `http.NotFound` of Go.
const UNKNOWN_PATH: &[u8] = b"404 page not found\n";
/// An unknown version or resource of a known group; a missing object's message names the object instead, and one that a
/// kubelet does not know (`pods/log`) goes on: `( pods/log NAME)` (`NewGenericServerResponse`).
const UNKNOWN_RESOURCE: &[u8] = b"the server could not find the requested resource";
/// Size of the JSON `Status` with that message: all that HEAD shows of it.
const UNKNOWN_RESOURCE_JSON: u64 = 174;

/// What an answer says beside its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    /// Nothing special: it is the client's.
    Answer,
    /// The server shuts down and has not worked on the request.
    ShuttingDown,
    /// The server starts and has not worked on the request.
    Starting,
    /// The server does not know the path or the resource.
    Unknown,
}

/// Whether `status` needs a closer look.
pub(super) const fn is_suspect(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::NOT_FOUND | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    )
}

/// Reads a short answer and gives it back whole.
pub(super) async fn look(
    method: &Method,
    answer: Response<Body>,
) -> Result<(Meaning, Response<Body>), crate::body::BodyError> {
    if *method == Method::HEAD {
        let meaning = of_head(&answer);
        return Ok((meaning, answer));
    }
    if answer
        .body()
        .size_hint()
        .exact()
        .is_none_or(|size| size > LIMIT)
    {
        return Ok((Meaning::Answer, answer));
    }
    let (parts, body) = answer.into_parts();
    let bytes = body.collect().await?.to_bytes();
    let meaning = match of(parts.status, &bytes) {
        Meaning::ShuttingDown if parts.headers.contains_key(LET_IN) => Meaning::Answer,
        meaning => meaning,
    };
    Ok((meaning, Response::from_parts(parts, Body::full(bytes))))
}

fn of(status: StatusCode, body: &Bytes) -> Meaning {
    if contains(body, WEBHOOK) {
        return Meaning::Answer;
    }
    match status {
        StatusCode::NOT_FOUND if &body[..] == UNKNOWN_PATH || ends(body, UNKNOWN_RESOURCE) => {
            Meaning::Unknown
        }
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
            if contains(body, SHUTTING_DOWN) =>
        {
            Meaning::ShuttingDown
        }
        StatusCode::SERVICE_UNAVAILABLE if contains(body, STARTING) => Meaning::Starting,
        _ => Meaning::Answer,
    }
}

/// HEAD has no body: type and length are all there is. A missing object may be taken for an unknown resource, which
/// costs a second question and changes no answer.
fn of_head(answer: &Response<Body>) -> Meaning {
    let header = |name| {
        answer
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let length = header(header::CONTENT_LENGTH).and_then(|length| length.parse().ok());
    let content_type = header(header::CONTENT_TYPE).unwrap_or_default();
    let unknown = answer.status() == StatusCode::NOT_FOUND
        && match length {
            Some(UNKNOWN_RESOURCE_JSON) => content_type.starts_with("application/json"),
            Some(length) => {
                length == UNKNOWN_PATH.len() as u64 && content_type.starts_with("text/plain")
            }
            None => false,
        };
    if unknown {
        Meaning::Unknown
    } else {
        Meaning::Answer
    }
}

/// Whether a message ends with `words`.
fn ends(body: &[u8], words: &[u8]) -> bool {
    body.windows(words.len())
        .enumerate()
        .any(|(at, window)| window == words && body.get(at + words.len()) != Some(&b' '))
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}
