//! The only maker of answers that no kube-apiserver gave: a [`Refusal`] becomes a status, a Kubernetes `Status` body
//! and, where a retry can help, `Retry-After`.

use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use crate::{api::ServerId, body::Body};

/// Whose fault a failed request is; a label of metrics and logs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The client sent something that cannot be served.
    Client,
    /// The node's own kube-apiserver.
    Local,
    /// Another node's kube-apiserver.
    Peer,
    /// mvp itself.
    Proxy,
}

impl From<ServerId> for Side {
    fn from(server: ServerId) -> Self {
        match server {
            ServerId::Local => Self::Local,
            ServerId::Peer(_) => Self::Peer,
        }
    }
}

/// Why mvp answers a request itself. Its [`Refusal::as_str`] is the word in logs, metrics and `mvp explain`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// A client certificate yields no identity and there is no token.
    Unauthorized,
    /// The request cannot be parsed (bad escape, several Content-Length, ...).
    BadRequest(&'static str),
    /// Headers beyond kube-apiserver's 1 MiB.
    HeadersTooLarge,
    /// A request target beyond what `http::Uri` holds.
    UriTooLong,
    /// Only servers that are unreachable or departed serve it.
    OnlyUnavailableServe,
    /// Peers are not learnt yet, so a 404 would not be known to be true.
    NotReady,
    /// A server that was readable could not be read again to confirm a 404 (design 5.2, double check).
    Unconfirmed,
    /// The server that was to answer could not be reached or broke off.
    Unreachable(Side),
    /// mvp's own identity forwarding was refused (design 4.3).
    ForwardingRefused,
    /// A marked request must be served by local, which is down.
    LocalDown,
    /// A peer without proof of identity forwarding is the only one that could serve a certificate user.
    Unproven,
    /// The upstream answered an upgrade with a redirection (CVE-2020-8559).
    UpgradeRedirected,
    /// The upstream's answer to an upgrade is not a valid 101.
    UpgradeFailed,
    /// A write may have run at a server that broke off; it is not sent again.
    Interrupted,
    /// No room for another stream or connection upstream.
    Busy,
}

/// `metav1.Status`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the names of metav1.Status")]
struct Status<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: serde_json::Map<String, serde_json::Value>,
    status: &'static str,
    message: &'a str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    code: u16,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    retry_after_seconds: u32,
}

impl Refusal {
    /// One of each kind.
    pub const ALL: [Self; 16] = [
        Self::Unauthorized,
        Self::BadRequest(""),
        Self::HeadersTooLarge,
        Self::UriTooLong,
        Self::OnlyUnavailableServe,
        Self::NotReady,
        Self::Unconfirmed,
        Self::Unreachable(Side::Local),
        Self::Unreachable(Side::Peer),
        Self::ForwardingRefused,
        Self::LocalDown,
        Self::Unproven,
        Self::UpgradeRedirected,
        Self::UpgradeFailed,
        Self::Interrupted,
        Self::Busy,
    ];

    /// The stable word for logs, metric labels and `mvp explain`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::BadRequest(_) => "bad_request",
            Self::HeadersTooLarge => "headers_too_large",
            Self::UriTooLong => "uri_too_long",
            Self::OnlyUnavailableServe => "only_unavailable_serve",
            Self::NotReady => "not_ready",
            Self::Unconfirmed => "unconfirmed",
            Self::Unreachable(_) => "unreachable",
            Self::ForwardingRefused => "forwarding_refused",
            Self::LocalDown => "local_down",
            Self::Unproven => "unproven",
            Self::UpgradeRedirected => "upgrade_redirected",
            Self::UpgradeFailed => "upgrade_failed",
            Self::Interrupted => "interrupted",
            Self::Busy => "busy",
        }
    }

    /// Whose fault it is.
    pub const fn side(self) -> Side {
        match self {
            Self::Unauthorized | Self::BadRequest(_) | Self::HeadersTooLarge | Self::UriTooLong => {
                Side::Client
            }
            Self::Unreachable(side) => side,
            Self::LocalDown => Side::Local,
            Self::OnlyUnavailableServe
            | Self::Unproven
            | Self::UpgradeRedirected
            | Self::UpgradeFailed => Side::Peer,
            Self::NotReady
            | Self::Unconfirmed
            | Self::ForwardingRefused
            | Self::Interrupted
            | Self::Busy => Side::Proxy,
        }
    }

    /// HTTP status.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UriTooLong => StatusCode::URI_TOO_LONG,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    const fn retry_after(self) -> Option<u32> {
        match self {
            // Interrupted: client-go takes Retry-After behind any 5xx for leave to send the same request again by itself,
            // writes too (`withRetry.IsNextRetry` of `k8s.io/client-go/rest`). Whether to repeat is the caller's to say.
            Self::Unauthorized
            | Self::BadRequest(_)
            | Self::HeadersTooLarge
            | Self::UriTooLong
            | Self::Interrupted => None,
            Self::OnlyUnavailableServe | Self::Unproven => Some(5),
            _ => Some(1),
        }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::Unauthorized => "Unauthorized",
            Self::BadRequest(_) => "BadRequest",
            Self::HeadersTooLarge => "RequestHeaderFieldsTooLarge",
            Self::UriTooLong => "RequestURITooLong",
            _ => "ServiceUnavailable",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            // Word for word kube-apiserver's (`k8s.io/apiserver/pkg/endpoints/filters/authentication.go`).
            Self::Unauthorized => "Unauthorized",
            Self::BadRequest(what) => what,
            Self::HeadersTooLarge => "request headers exceed 1 MiB",
            Self::UriTooLong => "the request's path and query exceed 64 KiB",
            Self::OnlyUnavailableServe => {
                "the kube-apiservers that serve this resource are unavailable, please try again later"
            }
            Self::NotReady => "the other kube-apiservers are not known yet, please try again later",
            Self::Unconfirmed => {
                "the kube-apiservers could not be asked again whether they serve this resource, please try again later"
            }
            Self::Unreachable(_) => {
                "the kube-apiserver that serves this request is unreachable, please try again later"
            }
            Self::ForwardingRefused => {
                "identity forwarding to the kube-apiserver is refused, please try again on a new connection"
            }
            Self::LocalDown => {
                "the kube-apiserver of this node is unavailable, please try again later"
            }
            Self::Unproven => {
                "no kube-apiserver that serves this resource accepts forwarded identities, please try again later"
            }
            Self::UpgradeRedirected => {
                "the kube-apiserver answered an upgrade request with a redirection"
            }
            Self::UpgradeFailed => {
                "the kube-apiserver gave an invalid answer to an upgrade request"
            }
            Self::Interrupted => {
                "the connection to the kube-apiserver broke while it worked on the request, which may have been executed"
            }
            Self::Busy => "too many requests in flight, please try again later",
        }
    }
}

/// The `Status` for `why`.
fn status(why: Refusal) -> Vec<u8> {
    let status = Status {
        kind: "Status",
        api_version: "v1",
        metadata: serde_json::Map::new(),
        status: "Failure",
        message: why.message(),
        reason: why.reason(),
        details: why.retry_after().map(|retry_after_seconds| Details {
            retry_after_seconds,
        }),
        code: why.status().as_u16(),
    };
    let mut body = serde_json::to_vec(&status).unwrap_or_default();
    body.push(b'\n');
    body
}

/// The last answer on an HTTP/1.1 connection, as it is written: for what could not be read as a request.
pub fn refuse_unread(why: Refusal) -> Vec<u8> {
    let body = status(why);
    let head = format!(
        "HTTP/1.1 {}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        why.status(),
        body.len()
    );
    [head.into_bytes(), body].concat()
}

/// The answer for `why`.
pub fn refuse(why: Refusal) -> Response<Body> {
    let mut response = Response::new(Body::full(status(why)));
    *response.status_mut() = why.status();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    if let Some(seconds) = why.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[test]
    fn nobody_is_told_to_repeat_a_write_that_may_have_run() {
        let response = refuse(Refusal::Interrupted);
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!response.headers().contains_key(header::RETRY_AFTER));
    }

    #[tokio::test]
    async fn a_refusal_is_a_status_object_with_retry_after() {
        let response = refuse(Refusal::OnlyUnavailableServe);
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "5");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["reason"], "ServiceUnavailable");
        assert_eq!(status["details"]["retryAfterSeconds"], 5);
        assert_eq!(status["code"], 503);
    }
}
