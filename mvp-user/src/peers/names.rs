//! Names of servers, for display only: an identity Lease has a host name but no address, so the host name is looked up;
//! the one that is left over belongs to the server that is left over.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::timeout;

use crate::{
    api::ServerId,
    table::{Server, Table},
};

/// How long one name may take to be looked up.
const WITHIN: Duration = Duration::from_secs(2);

/// Gives the servers of the table their names out of `hostnames`, those of the identity Leases.
pub(super) async fn give(table: Arc<Table>, mut hostnames: BTreeSet<String>) {
    let members = table.members();
    let servers: Vec<_> = std::iter::once(&members.local)
        .chain(&members.peers)
        .map(Arc::clone)
        .collect();
    drop(members);
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut unnamed: Vec<Arc<Server>> = Vec::new();
    for server in servers {
        let name = match server.name.load_full() {
            Some(known) if hostnames.contains(known.as_str()) => known.as_str().to_owned(),
            _ if server.id == ServerId::Local => own.trim().to_owned(),
            _ => String::new(),
        };
        if hostnames.remove(&name) {
            server.name.store(Some(Arc::new(name)));
        } else {
            unnamed.push(server);
        }
    }
    // What is certain without asking anybody is not asked.
    if unnamed.len() > 1 || hostnames.len() > 1 {
        for hostname in hostnames.clone() {
            if let Some(place) = look_up(&hostname, &unnamed).await {
                hostnames.remove(&hostname);
                unnamed
                    .swap_remove(place)
                    .name
                    .store(Some(Arc::new(hostname)));
            }
        }
    }
    if let ([server], Some(hostname), 1) = (&*unnamed, hostnames.first(), hostnames.len()) {
        server.name.store(Some(Arc::new(hostname.clone())));
    }
    table.touch();
}

/// Which of the servers has an address that the name leads to.
async fn look_up(hostname: &str, servers: &[Arc<Server>]) -> Option<usize> {
    let found = timeout(WITHIN, tokio::net::lookup_host((hostname, 0))).await;
    let addresses: Vec<_> = found
        .ok()?
        .ok()?
        .map(|address| address.ip().to_canonical())
        .collect();
    servers
        .iter()
        .position(|server| addresses.contains(&server.address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(peers: &[&str]) -> Arc<Table> {
        let local = Server::new(ServerId::Local, "127.0.0.1:6443".parse().unwrap());
        let table = Table::new(Arc::new(local));
        let peer = |address: &&str| {
            let address = address.parse().unwrap();
            Arc::new(Server::new(ServerId::Peer(address), address))
        };
        table.set_peers(peers.iter().map(peer).collect());
        Arc::new(table)
    }

    fn name(server: &Server) -> Option<String> {
        server
            .name
            .load()
            .as_ref()
            .map(|name| name.as_str().to_owned())
    }

    #[tokio::test]
    async fn the_name_that_is_left_over_is_that_of_the_server_that_is_left_over() {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let own = own.trim().to_owned();
        let table = table(&["10.0.0.2:6443"]);
        give(Arc::clone(&table), [own.clone(), "cp2".to_owned()].into()).await;
        let members = table.members();
        assert_eq!(name(&members.local), Some(own));
        assert_eq!(name(&members.peers[0]), Some("cp2".to_owned()));
    }

    #[tokio::test]
    async fn a_host_name_that_leads_to_a_server_is_its_name() {
        let table = table(&["127.0.0.1:7443", "10.0.0.2:6443"]);
        table
            .members()
            .local
            .name
            .store(Some(Arc::new("cp1".to_owned())));
        let hostnames = ["cp1".to_owned(), "localhost".to_owned()];
        give(Arc::clone(&table), hostnames.into()).await;
        let members = table.members();
        let names: Vec<_> = members.peers.iter().map(|peer| name(peer)).collect();
        assert!(names.contains(&Some("localhost".to_owned())), "{names:?}");
        assert_eq!(name(&members.local), Some("cp1".to_owned()));
    }
}
