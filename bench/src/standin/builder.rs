//! Building a server: what it serves, whom it knows, how it lives.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::{
    authn::{Authentication, RequestHeader, User},
    authz::Rule,
    life::Timing,
    model::{Release, Resource, Serving},
    server::Limits,
    store::Store,
    tls::Protocols,
};
use crate::pki::{ClusterPki, Issued};

/// Builds a server; see [`Standin::builder`].
#[derive(Debug, Clone)]
pub struct Builder {
    pub(super) release: Release,
    pub(super) serving: Serving,
    pub(super) store: Store,
    pub(super) name: String,
    pub(super) bind: SocketAddr,
    pub(super) advertise: Option<SocketAddr>,
    pub(super) certificate: Option<Arc<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>>,
    pub(super) authentication: Authentication,
    pub(super) rules: Vec<Rule>,
    pub(super) protocols: Protocols,
    pub(super) limits: Limits,
    pub(super) timing: Timing,
    pub(super) threads: usize,
    pub(super) loopback_client: bool,
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
}
