//! How the servers are, as gauges read from the table at scrape time, and the proofs that were tried.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{counter::Counter, family::Family, gauge::ConstGauge},
    registry::Registry,
};

use crate::{
    metrics::begin,
    table::{Freshness, Health, Membership, Proof, Server, Table},
};

/// Counters of `health`.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics {
    proofs: Family<ProofLabels, Counter>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ProofLabels {
    result: &'static str,
}

/// Labels of a gauge about one server; their number is bounded by the servers of the table.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ServerLabels {
    server: String,
}

/// Reads the table whenever it is asked.
#[derive(Debug)]
struct Servers(Arc<Table>);

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry, table: Arc<Table>) {
        let results = ["proven", "refused", "undecided"];
        begin(&self.proofs, results.map(|result| ProofLabels { result }));
        registry.register(
            "mvp_forwarding_proofs",
            "Proofs of identity forwarding that were tried",
            self.proofs.clone(),
        );
        registry.register_collector(Box::new(Servers(table)));
    }

    pub(super) fn count(&self, result: Option<Proof>) {
        let result = match result {
            Some(Proof::Proven) => "proven",
            Some(Proof::Refused) => "refused",
            Some(Proof::Unproven) | None => "undecided",
        };
        self.proofs.get_or_create(&ProofLabels { result }).inc();
    }
}

impl Collector for Servers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let table = &self.0;
        let members = table.members();
        let servers: Vec<&Server> = std::iter::once(&*members.local)
            .chain(members.peers.iter().map(|peer| &**peer))
            .collect();
        let flag = i64::from;
        let fresh = |server: &Server| {
            table.look(server.id, |catalogue| {
                catalogue.freshness == Freshness::Fresh
            })
        };
        gauge(
            &mut encoder,
            ("mvp_server_up", "Whether the server is ready"),
            &servers,
            |it| flag(it.health() == Health::Up),
        )?;
        gauge(
            &mut encoder,
            (
                "mvp_server_forwarding_proven",
                "Whether the server authenticates what mvp forwards",
            ),
            &servers,
            |it| flag(it.proof() == Proof::Proven),
        )?;
        gauge(
            &mut encoder,
            (
                "mvp_server_departed",
                "Whether the server has left the endpoints of default/kubernetes",
            ),
            &servers,
            |it| flag(it.membership() == Membership::Departed),
        )?;
        gauge(
            &mut encoder,
            (
                "mvp_server_discovery_fresh",
                "Whether the last read of what the server serves was complete",
            ),
            &servers,
            |it| flag(fresh(it).unwrap_or(false)),
        )?;
        gauge(
            &mut encoder,
            (
                "mvp_server_known",
                "Whether anything is known of what the server serves",
            ),
            &servers,
            |it| flag(fresh(it).is_some()),
        )?;
        let ready = ConstGauge::new(flag(table.is_ready()));
        let metric = encoder.encode_descriptor(
            "mvp_table_ready",
            "Whether what all servers serve is known",
            None,
            ready.metric_type(),
        )?;
        ready.encode(metric)
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    servers: &[&Server],
    value: impl Fn(&Server) -> i64,
) -> Result<(), fmt::Error> {
    let kind = ConstGauge::new(0_i64).metric_type();
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for server in servers {
        let labels = ServerLabels {
            server: server.id.to_string(),
        };
        ConstGauge::new(value(server)).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ServerId;

    #[test]
    fn a_scrape_shows_every_server_as_it_is() {
        let local = Arc::new(Server::new(
            ServerId::Local,
            "127.0.0.1:6443".parse().unwrap(),
        ));
        local.set_health(Health::Up);
        let address = "10.0.0.2:6443".parse().unwrap();
        let peer = Arc::new(Server::new(ServerId::Peer(address), address));
        peer.set_membership(Membership::Departed);
        let table = Arc::new(Table::new(local));
        table.set_peers(vec![peer]);
        let mut registry = Registry::default();
        let metrics = Metrics::default();
        metrics.register(&mut registry, table);
        metrics.count(Some(Proof::Refused));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "mvp_server_up{server=\"local\"} 1",
            "mvp_server_up{server=\"10.0.0.2:6443\"} 0",
            "mvp_server_departed{server=\"10.0.0.2:6443\"} 1",
            "mvp_server_known{server=\"local\"} 0",
            "mvp_table_ready 0",
            "mvp_forwarding_proofs_total{result=\"refused\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
