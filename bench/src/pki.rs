//! A cluster's keys and certificates for tests, demo and load tests, laid out like `/etc/kubernetes/pki`. Not for
//! production: keys are made without passphrases and authorities live as long as the test.
//!
//! ```
//! use bench::pki::{ClusterPki, Leaf, Subject};
//! let pki = ClusterPki::new()?;
//! let serving = pki.serving(&["127.0.0.1".parse()?])?;
//! let admin = pki.client("kubernetes-admin", &["system:masters"])?;
//! let odd = pki.ca.issue(&Leaf::client(Subject::new().cn("first").cn("last").o(" leading space")))?;
//! # let _ = (serving, admin, odd);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod der;
mod files;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use anyhow::Context as _;
use base64::Engine as _;
use der::{oid, tlv};
pub use files::{KubeconfigUser, StaticPod, kubeconfig};
use jiff::{SignedDuration, Timestamp};
use rcgen::{KeyPair, PublicKeyData as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// The DNS name every kube-apiserver's serving certificate carries.
pub const SERVER_NAME: &str = "kubernetes.default.svc";

/// ASN.1 string types that occur in subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StringKind {
    /// `UTF8String`.
    Utf8,
    /// `PrintableString` (its alphabet is not checked: tests want bad ones too).
    Printable,
    /// `T61String`, written as the UTF-8 bytes are.
    Teletex,
    /// `IA5String`.
    Ia5,
    /// `BMPString`: UTF-16, big endian.
    Bmp,
}

impl StringKind {
    fn encode(self, value: &str) -> Vec<u8> {
        match self {
            Self::Utf8 => tlv(0x0c, value.as_bytes()),
            Self::Printable => tlv(0x13, value.as_bytes()),
            Self::Teletex => tlv(0x14, value.as_bytes()),
            Self::Ia5 => tlv(0x16, value.as_bytes()),
            Self::Bmp => {
                let units: Vec<u8> = value.encode_utf16().flat_map(u16::to_be_bytes).collect();
                tlv(0x1e, &units)
            }
        }
    }
}

/// A subject: one relative distinguished name per call, in the order of the calls.
#[derive(Debug, Clone, Default)]
pub struct Subject(Vec<Vec<Vec<u8>>>);

impl Subject {
    /// The empty subject.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a common name (`UTF8String`). Go reads the last one.
    #[must_use]
    pub fn cn(self, value: &str) -> Self {
        self.attribute(oid::COMMON_NAME, StringKind::Utf8, value)
    }

    /// Adds an organisation (UTF8String): a group.
    #[must_use]
    pub fn o(self, value: &str) -> Self {
        self.attribute(oid::ORGANIZATION, StringKind::Utf8, value)
    }

    /// Adds the attribute kube-apiserver reads the UID from.
    #[must_use]
    pub fn uid(self, value: &str) -> Self {
        self.attribute(oid::KUBERNETES_UID, StringKind::Utf8, value)
    }

    /// Adds any attribute as a relative distinguished name of its own.
    #[must_use]
    pub fn attribute(mut self, arcs: &[u64], kind: StringKind, value: &str) -> Self {
        self.0.push(vec![der::sequence(&[
            der::object_identifier(arcs),
            kind.encode(value),
        ])]);
        self
    }

    /// Puts the next attribute into the last relative distinguished name (`O=a+O=b`) instead of a new one.
    #[must_use]
    pub fn joined(mut self, arcs: &[u64], kind: StringKind, value: &str) -> Self {
        let attribute = der::sequence(&[der::object_identifier(arcs), kind.encode(value)]);
        match self.0.last_mut() {
            Some(last) => last.push(attribute),
            None => self.0.push(vec![attribute]),
        }
        self
    }

    fn der(&self) -> Vec<u8> {
        let names = self.0.iter().map(|set| {
            // DER wants a SET OF sorted by encoding.
            let mut sorted = set.clone();
            sorted.sort();
            tlv(0x31, &sorted.concat())
        });
        der::sequence(&names.collect::<Vec<_>>())
    }
}

/// What a certificate may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// TLS client authentication.
    Client,
    /// TLS server authentication.
    Server,
}

/// A leaf certificate to be issued.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// Whose it is.
    pub subject: Subject,
    /// Extended key usages; none: no such extension.
    pub usages: Vec<Usage>,
    /// DNS names of the subject alternative name.
    pub dns: Vec<String>,
    /// Addresses of the subject alternative name.
    pub addresses: Vec<IpAddr>,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity.
    pub not_after: Timestamp,
    /// X.509 v1: no extensions at all.
    pub version1: bool,
    /// Adds a critical extension that nobody knows.
    pub unknown_critical: bool,
}

impl Leaf {
    /// A client certificate, valid from an hour ago for a day.
    pub fn client(subject: Subject) -> Self {
        let now = Timestamp::now();
        Self {
            subject,
            usages: vec![Usage::Client],
            dns: Vec::new(),
            addresses: Vec::new(),
            not_before: now - SignedDuration::from_hours(1),
            not_after: now + SignedDuration::from_hours(24),
            version1: false,
            unknown_critical: false,
        }
    }

    /// A serving certificate for the names and addresses.
    pub fn server(subject: Subject, dns: &[&str], addresses: &[IpAddr]) -> Self {
        Self {
            usages: vec![Usage::Server],
            dns: dns.iter().map(|name| (*name).to_owned()).collect(),
            addresses: addresses.to_vec(),
            ..Self::client(subject)
        }
    }

    /// Ends `seconds` from now (negative: it has ended; the start is an hour before that).
    #[must_use]
    pub fn expires_in(mut self, seconds: i64) -> Self {
        self.not_after = Timestamp::now() + SignedDuration::from_secs(seconds);
        self.not_before = self
            .not_before
            .min(self.not_after - SignedDuration::from_hours(1));
        self
    }

    /// Other usages.
    #[must_use]
    pub fn usages(mut self, usages: &[Usage]) -> Self {
        self.usages = usages.to_vec();
        self
    }

    /// As X.509 v1.
    #[must_use]
    pub fn version1(mut self) -> Self {
        self.version1 = true;
        self
    }

    fn extensions(&self) -> Vec<Vec<u8>> {
        // digitalSignature and keyEncipherment, as kubeadm's.
        let mut extensions = vec![der::extension(
            oid::KEY_USAGE,
            true,
            &[0x03, 0x02, 0x05, 0xa0],
        )];
        if !self.usages.is_empty() {
            let usages: Vec<Vec<u8>> = self
                .usages
                .iter()
                .map(|usage| {
                    der::object_identifier(match usage {
                        Usage::Client => oid::CLIENT_AUTH,
                        Usage::Server => oid::SERVER_AUTH,
                    })
                })
                .collect();
            extensions.push(der::extension(
                oid::EXTENDED_KEY_USAGE,
                false,
                &der::sequence(&usages),
            ));
        }
        let names: Vec<Vec<u8>> = self
            .dns
            .iter()
            .map(|name| tlv(0x82, name.as_bytes()))
            .chain(self.addresses.iter().map(|address| match address {
                IpAddr::V4(address) => tlv(0x87, &address.octets()),
                IpAddr::V6(address) => tlv(0x87, &address.octets()),
            }))
            .collect();
        if !names.is_empty() {
            extensions.push(der::extension(
                oid::SUBJECT_ALT_NAME,
                false,
                &der::sequence(&names),
            ));
        }
        if self.unknown_critical {
            extensions.push(der::extension(
                &[1, 3, 6, 1, 4, 1, 57683, 99],
                true,
                &tlv(0x05, &[]),
            ));
        }
        extensions
    }
}

/// A certificate with its key.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate.
    pub der: CertificateDer<'static>,
    /// The private key, PKCS #8.
    pub key: Vec<u8>,
}

impl Issued {
    /// The certificate as PEM.
    pub fn cert_pem(&self) -> String {
        pem("CERTIFICATE", &self.der)
    }

    /// The private key as PEM.
    pub fn key_pem(&self) -> String {
        pem("PRIVATE KEY", &self.key)
    }

    /// The private key as rustls takes it.
    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()))
    }
}

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    /// Its self-signed certificate.
    pub certificate: Issued,
    name: Vec<u8>,
    key: KeyPair,
}

impl Authority {
    /// A new authority called `name`.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let key = KeyPair::generate().context("no key pair could be made")?;
        let subject = Subject::new().cn(name).der();
        let now = Timestamp::now();
        // cA=TRUE; keyCertSign, cRLSign and digitalSignature.
        let extensions = [
            der::extension(
                oid::BASIC_CONSTRAINTS,
                true,
                &der::sequence(&[tlv(0x01, &[0xff])]),
            ),
            der::extension(oid::KEY_USAGE, true, &[0x03, 0x02, 0x01, 0x86]),
        ];
        let der = der::sign(
            &der::ToBeSigned {
                version1: false,
                serial: &serial()?,
                issuer: &subject,
                subject: &subject,
                public_key: &key.subject_public_key_info(),
                not_before: now - SignedDuration::from_hours(24),
                not_after: now + SignedDuration::from_hours(24 * 365),
                extensions: &extensions,
            },
            &key,
        )
        .context("the authority's certificate could not be signed")?;
        let certificate = Issued {
            der: CertificateDer::from(der),
            key: key.serialize_der(),
        };
        Ok(Self {
            certificate,
            name: subject,
            key,
        })
    }

    /// Issues a leaf with a fresh ECDSA P-256 key.
    pub fn issue(&self, leaf: &Leaf) -> anyhow::Result<Issued> {
        let key = KeyPair::generate().context("no key pair could be made")?;
        let der = der::sign(
            &der::ToBeSigned {
                version1: leaf.version1,
                serial: &serial()?,
                issuer: &self.name,
                subject: &leaf.subject.der(),
                public_key: &key.subject_public_key_info(),
                not_before: leaf.not_before,
                not_after: leaf.not_after,
                extensions: &leaf.extensions(),
            },
            &self.key,
        )
        .context("the certificate could not be signed")?;
        Ok(Issued {
            der: CertificateDer::from(der),
            key: key.serialize_der(),
        })
    }

    /// The authority's certificate as PEM.
    pub fn pem(&self) -> String {
        self.certificate.cert_pem()
    }
}

/// The authorities of a cluster, and short cuts for the certificates kubeadm makes.
#[derive(Debug)]
pub struct ClusterPki {
    /// Signs serving and client certificates (`ca.crt`).
    pub ca: Authority,
    /// Signs front-proxy clients (`front-proxy-ca.crt`).
    pub front_proxy_ca: Authority,
}

impl ClusterPki {
    /// Two new authorities.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self {
            ca: Authority::new("kubernetes")?,
            front_proxy_ca: Authority::new("front-proxy-ca")?,
        })
    }

    /// A kube-apiserver's serving certificate: the service's names, `localhost` and the addresses.
    pub fn serving(&self, addresses: &[IpAddr]) -> anyhow::Result<Issued> {
        self.serving_also(&[], addresses)
    }

    /// The same, for more names.
    pub fn serving_also(&self, more: &[&str], addresses: &[IpAddr]) -> anyhow::Result<Issued> {
        let names = [
            "kubernetes",
            "kubernetes.default",
            SERVER_NAME,
            "kubernetes.default.svc.cluster.local",
            "localhost",
        ];
        let names = [names.as_slice(), more].concat();
        self.ca.issue(&Leaf::server(
            Subject::new().cn("kube-apiserver"),
            &names,
            addresses,
        ))
    }

    /// The certificate kube-apiserver shows other servers as front proxy: CN `front-proxy-client`.
    pub fn front_proxy_client(&self) -> anyhow::Result<Issued> {
        self.front_proxy_ca
            .issue(&Leaf::client(Subject::new().cn("front-proxy-client")))
    }

    /// A user's client certificate.
    pub fn client(&self, user: &str, groups: &[&str]) -> anyhow::Result<Issued> {
        let subject = groups
            .iter()
            .fold(Subject::new(), |subject, group| subject.o(group))
            .cn(user);
        self.ca.issue(&Leaf::client(subject))
    }
}

fn serial() -> anyhow::Result<Vec<u8>> {
    let mut serial = vec![0u8; 16];
    rustls::crypto::aws_lc_rs::default_provider()
        .secure_random
        .fill(&mut serial)
        .map_err(|error| anyhow::anyhow!("no random bytes: {error:?}"))?;
    // Positive and without a leading zero byte, as DER wants it.
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(serial)
}

/// One PEM block with lines of 64 characters.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = tail;
    }
    out.push_str("-----END ");
    out.push_str(label);
    out.push_str("-----\n");
    out
}
