//! The configurations towards upstreams, by what is presented and what is offered, and the one towards this node's own
//! listeners.

use std::sync::Arc;

use rustls::{
    ClientConfig, Error, RootCertStore,
    client::{Resumption, WebPkiServerVerifier},
    crypto::{CryptoProvider, aws_lc_rs},
    sign::SingleCertAndKey,
};
use rustls_pki_types::ServerName;

use super::{Presenting, Protocol, anchors::Anchors, files::Pair, suites};
use crate::api::ALPN_DIRECT;

/// The client configurations of one generation.
#[derive(Debug)]
pub(super) struct Clients {
    front_proxy: Option<[Arc<ClientConfig>; 2]>,
    nothing: [Arc<ClientConfig>; 2],
    inward: Arc<ClientConfig>,
    pub(super) server_name: ServerName<'static>,
}

impl Clients {
    /// Upstreams are verified against `peer_ca`: any certificate in it is an anchor, self-signed or not.
    pub(super) fn build(
        peer_ca: &Anchors,
        front_proxy: Option<&Pair>,
        server_name: ServerName<'static>,
    ) -> Result<Self, Error> {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: suites::offered(),
            ..aws_lc_rs::default_provider()
        });
        let roots = Arc::new(RootCertStore {
            roots: peer_ca.trust().to_vec(),
        });
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let make = |pair: Option<&Pair>| -> Result<[Arc<ClientConfig>; 2], Error> {
            let any = one(&provider, &verifier, pair, Protocol::Any)?;
            let http1 = one(&provider, &verifier, pair, Protocol::Http1)?;
            Ok([any, http1])
        };
        Ok(Self {
            front_proxy: front_proxy.map(|pair| make(Some(pair))).transpose()?,
            nothing: make(None)?,
            inward: one(&provider, &verifier, None, Protocol::Inward)?,
            server_name,
        })
    }

    /// None if the front-proxy certificate is to be presented and there is none: without it an upstream ignores
    /// `X-Remote-*` and takes the request for an anonymous one.
    pub(super) fn get(
        &self,
        presenting: Presenting,
        protocol: Protocol,
    ) -> Option<&Arc<ClientConfig>> {
        if protocol == Protocol::Inward {
            return Some(&self.inward);
        }
        let [any, http1] = match presenting {
            Presenting::FrontProxy => self.front_proxy.as_ref()?,
            Presenting::Nothing => &self.nothing,
        };
        match protocol {
            Protocol::Any => Some(any),
            Protocol::Http1 | Protocol::Inward => Some(http1),
        }
    }

    pub(super) fn can_forward(&self) -> bool {
        self.front_proxy.is_some()
    }
}

fn one(
    provider: &Arc<CryptoProvider>,
    verifier: &Arc<WebPkiServerVerifier>,
    pair: Option<&Pair>,
    protocol: Protocol,
) -> Result<Arc<ClientConfig>, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()?
        .with_webpki_verifier(Arc::clone(verifier));
    let mut config = match pair {
        // Shown whatever CAs the server names: it asks for front proxies by another list than for users.
        Some(pair) => builder
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&pair.key)))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = match protocol {
        Protocol::Any => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Protocol::Http1 | Protocol::Inward => vec![b"http/1.1".to_vec()],
    };
    if protocol == Protocol::Inward {
        config.enable_sni = false;
    } else {
        config.alpn_protocols.push(ALPN_DIRECT.to_vec());
    }
    // Upstreams share one name, so one bucket: eight TLS 1.3 tickets, each good for the server that gave it.
    config.resumption = Resumption::in_memory_sessions(32);
    config.enable_secret_extraction = true; // kernel TLS (design 7)
    config.enable_early_data = false;
    Ok(Arc::new(config))
}
