//! Building a server: what it serves, whom it knows, how it lives.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::{
    authn::{Authentication, RequestHeader, User},
    authz::Rule,
    conn,
    handle::{Handle, live},
    keeper,
    model::{self, Release, Resource, Serving},
    server::{self, Limits},
    store::Store,
    tls::{self, Protocols},
};
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

    /// As measured on real servers of v1.34 and v1.36, stop sequence included.
    pub fn real() -> Self {
        Self {
            starting: Duration::from_millis(300),
            incomplete: Duration::from_secs(2),
            delaying: Duration::ZERO,
            refusing: Duration::from_secs(1),
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
    pub(super) bind: SocketAddr,
    advertise: Option<SocketAddr>,
    certificate: Option<Arc<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>>,
    authentication: Authentication,
    rules: Vec<Rule>,
    protocols: Protocols,
    limits: Limits,
    pub(super) timing: Timing,
    threads: usize,
    loopback_client: bool,
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
            IpAddr::V6(Ipv6Addr::LOCALHOST),
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
            loopback_client: false,
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

    /// As a kube-apiserver does, it asks itself: over its own port, with SNI `apiserver-loopback-client`, trusting only the certificate
    /// that it made in memory. It is ready only while that works.
    #[must_use]
    pub fn loopback_client(mut self, on: bool) -> Self {
        self.loopback_client = on;
        self
    }

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
            runtime: std::sync::Mutex::new(Some(runtime)),
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
