//! What the cluster says through mvp's own account: whether the account may read it, who the kube-apiservers are, and
//! whether the APIServices are whole.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use hashbrown::HashSet;
use k8s_openapi::{
    api::{
        authorization::v1::{
            ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
        },
        coordination::v1::Lease,
        discovery::v1::EndpointSlice,
    },
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, ListParams, Object, PostParams},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use super::{Ground, fail, finding, ok, servers::Look, warn};
use crate::{
    admin::wire::{Finding, Grade},
    api::{GroupVersion, ServerId},
    peers::{
        self,
        cluster::{addresses, api_service_resource, crd_resource},
        nearest,
    },
    table::{Membership, Server},
};

/// How long one question may take.
const WITHIN: Duration = Duration::from_secs(10);
/// kube-apiserver renews its identity Lease every 10 s.
const ALIVE: SignedDuration = SignedDuration::from_secs(60);
/// No more lines than this about APIServices of one kind.
const MOST: usize = 8;
const GRANT: &str =
    "kubectl apply -f deploy/manifests/rbac.yaml, or grant it to the user of --kubeconfig";

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Spec {
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    service: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

type ApiService = Object<Spec, Status>;

/// What could be read.
#[derive(Default)]
pub(super) struct Cluster {
    findings: Vec<Finding>,
    addresses: Option<BTreeSet<SocketAddr>>,
    leases: Option<Vec<Lease>>,
    api_services: Option<Vec<ApiService>>,
}

/// Why a question has no answer.
enum Trouble {
    /// The server's own words.
    Said(u16, String),
    /// No server was reached.
    Unreached(String),
}

/// Asks for everything that mvp watches.
pub(super) async fn read(ground: &Ground) -> Cluster {
    let mut cluster = Cluster::default();
    let config = &ground.config;
    if !config.peers.is_empty() && config.kubeconfig.is_none() {
        cluster
            .findings
            .push(ok("RBAC", "not needed: peers are given by --peer"));
        return cluster;
    }
    let client = nearest::client(
        config,
        Arc::clone(&ground.table),
        Arc::clone(&ground.dialer),
        0,
    );
    match client.await {
        Ok(client) => cluster.ask(&client).await,
        Err(error) => cluster.findings.push(fail(
            "credentials",
            error.to_string(),
            "peers are found with the pod's service account, or with --kubeconfig FILE; --peer names them without either",
        )),
    }
    cluster
}

impl Cluster {
    async fn ask(&mut self, client: &Client) {
        let before = self.findings.len();
        let slices = Api::<EndpointSlice>::namespaced(client.clone(), "default");
        let of_service = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
        let slices = self
            .list(&slices, &of_service, "endpointslices", Grade::Fail)
            .await;
        self.addresses = slices.map(|slices| slices.iter().flat_map(addresses).collect());
        if self
            .findings
            .iter()
            .any(|it| it.check == "cluster" || it.check == "credentials")
        {
            return;
        }
        let leases = Api::<Lease>::namespaced(client.clone(), "kube-system");
        let identities =
            ListParams::default().labels("apiserver.kubernetes.io/identity=kube-apiserver");
        // Only names and the sign of a restart come from there.
        self.leases = self.list(&leases, &identities, "leases", Grade::Warn).await;
        let crds = Api::<DynamicObject>::all_with(client.clone(), &crd_resource());
        let one = ListParams::default().limit(1);
        self.list(&crds, &one, "customresourcedefinitions", Grade::Fail)
            .await;
        let services = Api::<ApiService>::all_with(client.clone(), &api_service_resource());
        let all = ListParams::default();
        self.api_services = self.list(&services, &all, "apiservices", Grade::Fail).await;
        for (group, resource, namespace) in [
            ("discovery.k8s.io", "endpointslices", Some("default")),
            ("coordination.k8s.io", "leases", Some("kube-system")),
            ("apiextensions.k8s.io", "customresourcedefinitions", None),
            ("apiregistration.k8s.io", "apiservices", None),
        ] {
            let listed = !self.findings.iter().any(|it| it.check == title(resource));
            if listed && !may_watch(client, group, resource, namespace).await {
                self.findings.push(fail(
                    title(resource),
                    format!("may be listed, but not watched: changes of {resource} are missed"),
                    GRANT,
                ));
            }
        }
        if self.findings.len() == before {
            self.findings.push(ok(
                "RBAC",
                "everything that mvp watches may be listed and watched",
            ));
        }
    }

    async fn list<K>(
        &mut self,
        api: &Api<K>,
        params: &ListParams,
        resource: &str,
        grade: Grade,
    ) -> Option<Vec<K>>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        let trouble = match timeout(WITHIN, api.list(params)).await {
            Ok(Ok(list)) => return Some(list.items),
            Ok(Err(error)) => Trouble::of(&error),
            Err(_) => Trouble::Unreached("no answer within 10 s".to_owned()),
        };
        self.findings.push(match trouble {
            Trouble::Said(401, message) => fail(
                "credentials",
                message,
                "the token or certificate is not this cluster's, or has expired: renew the kubeconfig (kubeadm certs renew) or restart the pod",
            ),
            Trouble::Said(403, message) => {
                finding(title(resource), grade, message, Some(GRANT.to_owned()))
            }
            Trouble::Said(_, message) => finding(
                title(resource),
                grade,
                message,
                Some("check again when the kube-apiserver is well".to_owned()),
            ),
            Trouble::Unreached(message) => fail(
                "cluster",
                format!("EndpointSlices, Leases, CRDs and APIServices cannot be read: {message}"),
                "the lines of the kube-apiservers say why none was reached; until then peers are not known",
            ),
        });
        None
    }

    /// Local, and every peer that is not known to have left.
    pub(super) fn servers(&self, ground: &Ground) -> Vec<Arc<Server>> {
        let members = ground.table.members_now();
        let mut servers = vec![Arc::clone(&members.local)];
        let known = members.peers.iter();
        servers.extend(
            known
                .filter(|peer| peer.membership() == Membership::Listed)
                .map(Arc::clone),
        );
        let advertised = ground.config.advertise_address;
        let listed = self.addresses.iter().flatten().copied();
        let more = if ground.config.peers.is_empty() {
            listed
                .filter(|address| peers::is_peer(*address, advertised))
                .collect()
        } else {
            ground.config.peers.clone()
        };
        for address in more {
            if !members.peers.iter().any(|peer| peer.address == address) {
                servers.push(Arc::new(Server::new(ServerId::Peer(address), address)));
            }
        }
        servers
    }

    /// What to say about it, knowing what the servers serve.
    pub(super) fn findings(mut self, looks: &[Look]) -> Vec<Finding> {
        let mut findings = std::mem::take(&mut self.findings);
        findings.extend(self.hidden());
        if let Some(services) = &self.api_services {
            let all_read = looks.iter().all(|look| look.documents.is_some());
            let mut served: HashSet<GroupVersion> = HashSet::new();
            for documents in looks.iter().filter_map(|look| look.documents.as_deref()) {
                served.extend(documents.index().1);
            }
            findings.extend(whole(services, &served, all_read));
        }
        findings
    }

    /// Several kube-apiservers behind one advertised address: only one of them can be learnt.
    fn hidden(&self) -> Option<Finding> {
        const NAME: &str = "endpoint addresses";
        let (addresses, leases) = (self.addresses.as_ref()?, self.leases.as_ref()?);
        let renewed: Vec<Timestamp> = leases
            .iter()
            .filter_map(|lease| Some(lease.spec.as_ref()?.renew_time.as_ref()?.0))
            .collect();
        // Compared with the newest, not with this node's clock, which is another check.
        let newest = renewed.iter().max()?;
        let alive = renewed
            .iter()
            .filter(|at| newest.duration_since(**at) < ALIVE)
            .count();
        if alive <= addresses.len() {
            let found = format!("{} for {alive} live identity Leases", addresses.len());
            return Some(ok(NAME, found));
        }
        Some(warn(
            NAME,
            format!(
                "{} for {alive} live identity Leases: several kube-apiservers share an advertised address",
                addresses.len()
            ),
            "give each its own --advertise-address, or name them all to mvp with --peer; a load balancer's address cannot be learnt from",
        ))
    }
}

fn title(resource: &str) -> String {
    format!("RBAC {resource}")
}

impl Trouble {
    fn of(error: &kube::Error) -> Self {
        if let kube::Error::Api(status) = error {
            return Self::Said(status.code, status.message.clone());
        }
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            text = inner.to_string();
            cause = inner.source();
        }
        Self::Unreached(text)
    }
}

/// False only if the server says so.
async fn may_watch(client: &Client, group: &str, resource: &str, namespace: Option<&str>) -> bool {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                namespace: namespace.map(ToOwned::to_owned),
                verb: Some("watch".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let params = PostParams::default();
    match timeout(WITHIN, api.create(&params, &review)).await {
        Ok(Ok(answer)) => answer.status.is_none_or(|status| status.allowed),
        Ok(Err(_)) | Err(_) => true,
    }
}

/// APIServices that do not work, that a restarting server deleted, or that nobody serves any more.
fn whole(services: &[ApiService], served: &HashSet<GroupVersion>, all_read: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut names = BTreeSet::new();
    let mut unavailable = Vec::new();
    let mut stale = Vec::new();
    for service in services {
        let name = service.name_any();
        let version = GroupVersion::new(&service.spec.group, &service.spec.version);
        let available = service
            .status
            .iter()
            .flat_map(|status| &status.conditions)
            .find(|it| it.kind == "Available");
        if let Some(no) = available.filter(|it| it.status != "True") {
            unavailable.push(warn(
                format!("APIService {name}"),
                format!("not available: {} {}", no.reason, no.message),
                "look at the pods behind its Service; while it is down its APIs answer 503, and namespaces cannot be deleted",
            ));
        }
        let built_in = service
            .labels()
            .get("kube-aggregator.kubernetes.io/automanaged")
            .is_some_and(|how| how == "onstart");
        if all_read && built_in && service.spec.service.is_none() && !served.contains(&version) {
            stale.push(warn(
                format!("APIService {name}"),
                "stale: no kube-apiserver serves it any more",
                format!("kubectl delete apiservice {name}; until then legacy discovery lists it"),
            ));
        }
        names.insert(name);
    }
    let missing = served
        .iter()
        // The aggregator serves its own API without an APIService.
        .filter(|it| &*it.group != "apiregistration.k8s.io")
        .map(|it| format!("{}.{}", it.version, it.group))
        .filter(|name| !names.contains(name))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(|name| {
            warn(
                format!("APIService {name}"),
                "missing, although a kube-apiserver serves it: another one deleted it when it started",
                "that server's legacy discovery lacks it until it is restarted; mvp completes discovery meanwhile",
            )
        })
        .collect();
    for list in [unavailable, missing, stale] {
        let more = list.len().saturating_sub(MOST);
        findings.extend(list.into_iter().take(MOST));
        if more > 0 {
            let hint = "kubectl get apiservices shows them";
            findings.push(warn("APIServices", format!("{more} more like these"), hint));
        }
    }
    if findings.is_empty() {
        findings.push(ok(
            "APIServices",
            format!("{} are there and available", services.len()),
        ));
    }
    findings
}
