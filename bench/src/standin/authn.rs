//! Who asks, in kube-apiserver's order (pkg/kubeapiserver/authenticator/config.go): front proxy, client
//! certificate, bearer token, websocket token, anonymous. All are tried; an error of one does not stop the others, but if none
//! succeeds and one erred, the answer is 401 and anonymous is not tried.

mod certificate;

use std::collections::{BTreeMap, HashMap};

use base64::Engine as _;
pub(crate) use certificate::{Presented, Verdict, subject};
use http::{HeaderMap, HeaderName, header};
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

/// Prefix of the websocket subprotocol that carries a token (KEP-less; apiserver `websocket/protocol.go`).
const WEBSOCKET_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// A user as kube-apiserver knows one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Name.
    pub name: String,
    /// UID; empty: none.
    #[serde(default)]
    pub uid: String,
    /// Groups, in order.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Extra values by lower-case key.
    #[serde(default)]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user with groups.
    pub fn new(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Self {
            name: name.to_owned(),
            groups,
            ..Self::default()
        }
    }

    /// A service account as its token authenticates it.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let namespaced = format!("system:serviceaccounts:{namespace}");
        let mut user = Self::new(
            &format!("system:serviceaccount:{namespace}:{name}"),
            &["system:serviceaccounts", &namespaced],
        );
        user.uid = super::clock::uid();
        user.extra.insert(
            "authentication.kubernetes.io/credential-id".to_owned(),
            vec![format!("JTI={}", super::clock::uid())],
        );
        user
    }

    /// Anonymous.
    pub fn anonymous() -> Self {
        Self::new("system:anonymous", &["system:unauthenticated"])
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.name == "system:anonymous"
    }

    /// `group.NewAuthenticatedGroupAdder`.
    pub(crate) fn authenticated(mut self) -> Self {
        let marked = ["system:authenticated", "system:unauthenticated"];
        if !self.is_anonymous()
            && !self
                .groups
                .iter()
                .any(|group| marked.contains(&group.as_str()))
        {
            self.groups.push("system:authenticated".to_owned());
        }
        self
    }
}

/// The front-proxy settings, flag by flag.
#[derive(Debug, Clone)]
pub struct RequestHeader {
    /// `--requestheader-client-ca-file`.
    pub ca: Vec<CertificateDer<'static>>,
    /// `--requestheader-allowed-names`; empty: every name.
    pub allowed_names: Vec<String>,
    /// `--requestheader-username-headers`.
    pub username_headers: Vec<String>,
    /// `--requestheader-uid-headers` (unset by default, as in kube-apiserver).
    pub uid_headers: Vec<String>,
    /// `--requestheader-group-headers`.
    pub group_headers: Vec<String>,
    /// `--requestheader-extra-headers-prefix`.
    pub extra_prefixes: Vec<String>,
}

impl RequestHeader {
    /// The headers kubeadm configures, plus the UID header.
    pub fn standard(ca: Vec<CertificateDer<'static>>, allowed_names: &[&str]) -> Self {
        Self {
            ca,
            allowed_names: allowed_names
                .iter()
                .map(|name| (*name).to_owned())
                .collect(),
            username_headers: vec!["X-Remote-User".to_owned()],
            uid_headers: vec!["X-Remote-Uid".to_owned()],
            group_headers: vec!["X-Remote-Group".to_owned()],
            extra_prefixes: vec!["X-Remote-Extra-".to_owned()],
        }
    }
}

/// All that a server knows to tell callers apart.
#[derive(Debug, Clone, Default)]
pub struct Authentication {
    /// `--client-ca-file`.
    pub client_ca: Vec<CertificateDer<'static>>,
    /// The front-proxy settings, if any.
    pub request_header: Option<RequestHeader>,
    /// Bearer token -> user.
    pub tokens: HashMap<String, User>,
    /// `--anonymous-auth`.
    pub anonymous: bool,
}

impl Authentication {
    /// The user, or nobody (401). Removes from `headers` what kube-apiserver removes.
    pub(crate) fn authenticate(
        &self,
        presented: &Presented,
        headers: &mut HeaderMap,
        websocket: bool,
    ) -> Option<User> {
        let mut erred = false;
        for attempt in [Self::front_proxy, Self::client_certificate] {
            match attempt(self, presented, headers) {
                Verdict::User(user) => return Some(self.succeeded(user, headers)),
                Verdict::Error(why) => {
                    tracing::debug!(why, "An authenticator failed");
                    erred = true;
                }
                Verdict::Nobody => {}
            }
        }
        for token in [
            Ok(bearer(headers)),
            if websocket {
                websocket_token(headers)
            } else {
                Ok(None)
            },
        ] {
            match token {
                Ok(Some(token)) => match self.tokens.get(&token) {
                    Some(user) => return Some(self.succeeded(user.clone(), headers)),
                    None => erred = true,
                },
                Ok(None) => {}
                Err(()) => erred = true,
            }
        }
        (!erred && self.anonymous).then(User::anonymous)
    }

    fn succeeded(&self, user: User, headers: &mut HeaderMap) -> User {
        headers.remove(header::AUTHORIZATION);
        if let Some(settings) = &self.request_header {
            let configured = settings
                .username_headers
                .iter()
                .chain(&settings.uid_headers)
                .chain(&settings.group_headers);
            for name in configured.map(String::as_str).chain([
                "X-Remote-User",
                "X-Remote-Uid",
                "X-Remote-Group",
            ]) {
                headers.remove(name);
            }
        }
        user.authenticated()
    }

    fn front_proxy(&self, presented: &Presented, headers: &HeaderMap) -> Verdict {
        let Some(settings) = &self.request_header else {
            return Verdict::Nobody;
        };
        if presented.chain.is_empty() {
            return Verdict::Nobody;
        }
        if let Err(why) = presented.verify(&settings.ca) {
            return Verdict::Error(why);
        }
        if !settings.allowed_names.is_empty() {
            let name = subject(&presented.chain[0])
                .map(|subject| subject.common_name)
                .unwrap_or_default();
            if !settings.allowed_names.contains(&name) {
                return Verdict::Error("the front proxy's name is not allowed".to_owned());
            }
        }
        // The first header that has a non-empty first value names the user.
        let first = |names: &[String]| {
            names
                .iter()
                .find_map(|name| text(headers, name).next().filter(|value| !value.is_empty()))
                .unwrap_or_default()
        };
        let name = first(&settings.username_headers);
        if name.is_empty() {
            return Verdict::Nobody;
        }
        let groups = settings
            .group_headers
            .iter()
            .flat_map(|name| text(headers, name))
            .filter(|group| !group.is_empty());
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in &settings.extra_prefixes {
            let prefix = prefix.to_lowercase();
            for (name, value) in headers {
                if let Some(key) = name.as_str().strip_prefix(&prefix) {
                    let key = percent_encoding::percent_decode_str(key)
                        .decode_utf8_lossy()
                        .to_lowercase();
                    extra
                        .entry(key)
                        .or_default()
                        .push(String::from_utf8_lossy(value.as_bytes()).into_owned());
                }
            }
        }
        Verdict::User(User {
            uid: first(&settings.uid_headers),
            groups: groups.collect(),
            extra,
            name,
        })
    }

    fn client_certificate(&self, presented: &Presented, _: &HeaderMap) -> Verdict {
        if presented.chain.is_empty() || self.client_ca.is_empty() {
            return Verdict::Nobody;
        }
        certificate::user(presented, &self.client_ca)
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = String> + use<'a> {
    let name = HeaderName::try_from(name.to_lowercase()).ok();
    name.into_iter()
        .flat_map(|name| headers.get_all(name))
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())?;
    let mut parts = value.trim().splitn(3, ' ');
    let scheme = parts.next()?;
    let token = parts.next().filter(|token| !token.is_empty())?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.to_owned())
}

fn websocket_token(headers: &mut HeaderMap) -> Result<Option<String>, ()> {
    let name = header::SEC_WEBSOCKET_PROTOCOL;
    let offered: Vec<String> = headers
        .get_all(&name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|value| value.trim().to_owned())
        .collect();
    let Some(encoded) = offered
        .iter()
        .find_map(|protocol| protocol.strip_prefix(WEBSOCKET_TOKEN))
    else {
        return Ok(None);
    };
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(encoded)
        .map_err(drop)?;
    let token = String::from_utf8(bytes).map_err(drop)?;
    let others: Vec<&String> = offered
        .iter()
        .filter(|protocol| !protocol.starts_with(WEBSOCKET_TOKEN))
        .collect();
    if others.is_empty() {
        return Err(());
    }
    let kept = others
        .iter()
        .map(|protocol| protocol.as_str())
        .collect::<Vec<_>>()
        .join(",");
    if let Ok(kept) = http::HeaderValue::try_from(kept) {
        headers.insert(name, kept);
    }
    Ok(Some(token))
}
