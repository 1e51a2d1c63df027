//! The resolved configuration and every default, each with its reason.
//!
//! Flags are named as kube-apiserver names them: `config/flags.rs` is their table, `config/resolve.rs` reads them. Not
//! for the other verbs of the command line (`cli`).

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use http::HeaderName;

mod changed;
mod flags;
mod manifest;
pub mod published;
mod resolve;
mod told;
mod values;

pub use changed::changed;
pub use flags::{Flags, Origin, SameFlags};
pub use resolve::{Resolved, resolve, resolve_with};
pub use told::{ConfigError, Setting};

/// Source address of mvp's own connections to local, exempt from steering; spells "MVP" in 127/8 and reaches any local IPv4 bind.
pub const DEFAULT_EXEMPT_SOURCE: Ipv4Addr = Ipv4Addr::new(127, 77, 86, 80);
/// How often each server's discovery is read again without any other cause; changes are noticed sooner by watches.
pub const DEFAULT_DISCOVERY_INTERVAL: Duration = Duration::from_secs(15);
/// How long a peer that was never read keeps the table from being ready.
pub const DEFAULT_LEARN_DEADLINE: Duration = Duration::from_secs(30);
/// How long a departed server's catalogue is kept: longer than a node takes to reboot.
pub const DEFAULT_PEER_GRACE: Duration = Duration::from_mins(10);
/// How long open connections may live on after a stop was asked for; execs run for minutes.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_mins(15);
/// Data threads at most: each has a heartbeat slot of the kernel program, and the self-request has one.
pub const MAX_THREADS: usize = mvp_ebpf::MAX_SLOTS as usize - 1;
/// Name in the serving certificates of all kube-apiservers of a cluster.
pub const DEFAULT_PEER_SERVER_NAME: &str = "kubernetes.default.svc";

/// Whether new connections are steered to mvp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SteerMode {
    /// While servers differ, or local is down and failover is on (design 3).
    Auto,
    /// Whenever it is safe.
    Always,
    /// Not at all.
    Never,
}

/// What happens to requests while local is not up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalDown {
    /// A peer answers.
    Failover,
    /// Steering goes off; clients get the kernel's own refusal.
    Refuse,
}

/// What is done with connections that are older than steering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// Nothing.
    Leave,
    /// Idle ones are closed slowly, so that they reconnect through mvp.
    Drain,
}

/// When tunnels are handed to kernel TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ktls {
    /// Where a connection cannot be lost by it: both are TLS 1.2, whose keys never change.
    Auto,
    /// Wherever the kernel has it.
    On,
    /// Never.
    Off,
}

/// Form of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `--tls-sni-cert-key`: a certificate, its key, and the names it is shown for (those of the certificate if none are given).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SniCertificate {
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// Domain patterns.
    pub names: Vec<String>,
}

/// Names of the headers that carry a forwarded identity (`--requestheader-*`).
#[derive(Clone, Debug, Default)]
pub struct RequestHeaders {
    /// User; the first non-empty one wins.
    pub username: Vec<HeaderName>,
    /// UID.
    pub uid: Vec<HeaderName>,
    /// Groups.
    pub group: Vec<HeaderName>,
    /// Prefixes of extra headers, lower case.
    pub extra_prefix: Vec<String>,
    /// Those of other servers; all copies have the same.
    pub others: Arc<ArcSwap<OtherHeaders>>,
}

/// Names from which some server of the cluster may take an identity although mvp was told others. They are taken from clients
/// all the same, and that is all they are for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OtherHeaders {
    /// Whole names.
    pub names: Vec<HeaderName>,
    /// Prefixes, lower case.
    pub prefixes: Vec<String>,
}

impl RequestHeaders {
    /// Takes in what another source says about the flags; whether that was news. What is no name of a header is none that a
    /// client can send.
    fn learn(&self, said: impl Fn(&str) -> Vec<String>) -> bool {
        let names = |flag: &str| -> Vec<HeaderName> {
            let said = said(flag);
            let parts = said.iter().flat_map(|text| text.split(','));
            parts
                .filter_map(|text| values::header(text.trim()).ok())
                .collect()
        };
        let before = self.others.load_full();
        let mut others = OtherHeaders::clone(&before);
        for (flag, own) in [
            ("requestheader-username-headers", &self.username),
            ("requestheader-uid-headers", &self.uid),
            ("requestheader-group-headers", &self.group),
        ] {
            for name in names(flag) {
                if !own.contains(&name) && !others.names.contains(&name) {
                    others.names.push(name);
                }
            }
        }
        for name in names("requestheader-extra-headers-prefix") {
            let prefix = name.as_str().to_owned();
            if !self.extra_prefix.contains(&prefix) && !others.prefixes.contains(&prefix) {
                others.prefixes.push(prefix);
            }
        }
        let new = others != *before;
        if new {
            self.others.store(Arc::new(others));
        }
        new
    }
}

/// Certificate and key files (design 4).
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// `--tls-cert-file`.
    pub cert_file: PathBuf,
    /// `--tls-private-key-file`.
    pub private_key_file: PathBuf,
    /// `--tls-sni-cert-key`.
    pub sni: Vec<SniCertificate>,
    /// `--tls-min-version`: true if TLS 1.3 is the least.
    pub only_tls13: bool,
    /// `--tls-cipher-suites`, Go's names; empty: the defaults.
    pub cipher_suites: Vec<String>,
    /// `--client-ca-file`.
    pub client_ca_file: Option<PathBuf>,
    /// `--requestheader-client-ca-file`.
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// `--requestheader-allowed-names`; empty: any.
    pub requestheader_allowed_names: Vec<String>,
    /// `--proxy-client-cert-file`.
    pub proxy_client_cert_file: Option<PathBuf>,
    /// `--proxy-client-key-file`.
    pub proxy_client_key_file: Option<PathBuf>,
    /// `--peer-ca-file`: what the serving certificates of local and of peers are verified against.
    pub peer_ca_file: PathBuf,
    /// `--peer-server-name`.
    pub peer_server_name: String,
}

/// Everything that `mvp run` was told.
#[derive(Clone, Debug)]
pub struct Config {
    /// `--local`: where the node's kube-apiserver listens.
    pub local: SocketAddr,
    /// `--secure-port`: the port that is steered.
    pub secure_port: u16,
    /// `--steer`.
    pub steer: SteerMode,
    /// `--listen`: addresses served directly, without eBPF.
    pub listen: Vec<SocketAddr>,
    /// Certificates and keys.
    pub tls: TlsConfig,
    /// `--requestheader-*-headers`.
    pub request_headers: RequestHeaders,
    /// `--peer`: static peers; then none is looked for.
    pub peers: Vec<SocketAddr>,
    /// `--advertise-address`: own address among the endpoints.
    pub advertise_address: Option<IpAddr>,
    /// `--kubeconfig`; none: in-cluster service account.
    pub kubeconfig: Option<PathBuf>,
    /// `--discovery-interval`.
    pub discovery_interval: Duration,
    /// `--learn-deadline`.
    pub learn_deadline: Duration,
    /// `--peer-grace`.
    pub peer_grace: Duration,
    /// `--exempt-source`.
    pub exempt_source: Ipv4Addr,
    /// `--state-file`.
    pub state_file: PathBuf,
    /// `--local-down`.
    pub local_down: LocalDown,
    /// `--drain-timeout`.
    pub drain_timeout: Duration,
    /// `--control-socket`; none: `/run/mvp/<pid>.sock`.
    pub control_socket: Option<PathBuf>,
    /// `--metrics-listen`.
    pub metrics_listen: SocketAddr,
    /// `--trace-endpoint`: the collector of spans, on loopback; none: no spans.
    pub trace_endpoint: Option<SocketAddr>,
    /// `--log-format`.
    pub log_format: LogFormat,
    /// `--ktls`.
    pub ktls: Ktls,
    /// `--splice`.
    pub splice: bool,
    /// `--threads`: data path threads.
    pub threads: usize,
    /// `--max-connections`: bound on client connections; at 90 % new ones are not steered.
    pub max_connections: usize,
    /// `--existing` and what goes with it.
    pub existing: Existing,
    /// `--drain-idle`: how long a direct connection must have been idle before it may be closed.
    pub drain_idle: Duration,
    /// `--drain-interval`: the least time between two drains.
    pub drain_interval: Duration,
    /// `--existing-deadline`: direct connections still there after this are closed busy or not; none: never.
    pub existing_deadline: Option<Duration>,
    /// `--steer-percent`: share of source addresses that is steered.
    pub steer_percent: u8,
    /// `--steer-cidr`: only these sources are steered; empty: all.
    pub steer_cidrs: Vec<Cidr>,
    /// `--exempt-cidr`: these sources are never steered.
    pub exempt_cidrs: Vec<Cidr>,
    /// `--steer-off-delay`: quiet period before `auto` stops steering.
    pub steer_off_delay: Duration,
}

/// An address prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cidr {
    /// Network address; host bits are zero.
    pub address: IpAddr,
    /// Prefix length in bits.
    pub length: u8,
}

impl Cidr {
    /// Whether an address lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let beyond = |bits: u32| bits.saturating_sub(u32::from(self.length));
        match (self.address, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(beyond(u32::BITS)).unwrap_or(0);
                (base.to_bits() ^ address.to_bits()) & mask == 0
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(beyond(u128::BITS)).unwrap_or(0);
                (base.to_bits() ^ address.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}
