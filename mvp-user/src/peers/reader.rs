//! The reader of one server: reads it at once, at every cause and at intervals, and publishes what came of it.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use super::{
    Desk, Learning, Notice, Round, Shared,
    fetch::{Memory, ReadError, Reading},
};
use crate::{
    api::ServerId,
    health::link::{Link, LinkError},
    table::{Catalogue, Freshness, Health, Membership, Server, Table},
};

/// Reads of one server begin at most this often (design 5.2).
const SPACING: Duration = Duration::from_secs(1);
/// How soon a server is read again that was never read.
const EAGER: Duration = Duration::from_secs(1);
/// How soon a server is read again after a read that failed.
const RETRY: Duration = Duration::from_secs(5);
/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a whole read may take; one of a server without aggregated discovery asks hundreds of questions.
const READ_WITHIN: Duration = Duration::from_mins(1);

/// Reads `server` for ever.
pub(super) async fn read_for_ever(
    shared: Arc<Shared>,
    learning: Rc<Learning>,
    server: Arc<Server>,
    desk: Arc<Desk>,
    notices: mpsc::Sender<Notice>,
) {
    let table = &shared.table;
    let kept = table.catalogue(server.id);
    let mut memory = Memory::new(
        kept.as_ref().map(|kept| Arc::clone(&kept.documents)),
        kept.map_or_else(Arc::default, |kept| Arc::clone(&kept.version)),
    );
    let mut changes = table.changed.subscribe();
    let mut was_read = false;
    let mut complaint = None;
    loop {
        let began = Instant::now();
        let outcome = timeout(READ_WITHIN, read(&mut memory, &server, &learning, table))
            .await
            .unwrap_or(Err(ReadError::Link(LinkError::TimedOut)));
        let trouble = publish(&shared, &server, outcome, began);
        let complete = trouble.is_none();
        was_read |= complete;
        desk.rounds.send_replace(Round {
            began: Some(began),
            complete,
        });
        tell(&server, trouble.as_ref(), &mut complaint);
        let notice = Notice::Read(server.id, trouble.map(|error| error.kind()));
        if notices.send(notice).await.is_err() {
            return;
        }
        let departed = server.membership() == Membership::Departed;
        let pause = match (complete, was_read) {
            (true, _) => jitter(learning.config.discovery_interval),
            (false, _) if departed => jitter(learning.config.discovery_interval),
            (false, true) => RETRY.min(learning.config.discovery_interval),
            (false, false) => EAGER,
        };
        wait(&server, &desk, &mut changes, began + pause).await;
        sleep_until(began + SPACING).await;
    }
}

async fn read(
    memory: &mut Memory,
    server: &Server,
    learning: &Learning,
    table: &Table,
) -> Result<Reading, ReadError> {
    let mut link = Link::open(&learning.dialer, server, &learning.marker, CONNECT_WITHIN).await?;
    memory.read(&mut link, table).await
}

/// Until `at`, until somebody wants it, or until the server comes up: it may be another version now.
async fn wait(server: &Server, desk: &Desk, changes: &mut watch::Receiver<u64>, at: Instant) {
    let mut was_up = server.health() == Health::Up;
    loop {
        tokio::select! {
            () = sleep_until(at) => return,
            () = desk.wanted.notified() => return,
            changed = changes.changed() => {
                if changed.is_err() {
                    return sleep_until(at).await;
                }
                let is_up = server.health() == Health::Up;
                if is_up && !was_up {
                    return;
                }
                was_up = is_up;
            }
        }
    }
}

/// Publishes a read; after one that failed, what was known before, marked stale. Returns why it is not complete.
fn publish(
    shared: &Shared,
    server: &Server,
    outcome: Result<Reading, ReadError>,
    began: Instant,
) -> Option<ReadError> {
    let table = &shared.table;
    let kept = table.catalogue(server.id);
    let (documents, version, read_at, freshness, trouble) = match (outcome, &kept) {
        (Ok(reading), _) => {
            let (freshness, read_at) = match (&reading.gap, &kept) {
                (None, _) => (Freshness::Fresh, began),
                (Some(_), kept) => (
                    Freshness::Stale,
                    kept.as_ref().map_or(began, |kept| kept.read_at),
                ),
            };
            (
                reading.documents,
                reading.version,
                read_at,
                freshness,
                reading.gap,
            )
        }
        (Err(error), Some(kept)) if kept.freshness == Freshness::Fresh => (
            Arc::clone(&kept.documents),
            Arc::clone(&kept.version),
            kept.read_at,
            Freshness::Stale,
            Some(error),
        ),
        (Err(error), _) => return Some(error),
    };
    let unchanged = kept.as_ref().filter(|kept| {
        kept.freshness == freshness
            && kept.version == version
            && Arc::ptr_eq(&kept.documents, &documents)
    });
    let generation = unchanged.map_or_else(|| shared.next_generation(), |kept| kept.generation);
    let (resources, group_versions) = match &kept {
        Some(kept) if Arc::ptr_eq(&kept.documents, &documents) => {
            (kept.resources.clone(), kept.group_versions.clone())
        }
        _ => documents.index(),
    };
    let catalogue = Catalogue {
        resources,
        group_versions,
        documents,
        version,
        freshness,
        read_at,
        generation,
    };
    table.publish(server.id, Arc::new(catalogue));
    trouble
}

fn tell(server: &Server, trouble: Option<&ReadError>, complaint: &mut Option<&'static str>) {
    let id: ServerId = server.id;
    match trouble {
        None => {
            if complaint.take().is_some() {
                info!(server = %id, "Its discovery can be read again");
            }
        }
        Some(error) if *complaint == Some(error.kind()) => {
            debug!(server = %id, %error, "Its discovery still cannot be read");
        }
        Some(error) => {
            warn!(server = %id, address = %server.address, %error, "Its discovery cannot be read; what is known of it is kept");
            *complaint = Some(error.kind());
        }
    }
}

/// Within a tenth of `interval`, so that not all mvps read all servers at the same moments.
fn jitter(interval: Duration) -> Duration {
    // A fresh `RandomState` is seeded by the system; nothing secret depends on it.
    let random = RandomState::new().build_hasher().finish();
    let permille = u32::try_from(random % 200).unwrap_or(100);
    interval * (900 + permille) / 1000
}
