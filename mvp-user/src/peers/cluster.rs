//! What the cluster itself says: EndpointSlices of `default/kubernetes` (who), identity Leases (names, restarts), CRDs
//! and APIServices (what is shared). Four list-and-watch loops that send the whole of what they know at every change.
//!
//! With static peers only the last two, and only where there are credentials.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::{coordination::v1::Lease, discovery::v1::EndpointSlice};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, NotUsed, Object},
    runtime::watcher::{self, Event},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};
use tracing::{debug, info, warn};

use super::{exclusions::Defined, nearest};
use crate::{api::GroupVersion, config::Config, table::Table, upstream::Dialer};

/// First and longest pause after an error of a watch.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// How many objects one page of a list holds: CRDs weigh up to a megabyte each.
const PAGE: u32 = 50;
/// When credentials are read again although the watch works, and local is asked again before peers.
const RENEW: Duration = Duration::from_hours(1);

/// The whole of what one watch knows.
#[derive(Debug)]
pub(super) enum News {
    /// Addresses of Service `default/kubernetes`.
    Addresses(BTreeSet<SocketAddr>),
    /// Host names by identity Lease, and whose turn each is (`holderIdentity`).
    Leases(BTreeMap<String, Identity>),
    /// Resources of CRDs.
    Defined(BTreeSet<Defined>),
    /// Group-versions of APIServices with a backend.
    Aggregated(BTreeSet<GroupVersion>),
}

/// What an identity Lease says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Identity {
    /// Label `kubernetes.io/hostname`.
    pub(super) hostname: Option<String>,
    /// Changes with every process.
    pub(super) holder: Option<String>,
}

/// The part of a CRD that is kept.
#[derive(Clone, Serialize, Deserialize, Debug)]
struct CrdSpec {
    group: String,
    names: CrdNames,
    versions: Vec<CrdVersion>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
struct CrdNames {
    plural: String,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
struct CrdVersion {
    name: String,
    served: bool,
}

/// The part of an APIService that is kept.
#[derive(Clone, Serialize, Deserialize, Debug)]
struct ApiServiceSpec {
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
    /// Present where an aggregated API server serves it.
    #[serde(default)]
    service: Option<NotUsed>,
}

type Crd = Object<CrdSpec, NotUsed>;
type ApiService = Object<ApiServiceSpec, NotUsed>;

/// Watches for ever: what all servers share, and, to find them, their endpoints and Leases.
pub(super) async fn watch(
    config: Arc<Config>,
    table: Arc<Table>,
    dialer: Arc<Dialer>,
    news: mpsc::Sender<News>,
    find_peers: bool,
) {
    let source = Source {
        config,
        table,
        dialer,
        news,
    };
    let peers = async {
        if find_peers {
            tokio::join!(
                source.follow(
                    |client| Api::<EndpointSlice>::namespaced(client, "default"),
                    watcher::Config::default().labels("kubernetes.io/service-name=kubernetes"),
                    addresses,
                    |slices| News::Addresses(slices.values().flatten().copied().collect()),
                ),
                source.follow(
                    |client| Api::<Lease>::namespaced(client, "kube-system"),
                    watcher::Config::default()
                        .labels("apiserver.kubernetes.io/identity=kube-apiserver"),
                    identity,
                    |leases| News::Leases(leases.clone()),
                ),
            );
        }
    };
    tokio::join!(
        peers,
        source.follow(
            |client| Api::<Crd>::all_with(client, &crd_resource()),
            watcher::Config::default().page_size(PAGE),
            defined,
            |crds| News::Defined(crds.values().flatten().cloned().collect()),
        ),
        source.follow(
            |client| Api::<ApiService>::all_with(client, &api_service_resource()),
            watcher::Config::default(),
            aggregated,
            |services| News::Aggregated(services.values().flatten().cloned().collect()),
        ),
    );
}

struct Source {
    config: Arc<Config>,
    table: Arc<Table>,
    dialer: Arc<Dialer>,
    news: mpsc::Sender<News>,
}

impl Source {
    /// One list-and-watch: keeps what `digest` makes of each object, and sends `report` of all of it at every change.
    async fn follow<K, V>(
        &self,
        api: impl Fn(Client) -> Api<K>,
        watcher_config: watcher::Config,
        digest: impl Fn(&K) -> V,
        report: impl Fn(&BTreeMap<String, V>) -> News,
    ) where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
        V: PartialEq,
    {
        let mut trouble = Trouble::new(std::any::type_name::<K>());
        let mut known = None;
        // Clients in a row that could not list: local may refuse mvp's account, or this list, and be up all the same.
        let mut vain = 0_usize;
        loop {
            let client = nearest::client(
                &self.config,
                Arc::clone(&self.table),
                Arc::clone(&self.dialer),
                vain,
            );
            let client = match client.await {
                Ok(client) => client,
                Err(error) => {
                    sleep(trouble.tell(&error)).await;
                    continue;
                }
            };
            let renew = Instant::now() + RENEW;
            let stream = watcher::watcher(api(client), watcher_config.clone());
            tokio::pin!(stream);
            let mut listing = BTreeMap::new();
            let mut listed = false;
            while let Some(event) = next(&mut stream, renew).await {
                let event = match event {
                    Ok(event) => event,
                    Err(error) => {
                        sleep(trouble.tell(&error)).await;
                        // New credentials may help, and a new connection does no harm.
                        break;
                    }
                };
                let news = match event {
                    Event::Init => {
                        listing.clear();
                        None
                    }
                    Event::InitApply(object) => {
                        listing.insert(object.name_any(), digest(&object));
                        None
                    }
                    Event::InitDone => {
                        listed = true;
                        trouble.over();
                        let whole = std::mem::take(&mut listing);
                        let same = known.as_ref() == Some(&whole);
                        let now = known.insert(whole);
                        (!same).then(|| report(now))
                    }
                    Event::Apply(object) => known.as_mut().and_then(|known| {
                        let value = digest(&object);
                        let name = object.name_any();
                        let same = known.get(&name) == Some(&value);
                        known.insert(name, value);
                        (!same).then(|| report(known))
                    }),
                    Event::Delete(object) => known
                        .as_mut()
                        .and_then(|known| known.remove(&object.name_any()).map(|_| report(known))),
                };
                if let Some(news) = news
                    && self.news.send(news).await.is_err()
                {
                    return;
                }
            }
            vain = if listed { 0 } else { vain.wrapping_add(1) };
        }
    }
}

/// The next event of a watch; none when it has ended, or when it is time for another client: a quiet one does not say so.
async fn next<S: Stream + Unpin>(stream: &mut S, renew: Instant) -> Option<S::Item> {
    if Instant::now() >= renew {
        return None;
    }
    timeout_at(renew, stream.next()).await.ok().flatten()
}

/// The same trouble is told once, and once that it is over; a single one (a server stops) is nobody's business.
struct Trouble {
    what: &'static str,
    pause: Duration,
    told: bool,
}

impl Trouble {
    const fn new(what: &'static str) -> Self {
        Self {
            what,
            pause: PAUSES.0,
            told: false,
        }
    }

    /// Takes note of an error; returns how long to pause.
    fn tell(&mut self, error: &(dyn std::error::Error + 'static)) -> Duration {
        let pause = self.pause;
        if self.told || pause == PAUSES.0 {
            debug!(what = self.what, error, "Watching failed");
        } else {
            warn!(what = self.what, error, "Cannot watch");
            self.told = true;
        }
        self.pause = (pause * 2).min(PAUSES.1);
        pause
    }

    fn over(&mut self) {
        if self.told {
            info!(what = self.what, "Watching again");
        }
        *self = Self::new(self.what);
    }
}

pub(crate) fn crd_resource() -> ApiResource {
    resource(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    )
}

pub(crate) fn api_service_resource() -> ApiResource {
    resource("apiregistration.k8s.io", "APIService", "apiservices")
}

fn resource(group: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{group}/v1"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// Every ready address of a slice with the port named `https` (or the only one).
pub(crate) fn addresses(slice: &EndpointSlice) -> Vec<SocketAddr> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let port = ports
        .iter()
        .find(|port| port.name.as_deref() == Some("https"))
        .or_else(|| ports.first())
        .and_then(|port| port.port)
        .and_then(|port| u16::try_from(port).ok());
    let Some(port) = port else {
        return Vec::new();
    };
    slice
        .endpoints
        .iter()
        .filter(|endpoint| {
            endpoint
                .conditions
                .as_ref()
                .and_then(|conditions| conditions.ready)
                != Some(false)
        })
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|address| address.parse::<IpAddr>().ok())
        .map(|address| SocketAddr::new(address.to_canonical(), port))
        .collect()
}

fn identity(lease: &Lease) -> Identity {
    let label = |name: &str| lease.metadata.labels.as_ref()?.get(name).cloned();
    Identity {
        hostname: label("kubernetes.io/hostname"),
        holder: lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.clone()),
    }
}

fn defined(crd: &Crd) -> BTreeSet<Defined> {
    crd.spec
        .versions
        .iter()
        .filter(|version| version.served)
        .map(|version| {
            (
                GroupVersion::new(&crd.spec.group, &version.name),
                crd.spec.names.plural.as_str().into(),
            )
        })
        .collect()
}

fn aggregated(service: &ApiService) -> Option<GroupVersion> {
    let spec = &service.spec;
    spec.service
        .as_ref()
        .map(|_backend| GroupVersion::new(&spec.group, &spec.version))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_when_it_is_time_for_another_client_quiet_or_not() {
        let renew = Instant::now() + RENEW;
        assert_eq!(next(&mut stream::repeat(1), renew).await, Some(1));
        assert_eq!(next(&mut stream::pending::<u8>(), renew).await, None);
        assert!(Instant::now() >= renew);
        assert_eq!(next(&mut stream::repeat(1), renew).await, None);
    }
}
