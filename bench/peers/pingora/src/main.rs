//! pingora doing mvp's work, as far as it can: TLS on both sides, the client certificate as X-Remote-* headers over
//! connections that present the front-proxy certificate and are shared.
//!
//! Left out in pingora's favour: everything else. Its digest of a client certificate holds the organisation and not the
//! common name, so the organisation stands for both. Tokens are not measured: pingora shares connections between clients.
#![forbid(unsafe_code)]

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use async_trait::async_trait;
use pingora::{
    Result,
    http::RequestHeader,
    listeners::tls::TlsSettings,
    protocols::ALPN,
    proxy::{ProxyHttp, Session, http_proxy_service},
    server::{Server, configuration::ServerConf},
    upstreams::peer::{HttpPeer, Peer as _},
    utils::tls::CertKey,
};
use pingora_rustls::{RootCertStore, WebPkiClientVerifier, load_ca_file_into_store, load_certs_and_key_files};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Name in the upstream's certificate.
const NAME: &str = "kubernetes.default.svc";

struct Proxy {
    peer: HttpPeer,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, session: &mut Session, _: &mut ()) -> Result<Box<HttpPeer>> {
        let mut peer = self.peer.clone();
        if session.req_header().headers.contains_key("upgrade") {
            peer.options.alpn = ALPN::H1;
        }
        Ok(Box::new(peer))
    }

    async fn upstream_request_filter(&self, session: &mut Session, request: &mut RequestHeader, _: &mut ()) -> Result<()> {
        let identity: Vec<String> = request
            .headers
            .keys()
            .filter(|name| name.as_str().starts_with("x-remote-"))
            .map(|name| name.as_str().to_owned())
            .collect();
        for name in identity {
            request.remove_header(&name);
        }
        request.remove_header("x-kubernetes-peer-proxied");
        request.remove_header("authorization");
        let certificate = session.digest().and_then(|digest| digest.ssl_digest.as_ref());
        if let Some(group) = certificate.and_then(|certificate| certificate.organization.clone()) {
            request.insert_header("X-Remote-User", &group)?;
            request.insert_header("X-Remote-Group", group)?;
        }
        if let Some(address) = session.client_addr().and_then(|address| address.as_inet()) {
            request.insert_header("X-Forwarded-For", address.ip().to_string())?;
        }
        Ok(())
    }
}

struct Options {
    listen: String,
    local: String,
    threads: usize,
    pki: PathBuf,
}

fn options() -> Option<Options> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1).cloned()
    };
    Some(Options {
        listen: value("--listen")?,
        local: value("--local")?,
        threads: value("--threads")?.parse().ok()?,
        pki: value("--pki")?.into(),
    })
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let file = |name: &str| options.pki.join(name).display().to_string();
    let conf = ServerConf {
        threads: options.threads,
        ca_file: Some(file("ca.crt")),
        upstream_keepalive_pool_size: 1024,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();

    let (certificates, key) = load_certs_and_key_files(&file("front-proxy-client.crt"), &file("front-proxy-client.key"))?
        .ok_or("no front-proxy certificate")?;
    let certificates = certificates.iter().map(|certificate| certificate.to_vec()).collect();
    let front_proxy = CertKey::new(certificates, key.secret_der().to_vec());
    let mut peer = HttpPeer::new_mtls(options.local.as_str(), NAME.to_owned(), Arc::new(front_proxy));
    peer.options.alpn = ALPN::H2;
    peer.options.max_h2_streams = 100;
    debug_assert!(peer.verify_cert() && peer.verify_hostname());

    pingora_rustls::install_default_crypto_provider();
    let mut roots = RootCertStore::empty();
    load_ca_file_into_store(file("ca.crt"), &mut roots)?;
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build()?;
    let mut tls = TlsSettings::intermediate(&file("apiserver.crt"), &file("apiserver.key"))?;
    tls.enable_h2();
    tls.set_client_cert_verifier(verifier);
    let mut service = http_proxy_service(&server.configuration, Proxy { peer });
    service.add_tls_with_settings(&options.listen, None, tls);
    server.add_service(service);
    server.run_forever()
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--version") {
        println!("pingora-peer (pingora 0.9)");
        return ExitCode::SUCCESS;
    }
    let Some(options) = options() else {
        eprintln!("pingora-peer --listen ADDR:PORT --local ADDR:PORT --threads N --pki DIRECTORY");
        return ExitCode::from(64);
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pingora-peer: {error}");
            ExitCode::FAILURE
        }
    }
}
