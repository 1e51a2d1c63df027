//! Says so when kube-apiserver's manifest says something else than when mvp started. Not for doing something about it: that
//! is for whoever starts mvp again.

use std::time::Duration;

use tokio::{task::spawn_blocking, time::sleep};

use crate::config::{self, Flags, Setting};

/// How often the manifest is looked at.
const EVERY: Duration = Duration::from_mins(1);

/// Looks for ever; one line for each difference.
#[expect(clippy::infinite_loop, reason = "ends with its event loop")]
pub(super) async fn watch(flags: Flags, settings: Vec<Setting>) {
    let mut told = Vec::new();
    loop {
        sleep(EVERY).await;
        let (flags, settings) = (flags.clone(), settings.clone());
        let looked = spawn_blocking(move || config::changed(&flags, &settings)).await;
        let changed = looked.unwrap_or_default();
        if !changed.is_empty() && changed != told {
            tracing::error!(
                flags = changed.join(", "),
                "kube-apiserver's manifest says something else than when mvp started: start mvp again"
            );
        }
        told = changed;
    }
}
