//! A stand-in kube-apiserver, honest enough to stand for one in tests, in the demo and under load: its TLS, its authentication order, its
//! recorded discovery in every form, its words for every refusal, its start and stop, its watches and upgrades. It is not a
//! kube-apiserver: no validation, no admission, no RBAC (a few [`Rule`]s), objects only as JSON or YAML, strategic merge patch treated as
//! merge patch.
//!
//! Servers of one cluster share a [`Store`] as they would share an etcd, and one [`ClusterPki`](crate::pki::ClusterPki):
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use bench::pki::ClusterPki;
//! use bench::standin::{Action, Fault, On, Release, Standin, Store, User};
//!
//! let pki = ClusterPki::new()?;
//! let store = Store::memory();
//! let old = Standin::builder(&pki).release(Release::V1_34).store(&store).token("secret", User::service_account("default", "app"))
//!     .start().await?;                                        // waits until /readyz is 200
//! let new = Standin::builder(&pki).release(Release::V1_36).store(&store).off("batch/v1").start().await?;
//!
//! old.fault(Fault { on: On::path("/apis"), action: Action::Hang, times: Some(1) });
//! // … requests to https://{old.address()} …
//! let seen = old.requests();                                  // method, target, header lines, user, connection, status
//! assert!(seen.iter().all(|request| request.header("x-remote-user").is_empty()));
//! new.kill().await;                                           // kill -9: the endpoint stays until its lease ends
//! let new = new.restart().await?;                             // same address, certificate and store
//! new.stop_gracefully().await;
//! # Ok(()) }
//! ```
//!
//! * What is served: [`Builder::release`], [`Builder::all_apis`], [`Builder::off`] (group-version, resource, subresource or verb),
//!   [`Builder::on`]; a CustomResourceDefinition created through any server is served by all.
//! * Who is known: [`Builder::authentication`] for everything, [`Builder::token`], [`Builder::allow`] for rules. `system:masters` may do
//!   all, authenticated users discovery and self reviews, anonymous only health and version.
//! * What went wrong: [`Handle::fault`] for requests; [`Handle::silence`], [`Handle::refuse`], [`Handle::reset_connections`],
//!   [`Handle::go_away`], [`Handle::refuse_next_stream`], [`Handle::cut_after`] for connections; [`Handle::set_limits`],
//!   [`Handle::set_protocols`] for what new connections are offered.
//! * What was seen: [`Handle::requests`], [`Handle::connections`], [`Store::writes`] (a create that arrived twice shows as
//!   `repeated_creates`).
//! * `GET /debug/bytes?n=N` is a body of N bytes of known content (for users who may everything).
//!
//! Each server runs on a runtime and threads of its own, so a test may block or pause its clock. Dropping the [`Handle`] kills the server.
//! The binary `standin-apiserver` is the same behind flags, with a control socket ([`control::Command`], JSON lines).

mod accept;
mod authn;
mod authz;
mod body;
pub mod client;
mod clock;
mod conn;
pub mod control;
mod discovery;
mod faults;
mod fixtures;
mod forms;
mod frames;
mod info;
mod keeper;
mod log;
mod model;
mod objects;
mod openapi;
mod plain;
mod serve;
mod server;
mod status;
mod store;
#[cfg(test)]
mod tests;
mod tls;
mod upgrade;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
pub use authn::{Authentication, RequestHeader, User};
pub use authz::Rule;
pub use faults::{Action, Fault, On};
pub use log::{Connection, Seen};
pub use model::{Gvk, Release, Resource, Serving, Subresource};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
pub use server::{Limits, Phase};
pub use store::{Event, Store, StoreError, Stored, Writes, key};
pub use tls::Protocols;
use tokio::runtime::Runtime;

use crate::pki::{ClusterPki, Issued};

/// How long each step of a server's life takes, and how its endpoint is kept.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// 503 to everything after the listener is there.
    pub starting: Duration,
    /// Incomplete discovery with 200, /readyz red (a real one: about 2 s).
    pub incomplete: Duration,
    /// After the stop began: /readyz red, everything works.
    pub delaying: Duration,
    /// 429 to new requests.
    pub refusing: Duration,
    /// 503 to new requests; watches have ended.
    pub stopping: Duration,
    /// How long the end waits for answers in flight.
    pub draining: Duration,
    /// How long the endpoint outlives a killed server (a real one: 15 s).
    pub endpoint_ttl: Duration,
    /// How often it is renewed, and others' ended ones are removed (10 s).
    pub endpoint_every: Duration,
}

impl Timing {
    /// Ready at once, stopped at once: for tests that are about something else.
    pub fn prompt() -> Self {
        Self {
            starting: Duration::ZERO,
            incomplete: Duration::ZERO,
            delaying: Duration::ZERO,
            refusing: Duration::ZERO,
            stopping: Duration::ZERO,
            draining: Duration::from_secs(2),
            endpoint_ttl: Duration::from_secs(15),
            endpoint_every: Duration::from_secs(10),
        }
    }

    /// As measured on real servers (kubernetes.md, parts 2 and 4), stop sequence included.
    pub fn real() -> Self {
        Self {
            starting: Duration::from_millis(300),
            incomplete: Duration::from_secs(2),
            delaying: Duration::ZERO,
            refusing: Duration::from_millis(1000),
            stopping: Duration::from_millis(500),
            draining: Duration::from_secs(10),
            ..Self::prompt()
        }
    }
}

/// Builds a server; see [`Standin::builder`].
#[derive(Debug, Clone)]
pub struct Builder {
    release: Release,
    serving: Serving,
    store: Store,
    name: String,
    bind: SocketAddr,
    advertise: Option<SocketAddr>,
    certificate: Option<Arc<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>>,
    authentication: Authentication,
    rules: Vec<Rule>,
    protocols: Protocols,
    limits: Limits,
    timing: Timing,
    threads: usize,
}

/// The way in.
#[derive(Debug)]
pub struct Standin;

impl Standin {
    /// A v1.36 server on a free port of 127.0.0.1, with a certificate of `pki` for every loopback address and the bound one, that knows
    /// its clients, its front proxy (`front-proxy-client`) and anonymous.
    pub fn builder(pki: &ClusterPki) -> Builder {
        let loopback = [
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        ];
        let mut builder = Self::bare();
        match pki.serving(&loopback) {
            Ok(issued) => builder = builder.certificate(&issued),
            Err(error) => tracing::error!(%error, "No serving certificate"),
        }
        builder.authentication.client_ca = vec![pki.ca.certificate.der.clone()];
        builder.authentication.request_header = Some(RequestHeader::standard(
            vec![pki.front_proxy_ca.certificate.der.clone()],
            &["front-proxy-client"],
        ));
        builder
    }

    /// A builder without certificates and authorities: [`Builder::certificate`] and [`Builder::authentication`] must follow.
    pub fn bare() -> Builder {
        Builder {
            release: Release::V1_36,
            serving: Serving::default(),
            store: Store::memory(),
            name: "stand-in".to_owned(),
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            certificate: None,
            authentication: Authentication {
                anonymous: true,
                ..Authentication::default()
            },
            rules: Vec::new(),
            protocols: Protocols::Both,
            limits: Limits::default(),
            timing: Timing::prompt(),
            threads: 1,
        }
    }
}

impl Builder {
    /// Which release's answers it gives.
    #[must_use]
    pub fn release(mut self, release: Release) -> Self {
        self.release = release;
        self
    }

    /// The store it shares with the cluster.
    #[must_use]
    pub fn store(mut self, store: &Store) -> Self {
        self.store = store.clone();
        self
    }

    /// Its host name (in the identity Lease).
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Where it listens; port 0: any. `[::]:PORT` takes IPv4 too.
    #[must_use]
    pub fn bind(mut self, address: SocketAddr) -> Self {
        self.bind = address;
        self
    }

    /// The address in the endpoints, if not the bound one.
    #[must_use]
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.advertise = Some(address);
        self
    }

    /// Its serving certificate.
    #[must_use]
    pub fn certificate(self, issued: &Issued) -> Self {
        self.certificate_chain(vec![issued.der.clone()], issued.private_key())
    }

    /// Its serving certificate with intermediates.
    #[must_use]
    pub fn certificate_chain(
        mut self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Self {
        self.certificate = Some(Arc::new((chain, key)));
        self
    }

    /// Every API on, alpha and beta too.
    #[must_use]
    pub fn all_apis(mut self) -> Self {
        self.serving.all_apis = true;
        self
    }

    /// Switches something off: `batch/v1`, `batch/v1/jobs`, `v1/pods/resize`, `apps/v1/deployments:deletecollection`.
    #[must_use]
    pub fn off(mut self, what: &str) -> Self {
        self.serving.off.push(what.to_owned());
        self
    }

    /// Adds a resource to a group-version, which need not exist.
    #[must_use]
    pub fn on(mut self, group_version: &str, resource: Resource) -> Self {
        self.serving.on.push((group_version.to_owned(), resource));
        self
    }

    /// A bearer token and whose it is.
    #[must_use]
    pub fn token(mut self, token: &str, user: User) -> Self {
        self.authentication.tokens.insert(token.to_owned(), user);
        self
    }

    /// Changes who is known, and how.
    #[must_use]
    pub fn authentication(mut self, change: impl FnOnce(&mut Authentication)) -> Self {
        change(&mut self.authentication);
        self
    }

    /// Allows something to somebody.
    #[must_use]
    pub fn allow(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Which protocols ALPN offers.
    #[must_use]
    pub fn protocols(mut self, protocols: Protocols) -> Self {
        self.protocols = protocols;
        self
    }

    /// HTTP/2 limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How long the steps of its life take.
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Threads of its runtime (1).
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Starts it and waits until it is ready.
    pub async fn start(self) -> anyhow::Result<Handle> {
        let handle = self.start_without_waiting().await?;
        handle.ready().await;
        Ok(handle)
    }

    /// Starts it and returns as soon as it listens.
    pub async fn start_without_waiting(mut self) -> anyhow::Result<Handle> {
        let certificate = self
            .certificate
            .clone()
            .context("the server has no serving certificate")?;
        let catalogue = model::base(self.release, self.serving.all_apis)?.with(&self.serving)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.threads)
            .thread_name("stand-in")
            .enable_all()
            .build()
            .context("no runtime for the server")?;
        let listener = {
            let _inside = runtime.enter();
            conn::bind(self.bind).with_context(|| format!("{} cannot be listened on", self.bind))?
        };
        // A restart comes back at the same place.
        self.bind = listener.local_addr()?;
        let advertise = self.advertise.unwrap_or(self.bind);
        let server = server::Server::new(server::Parts {
            name: self.name.clone(),
            bind: self.bind,
            advertise,
            store: self.store.clone(),
            catalogue,
            authentication: self.authentication.clone(),
            rules: self.rules.clone(),
            serving: tls::certified(certificate.0.clone(), certificate.1.clone_key())?,
            protocols: self.protocols,
            limits: self.limits,
        })?;
        let pace = keeper::Pace {
            ttl: self.timing.endpoint_ttl,
            every: self.timing.endpoint_every,
        };
        {
            let _inside = runtime.enter();
            conn::listen(&server, listener);
            server.spawn(live(Arc::clone(&server), self.timing, pace));
        }
        Ok(Handle {
            server,
            runtime: std::sync::Mutex::new(Some(runtime)),
            builder: self,
        })
    }
}

async fn live(server: Arc<server::Server>, timing: Timing, pace: keeper::Pace) {
    tokio::time::sleep(timing.starting).await;
    keeper::starting(&server).await;
    // A stop may have come first: phases only go forward.
    let advance = |phase: Phase| {
        server.phase.send_if_modified(|now| {
            let forward = *now < phase;
            if forward {
                *now = phase;
            }
            forward
        })
    };
    if !timing.incomplete.is_zero() {
        advance(Phase::Incomplete);
        tokio::time::sleep(timing.incomplete).await;
    }
    if let Err(error) = keeper::publish(&server, pace).await {
        tracing::warn!(%error, "The endpoint could not be written");
    }
    advance(Phase::Ready);
    keeper::keep(server, pace).await;
}

/// A running server. Dropped: it is killed.
#[derive(Debug)]
pub struct Handle {
    server: Arc<server::Server>,
    runtime: std::sync::Mutex<Option<Runtime>>,
    builder: Builder,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.server.abort();
        if let Some(runtime) = self.take_runtime() {
            runtime.shutdown_background();
        }
    }
}

impl Handle {
    fn take_runtime(&self) -> Option<Runtime> {
        self.runtime
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take()
    }

    /// Runs something on the server's own runtime and waits for it.
    async fn inside<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let handle = {
            let runtime = self
                .runtime
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            runtime.as_ref().map(|runtime| runtime.handle().clone())
        };
        handle?.spawn(task).await.ok()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.builder.bind
    }

    /// `https://ADDRESS`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// The cluster's store.
    pub fn store(&self) -> &Store {
        &self.server.store
    }

    /// Name of its identity Lease in kube-system.
    pub fn identity(&self) -> &str {
        &self.server.identity
    }

    /// The certificate it shows to SNI `apiserver-loopback-client`.
    pub fn loopback_certificate(&self) -> CertificateDer<'static> {
        self.server.loopback.cert[0].clone()
    }

    /// Where it is in its life.
    pub fn phase(&self) -> Phase {
        self.server.phase()
    }

    /// Waits until it is ready (or further).
    pub async fn ready(&self) {
        // The sender lives in the server.
        drop(
            self.server
                .phase
                .subscribe()
                .wait_for(|phase| *phase >= Phase::Ready)
                .await,
        );
    }

    /// Adds a fault; several that match act together.
    pub fn fault(&self, fault: Fault) {
        self.server.faults.add(fault);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.server.faults.clear();
    }

    /// All requests so far, in order.
    pub fn requests(&self) -> Vec<Seen> {
        self.server.log.snapshot()
    }

    /// All requests since the log was last cleared by this.
    pub fn take_requests(&self) -> Vec<Seen> {
        let seen = self.server.log.snapshot();
        self.server.log.clear();
        seen
    }

    /// All connections so far, in order.
    pub fn connections(&self) -> Vec<Connection> {
        self.server.log.snapshot_connections()
    }

    /// How many connections are open now.
    pub fn open_connections(&self) -> usize {
        self.server.wires().len()
    }

    /// Keeps requests in the log, or not (load tests).
    pub fn keep_log(&self, on: bool) {
        self.server.log.keep(on);
    }

    /// SIGSTOP without the signal: connections are accepted by the kernel only, nothing is read or written.
    pub fn silence(&self, on: bool) {
        self.server.silence.set(on);
    }

    /// Closes the listener (connection refused), or opens it again at the same address. Connections stay.
    pub async fn refuse(&self, on: bool) -> anyhow::Result<()> {
        let server = Arc::clone(&self.server);
        let done = self
            .inside(async move { conn::refuse(&server, on).await })
            .await;
        done.context("the server is not running")?
            .context("the listener cannot be changed")
    }

    /// Resets every open connection (TCP RST).
    pub fn reset_connections(&self) {
        self.server.wires().iter().for_each(|wire| wire.reset());
    }

    /// Ends every open connection with a FIN.
    pub fn close_connections(&self) {
        self.server.wires().iter().for_each(|wire| wire.close());
    }

    /// GOAWAY on every open HTTP/2 connection, naming the highest stream seen; HTTP/1.1 connections close after their request.
    pub fn go_away(&self) {
        self.server.wires().iter().for_each(|wire| wire.go_away());
    }

    /// The next stream of every HTTP/2 connection, present and (until `false`) future, is answered by a GOAWAY that excludes it.
    pub fn refuse_next_stream(&self, on: bool) {
        self.server.refuse_next_stream(on);
    }

    /// New connections are reset after the server has written this many bytes, TLS handshake included; none: no more.
    pub fn cut_after(&self, bytes: Option<u32>) {
        self.server.set_budget(bytes.map_or(-1, i64::from));
    }

    /// HTTP/2 limits of new connections.
    pub fn set_limits(&self, limits: Limits) {
        self.server.set_limits(limits);
    }

    /// Protocols of new connections.
    pub fn set_protocols(&self, protocols: Protocols) -> anyhow::Result<()> {
        self.server.set_protocols(protocols)
    }

    /// Another serving certificate for new connections.
    pub fn set_certificate(&self, issued: &Issued) -> anyhow::Result<()> {
        self.server.serving.store(tls::certified(
            vec![issued.der.clone()],
            issued.private_key(),
        )?);
        self.server.rebuild_tls()
    }

    /// Changes who is known; acts on the next request of every connection.
    pub fn set_authentication(
        &self,
        change: impl FnOnce(&mut Authentication),
    ) -> anyhow::Result<()> {
        let mut authentication = (**self.server.authentication.load()).clone();
        change(&mut authentication);
        self.server.authentication.store(Arc::new(authentication));
        self.server.rebuild_tls()
    }

    /// Replaces the rules.
    pub fn set_rules(&self, rules: Vec<Rule>) {
        self.server.rules.store(Arc::new(rules));
    }

    /// SIGTERM: endpoint away, then the phases of [`Timing`], then the end.
    pub async fn stop_gracefully(&self) {
        let server = Arc::clone(&self.server);
        let timing = self.builder.timing;
        if self.inside(stop(server, timing)).await.is_none() {
            tracing::debug!("The server had ended before it was stopped");
        }
        self.kill().await;
    }

    /// kill -9: everything ends now, nothing is cleaned up. When this returns, connects are refused.
    pub async fn kill(&self) {
        self.server.abort();
        if let Some(runtime) = self.take_runtime() {
            let ended = tokio::task::spawn_blocking(move || {
                runtime.shutdown_timeout(Duration::from_secs(2))
            });
            drop(ended.await);
        }
    }

    /// Starts a killed or stopped server again, at the same address, with the same store; waits until it is ready.
    pub async fn restart(&self) -> anyhow::Result<Self> {
        self.builder.clone().start().await
    }

    /// The same without waiting.
    pub async fn restart_without_waiting(&self) -> anyhow::Result<Self> {
        self.builder.clone().start_without_waiting().await
    }
}

async fn stop(server: Arc<server::Server>, timing: Timing) {
    server.phase.send_replace(Phase::Delaying);
    if let Err(error) = keeper::retract(&server).await {
        tracing::warn!(%error, "The endpoint could not be taken away");
    }
    tokio::time::sleep(timing.delaying).await;
    if !timing.refusing.is_zero() {
        server.phase.send_replace(Phase::Refusing);
        tokio::time::sleep(timing.refusing).await;
    }
    server.phase.send_replace(Phase::Stopping);
    tokio::time::sleep(timing.stopping).await;
    drop(conn::refuse(&server, true).await);
    let wires = server.wires();
    wires.iter().for_each(|wire| wire.go_away());
    drop(wires);
    let drained = async {
        while !server.wires().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // What is still running then is cut off.
    drop(tokio::time::timeout(timing.draining, drained).await);
}
