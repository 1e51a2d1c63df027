//! Where requests would go, and why: `mvp routes` and `mvp explain`.

use std::{collections::BTreeSet, net::IpAddr};

use http::{Method, Uri};

use super::{Catalogues, by_servers, catalogues, everything, health, kind, membership, proof};
use crate::{
    admin::{
        State,
        wire::{Explanation, Route, Step, View},
    },
    api::{GvRef, Gvr, Verb, Verbs},
    request_info::{BadPath, Class, RequestInfo},
    route::{Asker, AskerKind, Decision, Evidence, Outcome, To, decide},
    table::Catalogue,
};

impl State {
    /// `mvp routes`: where requests for each resource go, from a client with a certificate. `wanted` is a part of
    /// `group/version/resource/subresource`.
    pub fn routes(&self, wanted: Option<&str>) -> Vec<Route> {
        let catalogues = catalogues(&self.table);
        everything(&catalogues)
            .into_iter()
            .filter(|(resource, subresource)| {
                wanted.is_none_or(|wanted| {
                    let mut name = resource.as_ref().to_string();
                    if let Some(subresource) = subresource {
                        name.push('/');
                        name.push_str(subresource);
                    }
                    name.contains(wanted)
                })
            })
            .filter_map(|(resource, subresource)| {
                self.route(&catalogues, &resource, subresource.as_deref())
            })
            .collect()
    }

    fn route(
        &self,
        catalogues: &Catalogues,
        resource: &Gvr,
        subresource: Option<&str>,
    ) -> Option<Route> {
        let sets = by_servers(catalogues, resource, subresource);
        let verbs = sets.values().copied().fold(Verbs::NONE, Verbs::union);
        let (method, named) = sample(verbs, subresource.is_some());
        let base = if resource.group.is_empty() {
            format!("/api/{}", resource.version)
        } else {
            format!("/apis/{}/{}", resource.group, resource.version)
        };
        let path = match (named, subresource) {
            (_, Some(subresource)) => format!("{base}/{}/x/{subresource}", resource.resource),
            (true, None) => format!("{base}/{}/x", resource.resource),
            (false, None) => format!("{base}/{}", resource.resource),
        };
        let info = RequestInfo::parse(&method, &path.parse::<Uri>().ok()?).ok()?;
        let asker = Asker {
            kind: AskerKind::User,
            marker: false,
            decided: false,
            client: IpAddr::from([0, 0, 0, 0]),
        };
        let decision = self.decide(&info, &asker, &Evidence::default());
        let served_by: BTreeSet<&str> = sets.keys().flatten().copied().collect();
        let step = step(&decision);
        Some(Route {
            group: resource.group.to_string(),
            version: resource.version.to_string(),
            resource: resource.resource.to_string(),
            subresource: subresource.map(ToOwned::to_owned),
            to: step.to,
            because: step.because,
            served_by: served_by.into_iter().map(ToOwned::to_owned).collect(),
        })
    }

    /// `mvp explain`.
    pub fn explain(
        &self,
        method: &Method,
        uri: &Uri,
        asker: &Asker,
    ) -> Result<Explanation, BadPath> {
        let info = RequestInfo::parse(method, uri)?;
        let mut steps = Vec::new();
        let mut evidence = Evidence::default();
        loop {
            let decision = self.decide(&info, asker, &evidence);
            steps.push(step(&decision));
            match decision.to {
                To::Server(server) => evidence.add(server.id, Outcome::Unreachable),
                To::Refresh | To::Relay | To::Refuse(_) => break,
            }
        }
        let members = self.table.members();
        let servers = std::iter::once(&members.local)
            .chain(members.peers.iter())
            .map(|server| View {
                server: server.id.to_string(),
                name: server.name.load().as_deref().cloned(),
                health: health(server.health()).to_owned(),
                proof: proof(server.proof()).to_owned(),
                membership: membership(server.membership()).to_owned(),
                serves: match self.table.look(server.id, |it| serves(it, &info)) {
                    None => "unread",
                    Some(true) => "yes",
                    Some(false) => "no",
                }
                .to_owned(),
            })
            .collect();
        Ok(Explanation {
            method: method.to_string(),
            path: info.path().to_owned(),
            class: match info.class() {
                Class::Resource => "resource",
                Class::Discovery(_) => "discovery",
                Class::OpenApi(_) => "openapi",
                Class::LocalOnly => "local only",
                Class::Other => "other",
            }
            .to_owned(),
            verb: (info.verb() != Verb::Other).then(|| info.verb().as_str().to_owned()),
            resource: info.resource().map(|it| it.to_string()),
            subresource: info.subresource().map(ToOwned::to_owned),
            namespace: info.namespace().map(ToOwned::to_owned),
            name: info.name().map(ToOwned::to_owned),
            caller: kind(asker.kind).to_owned(),
            steps,
            servers,
        })
    }

    fn decide(&self, info: &RequestInfo, asker: &Asker, evidence: &Evidence) -> Decision {
        decide(info, asker, evidence, &self.table, self.config.local_down)
    }
}

/// Whether the server could answer; of a non-resource path, whether it knows the group or group-version, if there is one.
fn serves(catalogue: &Catalogue, info: &RequestInfo) -> bool {
    if let Some(resource) = info.resource() {
        return catalogue.serves(resource, info.subresource(), info.verb());
    }
    match (info.group_version(), info.group()) {
        (Some(GvRef { group, version }), _) => catalogue.lists(GvRef { group, version }),
        (None, Some(group)) => catalogue
            .group_versions
            .iter()
            .any(|it| &*it.group == group),
        (None, None) => true,
    }
}

fn step(decision: &Decision) -> Step {
    let (to, status) = match &decision.to {
        To::Server(server) => (server.id.to_string(), None),
        To::Refresh => ("refresh".to_owned(), None),
        To::Relay => ("relay".to_owned(), None),
        To::Refuse(refusal) => (refusal.as_str().to_owned(), Some(refusal.status().as_u16())),
    };
    Step {
        to,
        because: decision.because.to_string(),
        status,
    }
}

/// A method that the resource knows, and whether it needs a name.
fn sample(verbs: Verbs, subresource: bool) -> (Method, bool) {
    let choices = [
        (Verb::List, Method::GET, false),
        (Verb::Get, Method::GET, true),
        (Verb::Create, Method::POST, false),
        (Verb::Update, Method::PUT, true),
        (Verb::Patch, Method::PATCH, true),
        (Verb::Delete, Method::DELETE, true),
        (Verb::DeleteCollection, Method::DELETE, false),
    ];
    choices
        .into_iter()
        .find(|(verb, ..)| verbs.allow(*verb) && !(subresource && *verb == Verb::List))
        .map_or((Method::GET, true), |(_, method, named)| (method, named))
}
