//! The state of one server: what it serves, whom it knows, how it feels, who is connected.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use rustls::{ServerConfig, sign::CertifiedKey};
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, task::JoinSet};

use super::{
    authn::Authentication,
    authz::Rule,
    documents::Documents,
    faults::Faults,
    log::Log,
    model::Catalogue,
    store::Store,
    tls::Protocols,
    wire::{Listening, Silence, Wire},
};

/// Where a server is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Listens; everything is 503 but health (red).
    Starting,
    /// Answers; discovery is incomplete, /readyz is red.
    Incomplete,
    /// Ready.
    Ready,
    /// SIGTERM came: /readyz is red, everything still works (`--shutdown-delay-duration`).
    Delaying,
    /// New requests get 429.
    Refusing,
    /// New requests get 503; watches have ended.
    Stopping,
}

/// HTTP/2 settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Concurrent streams of a connection.
    pub max_streams: u32,
    /// Initial window of a stream, bytes.
    pub stream_window: u32,
    /// Window of a connection, bytes.
    pub connection_window: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_streams: 100,
            stream_window: 256 * 1024,
            connection_window: 256 * 1024 * 100,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) bind: SocketAddr,
    pub(crate) advertise: SocketAddr,
    pub(crate) store: Store,
    pub(crate) base: Catalogue,
    pub(crate) documents: ArcSwap<Documents>,
    pub(crate) authentication: ArcSwap<Authentication>,
    pub(crate) rules: ArcSwap<Vec<Rule>>,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) silence: Arc<Silence>,
    pub(crate) faults: Faults,
    pub(crate) log: Log,
    pub(crate) identity: String,
    pub(crate) holder: String,
    pub(crate) loopback: Arc<CertifiedKey>,
    pub(crate) loopback_token: String,
    pub(crate) loopback_answers: AtomicU64,
    pub(crate) loopback_failures: AtomicU64,
    pub(crate) reaches_itself: AtomicBool,
    pub(crate) frozen: watch::Sender<bool>,
    pub(crate) serving: ArcSwap<CertifiedKey>,
    pub(crate) flow_schema: String,
    pub(crate) priority_level: String,
    tls: ArcSwap<ServerConfig>,
    protocols: Mutex<Protocols>,
    limits: Mutex<Limits>,
    refuse_next_stream: AtomicBool,
    budget: AtomicI64,
    connections: AtomicU64,
    wires: Mutex<HashMap<u64, Weak<Wire>>>,
    tasks: Mutex<JoinSet<()>>,
    listening: Mutex<Option<Listening>>,
}

/// What [`Server::new`] needs.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) bind: SocketAddr,
    pub(crate) advertise: SocketAddr,
    pub(crate) store: Store,
    pub(crate) catalogue: Catalogue,
    pub(crate) authentication: Authentication,
    pub(crate) rules: Vec<Rule>,
    pub(crate) serving: Arc<CertifiedKey>,
    pub(crate) protocols: Protocols,
    pub(crate) limits: Limits,
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    pub(crate) fn new(parts: Parts) -> anyhow::Result<Arc<Self>> {
        let loopback = super::tls::loopback()?;
        let tls = super::tls::server(
            Arc::clone(&parts.serving),
            Arc::clone(&loopback),
            &hints(&parts.authentication),
            parts.protocols,
        )?;
        let identity = format!(
            "apiserver-{}",
            &super::clock::hex(&sha2_of(&parts.name))[..24]
        );
        let holder = format!("{identity}_{}", super::clock::uid());
        Ok(Arc::new(Self {
            name: parts.name,
            bind: parts.bind,
            advertise: parts.advertise,
            store: parts.store,
            base: parts.catalogue.clone(),
            documents: ArcSwap::from_pointee(Documents::new(parts.catalogue)),
            authentication: ArcSwap::from_pointee(parts.authentication),
            rules: ArcSwap::from_pointee(parts.rules),
            phase: watch::channel(Phase::Starting).0,
            silence: Arc::default(),
            faults: Faults::default(),
            log: Log::default(),
            identity,
            holder,
            loopback,
            loopback_token: super::clock::uid(),
            loopback_answers: AtomicU64::new(0),
            loopback_failures: AtomicU64::new(0),
            reaches_itself: AtomicBool::new(true),
            frozen: watch::channel(false).0,
            serving: ArcSwap::new(parts.serving),
            flow_schema: super::clock::uid(),
            priority_level: super::clock::uid(),
            tls: ArcSwap::new(tls),
            protocols: Mutex::new(parts.protocols),
            limits: Mutex::new(parts.limits),
            refuse_next_stream: AtomicBool::new(false),
            budget: AtomicI64::new(-1),
            connections: AtomicU64::new(0),
            wires: Mutex::default(),
            tasks: Mutex::default(),
            listening: Mutex::default(),
        }))
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(crate) fn tls(&self) -> Arc<ServerConfig> {
        self.tls.load_full()
    }

    /// Builds the TLS settings anew (certificate, hints or protocols changed).
    pub(crate) fn rebuild_tls(&self) -> anyhow::Result<()> {
        let protocols = *guard(&self.protocols);
        let hints = hints(&self.authentication.load());
        self.tls.store(super::tls::server(
            self.serving.load_full(),
            Arc::clone(&self.loopback),
            &hints,
            protocols,
        )?);
        Ok(())
    }

    pub(crate) fn set_protocols(&self, protocols: Protocols) -> anyhow::Result<()> {
        *guard(&self.protocols) = protocols;
        self.rebuild_tls()
    }

    pub(crate) fn limits(&self) -> Limits {
        *guard(&self.limits)
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        *guard(&self.limits) = limits;
    }

    pub(crate) fn budget(&self) -> i64 {
        self.budget.load(Ordering::SeqCst)
    }

    /// New connections are reset after this many bytes (negative: never).
    pub(crate) fn set_budget(&self, bytes: i64) {
        self.budget.store(bytes, Ordering::SeqCst);
    }

    pub(crate) fn refuses_next_stream(&self) -> bool {
        self.refuse_next_stream.load(Ordering::SeqCst)
    }

    /// The next stream of every HTTP/2 connection, present and (until `false`) future, gets a GOAWAY that excludes it.
    pub(crate) fn refuse_next_stream(&self, on: bool) {
        self.refuse_next_stream.store(on, Ordering::SeqCst);
        if on {
            for wire in self.wires() {
                wire.goaway.refuse_next();
            }
        }
    }

    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn track(&self, wire: &Arc<Wire>) {
        let mut wires = guard(&self.wires);
        if wires.len() > 1000 && wire.id.is_multiple_of(1000) {
            wires.retain(|_, kept| kept.strong_count() > 0);
        }
        wires.insert(wire.id, Arc::downgrade(wire));
    }

    /// The connections that are open.
    pub(crate) fn wires(&self) -> Vec<Arc<Wire>> {
        guard(&self.wires)
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Runs a task that ends with the server.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = guard(&self.tasks);
        tasks.spawn(task);
        while tasks.try_join_next().is_some() {}
    }

    /// Exchanges the means to end listening.
    pub(crate) fn listening(&self, new: Option<Listening>) -> Option<Listening> {
        std::mem::replace(&mut *guard(&self.listening), new)
    }

    pub(crate) fn abort(&self) {
        guard(&self.tasks).abort_all();
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.advertise.ip()
    }
}

fn sha2_of(text: &str) -> Vec<u8> {
    use sha2::Digest as _;
    sha2::Sha256::digest(text).to_vec()
}

fn hints(authentication: &Authentication) -> Vec<rustls_pki_types::CertificateDer<'static>> {
    let front_proxy = authentication
        .request_header
        .as_ref()
        .map(|settings| settings.ca.clone())
        .unwrap_or_default();
    authentication
        .client_ca
        .iter()
        .cloned()
        .chain(front_proxy)
        .collect()
}
