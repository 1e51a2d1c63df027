//! Labels are bounded, whatever clients ask for.

use std::{collections::HashMap as Map, net::SocketAddr};

use prometheus_client::encoding::text;
use tokio::time::Instant;

use super::*;
use crate::{
    api::Gvr,
    table::{Catalogue, Freshness, Served},
};

struct Scene {
    table: Table,
    peer: Arc<Server>,
    metrics: Metrics,
}

impl Scene {
    fn new(resources: impl IntoIterator<Item = String>) -> Self {
        let address = |number: u8| SocketAddr::from(([10, 0, 0, number], 6443));
        let local = Arc::new(Server::new(ServerId::Local, address(1)));
        let peer = Arc::new(Server::new(ServerId::Peer(address(2)), address(2)));
        let table = Table::new(local);
        table.set_peers(vec![Arc::clone(&peer)]);
        let catalogue = Catalogue {
            resources: resources
                .into_iter()
                .map(|name| (Gvr::new("apps", "v1", &name), Served::default()))
                .collect(),
            ..Catalogue::new(
                Arc::default(),
                "v1.36.0".into(),
                Freshness::Fresh,
                Instant::now(),
                1,
            )
        };
        table.publish(peer.id, Arc::new(catalogue));
        Self {
            table,
            peer,
            metrics: Metrics::default(),
        }
    }

    fn ask(&self, method: &str, path: &str) {
        let method: Method = method.parse().unwrap();
        let info = RequestInfo::parse(&method, &path.parse().unwrap()).unwrap();
        let (table, metrics) = (&self.table, &self.metrics);
        let took = Duration::from_millis(1);
        metrics.answered(table, &info, &self.peer, StatusCode::NOT_FOUND, took);
        metrics.failed(table, &info, &self.peer, Outcome::Unreachable);
        metrics.rerouted(&method, &info, &self.peer, "peer_serves", StatusCode::OK);
        metrics.refused(&method, Some(&info), Refusal::BadRequest("x"));
    }

    /// Samples by family.
    fn scrape(&self) -> (Map<String, usize>, String) {
        let mut registry = Registry::default();
        self.metrics.register(&mut registry);
        let mut out = String::new();
        text::encode(&mut out, &registry).unwrap();
        let mut samples = Map::new();
        for line in out.lines().filter(|it| !it.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            *samples.entry(name.to_owned()).or_insert(0) += 1;
        }
        (samples, out)
    }
}

#[test]
fn what_no_server_serves_is_one_label_however_many_names_clients_invent() {
    let scene = Scene::new(["deployments".to_owned()]);
    let (before, _) = scene.scrape();
    for number in 0..5000 {
        scene.ask(
            &format!("M{number}"),
            &format!("/apis/g{number}/v{number}/r{number}/n/s{number}"),
        );
        scene.ask("GET", &format!("/api/v{number}/r{number}?x={number}"));
        scene.ask("GET", &format!("/some/path/{number}"));
        scene.ask(
            "GET",
            &format!("/apis/apps/v1/namespaces/{number}/deployments/{number}"),
        );
    }
    let (after, text) = scene.scrape();
    for (family, count) in &after {
        let more = count - before.get(family).copied().unwrap_or(0);
        assert!(more <= 3, "{family} grew by {more}:\n{text}");
    }
    let labels = "{code=\"404\",group=\"other\",version=\"other\",resource=\"other\"}";
    assert!(
        text.contains(&format!("apiserver_rerouted_request_total{labels} 10000")),
        "{text}"
    );
    let labels = "{code=\"404\",group=\"apps\",version=\"v1\",resource=\"deployments\"}";
    assert!(
        text.contains(&format!("apiserver_rerouted_request_total{labels} 5000")),
        "{text}"
    );
}

#[test]
fn resources_that_come_and_go_for_years_do_not_fill_the_memory() {
    let scene = Scene::new((0..3 * MAX_SETS).map(|number| format!("r{number}")));
    for number in 0..3 * MAX_SETS {
        scene.ask("GET", &format!("/apis/apps/v1/r{number}"));
    }
    let (samples, text) = scene.scrape();
    for family in [
        "apiserver_rerouted_request_total",
        "apiserver_peer_proxy_errors_total",
    ] {
        assert_eq!(samples[family], MAX_SETS + 1, "{family}");
    }
    // Nothing is lost: the rest is counted together.
    let rest = 2 * MAX_SETS;
    assert!(
        text.contains(&format!("resource=\"other\"}} {rest}")),
        "no {rest} in {}",
        text.len()
    );
}
