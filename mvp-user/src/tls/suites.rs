//! `--tls-min-version` and `--tls-cipher-suites`: Go's names of cipher suites, mapped to those of rustls.

use rustls::{
    CipherSuite, SupportedCipherSuite, SupportedProtocolVersion,
    crypto::aws_lc_rs::{self, cipher_suite as suite},
};

use super::files::{Fault, Report, TlsError};

const FLAG: &str = "--tls-cipher-suites";

static ONLY_TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Suites and versions that clients may use.
#[derive(Clone, Debug)]
pub(super) struct Suites {
    pub(super) list: Vec<SupportedCipherSuite>,
    pub(super) versions: &'static [&'static SupportedProtocolVersion],
}

/// Go's names (`crypto/tls/cipher_suites.go`) of the TLS 1.2 suites that rustls has.
const KNOWN: [(&str, SupportedCipherSuite); 8] = [
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    // Older names of the same, which kube-apiserver still takes (`k8s.io/component-base/cli/flag/ciphersuites_flag.go`).
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

/// Go's TLS 1.3 suites: always on there, whatever the flag says.
const ALWAYS: [&str; 3] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];

/// Suites that Go knows and rustls leaves out: no forward secrecy, CBC, RC4 or 3DES.
const LEFT_OUT: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

impl Suites {
    /// What the two flags come to. Unknown names are errors. Names that only Go implements are warnings (hardening
    /// guides list some beside better ones), unless nothing is left of the list.
    pub(super) fn parse(only_tls13: bool, names: &[String], report: &mut Report) -> Self {
        let mut tls12 = Vec::new();
        let mut left_out = Vec::new();
        for name in names {
            if let Some((_, suite)) = KNOWN.iter().find(|(known, _)| known == name) {
                tls12.push(*suite);
            } else if LEFT_OUT.contains(&name.as_str()) {
                left_out.push(name.as_str());
            } else if !ALWAYS.contains(&name.as_str()) {
                report
                    .errors
                    .push(fault(format!("{name} is not the name of a cipher suite")));
            }
        }
        if !left_out.is_empty() {
            let list = left_out.join(", ");
            if tls12.is_empty() && !only_tls13 {
                report.errors.push(fault(format!(
                    "none of its TLS 1.2 cipher suites is available: {list} lack forward secrecy or authenticated encryption"
                )));
            } else {
                report.warnings.push(fault(format!(
                    "not available and left out, for lack of forward secrecy or authenticated encryption: {list}"
                )));
            }
        }
        let chosen = |suite: &SupportedCipherSuite| match suite {
            SupportedCipherSuite::Tls13(_) => true,
            SupportedCipherSuite::Tls12(_) => names.is_empty() || tls12.contains(suite),
        };
        let list: Vec<_> = aws_lc_rs::ALL_CIPHER_SUITES
            .iter()
            .copied()
            .filter(chosen)
            .collect();
        let has_tls12 = list
            .iter()
            .any(|suite| matches!(suite, SupportedCipherSuite::Tls12(_)));
        let versions = if only_tls13 || !has_tls12 {
            ONLY_TLS13
        } else {
            rustls::ALL_VERSIONS
        };
        Self { list, versions }
    }
}

/// What upstreams are offered: as by Go's clients, AES with keys of 128 bits first, whose rounds are ten instead of 14.
pub(super) fn offered() -> Vec<SupportedCipherSuite> {
    let mut offered = aws_lc_rs::DEFAULT_CIPHER_SUITES.to_vec();
    // Stable: the rest stays in rustls' order.
    offered.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    offered
}

fn fault(text: String) -> TlsError {
    TlsError {
        flag: FLAG,
        file: None,
        fault: Fault::Value(text),
    }
}
