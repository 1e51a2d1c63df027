//! Notices changes of the files: by inotify on their directories, and by reading them every ten seconds, because a
//! symbolic link may lead to a directory that nobody watches.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

use super::Tls;

/// kube-apiserver reads its files once a minute beside inotify; ours are few and small.
const POLL: Duration = Duration::from_secs(10);
/// Certificate and key are seldom replaced in the same moment.
const SETTLE: Duration = Duration::from_millis(200);

/// Reloads for ever.
pub(super) async fn run(tls: Arc<Tls>) -> ! {
    let changed = Arc::new(Notify::new());
    let _watcher = watch(&tls, &changed);
    loop {
        if tokio::time::timeout(POLL, changed.notified()).await.is_ok() {
            tokio::time::sleep(SETTLE).await;
        }
        let reading = Arc::clone(&tls);
        if let Err(error) = tokio::task::spawn_blocking(move || reading.reload()).await {
            tracing::error!(%error, "reading the certificates again failed");
        }
    }
}

/// Watches directories, not files: Kubernetes replaces a symbolic link beside them, others rename new files over old.
fn watch(tls: &Tls, changed: &Arc<Notify>) -> Option<RecommendedWatcher> {
    let wake = Arc::clone(changed);
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Our own reading causes access events; they would wake us for ever.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            wake.notify_one();
        }
    });
    let mut watcher = match watcher {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::warn!(%error, "no file system events: files are read every {} s", POLL.as_secs());
            return None;
        }
    };
    let paths = tls.paths();
    let directories: BTreeSet<&Path> = paths
        .iter()
        .filter_map(|path| path.parent())
        .map(|parent| {
            if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            }
        })
        .collect();
    for directory in directories {
        if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
            tracing::warn!(%error, directory = %directory.display(), "not watched: its files are read every {} s", POLL.as_secs());
        }
    }
    Some(watcher)
}
