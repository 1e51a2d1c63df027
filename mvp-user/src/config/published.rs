//! ConfigMap `kube-system/extension-apiserver-authentication`, in which every kube-apiserver publishes by which CAs and
//! headers it is authenticated to: the source of last resort for those flags (design 4.5), and of header names that only other
//! servers have. Not for any secret: it holds none.
//!
//! CAs are wanted as files, and a read-only container has no place for any: each lives in memory (`memfd_create(2)`) under
//! a path of this process, and is replaced there as a whole, so that a rotated CA is taken over like a new file.

use std::{
    collections::BTreeMap,
    io::Write as _,
    net::SocketAddr,
    os::fd::{AsRawFd as _, OwnedFd},
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config as KubeConfig,
    config::{KubeConfigOptions, Kubeconfig},
};
use rustix::{
    fs::MemfdFlags,
    io::{DupFlags, dup3},
};

use super::RequestHeaders;

/// Its name, for people.
pub(super) const NAME: &str = "kube-system/extension-apiserver-authentication";
/// Where its CAs are read.
pub(super) const PATHS: &str = "/proc/self/fd/";
/// How long reading it may take at start.
const WITHIN: Duration = Duration::from_secs(10);
/// How long one server may take: the next is asked in time if local hangs.
const EACH: Duration = Duration::from_secs(4);
/// How often it is read again: CAs are rotated over hours.
const AGAIN: Duration = Duration::from_mins(1);
/// So many failures in a row are more than an API server that is being replaced.
const PATIENCE: u32 = 5;

/// What it holds as PEM.
pub(super) const CAS: [&str; 2] = ["client-ca-file", "requestheader-client-ca-file"];
/// Who may be a front proxy.
pub const NAMES: &str = "requestheader-allowed-names";
/// What it holds as JSON lists.
const LISTS: [&str; 5] = [
    NAMES,
    "requestheader-username-headers",
    "requestheader-uid-headers",
    "requestheader-group-headers",
    "requestheader-extra-headers-prefix",
];

/// How it is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// `--kubeconfig`; none: the pod's service account, if there is one.
    pub kubeconfig: Option<PathBuf>,
    /// This node's kube-apiserver, which is asked first.
    pub local: Option<SocketAddr>,
    /// Name in its serving certificate.
    pub server_name: String,
}

/// What was published.
#[derive(Debug)]
pub struct Published {
    access: Access,
    lists: BTreeMap<&'static str, Vec<String>>,
    files: Mutex<BTreeMap<&'static str, Kept>>,
    /// It was needed for a configuration.
    needed: bool,
    /// Whoever is told of header names.
    headers: RequestHeaders,
}

#[derive(Debug)]
struct Kept {
    text: String,
    file: OwnedFd,
}

/// Reads it now; none if there is none, or no account to read it with. Blocks; the error is one sentence.
pub fn fetch(access: &Access) -> Result<Option<Published>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let read = async { tokio::time::timeout(WITHIN, read(access)).await };
    let map = match runtime.block_on(read) {
        Ok(map) => map?,
        Err(_) => return Err("no answer within 10 s".to_owned()),
    };
    map.map(|map| Published::new(access.clone(), &map))
        .transpose()
}

async fn read(access: &Access) -> Result<Option<ConfigMap>, String> {
    let config = match &access.kubeconfig {
        Some(path) => {
            let words = |error: &dyn std::error::Error| format!("{}: {error}", path.display());
            let text = Kubeconfig::read_from(path).map_err(|error| words(&error))?;
            KubeConfig::from_custom_kubeconfig(text, &KubeConfigOptions::default())
                .await
                .map_err(|error| words(&error))?
        }
        None => match KubeConfig::incluster() {
            Ok(config) => config,
            // Not in a pod: nobody to ask as.
            Err(_) => return Ok(None),
        },
    };
    let mut near = None;
    if let Some(local) = access.local {
        let mut config = config.clone();
        config.cluster_url = format!("https://{local}")
            .parse::<http::Uri>()
            .map_err(|error| format!("{local}: {error}"))?;
        config.tls_server_name = Some(access.server_name.clone());
        near = Some(config);
    }
    // Local may be down; anybody's answer is as good, for the connection is verified.
    let mut last = String::new();
    for config in near.into_iter().chain([config]) {
        match tokio::time::timeout(EACH, get(config)).await {
            Ok(Ok(map)) => return Ok(map),
            Ok(Err(error)) => last = error,
            Err(_late) => last = format!("no answer within {EACH:?}"),
        }
    }
    Err(last)
}

async fn get(config: KubeConfig) -> Result<Option<ConfigMap>, String> {
    let client = Client::try_from(config).map_err(|error| error.to_string())?;
    let maps = Api::<ConfigMap>::namespaced(client, "kube-system");
    match maps.get_opt("extension-apiserver-authentication").await {
        Ok(map) => Ok(map),
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => Err(std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))),
    }
}

impl Published {
    /// Of which nothing was needed: it is read when somebody can be asked, for header names alone.
    pub(super) fn later(access: Access) -> Self {
        Self {
            access,
            lists: BTreeMap::new(),
            files: Mutex::default(),
            needed: false,
            headers: RequestHeaders::default(),
        }
    }

    /// From now on `headers` learns what it says.
    pub(super) fn tell(&mut self, headers: &RequestHeaders) {
        headers.learn(|flag| self.get(flag));
        self.headers = headers.clone();
    }

    pub(super) fn new(access: Access, map: &ConfigMap) -> Result<Self, String> {
        let text = |name: &str| map.data.as_ref().and_then(|data| data.get(name));
        let mut lists = BTreeMap::new();
        for name in LISTS {
            if let Some(text) = text(name) {
                let list = serde_json::from_str(text)
                    .map_err(|error| format!("its {name} is no list of strings: {error}"))?;
                lists.insert(name, list);
            }
        }
        let mut files = BTreeMap::new();
        for name in CAS {
            if let Some(text) = text(name) {
                let file = in_memory(name, text).map_err(|error| format!("{name}: {error}"))?;
                let text = text.clone();
                files.insert(name, Kept { text, file });
            }
        }
        Ok(Self {
            access,
            lists,
            files: Mutex::new(files),
            needed: true,
            headers: RequestHeaders::default(),
        })
    }

    /// The values of a flag, if it was read; for a CA, the path at which it is read.
    pub(super) fn get(&self, name: &str) -> Vec<String> {
        if let Some(list) = self.lists.get(name) {
            return list.clone();
        }
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files
            .get(name)
            .map(|kept| format!("{PATHS}{}", kept.file.as_raw_fd()))
            .into_iter()
            .collect()
    }

    /// Reads it again for ever, replaces the CAs that changed and learns header names. Where the names of front proxies are
    /// from here, says when they are others than at the start: those are read then only.
    #[expect(clippy::infinite_loop, reason = "ends with the task that it is in")]
    pub async fn follow(&self, names_are_used: bool) {
        let mut told = None;
        let mut failures = 0_u32;
        let mut pause = if self.needed { AGAIN } else { Duration::ZERO };
        loop {
            tokio::time::sleep(pause).await;
            pause = AGAIN;
            let error = match tokio::time::timeout(WITHIN, read(&self.access)).await {
                Ok(Ok(Some(map))) => {
                    if failures >= PATIENCE {
                        tracing::info!("The ConfigMap {NAME} can be read again");
                    }
                    failures = 0;
                    self.take(&map);
                    let others = self.other_names(&map).filter(|_| names_are_used);
                    if let Some(names) = &others
                        && others != told
                    {
                        tracing::error!(
                            ?names,
                            "--{NAMES} changed in the ConfigMap {NAME}: start mvp again"
                        );
                    }
                    told = others;
                    continue;
                }
                // Nobody to ask as, which is no news.
                Ok(Ok(None)) if !self.needed => continue,
                Ok(Ok(None)) => "there is no service account any more".to_owned(),
                Ok(Err(error)) => error,
                Err(_late) => format!("no answer within {WITHIN:?}"),
            };
            failures = failures.saturating_add(1);
            if failures == PATIENCE {
                tracing::warn!(
                    error,
                    "The ConfigMap {NAME} cannot be read: a new CA in it stays unknown, and header names by which only other servers are told who asks"
                );
            }
        }
    }

    /// The names of front proxies, if they are others than at the start.
    fn other_names(&self, map: &ConfigMap) -> Option<Vec<String>> {
        let now: Vec<String> = serde_json::from_str(map.data.as_ref()?.get(NAMES)?).ok()?;
        (self.lists.get(NAMES) != Some(&now)).then_some(now)
    }

    fn take(&self, map: &ConfigMap) {
        let list = |name: &str| -> Vec<String> {
            let text = map.data.as_ref().and_then(|data| data.get(name));
            let list = text.and_then(|text| serde_json::from_str(text).ok());
            list.unwrap_or_default()
        };
        if self.headers.learn(list) {
            let others = self.headers.others.load();
            tracing::info!(names = ?others.names, prefixes = ?others.prefixes, "Identity headers of other kube-apiservers, from the ConfigMap {NAME}");
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, kept) in &mut *files {
            let Some(text) = map.data.as_ref().and_then(|data| data.get(*name)) else {
                continue;
            };
            if *text == kept.text {
                continue;
            }
            // The same path leads to the new text from one moment to the next.
            let replaced = in_memory(name, text)
                .and_then(|new| Ok(dup3(new, &mut kept.file, DupFlags::CLOEXEC)?));
            match replaced {
                Ok(()) => {
                    kept.text.clone_from(text);
                    tracing::info!("--{name} changed in the ConfigMap {NAME}");
                }
                Err(error) => tracing::error!(%error, "--{name} of the ConfigMap {NAME}"),
            }
        }
    }
}

/// A file that nobody else can see.
fn in_memory(name: &str, text: &str) -> std::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    file.write_all(text.as_bytes())?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OtherHeaders;

    fn map(client_ca: &str) -> ConfigMap {
        // As kube-apiserver 1.36 writes it.
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
            "data": {
                "client-ca-file": client_ca,
                "requestheader-allowed-names": "[\"front-proxy-client\"]",
                "requestheader-client-ca-file": "-----BEGIN CERTIFICATE-----\n",
                "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
                "requestheader-group-headers": "[\"X-Remote-Group\"]",
                "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
                "requestheader-username-headers": "[\"X-Remote-User\"]",
            },
        }))
        .unwrap()
    }

    fn access() -> Access {
        Access {
            kubeconfig: None,
            local: None,
            server_name: "kubernetes.default.svc".to_owned(),
        }
    }

    #[test]
    fn a_ca_is_read_at_one_path_and_replaced_there() {
        let published = Published::new(access(), &map("old")).unwrap();
        let path = published.get("client-ca-file").pop().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        published.take(&map("a new one"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a new one");
        assert_eq!(
            published.get("requestheader-allowed-names"),
            ["front-proxy-client"]
        );
        assert!(published.get("tls-cert-file").is_empty());
    }

    #[test]
    fn header_names_that_are_published_later_are_learnt() {
        let headers = RequestHeaders {
            username: vec!["x-remote-user".parse().unwrap()],
            group: vec!["x-remote-group".parse().unwrap()],
            ..RequestHeaders::default()
        };
        let mut published = Published::later(access());
        published.tell(&headers);
        assert_eq!(**headers.others.load(), OtherHeaders::default());
        // As two servers have them.
        let mut both = map("x");
        let data = both.data.as_mut().unwrap();
        data.insert(
            "requestheader-username-headers".to_owned(),
            r#"["X-Remote-User","X-Other-User"]"#.to_owned(),
        );
        data.insert("requestheader-group-headers".to_owned(), "none".to_owned());
        for _ in 0..2 {
            published.take(&both);
            let others = headers.others.load();
            assert_eq!(others.names, ["x-other-user", "x-remote-uid"]);
            assert_eq!(others.prefixes, ["x-remote-extra-"]);
        }
    }

    #[test]
    fn names_of_front_proxies_that_change_are_noticed() {
        let published = Published::new(access(), &map("x")).unwrap();
        let says = |list: &str| {
            let mut map = map("x");
            let data = map.data.as_mut().unwrap();
            data.insert(NAMES.to_owned(), list.to_owned());
            published.other_names(&map)
        };
        assert_eq!(says(r#"["front-proxy-client"]"#), None);
        let both = ["front-proxy-client", "another"].map(ToOwned::to_owned);
        assert_eq!(
            says(r#"["front-proxy-client","another"]"#),
            Some(both.to_vec())
        );
        assert_eq!(says("another"), None, "no list");
    }

    #[test]
    fn a_list_that_is_none_is_named() {
        let mut wrong = map("x");
        let data = wrong.data.as_mut().unwrap();
        data.insert(
            "requestheader-allowed-names".to_owned(),
            "front-proxy-client".to_owned(),
        );
        let error = Published::new(access(), &wrong).unwrap_err();
        assert!(error.contains("requestheader-allowed-names"), "{error}");
    }
}
