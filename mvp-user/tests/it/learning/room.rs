//! A side room on a thread of its own, and waiting for what it learns.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, thread::JoinHandle, time::Duration};

use bench::{pki::ClusterPki, standin::Handle};
use mvp_user::{
    api::ServerId,
    config::{
        self, Config, Existing, Ktls, LocalDown, LogFormat, RequestHeaders, SteerMode, TlsConfig,
    },
    health::{self, Prober, Probing, link::Marker},
    peers::{self, Learner, Learning},
    table::{Health, Server, Table},
    tls::Tls,
    upstream::Dialer,
};
use tokio::sync::oneshot;

/// Longer than anything that a test waits for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Certificates and the state file of one node; they outlive the room.
pub(super) type Files = Arc<tempfile::TempDir>;

/// A side room that has not begun.
pub(super) struct Room {
    config: Config,
    files: Files,
}

/// A side room at work. Dropped: it ends.
pub(super) struct Working {
    table: Arc<Table>,
    prober: Prober,
    learner: Learner,
    state_file: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    files: Files,
}

impl Room {
    /// For `local`, with static `peers`.
    pub(super) fn new(pki: &ClusterPki, local: &Handle, peers: &[&Handle]) -> Self {
        let files = Arc::new(tempfile::tempdir().unwrap());
        let write =
            |name: &str, text: String| std::fs::write(files.path().join(name), text).unwrap();
        let serving = pki.serving(&[[127, 0, 0, 1].into()]).unwrap();
        let proxy = pki.front_proxy_client().unwrap();
        write("ca.crt", pki.ca.pem());
        write("front-proxy-ca.crt", pki.front_proxy_ca.pem());
        write("apiserver.crt", serving.cert_pem());
        write("apiserver.key", serving.key_pem());
        write("front-proxy-client.crt", proxy.cert_pem());
        write("front-proxy-client.key", proxy.key_pem());
        Self::again(local, peers, files)
    }

    /// The same node once more.
    pub(super) fn again(local: &Handle, peers: &[&Handle], files: Files) -> Self {
        let peers = peers.iter().map(|peer| peer.address()).collect();
        let config = config(local.address(), peers, &files);
        Self { config, files }
    }

    /// Changes the configuration.
    pub(super) fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    pub(super) fn files(&self) -> Files {
        Arc::clone(&self.files)
    }

    pub(super) fn start(self) -> Working {
        let config = Arc::new(self.config);
        let local = Arc::new(Server::new(ServerId::Local, config.local));
        let table = Arc::new(Table::new(local));
        let tls = Tls::load(&config.tls).unwrap();
        let dialer = Arc::new(Dialer::new(config.exempt_source, Arc::clone(&tls), None));
        let prober = Prober::new(Arc::clone(&table));
        let learner = Learner::new(Arc::clone(&table));
        let marker = Marker::new(&config.request_headers);
        let (stop, stopped) = oneshot::channel::<()>();
        let state_file = config.state_file.clone();
        let probing = Probing {
            dialer: Arc::clone(&dialer),
            marker: marker.clone(),
        };
        let learning = Learning {
            config,
            dialer,
            marker,
            prober: prober.clone(),
        };
        let (health, peers) = (prober.clone(), learner.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let work = async move {
                tokio::select! {
                    () = health::run(health, probing) => {}
                    () = peers::run(peers, learning) => {}
                    () = tls.watch_files() => {}
                    _ = stopped => {}
                }
            };
            tokio::task::LocalSet::new().block_on(&runtime, work);
        });
        Working {
            table,
            prober,
            learner,
            state_file,
            stop: Some(stop),
            thread: Some(thread),
            files: self.files,
        }
    }
}

impl Working {
    pub(super) fn files(&self) -> Files {
        Arc::clone(&self.files)
    }

    /// Replaces a file of the node as the kubelet does.
    pub(super) fn replace(&self, name: &str, text: &str) {
        let new = self.files.path().join(format!("{name}.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.files.path().join(name)).unwrap();
    }

    pub(super) const fn table(&self) -> &Arc<Table> {
        &self.table
    }

    pub(super) const fn prober(&self) -> &Prober {
        &self.prober
    }

    pub(super) const fn learner(&self) -> &Learner {
        &self.learner
    }

    /// Waits until the table is as it is wanted.
    pub(super) async fn until(&self, what: &str, wanted: impl Fn(&Table) -> bool) {
        let mut changes = self.table.changed.subscribe();
        let wait = async {
            while !wanted(&self.table) {
                changes.changed().await.unwrap();
            }
        };
        assert!(
            tokio::time::timeout(PATIENCE, wait).await.is_ok(),
            "never: {what}; {:?}",
            self.table.members()
        );
    }

    pub(super) async fn until_local(&self, health: Health) {
        let what = format!("local is {health:?}");
        self.until(&what, |table| table.members().local.health() == health)
            .await;
    }

    /// Waits until the state file says what is wanted.
    pub(super) async fn until_file(&self, wanted: impl Fn(&str) -> bool) {
        let wait = async {
            while !std::fs::read_to_string(&self.state_file).is_ok_and(|text| wanted(&text)) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn config(local: SocketAddr, peers: Vec<SocketAddr>, files: &Files) -> Config {
    let file = |name: &str| files.path().join(name);
    let name = |name: &str| name.parse().unwrap();
    Config {
        local,
        secure_port: local.port(),
        steer: SteerMode::Never,
        listen: Vec::new(),
        tls: TlsConfig {
            cert_file: file("apiserver.crt"),
            private_key_file: file("apiserver.key"),
            sni: Vec::new(),
            only_tls13: false,
            cipher_suites: Vec::new(),
            client_ca_file: Some(file("ca.crt")),
            requestheader_client_ca_file: Some(file("front-proxy-ca.crt")),
            requestheader_allowed_names: vec!["front-proxy-client".into()],
            proxy_client_cert_file: Some(file("front-proxy-client.crt")),
            proxy_client_key_file: Some(file("front-proxy-client.key")),
            peer_ca_file: file("ca.crt"),
            peer_server_name: config::DEFAULT_PEER_SERVER_NAME.into(),
        },
        request_headers: RequestHeaders {
            username: vec![name("x-remote-user")],
            uid: vec![name("x-remote-uid")],
            group: vec![name("x-remote-group")],
            extra_prefix: vec!["x-remote-extra-".into()],
            ..RequestHeaders::default()
        },
        peers,
        advertise_address: None,
        kubeconfig: None,
        discovery_interval: config::DEFAULT_DISCOVERY_INTERVAL,
        learn_deadline: config::DEFAULT_LEARN_DEADLINE,
        peer_grace: config::DEFAULT_PEER_GRACE,
        exempt_source: config::DEFAULT_EXEMPT_SOURCE,
        state_file: file("state.json"),
        local_down: LocalDown::Failover,
        drain_timeout: Duration::from_secs(5),
        control_socket: None,
        metrics_listen: "127.0.0.1:0".parse().unwrap(),
        trace_endpoint: None,
        log_format: LogFormat::Text,
        ktls: Ktls::Off,
        splice: true,
        threads: 1,
        max_connections: 1000,
        existing: Existing::Leave,
        drain_idle: Duration::from_secs(5),
        drain_interval: Duration::from_mins(10),
        existing_deadline: None,
        steer_percent: 100,
        steer_cidrs: Vec::new(),
        exempt_cidrs: Vec::new(),
        steer_off_delay: Duration::from_mins(1),
    }
}
