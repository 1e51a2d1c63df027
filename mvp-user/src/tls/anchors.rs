//! The CAs of client certificates: what webpki needs of each, and what Go asks of a root beyond that.

use std::path::Path;

use rustls::DistinguishedName;
use rustls_pki_types::{CertificateDer, TrustAnchor};
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _, x509::X509Version};

use super::files::{self, CertificateInfo, Fault, Report};

/// The CAs of client certificates, by the authenticator that they belong to.
#[derive(Debug, Default, PartialEq)]
pub struct Authorities {
    /// Counts the changes; verdicts are cached by it.
    pub generation: u64,
    /// `--client-ca-file`; none: there is no x509 authenticator.
    pub client: Option<Anchors>,
    /// `--requestheader-client-ca-file`; none: no front proxy is trusted.
    pub requestheader: Option<Anchors>,
    /// `--requestheader-allowed-names`; empty: any.
    pub allowed_names: Vec<String>,
}

/// The trust anchors of one CA file. `trust`, `limits` and `ders` have one entry per anchor, in the file's order.
#[derive(Clone, Debug, Default)]
pub struct Anchors {
    trust: Vec<TrustAnchor<'static>>,
    limits: Vec<Limits>,
    ders: Vec<CertificateDer<'static>>,
    pub(super) hints: Vec<DistinguishedName>,
    pub(super) infos: Vec<CertificateInfo>,
}

/// What Go's verifier checks on a root too (`isValid` of `crypto/x509/verify.go`), and webpki does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// First second of validity, since 1970.
    pub not_before: u64,
    /// Last second of validity, since 1970.
    pub not_after: u64,
    /// How many intermediate certificates may follow.
    pub path_length: Option<u32>,
}

/// The rest follows from the certificates.
impl PartialEq for Anchors {
    fn eq(&self, other: &Self) -> bool {
        self.ders == other.ders && self.limits == other.limits
    }
}

impl Anchors {
    /// As webpki wants them.
    pub fn trust(&self) -> &[TrustAnchor<'static>] {
        &self.trust
    }

    /// The limits of an element of [`Anchors::trust`].
    pub fn limits(&self, anchor: &TrustAnchor<'_>) -> Option<&Limits> {
        let index = self
            .trust
            .iter()
            .position(|candidate| std::ptr::eq::<TrustAnchor<'_>>(candidate, anchor))?;
        self.limits.get(index)
    }

    /// The limits of all anchors: the moments when a verdict may change.
    pub fn all_limits(&self) -> &[Limits] {
        &self.limits
    }

    /// Whether the file holds this very certificate. Go then trusts it without an issuer.
    pub fn contains(&self, certificate: &[u8]) -> bool {
        self.ders.iter().any(|der| der.as_ref() == certificate)
    }

    /// Makes anchors of certificates, for tests of other rooms.
    #[cfg(test)]
    pub(crate) fn from_certificates(list: &[CertificateDer<'static>]) -> Self {
        let mut report = Report::default();
        build(
            "test",
            Path::new("test"),
            list,
            Purpose::Clients,
            &mut report,
        )
    }
}

/// Whom the certificates authenticate that a CA issues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// `--client-ca-file`, `--requestheader-client-ca-file`.
    Clients,
    /// `--peer-ca-file`.
    Servers,
}

/// Reads a CA file. An unusable certificate beside usable ones is a warning; nothing usable is an error.
pub(super) fn read(
    flag: &'static str,
    file: &Path,
    purpose: Purpose,
    report: &mut Report,
) -> Option<Anchors> {
    let list = files::certificates(flag, file, report)?;
    let anchors = build(flag, file, &list, purpose, report);
    if anchors.trust.is_empty() {
        report.error(flag, file, Fault::NoIssuer);
        return None;
    }
    Some(anchors)
}

fn build(
    flag: &'static str,
    file: &Path,
    list: &[CertificateDer<'static>],
    purpose: Purpose,
    report: &mut Report,
) -> Anchors {
    let mut anchors = Anchors::default();
    for (number, der) in (1..).zip(list) {
        let parsed = match X509Certificate::from_der(der) {
            Ok((_, parsed)) => parsed,
            Err(error) => {
                report.warn(flag, file, Fault::Certificate(number, error.to_string()));
                continue;
            }
        };
        anchors.ders.push(der.clone());
        let info = files::info(flag, file, &parsed);
        files::note_validity(&info, number, &parsed, report);
        if let Some(why) = not_an_issuer(&parsed, purpose) {
            report.warn(
                flag,
                file,
                Fault::NotAnIssuer(number, info.subject.clone(), why),
            );
            continue;
        }
        match webpki::anchor_from_trusted_cert(der) {
            Ok(anchor) => {
                anchors.trust.push(anchor.to_owned());
                anchors.limits.push(Limits {
                    not_before: u64::try_from(info.not_before).unwrap_or(0),
                    not_after: u64::try_from(info.not_after).unwrap_or(0),
                    path_length: path_length(&parsed),
                });
                anchors
                    .hints
                    .push(DistinguishedName::from(parsed.subject().as_raw().to_vec()));
                anchors.infos.push(info);
            }
            Err(error) => {
                report.warn(flag, file, Fault::Certificate(number, error.to_string()));
            }
        }
    }
    anchors
}

/// Why Go would not let this root issue certificates (`CheckSignatureFrom`, `checkChainForKeyUsage`).
fn not_an_issuer(certificate: &X509Certificate<'_>, purpose: Purpose) -> Option<&'static str> {
    let Ok(basic) = certificate.basic_constraints() else {
        return Some("its basic constraints cannot be parsed");
    };
    match basic {
        None if certificate.version() == X509Version::V3 => {
            return Some("it has no basic constraints");
        }
        Some(basic) if !basic.value.ca => return Some("it is not a CA certificate"),
        _ => {}
    }
    match certificate.key_usage() {
        Ok(Some(usage)) if usage.value.flags != 0 && !usage.value.key_cert_sign() => {
            return Some("its key usage does not allow signing certificates");
        }
        Ok(_) => {}
        Err(_) => return Some("its key usage cannot be parsed"),
    }
    match certificate.extended_key_usage() {
        Ok(None) => None,
        Ok(Some(usage)) => match purpose {
            _ if usage.value.any => None,
            Purpose::Clients if !usage.value.client_auth => {
                Some("its extended key usage does not allow client authentication")
            }
            Purpose::Servers if !usage.value.server_auth => {
                Some("its extended key usage does not allow server authentication")
            }
            Purpose::Clients | Purpose::Servers => None,
        },
        Err(_) => Some("its extended key usage cannot be parsed"),
    }
}

fn path_length(certificate: &X509Certificate<'_>) -> Option<u32> {
    certificate
        .basic_constraints()
        .ok()
        .flatten()
        .and_then(|basic| basic.value.path_len_constraint)
}
