//! Reads certificates, keys and CA bundles, and says of each file what is wrong with it.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls::{crypto::aws_lc_rs::sign::any_supported_type, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use x509_parser::prelude::FromDer as _;

/// What is wrong with one file, or with one flag.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{flag}{}: {fault}", file.as_deref().map(|file| format!(" {}", file.display())).unwrap_or_default())]
pub struct TlsError {
    /// The flag that names the file (the field of a kube-apiserver flag set), e.g. `--client-ca-file`.
    pub flag: &'static str,
    /// The file; none if the flag's own value is wrong.
    pub file: Option<PathBuf>,
    /// What about it.
    pub fault: Fault,
}

/// What can be wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// Not PEM, or a damaged block in it.
    #[error("is not valid PEM: {0}")]
    Pem(String),
    /// No `CERTIFICATE` block.
    #[error("holds no certificate")]
    NoCertificate,
    /// No private key block.
    #[error("holds no private key (encrypted keys are not supported)")]
    NoKey,
    /// The n-th certificate (from 1) cannot be parsed.
    #[error("certificate {0} cannot be parsed: {1}")]
    Certificate(usize, String),
    /// A key of an unknown kind.
    #[error("the private key cannot be used: {0}")]
    Key(String),
    /// The key belongs to another certificate.
    #[error("the private key does not belong to the certificate in {}", .0.display())]
    Mismatch(PathBuf),
    /// The end of its validity has passed.
    #[error("certificate {0} ({1}) has expired at {2}")]
    Expired(usize, String, String),
    /// The start of its validity lies ahead.
    #[error("certificate {0} ({1}) is not valid before {2}")]
    NotYetValid(usize, String, String),
    /// A certificate in a CA file that may not issue anything (in Go neither).
    #[error("certificate {0} ({1}) is not used as a CA: {2}")]
    NotAnIssuer(usize, String, &'static str),
    /// No certificate of a CA file can be used.
    #[error("no certificate in it can be used as a CA")]
    NoIssuer,
    /// One file of a pair is given without the other.
    #[error("is needed beside {0}")]
    Alone(&'static str),
    /// The value of a flag.
    #[error("{0}")]
    Value(String),
    /// rustls refuses the whole.
    #[error("TLS cannot be set up: {0}")]
    Rustls(String),
}

/// One certificate of the configuration, for `mvp check` and the expiry metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateInfo {
    /// The flag that names its file.
    pub flag: &'static str,
    /// Its file.
    pub file: PathBuf,
    /// Its subject, for display.
    pub subject: String,
    /// Start of validity, seconds since 1970.
    pub not_before: i64,
    /// End of validity, seconds since 1970.
    pub not_after: i64,
    /// DNS names and IP addresses of the subject alternative name.
    pub names: Vec<String>,
}

/// A certificate chain with its key.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) key: Arc<CertifiedKey>,
    pub(super) info: CertificateInfo,
    /// CN, if it is a domain pattern, and DNS names: what kube-apiserver shows an SNI certificate for by default.
    pub(super) domains: Vec<String>,
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.key.cert == other.key.cert && self.info == other.info && self.domains == other.domains
    }
}

/// Collects what is wrong and what is suspicious.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) errors: Vec<TlsError>,
    pub(super) warnings: Vec<TlsError>,
}

impl Report {
    pub(super) fn error(&mut self, flag: &'static str, file: &Path, fault: Fault) {
        self.errors.push(TlsError {
            flag,
            file: Some(file.to_owned()),
            fault,
        });
    }

    pub(super) fn warn(&mut self, flag: &'static str, file: &Path, fault: Fault) {
        self.warnings.push(TlsError {
            flag,
            file: Some(file.to_owned()),
            fault,
        });
    }
}

/// The two flags and files of a pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairFiles<'a> {
    pub(super) certificate_flag: &'static str,
    pub(super) certificate: &'a Path,
    pub(super) key_flag: &'static str,
    pub(super) key: &'a Path,
}

/// Reads a certificate chain and its key. Both files are looked at even if the first is bad.
pub(super) fn pair(files: PairFiles<'_>, report: &mut Report) -> Option<Pair> {
    let chain = certificates(files.certificate_flag, files.certificate, report);
    let key = private_key(files.key_flag, files.key, report);
    let (chain, key) = (chain?, key?);
    let leaf = chain.first()?;
    let parsed = match x509_parser::certificate::X509Certificate::from_der(leaf) {
        Ok((_, parsed)) => parsed,
        Err(error) => {
            report.error(
                files.certificate_flag,
                files.certificate,
                Fault::Certificate(1, error.to_string()),
            );
            return None;
        }
    };
    // Compared as whole SubjectPublicKeyInfo, as rustls does, but without webpki, which reads no X.509 v1.
    let same = key
        .public_key()
        .is_none_or(|public| public.as_ref() == parsed.public_key().raw);
    if !same {
        report.error(
            files.key_flag,
            files.key,
            Fault::Mismatch(files.certificate.to_owned()),
        );
        return None;
    }
    let info = info(files.certificate_flag, files.certificate, &parsed);
    note_validity(&info, 1, &parsed, report);
    let domains = domains(&parsed);
    Some(Pair {
        key: Arc::new(CertifiedKey::new(chain, key)),
        info,
        domains,
    })
}

/// Reads every `CERTIFICATE` block of a file; none, or one that cannot be decoded, is an error.
pub(super) fn certificates(
    flag: &'static str,
    file: &Path,
    report: &mut Report,
) -> Option<Vec<CertificateDer<'static>>> {
    let text = read(flag, file, report)?;
    match CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>() {
        Ok(list) if list.is_empty() => {
            report.error(flag, file, Fault::NoCertificate);
            None
        }
        Ok(list) => Some(list),
        Err(error) => {
            report.error(flag, file, Fault::Pem(error.to_string()));
            None
        }
    }
}

fn private_key(
    flag: &'static str,
    file: &Path,
    report: &mut Report,
) -> Option<Arc<dyn rustls::sign::SigningKey>> {
    let text = read(flag, file, report)?;
    let der = match PrivateKeyDer::from_pem_slice(&text) {
        Ok(der) => der,
        Err(rustls_pki_types::pem::Error::NoItemsFound) => {
            report.error(flag, file, Fault::NoKey);
            return None;
        }
        Err(error) => {
            report.error(flag, file, Fault::Pem(error.to_string()));
            return None;
        }
    };
    match any_supported_type(&der) {
        Ok(key) => Some(key),
        Err(error) => {
            report.error(flag, file, Fault::Key(error.to_string()));
            None
        }
    }
}

fn read(flag: &'static str, file: &Path, report: &mut Report) -> Option<Vec<u8>> {
    match read_bounded(file) {
        Ok(text) => Some(text),
        Err(error) => {
            report.error(flag, file, Fault::Unreadable(error.to_string()));
            None
        }
    }
}

/// CA bundles of whole operating systems have about 250 KiB.
const LARGEST: u64 = 4 << 20;

/// Reads a file, but not one without end (a device, a log by mistake).
pub(super) fn read_bounded(file: &Path) -> io::Result<Vec<u8>> {
    use io::Read as _;
    let mut text = Vec::new();
    let read = fs::File::open(file)?
        .take(LARGEST + 1)
        .read_to_end(&mut text)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > LARGEST {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "larger than 4 MiB",
        ));
    }
    Ok(text)
}

/// What is worth knowing of a certificate.
pub(super) fn info(
    flag: &'static str,
    file: &Path,
    certificate: &x509_parser::certificate::X509Certificate<'_>,
) -> CertificateInfo {
    let names = certificate
        .subject_alternative_name()
        .ok()
        .flatten()
        .map(|extension| {
            extension
                .value
                .general_names
                .iter()
                .filter_map(general_name)
                .collect()
        })
        .unwrap_or_default();
    CertificateInfo {
        flag,
        file: file.to_owned(),
        subject: certificate.subject().to_string(),
        not_before: certificate.validity().not_before.timestamp(),
        not_after: certificate.validity().not_after.timestamp(),
        names,
    }
}

fn general_name(name: &x509_parser::extensions::GeneralName<'_>) -> Option<String> {
    use x509_parser::extensions::GeneralName;
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(octets) => match *octets {
            [a, b, c, d] => Some(std::net::Ipv4Addr::new(*a, *b, *c, *d).to_string()),
            octets => <[u8; 16]>::try_from(octets)
                .ok()
                .map(|octets| std::net::Ipv6Addr::from(octets).to_string()),
        },
        _ => None,
    }
}

/// Warns of a certificate whose time is not now: kube-apiserver starts with one too.
pub(super) fn note_validity(
    info: &CertificateInfo,
    number: usize,
    certificate: &x509_parser::certificate::X509Certificate<'_>,
    report: &mut Report,
) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let subject = || info.subject.clone();
    if info.not_after < now {
        let end = certificate.validity().not_after.to_string();
        report.warn(
            info.flag,
            &info.file,
            Fault::Expired(number, subject(), end),
        );
    } else if info.not_before > now {
        let start = certificate.validity().not_before.to_string();
        report.warn(
            info.flag,
            &info.file,
            Fault::NotYetValid(number, subject(), start),
        );
    }
}

/// `getCertificateNames` of `k8s.io/apiserver/pkg/server/dynamiccertificates/named_certificates.go`: the CN unless it
/// is an IP address or no domain, and the DNS names; never IP addresses.
fn domains(certificate: &x509_parser::certificate::X509Certificate<'_>) -> Vec<String> {
    let common_name = certificate
        .subject()
        .iter_common_name()
        .last()
        .and_then(|attribute| attribute.as_str().ok())
        .filter(|name| name.parse::<std::net::IpAddr>().is_err() && is_pattern(name))
        .map(str::to_owned);
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let dns = alternative.iter().flat_map(|extension| {
        extension
            .value
            .general_names
            .iter()
            .filter_map(|name| match name {
                x509_parser::extensions::GeneralName::DNSName(name) => Some((*name).to_owned()),
                _ => None,
            })
    });
    common_name.into_iter().chain(dns).collect()
}

fn is_pattern(name: &str) -> bool {
    let rest = name.strip_prefix("*.").unwrap_or(name);
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    name == "*" || (rest.len() <= 253 && rest.split('.').all(label))
}

impl fmt::Display for CertificateInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} ({})",
            self.flag,
            self.file.display(),
            self.subject
        )
    }
}
