//! TLS as kube-apiserver serves it: client certificates are asked for and never judged in the handshake (only possession of the key
//! is proved there, on the raw public key, so that X.509 v1 works), the loopback certificate answers its SNI, unknown ALPN entries
//! are ignored.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, aws_lc_rs},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer, UnixTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::pki::{Authority, Leaf, Subject};

/// Which protocols the server offers by ALPN, in its order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Protocols {
    /// `h2`, then `http/1.1`: kube-apiserver.
    Both,
    /// Only `http/1.1`.
    Http1,
    /// Only `h2`.
    Http2,
}

/// The server name that a server's own client sends.
pub(crate) const LOOPBACK_NAME: &str = "apiserver-loopback-client";

/// The certificate that a server's own client trusts (SNI `apiserver-loopback-client`); made anew by every process.
pub(crate) fn loopback() -> anyhow::Result<Arc<CertifiedKey>> {
    let name = format!("{LOOPBACK_NAME}@{}", super::clock::unix_millis() / 1000);
    let authority = Authority::new("apiserver-loopback-client-ca")?;
    let subject = Subject::new().cn(&name);
    let issued = authority.issue(&Leaf::server(subject, &[LOOPBACK_NAME], &[]))?;
    certified(
        vec![issued.der.clone(), authority.certificate.der.clone()],
        issued.private_key(),
    )
}

/// A chain and key as rustls wants it.
pub(crate) fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> anyhow::Result<Arc<CertifiedKey>> {
    Ok(Arc::new(CertifiedKey::from_der(
        chain,
        key,
        &aws_lc_rs::default_provider(),
    )?))
}

/// The server's TLS settings.
pub(crate) fn server(
    serving: Arc<CertifiedKey>,
    loopback: Arc<CertifiedKey>,
    hints: &[CertificateDer<'static>],
    protocols: Protocols,
) -> anyhow::Result<Arc<ServerConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(AnyCertificate {
        hints: hints
            .iter()
            .filter_map(|root| {
                Some(DistinguishedName::from(
                    X509Certificate::from_der(root)
                        .ok()?
                        .1
                        .subject()
                        .as_raw()
                        .to_vec(),
                ))
            })
            .collect(),
        provider: Arc::clone(&provider),
    });
    let builder = ServerConfig::builder_with_provider(provider);
    let mut config = builder
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(BySni { serving, loopback }));
    let alpn: &[&[u8]] = match protocols {
        Protocols::Both => &[b"h2", b"http/1.1"],
        Protocols::Http1 => &[b"http/1.1"],
        Protocols::Http2 => &[b"h2"],
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct BySni {
    serving: Arc<CertifiedKey>,
    loopback: Arc<CertifiedKey>,
}

impl ResolvesServerCert for BySni {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let loopback = hello.server_name() == Some(LOOPBACK_NAME);
        Some(Arc::clone(if loopback {
            &self.loopback
        } else {
            &self.serving
        }))
    }
}

/// `tls.RequestClientCert`: whatever is presented is taken, if its key signed the handshake.
#[derive(Debug)]
struct AnyCertificate {
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Go's handshake fails only on certificates that it cannot parse.
        match X509Certificate::from_der(end_entity) {
            Ok(_) => Ok(ClientCertVerified::assertion()),
            Err(_) => Err(Error::InvalidCertificate(
                rustls::CertificateError::BadEncoding,
            )),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.possession(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.possession(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

impl AnyCertificate {
    fn possession(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let bad = || Error::InvalidCertificate(rustls::CertificateError::BadSignature);
        let (_, certificate) = X509Certificate::from_der(cert).map_err(|_error| bad())?;
        let key = SubjectPublicKeyInfoDer::from(certificate.public_key().raw);
        let key = webpki::RawPublicKeyEntity::try_from(&key).map_err(|_error| bad())?;
        let mapping = self.provider.signature_verification_algorithms.mapping;
        let algorithms = mapping
            .iter()
            .find(|(scheme, _)| *scheme == dss.scheme)
            .map(|(_, algorithms)| *algorithms);
        let proved = algorithms.unwrap_or_default().iter().any(|algorithm| {
            key.verify_signature(*algorithm, message, dss.signature())
                .is_ok()
        });
        if proved {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(bad())
        }
    }
}
