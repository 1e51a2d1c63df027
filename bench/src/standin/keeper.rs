//! What a server keeps in the store by itself: its address in the endpoints of `default/kubernetes` (by a lease of 15 s, so that a
//! killed server's address goes by itself), its identity Lease, the APIServices of what it serves; and what it learns from there:
//! custom resources.

use std::{net::IpAddr, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    clock,
    documents::Documents,
    model::{Resource, Subresource},
    server::{Phase, Server},
    store::{self, StoreError},
};

/// How endpoints are kept (kube-apiserver: 15 s and 10 s).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) ttl: Duration,
    pub(crate) every: Duration,
}

const LEASES: &str = "!master/leases/";
const CRDS: &str = "apiextensions.k8s.io/customresourcedefinitions/";
const APISERVICES: &str = "apiregistration.k8s.io/apiservices/";
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

fn report(what: &str, done: Result<(), StoreError>) {
    if let Err(error) = done {
        tracing::warn!(%error, "{what} could not be written");
    }
}

/// Before the server is ready: its address goes (controlplane `kubernetesservice` controller), its APIServices come, others' built-in ones that it does not
/// serve are deleted: what damages a mix, as measured.
pub(crate) async fn starting(server: &Server) {
    report("endpoints", retract(server).await);
    report("APIServices", register(server).await);
    report("custom resources", rebuild(server).await);
}

/// Once ready, and then for ever: endpoints, identity, custom resources.
pub(crate) async fn keep(server: Arc<Server>, pace: Pace) {
    let endpoints = async {
        loop {
            if server.phase() == Phase::Ready {
                report("endpoints", publish(&server, pace).await);
                report("the identity lease", identity(&server).await);
            }
            tokio::time::sleep(pace.every).await;
        }
    };
    let resources = async {
        let mut after = 0;
        loop {
            match server.store.changes(CRDS, after).await {
                Ok((events, now)) => {
                    after = now;
                    if !events.is_empty() {
                        // The sender lives in the server.
                        drop(server.frozen.subscribe().wait_for(|frozen| !*frozen).await);
                        report("custom resources", rebuild(&server).await);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "Custom resources cannot be followed");
                    after = server
                        .store
                        .list(CRDS)
                        .await
                        .map(|(_, now)| now)
                        .unwrap_or_default();
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    };
    let ((), ()) = tokio::join!(endpoints, resources);
}

fn lease_key(server: &Server) -> String {
    format!("{LEASES}{}", server.advertise)
}

/// Writes one object, whatever was there.
async fn put(server: &Server, key: &str, object: Value) -> Result<(), StoreError> {
    loop {
        match server.store.get(key).await? {
            None => match server.store.create(key, object.clone()).await {
                Err(StoreError::Exists) => {}
                other => return other.map(drop),
            },
            Some(present) => match server
                .store
                .update(key, object.clone(), Some(present.revision))
                .await
            {
                Err(StoreError::Conflict | StoreError::Missing) => {}
                other => return other.map(drop),
            },
        }
    }
}

/// Adds this server's address to the endpoints.
pub(crate) async fn publish(server: &Server, pace: Pace) -> Result<(), StoreError> {
    let ttl = i64::try_from(pace.ttl.as_millis()).unwrap_or(i64::MAX);
    let lease = json!({
        "address": server.address().to_string(), "port": server.advertise.port(),
        "expires": clock::unix_millis().saturating_add(ttl),
    });
    put(server, &lease_key(server), lease).await?;
    reconcile(server).await
}

/// Takes it away.
pub(crate) async fn retract(server: &Server) -> Result<(), StoreError> {
    match server.store.delete(&lease_key(server), None, None).await {
        Ok(_) | Err(StoreError::Missing) => {}
        Err(error) => return Err(error),
    }
    reconcile(server).await
}

/// Makes the endpoints equal to the live leases. One slice per port, since a slice has one set of ports; the usual one (all servers on
/// the same port) is called `kubernetes`.
async fn reconcile(server: &Server) -> Result<(), StoreError> {
    let (leases, _) = server.store.list(LEASES).await?;
    let now = clock::unix_millis();
    let live: Vec<(IpAddr, u16)> = leases
        .iter()
        .filter(|lease| lease.value["expires"].as_i64().unwrap_or_default() > now)
        .filter_map(|lease| {
            let address = lease.value["address"].as_str()?.parse().ok()?;
            Some((address, u16::try_from(lease.value["port"].as_u64()?).ok()?))
        })
        .collect();
    let own = server.advertise.port();
    let mut ports: Vec<u16> = live.iter().map(|(_, port)| *port).chain([own]).collect();
    ports.sort_unstable();
    ports.dedup();
    let mut names = Vec::new();
    for port in &ports {
        let addresses: Vec<String> = live
            .iter()
            .filter(|(address, of)| of == port && address.is_ipv4() == server.address().is_ipv4())
            .map(|(address, _)| address.to_string())
            .collect();
        let name = if ports.len() == 1 || *port == 6443 {
            "kubernetes".to_owned()
        } else {
            format!("kubernetes-{port}")
        };
        slice(server, &name, *port, &addresses).await?;
        names.push(name);
    }
    // Slices of ports that no live server has any more, or from a time when all ports were the same.
    let (slices, _) = server
        .store
        .list("discovery.k8s.io/endpointslices/default/kubernetes")
        .await?;
    for old in slices {
        let name = old.value["metadata"]["name"].as_str().unwrap_or_default();
        let port = old.value["ports"][0]["port"]
            .as_u64()
            .and_then(|port| u16::try_from(port).ok());
        if !names.iter().any(|kept| kept == name) {
            slice(server, name, port.unwrap_or(own), &[]).await?;
        }
    }
    let subsets: Vec<Value> = ports
        .iter()
        .filter_map(|port| {
            let addresses: Vec<Value> =
                live.iter().filter(|(_, of)| of == port).map(|(ip, _)| json!({"ip": ip.to_string()})).collect();
            (!addresses.is_empty())
                .then(|| json!({"addresses": addresses, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}))
        })
        .collect();
    let kept = Kept {
        key: store::key("", "endpoints", "default", "kubernetes"),
        api_version: "v1",
        kind: "Endpoints",
        name: "kubernetes",
        labels: json!({"endpointslice.kubernetes.io/skip-mirror": "true"}),
        fields: json!({"subsets": subsets}),
    };
    settle(server, &kept).await
}

async fn slice(
    server: &Server,
    name: &str,
    port: u16,
    addresses: &[String],
) -> Result<(), StoreError> {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}))
        .collect();
    let kept = Kept {
        key: store::key("discovery.k8s.io", "endpointslices", "default", name),
        api_version: "discovery.k8s.io/v1",
        kind: "EndpointSlice",
        name,
        labels: json!({"kubernetes.io/service-name": "kubernetes"}),
        fields: json!({
            "addressType": if server.address().is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": endpoints,
            "ports": [{"name": "https", "protocol": "TCP", "port": port}],
        }),
    };
    settle(server, &kept).await
}

/// An object of namespace `default` that servers keep together.
struct Kept<'a> {
    key: String,
    api_version: &'a str,
    kind: &'a str,
    name: &'a str,
    labels: Value,
    /// Its top-level fields, but for metadata.
    fields: Value,
}

/// Creates or updates it so that its top-level fields are as wanted; writes nothing if they are.
async fn settle(server: &Server, kept: &Kept<'_>) -> Result<(), StoreError> {
    let key = kept.key.as_str();
    loop {
        let present = server.store.get(key).await?;
        let mut object = present.as_ref().map_or_else(
            || {
                json!({
                    "kind": kept.kind, "apiVersion": kept.api_version,
                    "metadata": {
                        "name": kept.name, "namespace": "default", "uid": clock::uid(),
                        "creationTimestamp": clock::rfc3339(), "labels": kept.labels,
                    },
                })
            },
            |stored| stored.value.clone(),
        );
        for (field, value) in kept.fields.as_object().into_iter().flatten() {
            object[field] = value.clone();
        }
        let written = match &present {
            Some(stored) if stored.value == object => return Ok(()),
            Some(stored) => {
                server
                    .store
                    .update(key, object, Some(stored.revision))
                    .await
            }
            None => server.store.create(key, object).await,
        };
        match written {
            Err(StoreError::Conflict | StoreError::Exists | StoreError::Missing) => {}
            other => return other.map(drop),
        }
    }
}

/// The Lease by which the server is known (KEP-1965).
async fn identity(server: &Server) -> Result<(), StoreError> {
    let key = store::key(
        "coordination.k8s.io",
        "leases",
        "kube-system",
        &server.identity,
    );
    let present = server.store.get(&key).await?;
    let now = clock::rfc3339_micros();
    let mut lease = match &present {
        Some(stored) => stored.value.clone(),
        None => json!({
            "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
            "metadata": {
                "name": server.identity, "namespace": "kube-system", "uid": clock::uid(),
                "creationTimestamp": clock::rfc3339(),
                "labels": {
                    "apiserver.kubernetes.io/identity": "kube-apiserver",
                    "kubernetes.io/hostname": server.name,
                },
            },
            "spec": {},
        }),
    };
    lease["spec"]["holderIdentity"] = Value::from(server.holder.as_str());
    lease["spec"]["leaseDurationSeconds"] = Value::from(3600);
    lease["spec"]["renewTime"] = Value::from(now);
    put(server, &key, lease).await
}

/// The APIServices of this server come if they are not there; automanaged ones of built-in group-versions that it does not serve go.
async fn register(server: &Server) -> Result<(), StoreError> {
    let catalogue = &server.base;
    for (group, version) in catalogue
        .group_versions()
        .map(|(group, version)| (group.to_owned(), version.to_owned()))
    {
        let priorities = catalogue
            .priorities
            .get(&(group.clone(), version.clone()))
            .copied()
            .unwrap_or((1000, 15));
        match add_apiservice(server, &group, &version, priorities, "onstart").await {
            Ok(()) | Err(StoreError::Exists) => {}
            Err(error) => return Err(error),
        }
    }
    let (services, _) = server.store.list(APISERVICES).await?;
    for service in services {
        let spec = &service.value["spec"];
        let group = spec["group"].as_str().unwrap_or_default();
        let version = spec["version"].as_str().unwrap_or_default();
        let automanaged = service.value["metadata"]["labels"][AUTOMANAGED] == "onstart";
        if automanaged && catalogue.version(group, version).is_none() {
            match server
                .store
                .delete(&service.key, Some(service.revision), None)
                .await
            {
                Ok(_) | Err(StoreError::Missing | StoreError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

async fn add_apiservice(
    server: &Server,
    group: &str,
    version: &str,
    (of_group, of_version): (i64, i64),
    managed: &str,
) -> Result<(), StoreError> {
    let name = format!("{version}.{group}");
    let now = clock::rfc3339();
    let mut spec = json!({"version": version, "groupPriorityMinimum": of_group, "versionPriority": of_version});
    if !group.is_empty() {
        spec["group"] = Value::from(group);
    }
    let key = store::key("apiregistration.k8s.io", "apiservices", "", &name);
    if server.store.get(&key).await?.is_some() {
        return Ok(());
    }
    let object = json!({
        "kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1",
        "metadata": {
            "name": name, "uid": clock::uid(), "creationTimestamp": now, "labels": {AUTOMANAGED: managed},
        },
        "spec": spec,
        "status": {"conditions": [{
            "type": "Available", "status": "True", "lastTransitionTime": now, "reason": "Local",
            "message": "Local APIServices are always available",
        }]},
    });
    server.store.create(&key, object).await.map(drop)
}

/// What is served: the server's own, and the custom resources that are in the store now.
async fn rebuild(server: &Server) -> Result<(), StoreError> {
    let (mut definitions, _) = server.store.list(CRDS).await?;
    let mut catalogue = server.base.clone();
    let mut groups = Vec::new();
    definitions.sort_by_key(|stored| stored.value["spec"]["group"].to_string());
    for definition in definitions
        .iter()
        .filter(|stored| stored.value["metadata"].get("deletionTimestamp").is_none())
    {
        let spec = &definition.value["spec"];
        let group = spec["group"].as_str().unwrap_or_default();
        for version in spec["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|version| version["served"] != false)
        {
            let name = version["name"].as_str().unwrap_or_default();
            catalogue.add(group, name, custom(spec, version));
            groups.push((group.to_owned(), name.to_owned()));
        }
    }
    server.documents.store(Arc::new(Documents::new(catalogue)));
    // The APIServices of custom resources follow them.
    for (group, version) in &groups {
        match add_apiservice(server, group, version, (1000, 100), "true").await {
            Ok(()) | Err(StoreError::Exists) => {}
            Err(error) => return Err(error),
        }
    }
    let (services, _) = server.store.list(APISERVICES).await?;
    for service in services
        .iter()
        .filter(|service| service.value["metadata"]["labels"][AUTOMANAGED] == "true")
    {
        let text = |field: &str| {
            service.value["spec"][field]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        if !groups.contains(&(text("group"), text("version"))) {
            match server.store.delete(&service.key, None, None).await {
                Ok(_) | Err(StoreError::Missing) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn custom(spec: &Value, version: &Value) -> Resource {
    let names = &spec["names"];
    let text = |field: &str| names[field].as_str().unwrap_or_default().to_owned();
    let list = |field: &str| -> Vec<String> {
        names[field]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let mut resource = Resource::new(
        &text("plural"),
        &text("kind"),
        spec["scope"] == "Namespaced",
    );
    if !text("singular").is_empty() {
        resource.singular_resource = text("singular");
    }
    resource.short_names = list("shortNames");
    resource.categories = list("categories");
    let order = [
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "create",
        "update",
        "watch",
    ];
    resource.verbs = order.map(str::to_owned).to_vec();
    let kind = resource.response_kind.clone();
    let given = &version["subresources"];
    resource.subresources = ["status", "scale"]
        .into_iter()
        .filter(|name| given.get(*name).is_some())
        .map(|name| Subresource {
            subresource: name.to_owned(),
            response_kind: kind.clone(),
            accepted_types: Vec::new(),
            verbs: ["get", "patch", "update"].map(str::to_owned).to_vec(),
        })
        .collect();
    resource
}
