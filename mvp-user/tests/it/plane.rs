//! The whole data path in this process: real TLS, a table written by the test, one data thread.

use std::{net::SocketAddr, sync::Arc, thread::JoinHandle, time::Duration};

use bench::{
    client::{Client, Who},
    pki::{ClusterPki, Issued},
};
use mvp_user::{
    accept::{Acceptor, Bound},
    api::{GroupVersion, Gvr, ServerId, Verb, Verbs},
    config::{
        self, Config, Existing, Ktls, LocalDown, LogFormat, RequestHeaders, SteerMode, TlsConfig,
    },
    discovery::Discovery,
    health::{self, Prober, Probing, link::Marker},
    peers::{self, Learner, Learning},
    serve::{Backlogs, Metrics, SelfCheck, Shared, Thread},
    spans::Spans,
    table::{Catalogue, Freshness, Health, Proof, Served, Server, Table},
    tls::Tls,
    upstream::Dialer,
};
use tokio::{net::TcpListener, sync::watch, time::Instant};

/// One mvp.
pub(crate) struct Plane {
    pub(crate) address: SocketAddr,
    pub(crate) table: Arc<Table>,
    pub(crate) local: Arc<Server>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) leave: watch::Sender<u64>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    files: tempfile::TempDir,
}

/// What servers serve, `group/version/resource` or `version/resource`, all verbs, subresources `status` and `exec`.
pub(crate) fn catalogue(resources: &[&str]) -> Arc<Catalogue> {
    let verbs = Verb::ALL.into_iter().fold(Verbs::NONE, Verbs::with);
    let resources: Vec<Gvr> = resources
        .iter()
        .map(|text| match *text.split('/').collect::<Vec<_>>() {
            [group, version, resource] => Gvr::new(group, version, resource),
            [version, resource] => Gvr::new("", version, resource),
            _ => panic!("{text}"),
        })
        .collect();
    Arc::new(Catalogue {
        group_versions: resources
            .iter()
            .map(|it| GroupVersion::new(&it.group, &it.version))
            .collect(),
        resources: resources
            .into_iter()
            .map(|it| {
                let subresources = ["status", "exec", "proxy", "log"]
                    .map(|name| (name.into(), verbs))
                    .into_iter()
                    .collect();
                (
                    it,
                    Served {
                        verbs,
                        subresources,
                    },
                )
            })
            .collect(),
        ..Catalogue::new(
            Arc::default(),
            "v1.36.0".into(),
            Freshness::Fresh,
            Instant::now(),
            1,
        )
    })
}

pub(crate) fn server(id: ServerId, address: SocketAddr) -> Arc<Server> {
    let server = Arc::new(Server::new(id, address));
    server.set_health(Health::Up);
    server.set_proof(Proof::Proven);
    server
}

/// Certificate files as a node has them.
pub(crate) fn files(pki: &ClusterPki) -> (tempfile::TempDir, TlsConfig) {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let serving = pki.serving(&[[127, 0, 0, 1].into()]).unwrap();
    let proxy = pki.front_proxy_client().unwrap();
    let ca = write("ca.crt", pki.ca.pem());
    let tls = TlsConfig {
        cert_file: write("apiserver.crt", serving.cert_pem()),
        private_key_file: write("apiserver.key", serving.key_pem()),
        sni: Vec::new(),
        only_tls13: false,
        cipher_suites: Vec::new(),
        client_ca_file: Some(write("client-ca.crt", pki.ca.pem())),
        requestheader_client_ca_file: Some(write("front-proxy-ca.crt", pki.front_proxy_ca.pem())),
        requestheader_allowed_names: vec!["front-proxy-client".into()],
        proxy_client_cert_file: Some(write("front-proxy-client.crt", proxy.cert_pem())),
        proxy_client_key_file: Some(write("front-proxy-client.key", proxy.key_pem())),
        peer_ca_file: ca,
        peer_server_name: config::DEFAULT_PEER_SERVER_NAME.into(),
    };
    (dir, tls)
}

pub(crate) fn config(local: SocketAddr, tls: TlsConfig) -> Config {
    Config {
        local,
        secure_port: local.port(),
        steer: SteerMode::Never,
        listen: Vec::new(),
        tls,
        request_headers: RequestHeaders {
            username: vec![
                "x-remote-user".parse().unwrap(),
                "x-auth-user".parse().unwrap(),
            ],
            uid: vec!["x-remote-uid".parse().unwrap()],
            group: vec!["x-remote-group".parse().unwrap()],
            extra_prefix: vec!["x-remote-extra-".into()],
            ..RequestHeaders::default()
        },
        peers: Vec::new(),
        advertise_address: None,
        kubeconfig: None,
        discovery_interval: config::DEFAULT_DISCOVERY_INTERVAL,
        learn_deadline: config::DEFAULT_LEARN_DEADLINE,
        peer_grace: config::DEFAULT_PEER_GRACE,
        exempt_source: config::DEFAULT_EXEMPT_SOURCE,
        state_file: "/nonexistent".into(),
        local_down: LocalDown::Failover,
        drain_timeout: Duration::from_secs(5),
        control_socket: None,
        metrics_listen: "127.0.0.1:0".parse().unwrap(),
        trace_endpoint: None,
        log_format: LogFormat::Text,
        ktls: Ktls::Off,
        splice: true,
        threads: 1,
        max_connections: 10_000,
        existing: Existing::Leave,
        drain_idle: Duration::from_secs(30),
        drain_interval: Duration::from_secs(1),
        existing_deadline: None,
        steer_percent: 100,
        steer_cidrs: Vec::new(),
        exempt_cidrs: Vec::new(),
        steer_off_delay: Duration::from_secs(30),
    }
}

impl Plane {
    /// In front of `local`, which serves `serves`, with `peers` and what they serve. All are up, proven and known.
    pub(crate) async fn start(
        pki: &ClusterPki,
        (local, serves): (SocketAddr, &[&str]),
        peers: &[(SocketAddr, &[&str])],
    ) -> Self {
        Self::with(pki, (local, serves), peers, |_| {}).await
    }

    pub(crate) async fn with(
        pki: &ClusterPki,
        (local, serves): (SocketAddr, &[&str]),
        peers: &[(SocketAddr, &[&str])],
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let (files, tls) = files(pki);
        let mut config = config(local, tls);
        change(&mut config);
        let local = server(ServerId::Local, local);
        let table = Arc::new(Table::new(local));
        table.publish(ServerId::Local, catalogue(serves));
        table.set_peers(
            peers
                .iter()
                .map(|(address, serves)| {
                    table.publish(ServerId::Peer(*address), catalogue(serves));
                    server(ServerId::Peer(*address), *address)
                })
                .collect(),
        );
        table.set_ready(true);
        Self::run(config, files, table, false, free())
    }

    /// With a side room that learns and probes, in front of `local` and with static `peers`; waits until all is known.
    pub(crate) async fn live(
        pki: &ClusterPki,
        local: SocketAddr,
        peers: &[SocketAddr],
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let (files, tls) = files(pki);
        let mut config = config(local, tls);
        config.state_file = files.path().join("state.json");
        config.peers = peers.to_vec();
        change(&mut config);
        let local = Arc::new(Server::new(ServerId::Local, local));
        let table = Arc::new(Table::new(local));
        let plane = Self::run(config, files, table, true, free());
        let up =
            |server: &Arc<Server>| server.health() == Health::Up && server.proof() == Proof::Proven;
        plane
            .until("everything is known", |table| {
                let members = table.members();
                table.is_ready() && up(&members.local) && members.peers.iter().all(up)
            })
            .await;
        plane
    }

    /// As [`Self::live`], at `address`, without waiting.
    pub(crate) fn listening(
        pki: &ClusterPki,
        address: SocketAddr,
        local: SocketAddr,
        peers: &[SocketAddr],
    ) -> Self {
        let (files, tls) = files(pki);
        let mut config = config(local, tls);
        config.state_file = files.path().join("state.json");
        config.peers = peers.to_vec();
        let local = Arc::new(Server::new(ServerId::Local, local));
        let table = Arc::new(Table::new(local));
        let socket = std::net::TcpListener::bind(address).unwrap();
        Self::run(config, files, table, true, socket)
    }

    /// Waits until the table is as it is wanted.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&Table) -> bool) {
        let start = Instant::now();
        while !wanted(&self.table) {
            assert!(
                start.elapsed() < Duration::from_mins(1),
                "never: {what}; {:?}",
                self.table.members()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn run(
        config: Config,
        files: tempfile::TempDir,
        table: Arc<Table>,
        live: bool,
        socket: std::net::TcpListener,
    ) -> Self {
        let local = Arc::clone(&table.members().local);
        let tls = Tls::load(&config.tls).unwrap();
        let dialer = Arc::new(Dialer::new(config.exempt_source, Arc::clone(&tls), None));
        let config = Arc::new(config);
        let shared = Arc::new(Shared {
            table: Arc::clone(&table),
            dialer: Arc::clone(&dialer),
            discovery: Arc::new(Discovery::new(Arc::clone(&table), config.local_down)),
            prober: Prober::new(Arc::clone(&table)),
            learner: Learner::new(Arc::clone(&table)),
            metrics: Metrics::default(),
            backlogs: Backlogs::default(),
            self_check: SelfCheck::new().unwrap(),
            spans: Spans::new(config.trace_endpoint),
            tls: Arc::clone(&tls),
            config: Arc::clone(&config),
        });
        let (leave, leaving) = watch::channel(0);
        let (stop, stopped) = watch::channel(false);
        let mut threads = Vec::new();
        if config.trace_endpoint.is_some() {
            let spans = shared.spans.clone();
            threads.push(thread(stopped.clone(), move || spans.send()));
        }
        if live {
            let (prober, learner) = (shared.prober.clone(), shared.learner.clone());
            let marker = Marker::new(&config.request_headers);
            let probing = Probing {
                dialer: Arc::clone(&dialer),
                marker: marker.clone(),
            };
            let learning = Learning {
                config: Arc::clone(&config),
                dialer,
                marker,
                prober: prober.clone(),
            };
            let tls = Arc::clone(&tls);
            threads.push(thread(stopped.clone(), move || async move {
                tokio::select! {
                    () = health::run(prober, probing) => {}
                    () = peers::run(learner, learning) => {}
                    () = tls.watch_files() => {}
                }
            }));
        }
        let acceptor = Acceptor::new(
            tls,
            Arc::clone(&table),
            Bound::Accepting(config.max_connections),
            config.secure_port,
        );
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let served = Arc::clone(&shared);
        threads.push(thread(stopped, move || async move {
            let listener = TcpListener::from_std(socket).unwrap();
            let thread = Thread::new(served, leaving);
            tokio::task::spawn_local(std::rc::Rc::clone(&thread).tend());
            let handler = move |connection| std::rc::Rc::clone(&thread).serve(connection);
            let (_never, never) = watch::channel(false);
            drop(acceptor.run(vec![listener], never, handler).await);
        }));
        Self {
            address,
            table,
            local,
            shared,
            leave,
            stop,
            threads,
            files,
        }
    }

    /// Replaces a file as the kubelet does.
    pub(crate) fn replace(&self, name: &str, text: &str) {
        let new = self.files.path().join(format!("{name}.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.files.path().join(name)).unwrap();
    }
}

fn free() -> std::net::TcpListener {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap()
}

/// A thread with a runtime of its own, until it is stopped.
fn thread<F, R>(mut stopped: watch::Receiver<bool>, work: F) -> JoinHandle<()>
where
    F: FnOnce() -> R + Send + 'static,
    R: Future<Output = ()>,
{
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            tokio::select! {
                () = work() => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
        });
    })
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// A client with a certificate of the cluster's CA.
pub(crate) fn user(pki: &ClusterPki, name: &str, groups: &[&str], http2: bool) -> Client {
    with_certificate(pki, &pki.client(name, groups).unwrap(), http2)
}

pub(crate) fn with_certificate(pki: &ClusterPki, issued: &Issued, http2: bool) -> Client {
    let who = Who::Certificate(vec![issued.der.clone()], issued.private_key());
    Client::new(&pki.ca.certificate.der, who, http2).unwrap()
}

pub(crate) fn token(pki: &ClusterPki, token: &str, http2: bool) -> Client {
    Client::new(&pki.ca.certificate.der, Who::Token(token.into()), http2).unwrap()
}

pub(crate) fn anonymous(pki: &ClusterPki, http2: bool) -> Client {
    Client::new(&pki.ca.certificate.der, Who::Anonymous, http2).unwrap()
}
