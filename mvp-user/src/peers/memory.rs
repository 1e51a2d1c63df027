//! Between the table and the state file: what is restored at start, what is written when it changed.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::Instant,
};
use tracing::{info, warn};

use super::{Shared, exclusions::Exclusions, roster::Roster};
use crate::{
    api::ServerId,
    state::{self, Saved, SavedCatalogue, SavedShared, Snapshot, Stamp},
    table::{Catalogue, Documents, Freshness, SharedGroups},
};

/// The file is written at most this often (design 5.3).
const SPACING: Duration = Duration::from_secs(1);
/// How often it is written although nothing but times changed.
const REFRESH: Duration = Duration::from_mins(5);
/// How soon a write that failed is tried again: a full disk is not emptied in a second.
const AGAIN: Duration = Duration::from_secs(10);

/// What the file says about one server: its catalogue's generation, its name, since when it is departed.
type Told = (ServerId, Option<u64>, Option<Arc<String>>, Option<Instant>);

/// Writes the state file when something changed.
#[derive(Debug)]
pub(super) struct Keeper {
    path: PathBuf,
    /// What the file says.
    written: Vec<Told>,
    written_shared: Option<Arc<SharedGroups>>,
    written_at: Option<Instant>,
    /// Tells what becomes of the write that goes on.
    writing: Option<oneshot::Receiver<io::Result<()>>>,
    /// Whether the last one failed: then the file says less than `written`.
    failing: bool,
}

impl Keeper {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self {
            path,
            written: Vec::new(),
            written_shared: None,
            written_at: None,
            writing: None,
            failing: false,
        }
    }

    /// Fills the table and the book from the file, as stale knowledge; returns what all servers shared.
    pub(super) fn restore(
        &self,
        shared: &Shared,
        roster: &mut Roster,
        now: Instant,
    ) -> SavedShared {
        let snapshot = match state::load(&self.path) {
            Ok(Some(snapshot)) => snapshot,
            Ok(None) => return SavedShared::default(),
            Err(error) => {
                warn!(%error, "Starting without what earlier runs learnt");
                return SavedShared::default();
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
                let catalogue = Catalogue::new(
                    documents,
                    read.git_version.into(),
                    Freshness::Stale,
                    now,
                    shared.next_generation(),
                );
                shared.table.publish(id, Arc::new(catalogue));
                restored += 1;
            }
        }
        info!(path = %self.path.display(), restored, "Restored what an earlier run learnt");
        snapshot.shared
    }

    /// Takes in what became of the last write; false while it goes on.
    fn is_idle(&mut self) -> bool {
        let Some(writing) = &mut self.writing else {
            return true;
        };
        let wrote = match writing.try_recv() {
            Ok(wrote) => wrote,
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Closed) => Err(io::Error::other("the writer failed")),
        };
        self.writing = None;
        let path = self.path.display();
        match &wrote {
            Ok(()) if self.failing => info!(%path, "The state file is written again"),
            Err(error) if !self.failing => warn!(%path, %error, "Cannot write the state file"),
            _ => {}
        }
        self.failing = wrote.is_err();
        true
    }

    /// Begins to write the file if it is time and there is news, or the last write failed.
    pub(super) fn keep(
        &mut self,
        shared: &Shared,
        roster: &Roster,
        exclusions: &Exclusions,
        now: Instant,
    ) {
        if !self.is_idle() {
            return;
        }
        let spacing = if self.failing { AGAIN } else { SPACING };
        let age = self.written_at.map(|at| now - at);
        if age.is_some_and(|age| age < spacing) {
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
        // Another object whenever anything of it changed.
        let groups = shared.table.shared.load_full();
        let known = self.written_shared.as_ref();
        let same = telling == self.written && known.is_some_and(|it| Arc::ptr_eq(it, &groups));
        if same && !self.failing && age.is_some_and(|age| age < REFRESH) {
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
            exclusions.saved(),
        );
        self.written = telling;
        self.written_shared = Some(groups);
        self.written_at = Some(now);
        let path = self.path.clone();
        let (done, writing) = oneshot::channel();
        self.writing = Some(writing);
        drop(tokio::task::spawn_blocking(move || {
            // Nobody waits for it when mvp ends.
            drop(done.send(state::save(&path, &snapshot)));
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        peers::Learner,
        table::{Server, Table},
    };

    #[tokio::test]
    async fn a_write_that_failed_is_tried_again_though_nothing_changes() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("mvp");
        let path = folder.join("state.json");
        let address = "127.0.0.1:6443".parse().unwrap();
        let local = Arc::new(Server::new(ServerId::Local, address));
        let learner = Learner::new(Arc::new(Table::new(local)));
        let roster = Roster::new(Duration::ZERO, Duration::ZERO);
        let exclusions = Exclusions::default();
        let mut keeper = Keeper::new(path.clone());
        let start = Instant::now();
        for (after, there) in [(Duration::ZERO, false), (SPACING, false), (AGAIN, true)] {
            keeper.keep(&learner.shared, &roster, &exclusions, start + after);
            while !keeper.is_idle() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(path.exists(), there, "{after:?}");
            // From now on it can be written.
            std::fs::create_dir_all(&folder).unwrap();
        }
    }
}
