//! The configuration towards clients: which certificate they are shown, and how little of theirs the handshake checks.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved,
    ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature_with_raw_key,
    },
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

use super::{files::Pair, suites::Suites};

/// Accepts any certificate and checks only that the client has its private key, on the raw public key: webpki refuses
/// X.509 v1 outright, Go does not. Who the client is, if anybody, is judged at every request.
#[derive(Debug)]
struct PossessionOnly {
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PossessionOnly {
    fn public_key<'a>(
        certificate: &'a CertificateDer<'_>,
    ) -> Result<SubjectPublicKeyInfoDer<'a>, Error> {
        let (_, parsed) = X509Certificate::from_der(certificate)
            .map_err(|_parse| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        Ok(SubjectPublicKeyInfoDer::from(
            parsed.tbs_certificate.subject_pki.raw,
        ))
    }
}

impl ClientCertVerifier for PossessionOnly {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    /// As `rustls::crypto::verify_tls12_signature`, but on the raw key.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = Self::public_key(certificate)?;
        let key = webpki::RawPublicKeyEntity::try_from(&key)
            .map_err(|_parse| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let candidates = self
            .algorithms
            .mapping
            .iter()
            .find(|(scheme, _)| *scheme == signed.scheme)
            .map(|(_, candidates)| *candidates)
            .ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
        // In TLS 1.2 a scheme does not name the curve: whichever candidate fits the key decides.
        for algorithm in candidates {
            match key.verify_signature(*algorithm, message, signed.signature()) {
                Ok(()) => return Ok(HandshakeSignatureValid::assertion()),
                Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)) => {}
                Err(_) => break,
            }
        }
        Err(Error::InvalidCertificate(CertificateError::BadSignature))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = Self::public_key(certificate)?;
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Which certificate is shown for which SNI, as kube-apiserver and Go's `getCertificate` choose.
#[derive(Debug)]
struct ByName {
    /// Domain patterns of `--tls-sni-cert-key`, lower case; the first certificate that claims a name has it.
    names: HashMap<String, Arc<CertifiedKey>>,
    /// The default, then the others in the order of the flags.
    all: Vec<Arc<CertifiedKey>>,
}

impl ByName {
    fn new(default: &Pair, sni: &[(Arc<Pair>, Vec<String>)]) -> Self {
        let mut names = HashMap::new();
        for (pair, patterns) in sni {
            for pattern in patterns {
                names
                    .entry(pattern.to_ascii_lowercase())
                    .or_insert_with(|| Arc::clone(&pair.key));
            }
        }
        let all = std::iter::once(&default.key)
            .chain(sni.iter().map(|(pair, _)| &pair.key))
            .map(Arc::clone)
            .collect();
        Self { names, all }
    }

    fn named(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        if let Some(key) = self.names.get(name) {
            return Some(key);
        }
        let (_, parent) = name.split_once('.').unwrap_or((name, ""));
        let wildcard = if parent.is_empty() {
            "*".to_owned()
        } else {
            format!("*.{parent}")
        };
        self.names.get(&wildcard)
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let first = self.all.first()?;
        if self.all.len() == 1 {
            return Some(Arc::clone(first));
        }
        let name = hello.server_name().map(str::to_ascii_lowercase);
        if let Some(key) = name.as_deref().and_then(|name| self.named(name)) {
            return Some(Arc::clone(key));
        }
        // Go's `SupportsCertificate`: the first whose own names and key fit, else the default.
        let fits = |key: &&Arc<CertifiedKey>| {
            key.key.choose_scheme(hello.signature_schemes()).is_some()
                && name.as_deref().is_none_or(|name| has_name(key, name))
        };
        Some(Arc::clone(self.all.iter().find(fits).unwrap_or(first)))
    }
}

fn has_name(key: &CertifiedKey, name: &str) -> bool {
    let Some(Ok(certificate)) = key.cert.first().map(webpki::EndEntityCert::try_from) else {
        return false;
    };
    ServerName::try_from(name)
        .is_ok_and(|name| certificate.verify_is_valid_for_subject_name(&name).is_ok())
}

/// The server configurations of one generation.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) default: Arc<ServerConfig>,
    /// For clients without SNI that reach an address that an SNI certificate names.
    pub(super) by_address: HashMap<IpAddr, Arc<ServerConfig>>,
}

pub(super) fn build(
    serving: &Pair,
    sni: &[(Arc<Pair>, Vec<String>)],
    hints: Vec<DistinguishedName>,
    suites: &Suites,
) -> Result<Servers, Error> {
    let provider = Arc::new(CryptoProvider {
        cipher_suites: suites.list.clone(),
        ..aws_lc_rs::default_provider()
    });
    let verifier: Arc<dyn ClientCertVerifier> = Arc::new(PossessionOnly {
        hints,
        algorithms: provider.signature_verification_algorithms,
    });
    // Stateless tickets: no lock and no bound to share between threads. They hold the client's certificate chain,
    // so a resumed session presents it again; the verdict on it is taken at every request anyway.
    let tickets = aws_lc_rs::Ticketer::new()?;
    let make = |resolver: Arc<dyn ResolvesServerCert>| -> Result<Arc<ServerConfig>, Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(suites.versions)?
            .with_client_cert_verifier(Arc::clone(&verifier))
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.ticketer = Arc::clone(&tickets);
        config.send_tls13_tickets = 1; // as Go
        config.max_early_data_size = 0; // replayable requests are none of our business
        config.enable_secret_extraction = true; // kernel TLS (design 7)
        Ok(Arc::new(config))
    };
    let default = make(Arc::new(ByName::new(serving, sni)))?;
    let mut by_address = HashMap::new();
    for (pair, patterns) in sni {
        for address in patterns
            .iter()
            .filter_map(|name| name.parse::<IpAddr>().ok())
        {
            if let std::collections::hash_map::Entry::Vacant(entry) = by_address.entry(address) {
                let single = rustls::sign::SingleCertAndKey::from(Arc::clone(&pair.key));
                entry.insert(make(Arc::new(single))?);
            }
        }
    }
    Ok(Servers {
        default,
        by_address,
    })
}
