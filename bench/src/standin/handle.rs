//! A running server: its life from start to end, and everything a test may do to it or ask it.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use anyhow::Context as _;
use rustls_pki_types::CertificateDer;
use tokio::runtime::Runtime;

use super::{
    authn::Authentication,
    authz::Rule,
    builder::Builder,
    conn,
    faults::Fault,
    keeper,
    life::{live, stop},
    log::{Connection, Seen},
    model,
    server::{self, Limits, Phase},
    store::Store,
    tls::{self, Protocols},
};
use crate::pki::Issued;

/// A running server. Dropped: it is killed.
#[derive(Debug)]
pub struct Handle {
    pub(super) server: Arc<server::Server>,
    pub(super) runtime: Mutex<Option<Runtime>>,
    pub(super) builder: Builder,
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
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Runs something on the server's own runtime and waits for it.
    async fn inside<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let handle = {
            let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// How often it reached itself over its own port, and how often not ([`Builder::loopback_client`]).
    pub fn loopback_counts(&self) -> (u64, u64) {
        let server = &self.server;
        (
            server.loopback_answers.load(Ordering::Relaxed),
            server.loopback_failures.load(Ordering::Relaxed),
        )
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

    /// Custom resources that come or go are not noticed while this is on: a server that lags behind the others.
    pub fn freeze_custom_resources(&self, on: bool) {
        self.server.frozen.send_replace(on);
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
                runtime.shutdown_timeout(Duration::from_secs(2));
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

impl Builder {
    /// Starts it and waits until it is ready.
    pub async fn start(self) -> anyhow::Result<Handle> {
        let handle = self.start_without_waiting().await?;
        handle.ready().await;
        Ok(handle)
    }

    /// Starts it and returns as soon as it listens.
    #[expect(
        clippy::unused_async,
        reason = "like its sibling, so that callers may change between them"
    )]
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
        let advertise = self.advertise.unwrap_or_else(|| reachable(self.bind));
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
            server.spawn(live(
                Arc::clone(&server),
                self.timing,
                pace,
                self.loopback_client,
            ));
        }
        Ok(Handle {
            server,
            runtime: Mutex::new(Some(runtime)),
            builder: self,
        })
    }
}

/// The address by which others reach a server that listens on all: that of the default route, as kube-apiserver chooses it.
fn reachable(bound: SocketAddr) -> SocketAddr {
    if !bound.ip().is_unspecified() {
        return bound;
    }
    // Connecting a UDP socket sends nothing; it only asks the routing table (TEST-NET-1).
    let asked = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    let address = asked.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip());
    SocketAddr::new(address, bound.port())
}
