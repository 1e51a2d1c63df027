//! Certificates and keys from files, hot-reloaded, as one immutable [`Material`] per generation; the only maker of
//! rustls configurations.
//!
//! Not for judging who a client is (`identity` does, at every request): the handshake checks only that the client has
//! the private key of the certificate it shows, as kube-apiserver's does (`tls.RequestClientCert`).

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::sync::watch;

use crate::config::TlsConfig;

mod anchors;
mod client;
mod files;
#[cfg(test)]
pub(crate) mod fixtures;
mod parts;
mod records;
mod server;
mod suites;
#[cfg(test)]
mod tests;
mod watcher;

pub use anchors::{Anchors, Authorities, Limits};
pub use files::{CertificateInfo, Fault, TlsError};
pub use records::RecordStream;

use client::Clients;
use parts::Parts;
use server::Servers;

/// Which client certificate an upstream is shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Presenting {
    /// The front-proxy certificate: requests carry `X-Remote-*` (design 4.3, kinds 1 and 2).
    FrontProxy,
    /// None: the request's own token, or nobody (kinds 3 and 4).
    Nothing,
}

/// What an upstream connection offers by ALPN; `mvp-direct` is always behind the rest (design 4.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protocol {
    /// `h2`, `http/1.1`.
    Any,
    /// `http/1.1` alone: upgrades.
    Http1,
    /// `http/1.1` without `mvp-direct` and without SNI, presenting nothing: how mvp looks at its own listener and at
    /// others of the steered port, as an ordinary client would see them.
    Inward,
}

/// Everything that was read from the files at one moment.
#[derive(Debug)]
pub struct Material {
    /// Counts the changes.
    pub generation: u64,
    /// For clients.
    pub server: Arc<ServerConfig>,
    /// What client certificates are judged by.
    pub authorities: Arc<Authorities>,
    /// What should be looked at, but does not keep mvp from working: expired certificates, unusable CAs.
    pub warnings: Vec<TlsError>,
    /// The certificates in use, for expiry metrics and `mvp check`.
    pub certificates: Vec<CertificateInfo>,
    servers: Arc<Servers>,
    clients: Arc<Clients>,
    serving: Vec<CertificateDer<'static>>,
}

impl Material {
    /// The configuration of a connection to an upstream. It stays the same object until its own files change. None if
    /// the front-proxy certificate is to be presented and there is none ([`Material::can_forward`]).
    pub fn client(&self, presenting: Presenting, protocol: Protocol) -> Option<Arc<ClientConfig>> {
        self.clients.get(presenting, protocol).map(Arc::clone)
    }

    /// The name that serving certificates of upstreams must have (`--peer-server-name`).
    pub fn server_name(&self) -> &ServerName<'static> {
        &self.clients.server_name
    }

    /// The server configuration for a connection that arrived at `local`: a client that sends no SNI gets the
    /// certificate configured for that address, if there is one (kube-apiserver's `GetConfigForClient`).
    pub fn server_for(&self, local: IpAddr, sni: Option<&str>) -> Arc<ServerConfig> {
        let by_address = match sni {
            Some(_) => None,
            None => self.servers.by_address.get(&local.to_canonical()),
        };
        Arc::clone(by_address.unwrap_or(&self.server))
    }

    /// Whether `leaf` is one of the serving certificates: how kube-apiserver's listener is told from another program's.
    pub fn is_serving(&self, leaf: &CertificateDer<'_>) -> bool {
        self.serving.iter().any(|ours| ours == leaf)
    }

    /// Whether there is a front-proxy certificate at all.
    pub fn can_forward(&self) -> bool {
        self.clients.can_forward()
    }
}

/// The files, and what they said when they last made sense.
#[derive(Debug)]
pub struct Tls {
    config: TlsConfig,
    current: ArcSwap<Material>,
    generation: watch::Sender<u64>,
    /// What the current material was made of, and the errors already logged. Only reloading takes this lock.
    last: Mutex<Last>,
    reloads: Counter,
    failures: Counter,
}

#[derive(Debug)]
struct Last {
    parts: Parts,
    errors: Vec<TlsError>,
    refused: Option<TlsError>,
}

impl Tls {
    /// Reads every file once; all that is wrong with any of them comes back together.
    pub fn load(config: &TlsConfig) -> Result<Arc<Self>, Vec<TlsError>> {
        let (parts, report) = Parts::read(config);
        let parts = match parts.complete() {
            Some(parts) if report.errors.is_empty() => parts,
            _ => return Err(report.errors),
        };
        let material = build(config, &parts, None, report.warnings).map_err(|error| vec![error])?;
        for warning in &material.warnings {
            tracing::warn!("{warning}");
        }
        Ok(Arc::new(Self {
            config: config.clone(),
            generation: watch::Sender::new(material.generation),
            current: ArcSwap::from_pointee(material),
            last: Mutex::new(Last {
                parts,
                errors: Vec::new(),
                refused: None,
            }),
            reloads: Counter::default(),
            failures: Counter::default(),
        }))
    }

    /// The newest generation.
    pub fn current(&self) -> Arc<Material> {
        self.current.load_full()
    }

    /// The newest generation, for a short look: counts no reference, which every request of every thread would.
    pub fn look(&self) -> arc_swap::Guard<Arc<Material>> {
        self.current.load()
    }

    /// Changes whenever [`Tls::current`] does.
    pub fn generations(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Reads the files now; true if something changed. What cannot be read stays as it was, each part for itself, so
    /// that a half-written pair does not keep a new CA from being used. Blocks on the disk.
    pub fn reload(&self) -> bool {
        let (parts, report) = Parts::read(&self.config);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if report.errors != last.errors {
            for error in &report.errors {
                self.failures.inc();
                tracing::error!("keeping the last good one: {error}");
            }
            last.errors.clone_from(&report.errors);
        }
        let parts = parts.or(&last.parts);
        if parts == last.parts {
            return false;
        }
        let before = self.current();
        match build(
            &self.config,
            &parts,
            Some((&before, &last.parts)),
            report.warnings,
        ) {
            Ok(material) => {
                for warning in material
                    .warnings
                    .iter()
                    .filter(|new| !before.warnings.contains(new))
                {
                    tracing::warn!("{warning}");
                }
                let generation = material.generation;
                tracing::info!(generation, "certificates, keys or CAs changed");
                self.current.store(Arc::new(material));
                last.parts = parts;
                last.refused = None;
                drop(last);
                self.reloads.inc();
                self.generation.send_replace(generation);
                true
            }
            Err(error) => {
                if last.refused.as_ref() != Some(&error) {
                    self.failures.inc();
                    tracing::error!("keeping the last good one: {error}");
                    last.refused = Some(error);
                }
                false
            }
        }
    }

    /// Reads the files again whenever they change, for ever: at file system events, and every ten seconds.
    pub async fn watch_files(self: Arc<Self>) {
        watcher::run(self).await;
    }

    /// Adds the counters to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "mvp_tls_reloads",
            "Changes of certificates, keys or CAs that were taken over",
            self.reloads.clone(),
        );
        registry.register(
            "mvp_tls_reload_failures",
            "Files that could not be read again; the last good one stays in use",
            self.failures.clone(),
        );
    }

    fn paths(&self) -> Vec<PathBuf> {
        let config = &self.config;
        let mut paths = vec![
            config.cert_file.clone(),
            config.private_key_file.clone(),
            config.peer_ca_file.clone(),
        ];
        for sni in &config.sni {
            paths.push(sni.certificate.clone());
            paths.push(sni.key.clone());
        }
        paths.extend(
            [
                &config.client_ca_file,
                &config.requestheader_client_ca_file,
                &config.proxy_client_cert_file,
                &config.proxy_client_key_file,
            ]
            .into_iter()
            .flatten()
            .cloned(),
        );
        paths
    }
}

/// Makes the next generation; what did not change is taken over as the same objects.
fn build(
    config: &TlsConfig,
    parts: &Parts,
    before: Option<(&Material, &Parts)>,
    warnings: Vec<TlsError>,
) -> Result<Material, TlsError> {
    let generation = before.map_or(1, |(material, _)| material.generation + 1);
    let rustls = |flag, file: &Path, error: &rustls::Error| TlsError {
        flag,
        file: Some(file.to_owned()),
        fault: Fault::Rustls(error.to_string()),
    };
    let authorities = match before {
        Some((material, old)) if old.same_authorities(parts) => Arc::clone(&material.authorities),
        _ => Arc::new(Authorities {
            generation,
            client: parts.client_ca.clone(),
            requestheader: parts.requestheader_ca.clone(),
            allowed_names: config.requestheader_allowed_names.clone(),
        }),
    };
    let servers = match before {
        Some((material, old)) if old.same_serving(parts) && old.same_authorities(parts) => {
            Arc::clone(&material.servers)
        }
        _ => Arc::new(
            server::build(&parts.serving, &parts.sni, parts.hints(), &parts.suites)
                .map_err(|error| rustls("--tls-cert-file", &config.cert_file, &error))?,
        ),
    };
    let clients = match before {
        Some((material, old)) if old.same_towards_upstreams(parts) => Arc::clone(&material.clients),
        _ => Arc::new(
            Clients::build(
                &parts.peer_ca,
                parts.front_proxy.as_deref(),
                parts.server_name.clone(),
            )
            .map_err(|error| rustls("--peer-ca-file", &config.peer_ca_file, &error))?,
        ),
    };
    Ok(Material {
        generation,
        server: Arc::clone(&servers.default),
        authorities,
        warnings,
        certificates: parts.certificates(),
        servers,
        clients,
        serving: [&parts.serving]
            .into_iter()
            .chain(parts.sni.iter().map(|(pair, _names)| pair))
            .filter_map(|pair| pair.key.cert.first().cloned())
            .collect(),
    })
}
