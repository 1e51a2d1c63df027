//! The flags of `mvp run` as a table: name, environment variable, default, help. Not for what their values mean
//! (`config/resolve.rs`).
//!
//! All values are text here: the command line parser stops at the first bad value, but all errors are to be reported
//! together.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};

/// One flag.
#[derive(Debug)]
pub(crate) struct Flag {
    /// Name, without the dashes.
    pub(crate) name: &'static str,
    /// Environment variable.
    pub(crate) env: &'static str,
    /// Placeholder in the help.
    value: &'static str,
    /// Value if nothing says otherwise; empty: none, or it depends.
    pub(crate) default: &'static str,
    /// Whether it may be given several times, and how one value is cut into several.
    list: List,
    help: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum List {
    /// Given once.
    No,
    /// Given often, or cut at commas, as kube-apiserver does it.
    Commas,
    /// Given often; in the environment cut at `;`, because a value has commas.
    Semicolons,
}

const fn flag(
    name: &'static str,
    env: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag {
        name,
        env,
        value,
        default,
        list: List::No,
        help,
    }
}

const fn list(
    name: &'static str,
    env: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag {
        list: List::Commas,
        ..flag(name, env, value, default, help)
    }
}

/// Every flag, in the order of the help.
#[rustfmt::skip]
pub(crate) const FLAGS: &[Flag] = &[
    flag("kubeadm-manifest", "MVP_KUBEADM_MANIFEST", "FILE", "", "Static pod manifest of kube-apiserver, whose flags are the defaults here [default: /etc/kubernetes/manifests/kube-apiserver.yaml where it exists; empty: none]"),
    flag("local", "MVP_LOCAL", "URL", "", "This node's kube-apiserver [default: https://127.0.0.1 on the secure port, or its bind address]"),
    flag("bind-address", "MVP_BIND_ADDRESS", "ADDR", "", "The kube-apiserver's bind address: where it is, unless --local says so"),
    flag("secure-port", "MVP_SECURE_PORT", "PORT", "6443", "The kube-apiserver's port: connections to it are steered"),
    flag("steer", "MVP_STEER", "auto|always|never", "auto", "When new connections are steered: while servers differ (auto), always, or never"),
    list("listen", "MVP_LISTEN", "ADDR:PORT", "", "Serve this address directly, without eBPF (repeatable)"),
    flag("tls-cert-file", "MVP_TLS_CERT_FILE", "FILE", "", "The kube-apiserver's serving certificate"),
    flag("tls-private-key-file", "MVP_TLS_PRIVATE_KEY_FILE", "FILE", "", "Its private key"),
    Flag { list: List::Semicolons, ..flag("tls-sni-cert-key", "MVP_TLS_SNI_CERT_KEY", "CERT,KEY[:NAME,...]", "", "A further certificate, and the names it is shown for (repeatable; `;` between several in the environment)") },
    flag("tls-min-version", "MVP_TLS_MIN_VERSION", "VERSION", "VersionTLS12", "Least TLS version: VersionTLS12 or VersionTLS13"),
    list("tls-cipher-suites", "MVP_TLS_CIPHER_SUITES", "NAME,...", "", "Cipher suites for TLS 1.2, by Go's names"),
    flag("client-ca-file", "MVP_CLIENT_CA_FILE", "FILE", "", "CA of client certificates"),
    flag("requestheader-client-ca-file", "MVP_REQUESTHEADER_CLIENT_CA_FILE", "FILE", "", "CA of front proxies' client certificates"),
    list("requestheader-allowed-names", "MVP_REQUESTHEADER_ALLOWED_NAMES", "CN,...", "", "Common names of front proxies; none: any"),
    list("requestheader-username-headers", "MVP_REQUESTHEADER_USERNAME_HEADERS", "HEADER,...", "X-Remote-User", "Headers that carry a forwarded user"),
    list("requestheader-uid-headers", "MVP_REQUESTHEADER_UID_HEADERS", "HEADER,...", "X-Remote-Uid", "Headers that carry a forwarded UID"),
    list("requestheader-group-headers", "MVP_REQUESTHEADER_GROUP_HEADERS", "HEADER,...", "X-Remote-Group", "Headers that carry forwarded groups"),
    list("requestheader-extra-headers-prefix", "MVP_REQUESTHEADER_EXTRA_HEADERS_PREFIX", "PREFIX,...", "X-Remote-Extra-", "Prefixes of headers that carry further attributes"),
    flag("proxy-client-cert-file", "MVP_PROXY_CLIENT_CERT_FILE", "FILE", "", "Client certificate with which identities are forwarded; without it nothing is steered"),
    flag("proxy-client-key-file", "MVP_PROXY_CLIENT_KEY_FILE", "FILE", "", "Its private key"),
    flag("peer-ca-file", "MVP_PEER_CA_FILE", "FILE", "", "CA of the kube-apiservers' serving certificates [default: the pod's cluster CA, else the client CA]"),
    flag("peer-server-name", "MVP_PEER_SERVER_NAME", "NAME", "kubernetes.default.svc", "Name in the kube-apiservers' serving certificates"),
    list("peer", "MVP_PEER", "URL", "", "Another kube-apiserver, https://HOST:PORT (repeatable); then none is looked for"),
    flag("advertise-address", "MVP_ADVERTISE_ADDRESS", "ADDR", "", "This node's address among the endpoints of the kubernetes service"),
    flag("kubeconfig", "MVP_KUBECONFIG", "FILE", "", "Credentials for finding the other kube-apiservers [default: the pod's service account]"),
    flag("discovery-interval", "MVP_DISCOVERY_INTERVAL", "DURATION", "15s", "How often every kube-apiserver's discovery is read again"),
    flag("learn-deadline", "MVP_LEARN_DEADLINE", "DURATION", "30s", "How long an unread kube-apiserver keeps 404 answers from being believed"),
    flag("peer-grace", "MVP_PEER_GRACE", "DURATION", "10m", "How long a kube-apiserver that left is remembered: what only it serves is 503"),
    flag("exempt-source", "MVP_EXEMPT_SOURCE", "ADDR", "127.77.86.80", "Source address of connections to the local kube-apiserver, never steered"),
    flag("state-file", "MVP_STATE_FILE", "FILE", "/run/mvp/state.json", "What was learnt, for the next start"),
    flag("local-down", "MVP_LOCAL_DOWN", "failover|refuse", "failover", "While the local kube-apiserver is not up: let others answer, or leave connections to the kernel"),
    flag("drain-timeout", "MVP_DRAIN_TIMEOUT", "DURATION", "15m", "How long open connections may last after a stop was asked for"),
    flag("control-socket", "MVP_CONTROL_SOCKET", "FILE", "", "Control socket [default: /run/mvp/<pid>.sock]"),
    flag("metrics-listen", "MVP_METRICS_LISTEN", "ADDR:PORT", "127.0.0.1:9740", "Where /metrics, /livez and /readyz are served"),
    flag("trace-endpoint", "MVP_TRACE_ENDPOINT", "ADDR:PORT", "", "Collector on this node for spans of the requests that clients trace, by OTLP/HTTP [default: none]"),
    flag("log-format", "MVP_LOG_FORMAT", "text|json", "text", "Form of log lines"),
    flag("ktls", "MVP_KTLS", "auto|on|off", "auto", "When the TLS of tunnels is handed to the kernel: auto for TLS 1.2 only, on for all (a peer's key update then ends the tunnel)"),
    flag("splice", "MVP_SPLICE", "on|off", "on", "Whether tunnels and raw connections move inside the kernel where they can"),
    flag("threads", "MVP_THREADS", "NUMBER", "", "Threads that carry connections, 63 at most [default: one a CPU]"),
    flag("max-connections", "MVP_MAX_CONNECTIONS", "NUMBER", "20000", "Client connections at most; at 90 % new ones are not steered"),
    flag("existing", "MVP_EXISTING", "leave|drain", "drain", "Connections older than steering: leave them, or close idle ones slowly so that they come back through mvp"),
    flag("drain-idle", "MVP_DRAIN_IDLE", "DURATION", "5s", "How long such a connection must have been idle"),
    flag("drain-interval", "MVP_DRAIN_INTERVAL", "DURATION", "10m", "Least time between two such drains"),
    flag("existing-deadline", "MVP_EXISTING_DEADLINE", "DURATION", "", "Close what is left after this, busy or not [default: never]"),
    flag("steer-percent", "MVP_STEER_PERCENT", "PERCENT", "100", "Share of client addresses that is steered"),
    list("steer-cidr", "MVP_STEER_CIDR", "CIDR,...", "", "Steer only clients in these networks"),
    list("exempt-cidr", "MVP_EXEMPT_CIDR", "CIDR,...", "", "Never steer clients in these networks"),
    flag("steer-off-delay", "MVP_STEER_OFF_DELAY", "DURATION", "60s", "How long servers must be alike before auto stops steering"),
];

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The command line.
    Flag,
    /// An environment variable.
    Environment,
    /// kube-apiserver's manifest.
    Manifest,
    /// The ConfigMap in which kube-apiservers publish how they authenticate (`published`).
    ConfigMap,
    /// Nothing was said, or it follows from other values.
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::Manifest => "manifest",
            Self::ConfigMap => "ConfigMap",
            Self::Default => "default",
        })
    }
}

/// What the command line and the environment say, unread.
#[derive(Clone, Default, Debug)]
pub struct Flags {
    values: Vec<(&'static str, Vec<String>, Origin)>,
    /// `--print-config`.
    pub print_config: bool,
}

impl Flags {
    /// `--control-socket`.
    pub fn control_socket(&self) -> Option<&std::path::Path> {
        let (values, _) = self.get("control-socket")?;
        values
            .last()
            .filter(|path| !path.is_empty())
            .map(AsRef::as_ref)
    }

    /// The values of a flag and where they are from; none if it was not given.
    pub(crate) fn get(&self, name: &str) -> Option<(&[String], Origin)> {
        self.values
            .iter()
            .find(|(known, ..)| *known == name)
            .map(|(_, values, origin)| (values.as_slice(), origin.clone()))
    }
}

/// The flags of `mvp run` for a verb that only looks at what they say: without `--print-config`.
#[derive(Clone, Default, Debug)]
pub struct SameFlags(pub Flags);

impl Args for SameFlags {
    fn augment_args(command: Command) -> Command {
        command.args(FLAGS.iter().map(Flag::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SameFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(Flags {
            values: given(matches),
            print_config: false,
        }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What was said about each flag, by whom.
fn given(matches: &ArgMatches) -> Vec<(&'static str, Vec<String>, Origin)> {
    FLAGS
        .iter()
        .filter_map(|flag| {
            let origin = match matches.value_source(flag.name)? {
                ValueSource::CommandLine => Origin::Flag,
                ValueSource::EnvVariable => Origin::Environment,
                _ => return None,
            };
            let given: Vec<String> = matches.get_many(flag.name)?.cloned().collect();
            Some((flag.name, flag.cut(&given, &origin), origin))
        })
        .collect()
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        command
            .args(FLAGS.iter().map(Flag::arg))
            .arg(
                Arg::new("print-config")
                    .long("print-config")
                    .action(ArgAction::SetTrue)
                    .help("Print every value and where it comes from, and exit"),
            )
            .after_help(
                "Every flag can be given as an environment variable: MVP_ and its name in capitals, e.g. MVP_TLS_CERT_FILE.",
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            values: given(matches),
            print_config: matches.get_flag("print-config"),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Flag {
    fn arg(&self) -> Arg {
        let arg = Arg::new(self.name)
            .long(self.name)
            .env(self.env)
            .hide_env(true)
            .value_name(self.value)
            .help(self.help);
        let arg = match self.list {
            // As kube-apiserver: the last one counts. What the chart writes can be written again behind it.
            List::No => arg.action(ArgAction::Set).overrides_with(self.name),
            List::Commas | List::Semicolons => arg.action(ArgAction::Append),
        };
        if self.default.is_empty() {
            arg
        } else {
            arg.default_value(self.default)
        }
    }

    /// The values as a list; a flag that is no list has exactly one.
    pub(crate) fn cut(&self, given: &[String], origin: &Origin) -> Vec<String> {
        let separator = match (self.list, origin) {
            (List::Commas, _) => ',',
            (List::Semicolons, Origin::Environment) => ';',
            (List::No | List::Semicolons, _) => {
                return given.to_vec();
            }
        };
        given
            .iter()
            .flat_map(|value| value.split(separator))
            .map(|part| part.trim().to_owned())
            .filter(|part| !part.is_empty())
            .collect()
    }
}
