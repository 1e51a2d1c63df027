//! A GET of a client with a certificate, as the forwarding door gets it: for benchmarks and for the allocation test.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use bench::pki::{ClusterPki, SERVER_NAME};
use http::{
    HeaderName, HeaderValue, Request, Version,
    header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT},
    request::Parts,
};
use mvp_user::{
    config::{RequestHeaders, TlsConfig},
    forward::{Client, Outbound},
    identity::{Caller, Presented},
    request_info::RequestInfo,
    tls::Tls,
};

/// What is asked, and what is known about who asks.
pub(crate) struct Asked {
    pub(crate) head: Parts,
    client: Client,
    info: RequestInfo,
    caller: Caller,
    names: RequestHeaders,
}

impl Asked {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let pki = ClusterPki::new().expect("keys");
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        pki.write(directory.path(), &[loopback])
            .expect("certificates are written");
        let tls = Tls::load(&files(directory.path())).expect("certificates are read");
        let user = pki
            .client("system:kube-controller-manager", &["system:masters"])
            .expect("a certificate");
        let names = RequestHeaders {
            username: vec![HeaderName::from_static("x-remote-user")],
            uid: vec![HeaderName::from_static("x-remote-uid")],
            group: vec![HeaderName::from_static("x-remote-group")],
            extra_prefix: vec!["x-remote-extra-".to_owned()],
            ..RequestHeaders::default()
        };
        let uri = format!("https://{SERVER_NAME}/api/v1/namespaces/default/pods/web-1");
        let request = Request::get(uri).version(Version::HTTP_2).body(());
        let (mut head, ()) = request.expect("a request").into_parts();
        for (name, value) in [
            (USER_AGENT, "kube-controller-manager/v1.36.0 (linux/amd64)"),
            (ACCEPT, "application/vnd.kubernetes.protobuf"),
            (ACCEPT_ENCODING, "gzip"),
        ] {
            head.headers.insert(name, HeaderValue::from_static(value));
        }
        let mut presented = Presented::new(std::slice::from_ref(&user.der)).expect("a chain");
        let authorities = Arc::clone(&tls.current().authorities);
        let caller = presented.caller(&head.headers, &authorities, &names, SystemTime::now());
        assert!(matches!(caller, Caller::User(_)), "{caller:?}");
        Self {
            client: Client::new(loopback),
            info: RequestInfo::parse(&head.method, &head.uri).expect("a path"),
            head,
            caller,
            names,
        }
    }

    /// Cleaned, and with the caller's identity.
    pub(crate) fn rewritten(&self, head: Parts) -> Outbound {
        let Self {
            client,
            info,
            caller,
            names,
            ..
        } = self;
        Outbound::new(head, None, client, info, caller, names).expect("well formed")
    }
}

fn files(pki: &Path) -> TlsConfig {
    TlsConfig {
        cert_file: pki.join("apiserver.crt"),
        private_key_file: pki.join("apiserver.key"),
        sni: Vec::new(),
        only_tls13: false,
        cipher_suites: Vec::new(),
        client_ca_file: Some(pki.join("ca.crt")),
        requestheader_client_ca_file: Some(pki.join("front-proxy-ca.crt")),
        requestheader_allowed_names: vec!["front-proxy-client".to_owned()],
        proxy_client_cert_file: Some(pki.join("front-proxy-client.crt")),
        proxy_client_key_file: Some(pki.join("front-proxy-client.key")),
        peer_ca_file: pki.join("ca.crt"),
        peer_server_name: SERVER_NAME.to_owned(),
    }
}
