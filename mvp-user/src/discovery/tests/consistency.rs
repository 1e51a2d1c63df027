//! One cluster in every form: through any node, all forms list the same, all nodes agree, and what is listed is fetchable.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{
    api::{
        GvrRef, Verb,
        discovery::{Form, Group},
        legacy::{self, ResourceList},
    },
    config::LocalDown,
    route::{Evidence, To, decide},
    table::Proof,
};

/// (group, version, resource, subresource, verb), or as much of it as there is.
type Facts = BTreeSet<String>;

fn facts_of(groups: &[Group]) -> Facts {
    let mut facts = Facts::new();
    for group in groups {
        for version in &group.versions {
            let of = format!("{}/{}", group.name(), version.version);
            for listed in legacy::resources_of(&version.resources) {
                facts.extend(
                    listed
                        .verbs
                        .unwrap()
                        .items
                        .into_iter()
                        .map(|verb| format!("{of} {} {verb}", listed.name)),
                );
            }
            facts.insert(of);
        }
    }
    facts
}

/// What a server answers to this request from its own documents alone, if it knows the path.
fn own_answer(documents: &Documents, request: &Request<()>) -> Option<Response<Body>> {
    let accept = request.headers()[header::ACCEPT].to_str().unwrap();
    let encoding = Encoding::of(accept).unwrap();
    let info = RequestInfo::parse(request.method(), request.uri()).unwrap();
    let list = if info.path() == "/api" {
        &documents.core
    } else {
        &documents.groups
    };
    let legacy_group = |group: &Group| legacy::Group {
        name: group.name().to_owned(),
        versions: group
            .versions
            .iter()
            .map(|version| legacy::GroupVersion {
                group_version: format!("{}/{}", group.name(), version.version),
                version: version.version.clone(),
            })
            .collect(),
        ..legacy::Group::default()
    };
    let (body, content_type) = if accept.contains("as=") {
        (
            list.write(Form::V2, encoding).unwrap(),
            format!(
                "{};{}",
                encoding.media_type(),
                V2.split_once(';').unwrap().1
            ),
        )
    } else {
        let legacy = match info.class() {
            Class::Discovery(DiscoveryPath::Api) => Legacy::Versions(legacy::Versions {
                versions: list
                    .items
                    .iter()
                    .flat_map(|group| &group.versions)
                    .map(|version| version.version.clone())
                    .collect(),
                server_addresses: Vec::new(),
            }),
            Class::Discovery(DiscoveryPath::Apis) => Legacy::Groups(legacy::GroupList {
                groups: list.items.iter().map(legacy_group).collect(),
            }),
            Class::Discovery(DiscoveryPath::Group) => Legacy::Group(legacy_group(
                list.items
                    .iter()
                    .find(|group| Some(group.name()) == info.group())?,
            )),
            _ => {
                let asked = info.group_version().unwrap();
                let groups = documents.core.items.iter().chain(&documents.groups.items);
                let version = groups
                    .filter(|group| group.name() == asked.group)
                    .flat_map(|group| &group.versions)
                    .find(|version| version.version == asked.version)?;
                Legacy::Resources(ResourceList {
                    group_version: asked.to_string(),
                    resources: legacy::resources_of(&version.resources),
                })
            }
        };
        let document = LegacyDocument {
            api_version: "v1".to_owned(),
            legacy,
        };
        (
            document.write(encoding).unwrap(),
            encoding.media_type().to_owned(),
        )
    };
    let mut response = Response::new(Body::full(body));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::try_from(content_type).unwrap(),
    );
    if accept.contains("as=") {
        response
            .headers_mut()
            .insert(header::ETAG, aggregated::etag_of(list).unwrap());
    }
    Some(response)
}

/// One node's view of a cluster: its own server is local, the others are peers.
struct View {
    discovery: Discovery,
    /// Local first, then peers by address.
    servers: Vec<(Arc<Server>, Arc<Catalogue>)>,
}

impl View {
    fn of(own: usize, cluster: &[(Arc<Documents>, Health)]) -> Self {
        let mut servers: Vec<(Arc<Server>, Arc<Catalogue>)> = cluster
            .iter()
            .enumerate()
            .map(|(place, (documents, health))| {
                let address =
                    SocketAddr::from(([10, 0, 0, 1 + u8::try_from(place).unwrap()], 6443));
                let id = if place == own {
                    ServerId::Local
                } else {
                    ServerId::Peer(address)
                };
                let server = Arc::new(Server::new(id, address));
                server.set_health(*health);
                server.set_proof(Proof::Proven);
                let (documents, now) = (Arc::clone(documents), Instant::now());
                let catalogue = Catalogue::new(documents, "".into(), Freshness::Fresh, now, 1);
                (server, Arc::new(catalogue))
            })
            .collect();
        let local = servers.remove(own);
        servers.insert(0, local);
        let table = Arc::new(Table::new(Arc::clone(&servers[0].0)));
        table.set_peers(
            servers
                .iter()
                .skip(1)
                .map(|(server, _)| Arc::clone(server))
                .collect(),
        );
        for (server, catalogue) in &servers {
            table.publish(server.id, Arc::clone(catalogue));
        }
        table.set_ready(true);
        Self {
            discovery: Discovery::new(table, LocalDown::Failover),
            servers,
        }
    }

    /// Walks a request as the corridor does: decide, attempt, decide again.
    async fn walk(&self, request: Request<()>) -> Result<Response<Body>, StatusCode> {
        let info = RequestInfo::parse(request.method(), request.uri()).unwrap();
        let mut evidence = Evidence::default();
        for _ in 0..self.servers.len() + 2 {
            let decision = decide(
                &info,
                &asker(),
                &evidence,
                &self.discovery.table,
                LocalDown::Failover,
            );
            let server = match decision.to {
                To::Server(server) => server,
                To::Refuse(refusal) => return Err(refusal.status()),
                To::Relay => return Err(StatusCode::NOT_FOUND),
                To::Refresh => {
                    evidence.refreshed(true);
                    continue;
                }
            };
            let (_, catalogue) = self
                .servers
                .iter()
                .find(|(known, _)| known.id == server.id)
                .unwrap();
            if server.health() != Health::Up {
                evidence.add(server.id, crate::route::Outcome::Unreachable);
                continue;
            }
            let mut request = request.clone();
            let plan = self
                .discovery
                .prepare(&info, &asker(), &server, &mut request);
            let Some(answer) = own_answer(&catalogue.documents, &request) else {
                evidence.not_found(server.id, Instant::now());
                continue;
            };
            return Ok(self
                .discovery
                .complete(plan.unwrap(), &server, answer)
                .await);
        }
        panic!("the walk of {request:?} does not end");
    }

    async fn bytes(&self, path: &str, accept: &str) -> Result<(String, Bytes), StatusCode> {
        let response = self.walk(get(path, accept)).await?;
        let content_type = response.headers()[header::CONTENT_TYPE]
            .to_str()
            .unwrap()
            .to_owned();
        Ok((
            content_type,
            response.into_body().collect().await.unwrap().to_bytes(),
        ))
    }

    async fn aggregated(&self, encoding: Encoding) -> Facts {
        let mut facts = Facts::new();
        for path in ["/api", "/apis"] {
            let accept = V2.replace("application/json", encoding.media_type());
            let (content_type, body) = self.bytes(path, &accept).await.unwrap();
            facts.extend(facts_of(
                &GroupList::parse(&content_type, &body).unwrap().1.items,
            ));
        }
        facts
    }

    async fn legacy(&self, path: &str, encoding: Encoding) -> Result<Legacy, StatusCode> {
        let (_, body) = self.bytes(path, encoding.media_type()).await?;
        Ok(LegacyDocument::parse(encoding, &body).unwrap().legacy)
    }

    /// What an old client finds out, step by step, and the group-versions that answer 503.
    async fn by_legacy(&self, encoding: Encoding) -> (Facts, Facts) {
        let (mut facts, mut away) = (Facts::new(), Facts::new());
        let mut group_versions = Vec::new();
        if let Ok(Legacy::Versions(versions)) = self.legacy("/api", encoding).await {
            group_versions.extend(
                versions
                    .versions
                    .into_iter()
                    .map(|version| (String::new(), version)),
            );
        }
        let Ok(Legacy::Groups(groups)) = self.legacy("/apis", encoding).await else {
            panic!("no group list")
        };
        for group in groups.groups {
            let versions: Vec<String> = group
                .versions
                .iter()
                .map(|listed| listed.version.clone())
                .collect();
            match self
                .legacy(&format!("/apis/{}", group.name), encoding)
                .await
            {
                Ok(Legacy::Group(alone)) => {
                    let alone: Vec<String> = alone
                        .versions
                        .into_iter()
                        .map(|listed| listed.version)
                        .collect();
                    assert_eq!(alone, versions, "/apis/{}", group.name);
                }
                other => assert!(
                    matches!(other, Err(StatusCode::SERVICE_UNAVAILABLE)),
                    "{} {other:?}",
                    group.name
                ),
            }
            group_versions.extend(
                versions
                    .into_iter()
                    .map(|version| (group.name.clone(), version)),
            );
        }
        for (group, version) in group_versions {
            let path = if group.is_empty() {
                format!("/api/{version}")
            } else {
                format!("/apis/{group}/{version}")
            };
            facts.insert(format!("{group}/{version}"));
            match self.legacy(&path, encoding).await {
                Ok(Legacy::Resources(list)) => {
                    for listed in list.resources {
                        let verbs = listed.verbs.unwrap().items;
                        facts.extend(
                            verbs
                                .into_iter()
                                .map(|verb| format!("{group}/{version} {} {verb}", listed.name)),
                        );
                    }
                }
                other => {
                    assert!(
                        matches!(other, Err(StatusCode::SERVICE_UNAVAILABLE)),
                        "{path}: {other:?}"
                    );
                    away.insert(format!("{group}/{version}"));
                }
            }
        }
        (facts, away)
    }

    /// Whether a request for it reaches a server that serves it; `None`: nobody who serves it is up.
    fn is_fetchable(&self, fact: &str) -> Option<bool> {
        let mut words = fact.split(' ');
        let (of, listed, verb) = (words.next()?, words.next()?, words.next()?);
        let (group, version) = of.split_once('/')?;
        let verb = Verb::parse(verb)?;
        let (resource, sub) = listed
            .split_once('/')
            .map_or((listed, None), |(resource, sub)| (resource, Some(sub)));
        let want = GvrRef {
            group,
            version,
            resource,
        };
        let base = if group.is_empty() {
            format!("/api/{version}")
        } else {
            format!("/apis/{of}")
        };
        let named = sub.is_some()
            || !matches!(
                verb,
                Verb::Create | Verb::List | Verb::Watch | Verb::DeleteCollection
            );
        let mut path = format!("{base}/{resource}");
        if named {
            path += "/name";
        }
        if let Some(sub) = sub {
            path.push('/');
            path.push_str(sub);
        }
        if verb == Verb::Watch {
            path += "?watch=1";
        }
        let method = match verb {
            Verb::Create => Method::POST,
            Verb::Delete | Verb::DeleteCollection => Method::DELETE,
            Verb::Patch => Method::PATCH,
            Verb::Update => Method::PUT,
            _ => Method::GET,
        };
        let info = RequestInfo::parse(&method, &path.parse().unwrap()).unwrap();
        let serves = |catalogue: &Catalogue| catalogue.serves(want, sub, info.verb());
        if !self
            .servers
            .iter()
            .any(|(server, known)| server.health() == Health::Up && serves(known))
        {
            return None;
        }
        let decision = decide(
            &info,
            &asker(),
            &Evidence::default(),
            &self.discovery.table,
            LocalDown::Failover,
        );
        let to = decision.server()?;
        let (_, catalogue) = self.servers.iter().find(|(known, _)| known.id == to.id)?;
        Some(serves(catalogue))
    }
}

async fn check(cluster: &[(Arc<Documents>, Health)]) {
    let want: Facts = cluster
        .iter()
        .flat_map(|(documents, _)| [&documents.core.items, &documents.groups.items])
        .flat_map(|items| facts_of(items))
        .collect();
    for own in 0..cluster.len() {
        let view = View::of(own, cluster);
        let authority_serves: Facts = want.clone();
        for encoding in [Encoding::Json, Encoding::Protobuf, Encoding::Yaml] {
            assert_eq!(
                view.aggregated(encoding).await,
                authority_serves,
                "aggregated {encoding:?} through {own}"
            );
        }
        for encoding in [
            Encoding::Json,
            Encoding::Protobuf,
            Encoding::Yaml,
            Encoding::Cbor,
        ] {
            let (facts, away) = view.by_legacy(encoding).await;
            let is_away =
                |fact: &str| away.contains(fact.split(' ').next().unwrap()) && fact.contains(' ');
            let reachable: Facts = want.iter().filter(|fact| !is_away(fact)).cloned().collect();
            assert_eq!(facts, reachable, "legacy {encoding:?} through {own}");
            for group_version in &away {
                let served = cluster.iter().any(|(documents, health)| {
                    *health == Health::Up
                        && [&documents.core.items, &documents.groups.items]
                            .into_iter()
                            .any(|items| facts_of(items).contains(group_version))
                });
                assert!(
                    !served,
                    "{group_version} is 503 through {own} though somebody serves it"
                );
            }
        }
        for fact in &want {
            assert_ne!(view.is_fetchable(fact), Some(false), "{fact} through {own}");
        }
    }
}

#[tokio::test]
async fn recorded_versions_agree_in_every_form_through_every_node() {
    let up = |version: &str| (Arc::new(documents(version)), Health::Up);
    check(&[up("1.34"), up("1.36")]).await;
    check(&[up("1.36"), up("1.34-all"), up("1.35")]).await;
    check(&[up("1.34-all"), up("1.36-all")]).await;
    check(&[up("1.35"), (Arc::new(documents("1.36-all")), Health::Down)]).await;
    check(&[
        (Arc::new(documents("1.34")), Health::Up),
        (Arc::new(documents("1.34-all")), Health::Draining),
        up("1.36"),
    ])
    .await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_catalogues_agree_in_every_form_through_every_node(
        cluster in proptest::collection::vec(
            (merge::tests::core(), merge::tests::catalogue(true), prop_oneof![3 => Just(Health::Up), 1 => Just(Health::Down)]),
            2..=5,
        ),
    ) {
        let mut cluster: Vec<(Arc<Documents>, Health)> = cluster
            .into_iter()
            .map(|(core, groups, health)| (Arc::new(Documents { core, groups }), health))
            .collect();
        // Somebody must be there to answer at all.
        cluster[0].1 = Health::Up;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check(&cluster));
    }
}
