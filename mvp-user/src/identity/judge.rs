//! Whether a chain leads to a CA, as far as webpki and Go agree; where webpki refuses for reasons of its own, it says so.

use std::time::Duration;

use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{
    EndEntityCert, Error, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage,
    RequiredEkuNotFoundContext, VerifiedPath,
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

use super::Reason;
use crate::tls::Anchors;

/// Go's rule for `ExtKeyUsageClientAuth`: no extended key usage at all, or client authentication, or any usage, in
/// every certificate of the chain (`checkChainForKeyUsage`). webpki's own validator does not know *any*.
struct ClientAuthentication;

/// 1.3.6.1.5.5.7.3.2
const CLIENT_AUTH: [usize; 9] = [1, 3, 6, 1, 5, 5, 7, 3, 2];
/// 2.5.29.37.0
const ANY: [usize; 5] = [2, 5, 29, 37, 0];

/// As many CA certificates as webpki's longest path has. It looks at every certificate presented, anew for each path it
/// tries, and tries up to 200,000: nine CAs of one name and a hundred others from a stranger hold a thread for seconds.
const MOST_INTERMEDIATES: usize = 6;

impl ExtendedKeyUsageValidator for ClientAuthentication {
    fn validate(&self, usages: KeyPurposeIdIter<'_, '_>) -> Result<(), Error> {
        let mut present = Vec::new();
        for usage in usages {
            let usage = usage?.to_decoded_oid();
            if usage == CLIENT_AUTH || usage == ANY {
                return Ok(());
            }
            present.push(usage);
        }
        if present.is_empty() {
            return Ok(());
        }
        Err(Error::RequiredEkuNotFoundContext(
            RequiredEkuNotFoundContext {
                required: KeyUsage::client_auth(),
                present,
            },
        ))
    }
}

/// Whether `chain` (leaf first) leads to one of `anchors` at `now` (seconds since 1970), for client authentication.
pub(super) fn chain(
    chain: &[CertificateDer<'static>],
    anchors: &Anchors,
    now: u64,
) -> Result<(), Reason> {
    let Some((leaf, intermediates)) = chain.split_first() else {
        return Err(Reason::Malformed);
    };
    let refused = |error: Error| match reason(&error, leaf, anchors) {
        // It may be among those not looked at.
        Reason::UnknownIssuer if intermediates.len() > MOST_INTERMEDIATES => Reason::Undecidable,
        reason => reason,
    };
    let end_entity = EndEntityCert::try_from(leaf).map_err(refused)?;
    end_entity
        .verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            anchors.trust(),
            intermediates
                .get(..MOST_INTERMEDIATES)
                .unwrap_or(intermediates),
            UnixTime::since_unix_epoch(Duration::from_secs(now)),
            ClientAuthentication,
            None,
            Some(&|path: &VerifiedPath<'_>| as_go(path, anchors, now)),
        )
        .map(|_path| ())
        .map_err(refused)
}

/// What Go checks beyond webpki: validity and path length of the root, and that intermediates may sign certificates.
fn as_go(path: &VerifiedPath<'_>, anchors: &Anchors, now: u64) -> Result<(), Error> {
    let limits = anchors.limits(path.anchor()).ok_or(Error::UnknownIssuer)?;
    let seconds = |time| UnixTime::since_unix_epoch(Duration::from_secs(time));
    if now < limits.not_before {
        return Err(Error::CertNotValidYet {
            time: seconds(now),
            not_before: seconds(limits.not_before),
        });
    }
    if now > limits.not_after {
        return Err(Error::CertExpired {
            time: seconds(now),
            not_after: seconds(limits.not_after),
        });
    }
    let intermediates = path.intermediate_certificates().count();
    let allowed = limits.path_length.map(usize::try_from);
    if let Some(Ok(allowed)) = allowed
        && intermediates > allowed
    {
        return Err(Error::PathLenConstraintViolated);
    }
    for intermediate in path.intermediate_certificates() {
        let der = intermediate.der();
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|_parse| Error::BadDer)?;
        let usage = parsed.key_usage().map_err(|_parse| Error::BadDer)?;
        if usage.is_some_and(|usage| usage.value.flags != 0 && !usage.value.key_cert_sign()) {
            return Err(Error::EndEntityUsedAsCa);
        }
    }
    Ok(())
}

fn reason(error: &Error, leaf: &CertificateDer<'_>, anchors: &Anchors) -> Reason {
    match error {
        Error::CertExpired { .. } => Reason::Expired,
        Error::CertNotValidYet { .. } => Reason::NotYetValid,
        Error::EndEntityUsedAsCa
        | Error::PathLenConstraintViolated
        | Error::RequiredEkuNotFoundContext(_)
        | Error::NameConstraintViolation
        | Error::EmptyEkuExtension => Reason::WrongUsage,
        // Go trusts a certificate that is itself in the CA file, whoever issued it.
        Error::UnknownIssuer if anchors.contains(leaf) => Reason::Undecidable,
        Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => Reason::UnknownIssuer,
        Error::BadDer | Error::BadDerTime | Error::TrailingData(_) | Error::InvalidCertValidity => {
            Reason::Malformed
        }
        // X.509 v1, unknown critical extensions, weak or rare signatures, a CA as client, very long chains.
        _ => Reason::Undecidable,
    }
}
