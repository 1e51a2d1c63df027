//! Builds the rooms in order, wires them, runs them, and drains them in reverse order: the only file that knows everyone.
//!
//! One side-room thread (the caller's) learns, probes, steers and answers the control socket; `--threads` data threads
//! serve. A stop is planned (design 2): off and detach, accept what is on its way, ask the clients to go, wait for what
//! runs, at most `--drain-timeout`.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    rc::Rc,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::Context as _;
use prometheus_client::metrics::counter::Counter;
use sd_notify::NotifyState;
use tokio::{
    runtime,
    sync::{mpsc, watch},
    task::{JoinHandle, LocalSet, spawn_local},
    time::timeout,
};

use crate::{
    accept::{Acceptor, Bound, LINGER},
    admin::{
        self, Process, State,
        listen::{Control, Exposed},
    },
    api::ServerId,
    config::{Config, Flags, Ktls, Origin, Resolved, Setting, SteerMode, published::NAMES},
    discovery::{Discovery, courier::Courier},
    health::{self, Prober, Probing, link::Marker},
    metrics::Exposition,
    peers::{self, Learner, Learning},
    serve::{self, SelfCheck},
    spans::Spans,
    steer::{
        self, Family, Heartbeat, SteerOptions, Steering,
        listen::{self, Listeners},
        privileges::{self, Needs},
    },
    table::{Server, Table},
    tls::Tls,
    tunnel,
    upstream::{Dialer, Exempt},
};

mod data_thread;
mod desk;
pub mod existing;
mod manifest;
mod memory;
pub mod pulse;
mod service;
mod signals;
pub mod steering;
#[cfg(test)]
mod tests;

use data_thread::DataThread;
use desk::Desk;
pub use signals::hold as hold_signals;
use steering::Helm;

/// A drain lasts so long where connections are there: [`LINGER`], and a moment to answer what came last.
const LEAST_DRAIN: Duration = LINGER.saturating_add(Duration::from_secs(1));

/// The rooms, built.
pub struct Parts {
    /// What was resolved from flags.
    pub config: Arc<Config>,
    /// Certificates and keys.
    pub tls: Arc<Tls>,
    /// Who serves what.
    pub table: Arc<Table>,
    /// Opens upstream connections.
    pub dialer: Arc<Dialer>,
    /// Probes.
    pub prober: Prober,
    /// Learns.
    pub learner: Learner,
    /// Fetches other servers' OpenAPI.
    pub courier: Courier,
    /// Accepts.
    pub acceptor: Arc<Acceptor>,
    /// What data threads share.
    pub shared: Arc<serve::Shared>,
    /// Direct connections that were closed because they are older than steering.
    pub drained: Counter,
    /// Grows whenever all clients are asked to go.
    pub leave: watch::Sender<u64>,
}

/// Exempts one connection from steering between its `bind()` and its `connect()`.
struct ByTuple(Arc<Steering>);

impl Exempt for ByTuple {
    fn exempt(&self, source: SocketAddr, _destination: SocketAddr) -> io::Result<()> {
        self.0.exempt_tuple(source).map_err(io::Error::other)
    }
}

impl Parts {
    /// Builds every room; nothing runs yet.
    pub fn build(config: Config, steering: Option<&Arc<Steering>>) -> anyhow::Result<Self> {
        let config = Arc::new(config);
        let tls = Tls::load(&config.tls).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("{}", lines.join("\n"))
        })?;
        let local = Arc::new(Server::new(ServerId::Local, config.local));
        let table = Arc::new(Table::new(local));
        let exempt =
            steering.map(|steering| Arc::new(ByTuple(Arc::clone(steering))) as Arc<dyn Exempt>);
        let dialer = Arc::new(Dialer::new(config.exempt_source, Arc::clone(&tls), exempt));
        let prober = Prober::new(Arc::clone(&table));
        let learner = Learner::new(Arc::clone(&table));
        let bound = match steering {
            Some(_) => Bound::Steering(config.max_connections),
            None => Bound::Accepting(config.max_connections),
        };
        let acceptor = Acceptor::new(
            Arc::clone(&tls),
            Arc::clone(&table),
            bound,
            config.secure_port,
        );
        let courier = Courier::new();
        let discovery = Discovery::new(Arc::clone(&table), config.local_down)
            .with_fetch(Arc::new(courier.clone()));
        let discovery = Arc::new(discovery);
        let metrics = serve::Metrics::default();
        let shared = Arc::new(serve::Shared {
            config: Arc::clone(&config),
            table: Arc::clone(&table),
            tls: Arc::clone(&tls),
            dialer: Arc::clone(&dialer),
            discovery,
            prober: prober.clone(),
            learner: learner.clone(),
            metrics,
            backlogs: serve::Backlogs::default(),
            self_check: SelfCheck::new().context("no random token for the self-check")?,
            spans: Spans::new(config.trace_endpoint),
        });
        let leave = watch::Sender::new(0);
        Ok(Self {
            config,
            tls,
            table,
            dialer,
            prober,
            learner,
            courier,
            acceptor,
            shared,
            drained: Counter::default(),
            leave,
        })
    }

    /// All metric families that the rooms keep.
    fn exposition(&self) -> Exposition {
        let mut exposition = Exposition::default();
        let registry = exposition.registry();
        self.tls.register(registry);
        self.acceptor.register(registry);
        self.shared.metrics.register(registry);
        self.shared.backlogs.register(registry);
        self.shared.discovery.counters.register(registry);
        self.shared.spans.register(registry);
        registry.register(
            "mvp_older_connections_closed",
            "Direct connections older than steering that were closed, so that their clients come back through mvp",
            self.drained.clone(),
        );
        self.prober.register(registry);
        self.learner.register(registry);
        exposition
    }
}

/// Runs until a signal and the drain that follows it.
///
/// # Errors
/// What keeps it from starting, each naming what and why.
pub fn run(
    Resolved {
        config,
        settings,
        published,
        flags,
    }: Resolved,
) -> anyhow::Result<()> {
    let files = listen::raise_descriptor_limit();
    tracing::debug!(files, "Descriptors");
    privileges::forbid_dumps().context("core dumps cannot be forbidden")?;
    // Before capabilities are dropped: trying it may load the kernel's module.
    if config.ktls != Ktls::Off && !tunnel::kernel().has_tls() {
        if config.ktls == Ktls::On {
            tracing::warn!("--ktls=on: this kernel has no TLS; tunnels are copied in user space");
        } else {
            tracing::debug!("This kernel has no TLS; tunnels are copied in user space");
        }
    }
    // `--listen` is the mode without eBPF.
    let steers = config.listen.is_empty() && config.steer != SteerMode::Never;
    let steering = if steers {
        Some(Arc::new(attach(&config)?))
    } else {
        None
    };
    let sockets = Sockets::open(&config, steering.as_deref())?;
    let needs = Needs {
        steering: steers,
        draining: steers,
        reading_files: true,
    };
    privileges::drop_capabilities(needs).context("capabilities cannot be dropped")?;
    let helm = Helm::new(config.steer, if steers { "no_listener" } else { "no_ebpf" });
    let parts = Rc::new(Parts::build(config, steering.as_ref())?);
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let is_published = |it: &Setting| it.name == NAMES && it.origin == Origin::ConfigMap;
    let names_are_used = settings.iter().any(is_published);
    let house = House {
        parts,
        steering,
        helm,
        settings,
        flags,
    };
    let live = async {
        match &published {
            Some(published) => tokio::select! {
                ended = house.live(sockets) => ended,
                () = published.follow(names_are_used) => Ok(()),
            },
            None => house.live(sockets).await,
        }
    };
    runtime.block_on(LocalSet::new().run_until(live))
}

fn attach(config: &Config) -> anyhow::Result<Steering> {
    let options = SteerOptions {
        exempt_source: config.exempt_source,
        percent: config.steer_percent,
        exempt: config.exempt_cidrs.clone(),
        canary: config.steer_cidrs.clone(),
        log: steer::log_is_wanted(),
        ..SteerOptions::default()
    };
    Steering::attach(&options).context("steering was asked for (--steer) and cannot be had")
}

/// The listeners of the data threads: behind the steer, or those of `--listen`.
struct Sockets {
    listeners: Vec<TcpListener>,
    /// Where the self-request goes.
    inner: Option<SocketAddr>,
}

impl Sockets {
    fn open(config: &Config, steering: Option<&Steering>) -> anyhow::Result<Self> {
        let mut listeners = Vec::new();
        let Some(steering) = steering else {
            for address in &config.listen {
                listeners
                    .push(listen::bind(*address).with_context(|| format!("--listen {address}"))?);
            }
            return Ok(Self {
                listeners,
                inner: None,
            });
        };
        let own = Listeners::bind().context("no listener on the loopback")?;
        for (family, listener) in [(Family::V4, own.v4), (Family::V6, own.v6)] {
            if let Some(listener) = listener {
                steering.set_listener(family, &listener)?;
                listeners.push(listener);
            }
        }
        let inner = listeners
            .first()
            .and_then(|listener| listener.local_addr().ok());
        Ok(Self { listeners, inner })
    }
}

/// Everything that is not a client's connection.
struct House {
    parts: Rc<Parts>,
    steering: Option<Arc<Steering>>,
    helm: Helm,
    settings: Vec<Setting>,
    flags: Flags,
}

impl House {
    /// From the first thread to the end of the drain.
    async fn live(self, sockets: Sockets) -> anyhow::Result<()> {
        let (draining, drain) = watch::channel(false);
        let desk = Arc::new(Desk::new(&self, drain.clone()));
        let control = Control::bind(self.parts.config.control_socket.as_deref())
            .context("the control socket")?;
        let exposed = Exposed::bind(self.parts.config.metrics_listen)
            .with_context(|| format!("--metrics-listen {}", self.parts.config.metrics_listen))?;
        let (stop, mut drained) = self.start_threads(&sockets, &desk)?;
        self.start_side_rooms();
        let steer = self.start_steering(&sockets, &desk, drain)?;
        drop(sockets);
        spawn_local(manifest::watch(self.flags.clone(), self.settings.clone()));
        let state = Arc::new(State {
            table: Arc::clone(&self.parts.table),
            tls: Arc::clone(&self.parts.tls),
            learner: self.parts.learner.clone(),
            prober: self.parts.prober.clone(),
            config: Arc::clone(&self.parts.config),
            settings: self.settings,
            flags: self.flags,
            traffic: self.parts.shared.metrics.traffic(),
            daemon: Arc::<Desk>::clone(&desk),
            process: Process::begin(),
        });
        spawn_local(admin::run(
            state,
            self.parts.exposition(),
            control,
            Some(exposed),
        ));

        service::tell(&[NotifyState::Ready]);
        spawn_local(service::keep_informed(desk, self.helm.clone()));
        signals::wait().await?;
        tracing::info!("Stopping");
        service::tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
        draining.send_replace(true);
        if let (Some(task), Some(steering)) = (steer, self.steering) {
            if let Err(error) = task.await {
                tracing::error!(%error, "The steering task failed");
            }
            steering.detach()?;
        }
        stop.send_replace(true);
        // The threads send their clients away once nothing more can arrive: see `DataThread::serve`.
        let all = async { while drained.recv().await.is_some() {} };
        // However short: what is on its way when steering ends is still accepted and answered (`accept::LINGER`).
        let within = self.parts.config.drain_timeout.max(LEAST_DRAIN);
        let connections = || self.parts.acceptor.room().open();
        tokio::select! {
            drained = timeout(within, all) => {
                if drained.is_err() {
                    tracing::warn!(
                        connections = connections(),
                        "Connections are closed at the end of --drain-timeout"
                    );
                }
            }
            again = signals::wait() => {
                again?;
                tracing::warn!(
                    connections = connections(),
                    "Connections are closed: a second signal came"
                );
            }
        }
        tracing::info!("Stopped");
        Ok(())
    }

    /// The data threads; the receiver ends when the last one has no connection any more.
    fn start_threads(
        &self,
        sockets: &Sockets,
        desk: &Desk,
    ) -> anyhow::Result<(watch::Sender<bool>, mpsc::Receiver<()>)> {
        let (stop, stopped) = watch::channel(false);
        let (done, drained) = mpsc::channel(1);
        for number in 0..self.parts.config.threads.max(1) {
            let listeners = sockets
                .listeners
                .iter()
                .map(TcpListener::try_clone)
                .collect::<Result<Vec<_>, _>>()?;
            let thread = DataThread {
                shared: Arc::clone(&self.parts.shared),
                acceptor: Arc::clone(&self.parts.acceptor),
                listeners,
                pulse: desk.pulse(self.heartbeat()?),
                stop: stopped.clone(),
                leave: self.parts.leave.subscribe(),
                done: done.clone(),
            };
            thread::Builder::new()
                .name(format!("data-{number}"))
                .spawn(move || thread.run())?;
        }
        Ok((stop, drained))
    }

    fn heartbeat(&self) -> anyhow::Result<Option<Heartbeat>> {
        Ok(self
            .steering
            .as_ref()
            .map(|steering| steering.heartbeat())
            .transpose()?)
    }

    fn start_side_rooms(&self) {
        let parts = &self.parts;
        spawn_local(Arc::clone(&parts.tls).watch_files());
        let marker = Marker::new(&parts.config.request_headers);
        let probing = Probing {
            dialer: Arc::clone(&parts.dialer),
            marker: marker.clone(),
        };
        spawn_local(health::run(parts.prober.clone(), probing));
        let courier = parts.courier.clone();
        spawn_local(courier.run(Arc::clone(&parts.dialer), marker.clone()));
        let learning = Learning {
            config: Arc::clone(&parts.config),
            dialer: Arc::clone(&parts.dialer),
            marker,
            prober: parts.prober.clone(),
        };
        spawn_local(peers::run(parts.learner.clone(), learning));
        spawn_local(parts.shared.spans.clone().send());
        let parts = Rc::clone(parts);
        spawn_local(async move { memory::tend(&parts).await });
    }

    /// The loops behind the steer; the task returned ends when the drain begins.
    fn start_steering(
        &self,
        sockets: &Sockets,
        desk: &Desk,
        drain: watch::Receiver<bool>,
    ) -> anyhow::Result<Option<JoinHandle<()>>> {
        let Some(steering) = &self.steering else {
            return Ok(None);
        };
        let (parts, keys, helm) = (
            Rc::clone(&self.parts),
            Arc::clone(steering),
            self.helm.clone(),
        );
        spawn_local(async move { steering::watch_listeners(&parts, &keys, &helm).await });
        let (parts, program, helm) = (
            Rc::clone(&self.parts),
            Arc::clone(steering),
            self.helm.clone(),
        );
        spawn_local(async move { existing::tend(&parts, &program, &helm).await });
        if steer::log_is_wanted() {
            let program = Arc::clone(steering);
            spawn_local(async move { program.follow_log().await });
        }
        if let Some(listener) = sockets.inner {
            let (parts, pulse) = (Rc::clone(&self.parts), desk.self_pulse(self.heartbeat()?));
            let drain = drain.clone();
            spawn_local(async move { pulse::check_self(&parts, listener, pulse, drain).await });
        }
        let (parts, switch, helm) = (
            Rc::clone(&self.parts),
            Arc::clone(steering),
            self.helm.clone(),
        );
        Ok(Some(spawn_local(async move {
            steering::steer(&parts, &switch, &helm, drain).await;
        })))
    }
}
