//! Who asks: a client certificate becomes a user and groups, a bearer token passes through; strips and writes the
//! headers that carry an identity. Pure: no clock, no socket.
//!
//! Nothing is enforced here: kube-apiserver decides on the identity that is forwarded (design 4.2, 4.3).

use std::{sync::Arc, time::SystemTime};

use http::HeaderMap;
use rustls_pki_types::CertificateDer;

use crate::{config::RequestHeaders, tls::Authorities};

/// Who a request comes from, in kube-apiserver's order (design 4.2).
#[derive(Clone, Debug)]
pub enum Caller {
    /// A trusted front proxy that names the user in headers; they pass.
    FrontProxy,
    /// The user of a client certificate.
    User(Arc<User>),
    /// No (usable) certificate, but a bearer token: the upstream decides.
    Token,
    /// Neither certificate nor token.
    Anonymous,
    /// A certificate that yields no identity, and no token: 401.
    Rejected(Reason),
}

/// The identity in a verified client certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    name: String,
    uid: Option<String>,
    groups: Vec<String>,
    credential_id: String,
}

/// Why a certificate yields no identity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// No trusted CA issued it for client authentication, or it is not valid now.
    Invalid,
}

/// The certificate chain that a client presented, parsed once per connection.
#[derive(Debug)]
pub struct Presented {}

impl Presented {
    /// Parses the leaf; never fails (a chain that cannot be parsed yields no identity).
    pub fn new(_chain: &[CertificateDer<'_>]) -> Option<Self> {
        None
    }

    /// Who asks. The verdict on the certificate is taken anew when the CAs changed or a time bound passed.
    pub fn caller(
        &mut self,
        _headers: &HeaderMap,
        _authorities: &Authorities,
        _names: &RequestHeaders,
        _now: SystemTime,
    ) -> Caller {
        Caller::Anonymous
    }
}

/// Who asks, where no certificate was presented.
pub fn without_certificate(_headers: &HeaderMap) -> Caller {
    Caller::Anonymous
}

/// Whether the upstream treats the request as anonymous although it comes over the front-proxy connection: it ends
/// such connections (GOAWAY), so the request needs a pair of its own (design 4.3).
pub fn ends_connections(_caller: &Caller, _headers: &HeaderMap, _names: &RequestHeaders) -> bool {
    false
}

/// Makes `headers` carry `caller` and nobody else: strips every configured and standard identity header (any case,
/// also with `_`), and writes ours. Call it after hop-by-hop headers were removed.
pub fn forward_identity(_caller: &Caller, _headers: &mut HeaderMap, _names: &RequestHeaders) {}
