//! The parts of a generation, each read from its own files and kept for itself when a later reading fails.

use std::{path::PathBuf, sync::Arc};

use rustls::DistinguishedName;
use rustls_pki_types::ServerName;

use super::{
    anchors::{self, Anchors, Purpose},
    files::{self, CertificateInfo, Fault, Pair, PairFiles, Report, TlsError},
    suites::Suites,
};
use crate::config::TlsConfig;

/// A part that is not configured is `Absent`, one that could not be read is `Broken`.
#[derive(Debug)]
enum Part<T> {
    Absent,
    Broken,
    Good(T),
}

impl<T: Clone> Part<T> {
    fn from(configured: bool, read: Option<T>) -> Self {
        match read {
            Some(value) => Self::Good(value),
            None if configured => Self::Broken,
            None => Self::Absent,
        }
    }

    fn or(self, old: Option<&T>) -> Option<T> {
        match self {
            Self::Good(value) => Some(value),
            Self::Absent => None,
            Self::Broken => old.cloned(),
        }
    }
}

/// What one reading of all files gave.
#[derive(Debug)]
pub(super) struct Reading {
    serving: Part<Arc<Pair>>,
    sni: Part<Vec<(Arc<Pair>, Vec<String>)>>,
    client_ca: Part<Anchors>,
    requestheader_ca: Part<Anchors>,
    peer_ca: Part<Anchors>,
    front_proxy: Part<Arc<Pair>>,
    suites: Suites,
    server_name: Option<ServerName<'static>>,
}

/// A whole set.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub(super) serving: Arc<Pair>,
    /// With the names that each certificate is shown for.
    pub(super) sni: Vec<(Arc<Pair>, Vec<String>)>,
    pub(super) client_ca: Option<Anchors>,
    pub(super) requestheader_ca: Option<Anchors>,
    pub(super) peer_ca: Anchors,
    pub(super) front_proxy: Option<Arc<Pair>>,
    pub(super) suites: Suites,
    pub(super) server_name: ServerName<'static>,
}

/// Flags do not change while mvp runs, so only the files are compared.
impl PartialEq for Parts {
    fn eq(&self, other: &Self) -> bool {
        self.same_serving(other)
            && self.same_authorities(other)
            && self.same_towards_upstreams(other)
    }
}

impl Parts {
    /// Reads everything, and reports everything that is wrong.
    pub(super) fn read(config: &TlsConfig) -> (Reading, Report) {
        let mut report = Report::default();
        let serving = files::pair(
            PairFiles {
                certificate_flag: "--tls-cert-file",
                certificate: &config.cert_file,
                key_flag: "--tls-private-key-file",
                key: &config.private_key_file,
            },
            &mut report,
        );
        let sni = config
            .sni
            .iter()
            .map(|sni| read_sni(sni, &mut report))
            .collect::<Vec<_>>();
        let sni: Option<Vec<_>> = sni.into_iter().collect();
        let authority = |flag, file: &Option<PathBuf>, report: &mut Report| {
            let read = file
                .as_deref()
                .and_then(|file| anchors::read(flag, file, Purpose::Clients, report));
            Part::from(file.is_some(), read)
        };
        let client_ca = authority("--client-ca-file", &config.client_ca_file, &mut report);
        let requestheader_ca = authority(
            "--requestheader-client-ca-file",
            &config.requestheader_client_ca_file,
            &mut report,
        );
        let peer_ca = anchors::read(
            "--peer-ca-file",
            &config.peer_ca_file,
            Purpose::Servers,
            &mut report,
        );
        let front_proxy = read_front_proxy(config, &mut report);
        let suites = Suites::parse(config.only_tls13, &config.cipher_suites, &mut report);
        let server_name = match ServerName::try_from(config.peer_server_name.clone()) {
            Ok(name) => Some(name),
            Err(error) => {
                report.errors.push(TlsError {
                    flag: "--peer-server-name",
                    file: None,
                    fault: Fault::Value(format!("{:?} {error}", config.peer_server_name)),
                });
                None
            }
        };
        let reading = Reading {
            serving: Part::from(true, serving.map(Arc::new)),
            sni: Part::from(true, sni),
            client_ca,
            requestheader_ca,
            peer_ca: Part::from(true, peer_ca),
            front_proxy,
            suites,
            server_name,
        };
        (reading, report)
    }

    pub(super) fn same_serving(&self, other: &Self) -> bool {
        self.serving == other.serving && self.sni == other.sni
    }

    pub(super) fn same_authorities(&self, other: &Self) -> bool {
        self.client_ca == other.client_ca && self.requestheader_ca == other.requestheader_ca
    }

    pub(super) fn same_towards_upstreams(&self, other: &Self) -> bool {
        self.peer_ca == other.peer_ca && self.front_proxy == other.front_proxy
    }

    /// Names of CAs that clients are hinted at: kube-apiserver merges both files into `ClientCAs`.
    pub(super) fn hints(&self) -> Vec<DistinguishedName> {
        let mut hints: Vec<DistinguishedName> = Vec::new();
        for hint in [&self.client_ca, &self.requestheader_ca]
            .into_iter()
            .flatten()
            .flat_map(|anchors| &anchors.hints)
        {
            if !hints.iter().any(|known| known.as_ref() == hint.as_ref()) {
                hints.push(hint.clone());
            }
        }
        hints
    }

    pub(super) fn certificates(&self) -> Vec<CertificateInfo> {
        let pairs = std::iter::once(&self.serving)
            .chain(self.sni.iter().map(|(pair, _)| pair))
            .chain(&self.front_proxy)
            .map(|pair| &pair.info);
        let authorities = [&self.client_ca, &self.requestheader_ca]
            .into_iter()
            .flatten()
            .chain(std::iter::once(&self.peer_ca))
            .flat_map(|anchors| &anchors.infos);
        pairs.chain(authorities).cloned().collect()
    }
}

impl Reading {
    /// The whole set, if nothing is broken.
    pub(super) fn complete(self) -> Option<Parts> {
        self.merge(None)
    }

    /// The whole set, with the old part in the place of each broken one.
    pub(super) fn or(self, old: &Parts) -> Parts {
        self.merge(Some(old)).unwrap_or_else(|| old.clone())
    }

    fn merge(self, old: Option<&Parts>) -> Option<Parts> {
        let whole = |part: &Option<Anchors>, broken: bool| part.is_some() || !broken;
        let broken_client = matches!(self.client_ca, Part::Broken);
        let broken_requestheader = matches!(self.requestheader_ca, Part::Broken);
        let broken_front_proxy = matches!(self.front_proxy, Part::Broken);
        let client_ca = self
            .client_ca
            .or(old.and_then(|old| old.client_ca.as_ref()));
        let requestheader_ca = self
            .requestheader_ca
            .or(old.and_then(|old| old.requestheader_ca.as_ref()));
        let front_proxy = self
            .front_proxy
            .or(old.and_then(|old| old.front_proxy.as_ref()));
        if !whole(&client_ca, broken_client)
            || !whole(&requestheader_ca, broken_requestheader)
            || (front_proxy.is_none() && broken_front_proxy)
        {
            return None;
        }
        Some(Parts {
            serving: self.serving.or(old.map(|old| &old.serving))?,
            sni: self.sni.or(old.map(|old| &old.sni))?,
            client_ca,
            requestheader_ca,
            peer_ca: self.peer_ca.or(old.map(|old| &old.peer_ca))?,
            front_proxy,
            suites: self.suites,
            server_name: self.server_name?,
        })
    }
}

fn read_sni(
    sni: &crate::config::SniCertificate,
    report: &mut Report,
) -> Option<(Arc<Pair>, Vec<String>)> {
    let pair = files::pair(
        PairFiles {
            certificate_flag: "--tls-sni-cert-key",
            certificate: &sni.certificate,
            key_flag: "--tls-sni-cert-key",
            key: &sni.key,
        },
        report,
    )?;
    let names = if sni.names.is_empty() {
        pair.domains.clone()
    } else {
        sni.names.clone()
    };
    Some((Arc::new(pair), names))
}

fn read_front_proxy(config: &TlsConfig, report: &mut Report) -> Part<Arc<Pair>> {
    const CERTIFICATE: &str = "--proxy-client-cert-file";
    const KEY: &str = "--proxy-client-key-file";
    match (
        &config.proxy_client_cert_file,
        &config.proxy_client_key_file,
    ) {
        (None, None) => Part::Absent,
        (Some(certificate), Some(key)) => {
            let files = PairFiles {
                certificate_flag: CERTIFICATE,
                certificate,
                key_flag: KEY,
                key,
            };
            Part::from(true, files::pair(files, report).map(Arc::new))
        }
        (Some(_), None) => alone(KEY, CERTIFICATE, report),
        (None, Some(_)) => alone(CERTIFICATE, KEY, report),
    }
}

fn alone(missing: &'static str, given: &'static str, report: &mut Report) -> Part<Arc<Pair>> {
    report.errors.push(TlsError {
        flag: missing,
        file: None,
        fault: Fault::Alone(given),
    });
    Part::Broken
}
