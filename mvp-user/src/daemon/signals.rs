//! The signals that end mvp.
//!
//! Process 1 of a container, which mvp is in its pod, has no default action for any (`pid_namespaces(7)`): one that came before
//! somebody listens would be lost, and the kubelet would wait for the whole grace period while mvp steers. So it waits.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{SignalKind, signal};

fn ends() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT].into_iter().collect()
}

/// From now on they wait until [`wait`] is asked for. For the first thing that a process does: threads inherit it.
pub fn hold() -> io::Result<()> {
    Ok(ends().thread_block()?)
}

/// Until one comes, or at once if one has come since [`hold`]. On the thread that held them.
pub(super) async fn wait() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    ends().thread_unblock()?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::signal::raise;

    use super::*;

    #[tokio::test]
    async fn what_comes_while_nobody_listens_is_heard_afterwards() {
        hold().unwrap();
        // To this thread; it would end the process.
        raise(Signal::SIGTERM).unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(5), wait()).await;
        heard.unwrap().unwrap();
    }
}
