//! From flags, environment, kube-apiserver's manifest and the ConfigMap that it publishes to a [`Config`], or to
//! everything that is wrong with them.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use super::{
    Config, Existing, Flags, Ktls, LocalDown, LogFormat, MAX_THREADS, RequestHeaders, SteerMode,
    TlsConfig,
    flags::{FLAGS, Origin},
    manifest::{DEFAULT_MANIFEST, Manifest},
    published::{self, Access, Published},
    told::{ConfigError, Setting},
    values,
};

mod given;
#[cfg(test)]
mod tests;

/// The cluster CA that every pod finds.
const POD_CA: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// Flags whose values are paths within kube-apiserver's container when they come from its manifest.
const FILES: [&str; 8] = [
    "tls-cert-file",
    "tls-private-key-file",
    "tls-sni-cert-key",
    "client-ca-file",
    "requestheader-client-ca-file",
    "proxy-client-cert-file",
    "proxy-client-key-file",
    "peer-ca-file",
];

/// The configuration, and where each value is from.
#[derive(Debug)]
pub struct Resolved {
    /// The values.
    pub config: Config,
    /// Every flag's value, in the order of the help.
    pub settings: Vec<Setting>,
    /// Where CAs came from that are in no file; they are readable as long as this lives.
    pub published: Option<Published>,
    /// What it was made of.
    pub flags: Flags,
}

/// Reads everything that was said. `check_tls` looks into the files of certificates and keys; its findings are reported
/// together with the others, each a sentence that names a flag or a file.
pub fn resolve(
    flags: &Flags,
    check_tls: impl FnOnce(&TlsConfig) -> Vec<String>,
) -> Result<Resolved, Vec<String>> {
    resolve_with(flags, check_tls, |_| Ok(None))
}

/// The same, with the ConfigMap as last source ([`published::fetch`]): it is asked for only if neither flags nor a manifest
/// say by which CAs clients are judged, and who may be a front proxy.
pub fn resolve_with(
    flags: &Flags,
    check_tls: impl FnOnce(&TlsConfig) -> Vec<String>,
    fetch: impl FnOnce(&Access) -> Result<Option<Published>, String>,
) -> Result<Resolved, Vec<String>> {
    let mut reader = Reader {
        flags,
        manifest: Manifest::default(),
        published: None,
        errors: Vec::new(),
        settings: Vec::new(),
        tls: None,
    };
    let config = reader.config(fetch);
    let mut errors: Vec<String> = reader.errors.iter().map(ToString::to_string).collect();
    let tls_failed = reader.errors.iter().any(|it| {
        it.flag.starts_with("tls-") || FILES.contains(&it.flag) || it.flag == "peer-server-name"
    });
    if let Some(tls) = &reader.tls
        && !tls_failed
    {
        errors.extend(check_tls(tls));
    }
    match config {
        Some(config) if errors.is_empty() => {
            let order = |setting: &Setting| FLAGS.iter().position(|it| it.name == setting.name);
            reader.settings.sort_by_key(order);
            Ok(Resolved {
                config,
                settings: reader.settings,
                published: reader.published,
                flags: flags.clone(),
            })
        }
        _ => Err(errors),
    }
}

struct Reader<'a> {
    flags: &'a Flags,
    manifest: Manifest,
    published: Option<Published>,
    errors: Vec<ConfigError>,
    settings: Vec<Setting>,
    tls: Option<TlsConfig>,
}

impl Reader<'_> {
    fn config(
        &mut self,
        fetch: impl FnOnce(&Access) -> Result<Option<Published>, String>,
    ) -> Option<Config> {
        self.read_manifest();
        let addresses = self.local();
        self.read_published(addresses.map(|(local, _)| local), fetch);
        let tls = self.tls();
        self.tls.clone_from(&tls);
        let request_headers = self.request_headers();
        let steer = self.one("steer", |text| {
            let modes = [
                ("auto", SteerMode::Auto),
                ("always", SteerMode::Always),
                ("never", SteerMode::Never),
            ];
            values::word(text, &modes)
        });
        let listen = self.many("listen", values::socket);
        let peers = self.peers(addresses.map(|(local, _)| local));
        let advertise_address = self.maybe("advertise-address", values::address);
        let kubeconfig = self.maybe("kubeconfig", values::path);
        let discovery_interval = self.one("discovery-interval", values::some_time);
        let learn_deadline = self.one("learn-deadline", values::duration);
        let peer_grace = self.one("peer-grace", values::duration);
        let exempt_source = self.one("exempt-source", values::loopback);
        let state_file = self.one("state-file", values::path);
        let local_down = self.one("local-down", |text| {
            let policies = [
                ("failover", LocalDown::Failover),
                ("refuse", LocalDown::Refuse),
            ];
            values::word(text, &policies)
        });
        let drain_timeout = self.one("drain-timeout", values::duration);
        let control_socket = self.maybe("control-socket", values::path);
        let metrics_listen = self.one("metrics-listen", values::socket);
        let trace_endpoint = self.maybe("trace-endpoint", values::on_this_node);
        let forms = [("text", LogFormat::Text), ("json", LogFormat::Json)];
        let log_format = self.one("log-format", |text| values::word(text, &forms));
        let ktls = self.one("ktls", |text| {
            values::word(
                text,
                &[("auto", Ktls::Auto), ("on", Ktls::On), ("off", Ktls::Off)],
            )
        });
        let splice = self.one("splice", |text| {
            values::word(text, &[("on", true), ("off", false)])
        });
        let threads = self.maybe("threads", |text| values::number(text, 1, MAX_THREADS));
        let max_connections = self.one("max-connections", |text| {
            values::number(text, 1, 10_000_000)
        });
        let existing = self.one("existing", |text| {
            values::word(
                text,
                &[("leave", Existing::Leave), ("drain", Existing::Drain)],
            )
        });
        let drain_idle = self.one("drain-idle", values::some_time);
        let drain_interval = self.one("drain-interval", values::some_time);
        let existing_deadline = self.maybe("existing-deadline", values::some_time);
        let steer_percent = self.one("steer-percent", |text| values::number(text, 0, 100));
        let steer_cidrs = self.many("steer-cidr", values::cidr);
        let exempt_cidrs = self.many("exempt-cidr", values::cidr);
        let steer_off_delay = self.one("steer-off-delay", values::duration);
        let (local, secure_port) = addresses?;
        Some(Config {
            local,
            secure_port,
            steer: steer?,
            listen: listen?,
            tls: tls?,
            request_headers: request_headers?,
            peers: peers?,
            advertise_address: advertise_address?,
            kubeconfig: kubeconfig?,
            discovery_interval: discovery_interval?,
            learn_deadline: learn_deadline?,
            peer_grace: peer_grace?,
            exempt_source: exempt_source?,
            state_file: state_file?,
            local_down: local_down?,
            drain_timeout: drain_timeout?,
            control_socket: control_socket?,
            metrics_listen: metrics_listen?,
            trace_endpoint: trace_endpoint?,
            log_format: log_format?,
            ktls: ktls?,
            splice: splice?,
            threads: threads?.unwrap_or_else(|| threads_for(cpus())),
            max_connections: max_connections?,
            existing: existing?,
            drain_idle: drain_idle?,
            drain_interval: drain_interval?,
            existing_deadline: existing_deadline?,
            steer_percent: u8::try_from(steer_percent?).ok()?,
            steer_cidrs: steer_cidrs?,
            exempt_cidrs: exempt_cidrs?,
            steer_off_delay: steer_off_delay?,
        })
    }

    fn read_manifest(&mut self) {
        const NAME: &str = "kubeadm-manifest";
        let (path, origin) = match self.flags.get(NAME) {
            Some((given, origin)) => (given.first().cloned().unwrap_or_default(), origin),
            None if Path::new(DEFAULT_MANIFEST).exists() => {
                (DEFAULT_MANIFEST.to_owned(), Origin::Default)
            }
            None => (String::new(), Origin::Default),
        };
        if !path.is_empty() {
            match Manifest::read(Path::new(&path)) {
                Ok(manifest) => self.manifest = manifest,
                Err(message) => self.fail(NAME, origin.clone(), message),
            }
        }
        self.settle(NAME, path, origin);
    }

    fn read_published(
        &mut self,
        local: Option<SocketAddr>,
        fetch: impl FnOnce(&Access) -> Result<Option<Published>, String>,
    ) {
        let last = |name| self.given(name).0.pop().filter(|text| !text.is_empty());
        let access = Access {
            kubeconfig: last("kubeconfig").map(PathBuf::from),
            local,
            server_name: last("peer-server-name").unwrap_or_default(),
        };
        // A manifest is kube-apiserver's own word: what it does not say is not configured there either.
        let missing = self.manifest.is_empty().then(|| self.unsaid()).flatten();
        let Some(missing) = missing else {
            self.published = Some(Published::later(access));
            return;
        };
        match fetch(&access) {
            Ok(published) => self.published = published,
            Err(error) => self.fail(
                missing,
                Origin::Default,
                format!(
                    "not given, nor is --kubeadm-manifest, and ConfigMap {} cannot be read: {error}",
                    published::NAME
                ),
            ),
        }
    }

    /// What the ConfigMap is needed for: a CA, or, beside the CA of front proxies, their names. Where no names are known
    /// every certificate of that CA may name any user, and kube-apiserver may have been told better.
    fn unsaid(&self) -> Option<&'static str> {
        const NAMES: &str = "requestheader-allowed-names";
        let is_unsaid = |name: &&str| self.flags.get(name).is_none();
        if let Some(ca) = published::CAS.into_iter().find(is_unsaid) {
            return Some(ca);
        }
        let proxies = self.flags.get("requestheader-client-ca-file");
        // Said to be none: then nobody is a front proxy.
        let trusted = proxies.is_some_and(|(path, _)| path.iter().any(|it| !it.is_empty()));
        (trusted && is_unsaid(&NAMES)).then_some(NAMES)
    }

    /// Where local is and which port is steered: each follows from the other if only one is given.
    fn local(&mut self) -> Option<(SocketAddr, u16)> {
        let (given, origin) = self.given("local");
        let (port_given, port_origin) = self.given("secure-port");
        let local = given.first().filter(|text| !text.is_empty()).cloned();
        // kube-apiserver takes the last of several.
        let port_given = port_given.last().cloned().unwrap_or_default();
        let port = self
            .parse("secure-port", &[port_given], &port_origin, values::port)
            .and_then(|ports| ports.last().copied());
        let (_, bind_origin) = self.given("bind-address");
        let bind = self.maybe("bind-address", values::address);
        let Some(text) = local else {
            let port = port?;
            let bind = bind?;
            let ip = match bind {
                Some(ip) if !ip.is_unspecified() => ip,
                _ => std::net::Ipv4Addr::LOCALHOST.into(),
            };
            let local = SocketAddr::new(ip, port);
            let origin = bind.map_or(Origin::Default, |_| bind_origin);
            self.settle("local", format!("https://{local}"), origin);
            self.settle("secure-port", port.to_string(), port_origin);
            return Some((local, port));
        };
        let local = self
            .parse("local", &[text], &origin, |text| {
                values::server(text, port.unwrap_or(6443))
            })?
            .pop()?;
        self.settle("local", format!("https://{local}"), origin);
        let port = if port_origin == Origin::Default {
            local.port()
        } else {
            port?
        };
        self.settle("secure-port", port.to_string(), port_origin);
        Some((local, port))
    }

    fn tls(&mut self) -> Option<TlsConfig> {
        let cert_file = self.required("tls-cert-file");
        let private_key_file = self.required("tls-private-key-file");
        let sni = self.many("tls-sni-cert-key", values::sni);
        let only_tls13 = self.one("tls-min-version", |text| {
            // kube-apiserver also knows 1.0 and 1.1, as floors that mvp is above.
            let versions = [
                ("VersionTLS10", false),
                ("VersionTLS11", false),
                ("VersionTLS12", false),
                ("VersionTLS13", true),
            ];
            values::word(text, &versions)
        });
        let cipher_suites = self.many("tls-cipher-suites", |text| Ok(text.to_owned()));
        let client_ca_file = self.maybe("client-ca-file", values::path);
        let requestheader_client_ca_file = self.maybe("requestheader-client-ca-file", values::path);
        let requestheader_allowed_names =
            self.many("requestheader-allowed-names", |text| Ok(text.to_owned()));
        let proxy_client_cert_file = self.maybe("proxy-client-cert-file", values::path);
        let proxy_client_key_file = self.maybe("proxy-client-key-file", values::path);
        self.both_or_none(
            ("proxy-client-cert-file", proxy_client_cert_file.as_ref()),
            ("proxy-client-key-file", proxy_client_key_file.as_ref()),
        );
        let peer_ca_file = self.peer_ca(client_ca_file.as_ref());
        let peer_server_name = self.one("peer-server-name", |text| {
            rustls_pki_types::ServerName::try_from(text)
                .map(|_| text.to_owned())
                .ok()
                .ok_or_else(|| format!("{text:?} is not a name that a certificate can have"))
        });
        Some(TlsConfig {
            cert_file: cert_file?,
            private_key_file: private_key_file?,
            sni: sni?,
            only_tls13: only_tls13?,
            cipher_suites: cipher_suites?,
            client_ca_file: client_ca_file?,
            requestheader_client_ca_file: requestheader_client_ca_file?,
            requestheader_allowed_names: requestheader_allowed_names?,
            proxy_client_cert_file: proxy_client_cert_file?,
            proxy_client_key_file: proxy_client_key_file?,
            peer_ca_file: peer_ca_file?,
            peer_server_name: peer_server_name?,
        })
    }

    fn both_or_none(
        &mut self,
        (first, one): (&'static str, Option<&Option<PathBuf>>),
        (second, other): (&'static str, Option<&Option<PathBuf>>),
    ) {
        let (Some(one), Some(other)) = (one, other) else {
            return;
        };
        let missing = match (one, other) {
            (Some(_), None) => second,
            (None, Some(_)) => first,
            _ => return,
        };
        let message = format!("is needed: --{first} and --{second} go together");
        self.fail(missing, Origin::Default, message);
    }

    /// What serving certificates are verified against: as said, else the CA that every pod is given, else the CA of
    /// client certificates, which is the cluster's own in most clusters.
    fn peer_ca(&mut self, client_ca: Option<&Option<PathBuf>>) -> Option<PathBuf> {
        const NAME: &str = "peer-ca-file";
        let (given, origin) = self.given(NAME);
        let (path, origin) = if let Some(path) = given.first().filter(|it| !it.is_empty()) {
            (PathBuf::from(path), origin)
        } else if Path::new(POD_CA).exists() {
            (PathBuf::from(POD_CA), Origin::Default)
        } else if let Some(path) = client_ca? {
            (path.clone(), Origin::Default)
        } else {
            let message = "is needed: the CA of the kube-apiservers' serving certificates";
            self.fail(NAME, Origin::Default, message.to_owned());
            return None;
        };
        self.settle(NAME, path.display().to_string(), origin);
        Some(path)
    }

    fn request_headers(&mut self) -> Option<RequestHeaders> {
        let username = self.many("requestheader-username-headers", values::header);
        let uid = self.many("requestheader-uid-headers", values::header);
        let group = self.many("requestheader-group-headers", values::header);
        let extra_prefix = self.many("requestheader-extra-headers-prefix", |text| {
            values::header(text).map(|name| name.as_str().to_owned())
        });
        let headers = RequestHeaders {
            username: username?,
            uid: uid?,
            group: group?,
            extra_prefix: extra_prefix?,
            ..RequestHeaders::default()
        };
        // Local may have been told more than mvp was, and other servers more than local.
        headers.learn(|flag| self.manifest.get(flag));
        if let Some(published) = &mut self.published {
            published.tell(&headers);
        }
        Some(headers)
    }

    fn peers(&mut self, local: Option<SocketAddr>) -> Option<Vec<SocketAddr>> {
        let peers = self.many("peer", |text| {
            let peer = values::server(text, 6443)?;
            if Some(peer) == local {
                return Err(format!("{peer} is the local kube-apiserver (--local)"));
            }
            Ok(peer)
        })?;
        let mut seen = Vec::with_capacity(peers.len());
        for peer in peers {
            if !seen.contains(&peer) {
                seen.push(peer);
            }
        }
        Some(seen)
    }
}

/// One a CPU, as far as the kernel program has heartbeat slots: large machines have more CPUs than that.
fn threads_for(cpus: usize) -> usize {
    cpus.min(MAX_THREADS)
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
