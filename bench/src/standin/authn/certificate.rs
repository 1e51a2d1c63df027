//! Client certificates as Go judges them: chain, usage, and the identity in the subject.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use sha2::Digest as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::User;
use crate::standin::clock;

/// What an authenticator says.
#[derive(Debug)]
pub(crate) enum Verdict {
    User(User),
    Nobody,
    Error(String),
}

/// The parts of a subject that make an identity.
#[derive(Debug, Default)]
pub(crate) struct Subject {
    /// The last common name, as Go's `pkix.Name.FillFromRDNSequence` leaves it.
    pub(crate) common_name: String,
    /// All organisations, in order.
    pub(crate) organizations: Vec<String>,
    uids: Vec<String>,
}

/// Reads a certificate's subject.
pub(crate) fn subject(der: &CertificateDer<'_>) -> Option<Subject> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let mut subject = Subject::default();
    for attribute in certificate.subject().iter_attributes() {
        let value = match attribute.attr_value().tag().0 {
            // BMPString, which x509-parser does not turn into text.
            30 => {
                let units: Vec<u16> = attribute
                    .attr_value()
                    .data
                    .chunks_exact(2)
                    .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
                    .collect();
                String::from_utf16(&units).ok()?
            }
            _ => String::from_utf8_lossy(attribute.attr_value().data).into_owned(),
        };
        match attribute.attr_type().to_id_string().as_str() {
            "2.5.4.3" => subject.common_name = value,
            "2.5.4.10" => subject.organizations.push(value),
            "1.3.6.1.4.1.57683.2" => subject.uids.push(value),
            _ => {}
        }
    }
    Some(subject)
}

/// What a client presented, with the verdicts on it. kube-apiserver judges at every request; here a verdict is kept for at most a second,
/// never beyond the end of a certificate, and never for other roots, which no caller can tell from judging each time.
#[derive(Debug, Default)]
pub(crate) struct Presented {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    verdicts: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    roots: Vec<CertificateDer<'static>>,
    /// Milliseconds since 1970.
    until: i64,
    verdict: Result<(), String>,
}

impl Presented {
    pub(crate) fn new(chain: Vec<CertificateDer<'static>>) -> Self {
        Self {
            chain,
            verdicts: Mutex::default(),
        }
    }

    pub(super) fn verify(&self, roots: &[CertificateDer<'static>]) -> Result<(), String> {
        let now = clock::unix_millis();
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = verdicts
            .iter()
            .find(|kept| kept.until > now && kept.roots == roots)
        {
            return kept.verdict.clone();
        }
        let verdict = verify(&self.chain, roots);
        verdicts.retain(|kept| kept.until > now);
        let until = self
            .chain
            .iter()
            .chain(roots)
            .filter_map(ends)
            .min()
            .unwrap_or(now)
            .min(now + 1000);
        verdicts.push(Kept {
            roots: roots.to_vec(),
            until,
            verdict: verdict.clone(),
        });
        verdict
    }
}

/// When a certificate ends, in milliseconds since 1970.
fn ends(der: &CertificateDer<'static>) -> Option<i64> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    certificate
        .validity()
        .not_after
        .timestamp()
        .checked_mul(1000)
}

/// Does the chain lead to one of the roots, now, for client authentication?
fn verify(chain: &[CertificateDer<'_>], roots: &[CertificateDer<'static>]) -> Result<(), String> {
    let anchors: Vec<_> = roots
        .iter()
        .filter_map(|root| webpki::anchor_from_trusted_cert(root).ok())
        .collect();
    let judged = webpki::EndEntityCert::try_from(&chain[0]).and_then(|leaf| {
        leaf.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &anchors,
            &chain[1..],
            UnixTime::now(),
            webpki::KeyUsage::client_auth(),
            None,
            None,
        )
        .map(drop)
    });
    match judged {
        Ok(()) => Ok(()),
        // Go takes X.509 v1 leaves; webpki does not look at them.
        Err(webpki::Error::UnsupportedCertVersion) => verify_version1(&chain[0], roots),
        Err(error) => Err(format!("verifying the certificate failed: {error}")),
    }
}

/// A version 1 leaf signed by a root directly. It has no extensions, so any usage is allowed.
fn verify_version1(
    leaf: &CertificateDer<'_>,
    roots: &[CertificateDer<'static>],
) -> Result<(), String> {
    let (_, parsed) = X509Certificate::from_der(leaf)
        .map_err(|error| format!("malformed certificate: {error}"))?;
    if !parsed.validity().is_valid() {
        return Err("the certificate has expired or is not yet valid".to_owned());
    }
    let signed = roots.iter().any(|root| {
        let Ok((_, issuer)) = X509Certificate::from_der(root) else {
            return false;
        };
        let key = SubjectPublicKeyInfoDer::from(issuer.public_key().raw);
        let Ok(key) = webpki::RawPublicKeyEntity::try_from(&key) else {
            return false;
        };
        issuer.subject().as_raw() == parsed.issuer().as_raw()
            && webpki::ALL_VERIFICATION_ALGS.iter().any(|algorithm| {
                key.verify_signature(
                    *algorithm,
                    parsed.tbs_certificate.as_ref(),
                    &parsed.signature_value.data,
                )
                .is_ok()
            })
    });
    if signed {
        Ok(())
    } else {
        Err("the certificate was signed by an unknown authority".to_owned())
    }
}

/// `x509.CommonNameUserConversion`.
pub(super) fn user(presented: &Presented, roots: &[CertificateDer<'static>]) -> Verdict {
    if let Err(why) = presented.verify(roots) {
        return Verdict::Error(why);
    }
    let Some(subject) = subject(&presented.chain[0]) else {
        return Verdict::Error("the certificate's subject cannot be read".to_owned());
    };
    if subject.common_name.is_empty() {
        return Verdict::Nobody;
    }
    let uid = match subject.uids.as_slice() {
        [] => String::new(),
        [uid] if !uid.is_empty() => uid.clone(),
        _ => return Verdict::Error("the certificate has an empty UID or several".to_owned()),
    };
    let fingerprint = clock::hex(&sha2::Sha256::digest(&presented.chain[0]));
    let extra = BTreeMap::from([(
        "authentication.kubernetes.io/credential-id".to_owned(),
        vec![format!("X509SHA256={fingerprint}")],
    )]);
    Verdict::User(User {
        name: subject.common_name,
        uid,
        groups: subject.organizations,
        extra,
    })
}
