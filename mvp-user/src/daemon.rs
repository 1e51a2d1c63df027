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
};

use anyhow::Context as _;
use prometheus_client::registry::Registry;
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::{LocalSet, spawn_local},
    time::timeout,
};

use crate::{
    accept::Acceptor,
    api::ServerId,
    config::{Config, SteerMode},
    discovery::Discovery,
    health::{self, Prober, Probing, link::Marker},
    peers::{self, Learner, Learning},
    serve::{self, SelfCheck},
    steer::{
        Family, Heartbeat, SteerOptions, Steering,
        listen::{self, Listeners},
        privileges::{self, Needs},
    },
    table::{Server, Table},
    tls::Tls,
    upstream::{Dialer, Exempt},
};

pub mod pulse;
pub mod steering;

use steering::Helm;

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
    /// Accepts.
    pub acceptor: Arc<Acceptor>,
    /// What data threads share.
    pub shared: Arc<serve::Shared>,
    /// Grows whenever all clients are asked to go.
    pub leave: watch::Sender<u64>,
    /// All metric families.
    pub registry: Registry,
}

/// Exempts one connection from steering between its bind() and its connect().
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
        let acceptor = Acceptor::new(&config, Arc::clone(&tls), Arc::clone(&table));
        let discovery = Arc::new(Discovery::new(Arc::clone(&table)));
        let metrics = serve::Metrics::default();
        let mut registry = Registry::default();
        tls.register(&mut registry);
        acceptor.register(&mut registry);
        metrics.register(&mut registry);
        let shared = Arc::new(serve::Shared {
            config: Arc::clone(&config),
            table: Arc::clone(&table),
            tls: Arc::clone(&tls),
            dialer: Arc::clone(&dialer),
            discovery,
            prober: prober.clone(),
            learner: learner.clone(),
            metrics,
            self_check: SelfCheck::new().context("no random token for the self-check")?,
        });
        let leave = watch::Sender::new(0);
        Ok(Self {
            config,
            tls,
            table,
            dialer,
            prober,
            learner,
            acceptor,
            shared,
            leave,
            registry,
        })
    }
}

/// Runs until a signal and the drain that follows it.
///
/// # Errors
/// What keeps it from starting, each naming what and why.
pub fn run(config: Config) -> anyhow::Result<()> {
    let files = listen::raise_descriptor_limit();
    tracing::debug!(files, "Descriptors");
    privileges::forbid_dumps().context("core dumps cannot be forbidden")?;
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
    let local = LocalSet::new();
    runtime
        .block_on(local.run_until(async move { side_room(parts, steering, helm, sockets).await }))
}

fn attach(config: &Config) -> anyhow::Result<Steering> {
    let options = SteerOptions {
        exempt_source: config.exempt_source,
        percent: config.steer_percent,
        exempt: config.exempt_cidrs.clone(),
        canary: config.steer_cidrs.clone(),
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

/// Everything that is not a client's connection; returns when the drain is over.
async fn side_room(
    parts: Rc<Parts>,
    steering: Option<Arc<Steering>>,
    helm: Helm,
    sockets: Sockets,
) -> anyhow::Result<()> {
    let (stop, stopped) = watch::channel(false);
    let (done, mut drained) = mpsc::channel::<()>(1);
    let mut threads = Vec::new();
    for number in 0..parts.config.threads.max(1) {
        let listeners = sockets
            .listeners
            .iter()
            .map(TcpListener::try_clone)
            .collect::<Result<Vec<_>, _>>()?;
        let heartbeat = steering
            .as_ref()
            .map(|steering| steering.heartbeat())
            .transpose()?;
        let thread = DataThread {
            shared: Arc::clone(&parts.shared),
            acceptor: Arc::clone(&parts.acceptor),
            listeners,
            heartbeat,
            stop: stopped.clone(),
            leave: parts.leave.subscribe(),
            done: done.clone(),
        };
        threads.push(
            thread::Builder::new()
                .name(format!("data-{number}"))
                .spawn(move || thread.run())?,
        );
    }
    drop((sockets.listeners, done));

    spawn_local(Arc::clone(&parts.tls).watch_files());
    let marker = Marker::new(&parts.config.request_headers);
    let probing = Probing {
        dialer: Arc::clone(&parts.dialer),
        marker: marker.clone(),
    };
    spawn_local(health::run(parts.prober.clone(), probing));
    let learning = Learning {
        config: Arc::clone(&parts.config),
        dialer: Arc::clone(&parts.dialer),
        marker,
        prober: parts.prober.clone(),
    };
    spawn_local(peers::run(parts.learner.clone(), learning));
    let (draining, drain) = watch::channel(false);
    let steer = steering.clone().map(|steering| {
        let (own, helm, switch) = (Rc::clone(&parts), helm.clone(), Arc::clone(&steering));
        let steer = spawn_local(async move { steering::steer(&own, &switch, &helm, drain).await });
        (steering, steer)
    });
    if let Some((steering, _)) = &steer {
        let (own, helm, keys) = (Rc::clone(&parts), helm.clone(), Arc::clone(steering));
        spawn_local(async move { steering::watch_listeners(&own, &keys, &helm).await });
        if let Some(listener) = sockets.inner {
            let own = Rc::clone(&parts);
            let heartbeat = steering.heartbeat()?;
            spawn_local(async move { pulse::check_self(&own, listener, heartbeat).await });
        }
    }

    wait_for_signal().await?;
    tracing::info!("Stopping");
    draining.send_replace(true);
    if let Some((steering, task)) = steer {
        if let Err(error) = task.await {
            tracing::error!(%error, "The steering task failed");
        }
        steering.detach()?;
    }
    stop.send_replace(true);
    // The threads send their clients away once nothing more can arrive; see `DataThread::run`.
    let all = async { while drained.recv().await.is_some() {} };
    if timeout(parts.config.drain_timeout, all).await.is_err() {
        tracing::warn!(
            connections = parts.acceptor.room().open(),
            "Connections are closed at the end of --drain-timeout"
        );
    }
    tracing::info!("Stopped");
    Ok(())
}

async fn wait_for_signal() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// One data thread: its own event loop, and every connection it accepts.
struct DataThread {
    shared: Arc<serve::Shared>,
    acceptor: Arc<Acceptor>,
    listeners: Vec<TcpListener>,
    heartbeat: Option<Heartbeat>,
    stop: watch::Receiver<bool>,
    leave: watch::Receiver<u64>,
    done: mpsc::Sender<()>,
}

impl DataThread {
    fn run(self) {
        let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                // Its heartbeat grows old, and nothing is steered.
                tracing::error!(%error, "A data thread cannot start");
                return;
            }
        };
        runtime.block_on(LocalSet::new().run_until(self.serve()));
    }

    async fn serve(self) {
        let listeners: io::Result<Vec<_>> = self
            .listeners
            .into_iter()
            .map(tokio::net::TcpListener::from_std)
            .collect();
        let listeners = match listeners {
            Ok(listeners) => listeners,
            Err(error) => {
                tracing::error!(%error, "A data thread cannot listen");
                return;
            }
        };
        // Its own sender of the farewell, for the end: what was accepted last must hear it too.
        let (goodbye, leave) = watch::channel(0);
        let mut outer = self.leave;
        let goodbye = Rc::new(goodbye);
        let relay = Rc::clone(&goodbye);
        spawn_local(async move {
            while outer.changed().await.is_ok() {
                relay.send_modify(|epoch| *epoch += 1);
            }
        });
        let thread = serve::Thread::new(self.shared, leave);
        spawn_local(Rc::clone(&thread).tend());
        if let Some(heartbeat) = self.heartbeat {
            spawn_local(pulse::beat(heartbeat));
        }
        let mut open = self
            .acceptor
            .run(listeners, self.stop, move |connection| {
                Rc::clone(&thread).serve(connection)
            })
            .await;
        goodbye.send_modify(|epoch| *epoch += 1);
        while open.join_next().await.is_some() {}
        drop(self.done);
    }
}
