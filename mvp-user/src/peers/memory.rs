//! Between the table and the state file: what is restored at start, what is written when it changed.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{task::JoinHandle, time::Instant};
use tracing::{info, warn};

use super::{Shared, roster::Roster};
use crate::{
    api::ServerId,
    state::{self, Saved, SavedCatalogue, Snapshot, Stamp},
    table::{Catalogue, Documents, Freshness},
};

/// The file is written at most this often (design 5.3).
const SPACING: Duration = Duration::from_secs(1);
/// How often it is written although nothing but times changed.
const REFRESH: Duration = Duration::from_mins(5);

/// What the file says about one server: its catalogue's generation, its name, since when it is departed.
type Told = (ServerId, Option<u64>, Option<Arc<String>>, Option<Instant>);

/// Writes the state file when something changed.
#[derive(Debug)]
pub(super) struct Keeper {
    path: PathBuf,
    /// What the file says.
    written: Vec<Told>,
    written_at: Option<Instant>,
    writing: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self {
            path,
            written: Vec::new(),
            written_at: None,
            writing: None,
        }
    }

    /// Fills the table and the book from the file, as stale knowledge.
    pub(super) fn restore(&self, shared: &Shared, roster: &mut Roster, now: Instant) {
        let snapshot = match state::load(&self.path) {
            Ok(Some(snapshot)) => snapshot,
            Ok(None) => return,
            Err(error) => {
                warn!(%error, "Starting without what earlier runs learnt");
                return;
            }
        };
        let mut restored = 0_usize;
        for saved in snapshot.servers {
            let id = match saved.address {
                None => ServerId::Local,
                Some(address) => {
                    let server = roster.restore(address, saved.departed_at.map(Stamp::age), now);
                    server.name.store(saved.name.map(Arc::new));
                    server.id
                }
            };
            if let Some(read) = saved.read {
                let documents = Arc::new(Documents {
                    core: read.core,
                    groups: read.groups,
                });
                let (resources, group_versions) = documents.index();
                let catalogue = Catalogue {
                    resources,
                    group_versions,
                    documents,
                    version: read.git_version.into(),
                    freshness: Freshness::Stale,
                    read_at: now,
                    generation: shared.next_generation(),
                };
                shared.table.publish(id, Arc::new(catalogue));
                restored += 1;
            }
        }
        info!(path = %self.path.display(), restored, "Restored what an earlier run learnt");
    }

    /// Begins to write the file if it is time and there is news.
    pub(super) fn keep(&mut self, shared: &Shared, roster: &Roster, now: Instant) {
        let busy = self
            .writing
            .as_ref()
            .is_some_and(|task| !task.is_finished());
        let age = self.written_at.map(|at| now - at);
        if busy || age.is_some_and(|age| age < SPACING) {
            return;
        }
        let members = shared.table.members();
        let departed: Vec<_> = roster.departed().collect();
        let mut servers = Vec::new();
        for server in std::iter::once(&members.local).chain(&members.peers) {
            let catalogue = shared.table.catalogue(server.id);
            let since = departed
                .iter()
                .find(|(gone, _)| gone.id == server.id)
                .map(|(_, since)| *since);
            servers.push((server, catalogue, since));
        }
        let telling: Vec<_> = servers
            .iter()
            .map(|(server, catalogue, since)| {
                let generation = catalogue.as_ref().map(|catalogue| catalogue.generation);
                (server.id, generation, server.name.load_full(), *since)
            })
            .collect();
        if telling == self.written && age.is_some_and(|age| age < REFRESH) {
            return;
        }
        let snapshot = Snapshot::new(
            servers
                .into_iter()
                .map(|(server, catalogue, since)| Saved {
                    address: match server.id {
                        ServerId::Local => None,
                        ServerId::Peer(address) => Some(address),
                    },
                    name: server
                        .name
                        .load()
                        .as_ref()
                        .map(|name| name.as_str().to_owned()),
                    departed_at: since.map(|since| Stamp::ago(now - since)),
                    read: catalogue.map(|catalogue| SavedCatalogue {
                        at: Stamp::ago(now - catalogue.read_at),
                        git_version: catalogue.version.to_string(),
                        core: catalogue.documents.core.clone(),
                        groups: catalogue.documents.groups.clone(),
                    }),
                })
                .collect(),
        );
        self.written = telling;
        self.written_at = Some(now);
        let path = self.path.clone();
        self.writing = Some(tokio::task::spawn_blocking(move || {
            if let Err(error) = state::save(&path, &snapshot) {
                warn!(path = %path.display(), %error, "Cannot write the state file");
            }
        }));
    }
}
