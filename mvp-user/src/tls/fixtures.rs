//! A small PKI in a temporary directory, for the tests of every room that needs TLS.

use std::{fs, path::PathBuf, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SignatureAlgorithm,
};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use super::{Tls, TlsError};
use crate::config::TlsConfig;

/// A CA that can sign.
pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate and its key, PEM.
#[derive(Clone)]
pub(crate) struct Leaf {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// For client authentication if there are no `names`, else for servers of these names.
    pub(crate) fn issue(&self, common_name: &str, names: &[&str]) -> Leaf {
        self.issue_with(common_name, names, &PKCS_ECDSA_P256_SHA256, |_| ())
    }

    pub(crate) fn issue_with(
        &self,
        common_name: &str,
        names: &[&str],
        algorithm: &'static SignatureAlgorithm,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Leaf {
        let list: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(list).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![if names.is_empty() {
            ExtendedKeyUsagePurpose::ClientAuth
        } else {
            ExtendedKeyUsagePurpose::ServerAuth
        }];
        change(&mut params);
        let key = KeyPair::generate_for(algorithm).unwrap();
        Leaf {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Leaf {
    pub(crate) fn certified(&self) -> CertifiedKey {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<_, _>>()
            .unwrap();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        CertifiedKey::new(
            chain,
            rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap(),
        )
    }
}

/// Files as kubeadm lays them out.
pub(crate) struct Pki {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) ca: Ca,
    pub(crate) proxy_ca: Ca,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pki = Self {
            dir,
            ca: Ca::new("kubernetes"),
            proxy_ca: Ca::new("front-proxy-ca"),
        };
        let serving = pki
            .ca
            .issue("kube-apiserver", &["kubernetes.default.svc", "127.0.0.1"]);
        pki.write_pair("apiserver", &serving);
        pki.write_pair(
            "front-proxy-client",
            &pki.proxy_ca.issue("front-proxy-client", &[]),
        );
        pki.write("ca.crt", &pki.ca.pem);
        pki.write("front-proxy-ca.crt", &pki.proxy_ca.pem);
        pki
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn write_pair(&self, name: &str, leaf: &Leaf) {
        self.write(&format!("{name}.crt"), &leaf.certificate);
        self.write(&format!("{name}.key"), &leaf.key);
    }

    pub(crate) fn config(&self) -> TlsConfig {
        TlsConfig {
            cert_file: self.path("apiserver.crt"),
            private_key_file: self.path("apiserver.key"),
            sni: Vec::new(),
            only_tls13: false,
            cipher_suites: Vec::new(),
            client_ca_file: Some(self.path("ca.crt")),
            requestheader_client_ca_file: Some(self.path("front-proxy-ca.crt")),
            requestheader_allowed_names: vec!["front-proxy-client".to_owned()],
            proxy_client_cert_file: Some(self.path("front-proxy-client.crt")),
            proxy_client_key_file: Some(self.path("front-proxy-client.key")),
            peer_ca_file: self.path("ca.crt"),
            peer_server_name: "kubernetes.default.svc".to_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn load(&self) -> Arc<Tls> {
        match Tls::load(&self.config()) {
            Ok(tls) => tls,
            Err(errors) => panic!("{}", join(&errors)),
        }
    }

    /// An ordinary client that trusts the CA.
    pub(crate) fn client(
        &self,
        version: &'static SupportedProtocolVersion,
        presented: Option<CertifiedKey>,
        alpn: &[&[u8]],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.ca.pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match presented {
            Some(key) => builder
                .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key))),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        config
    }
}

pub(crate) fn join(errors: &[TlsError]) -> String {
    errors
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}
