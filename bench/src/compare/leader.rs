//! A process that leads a group of its own, which ends with it: nginx has workers, which outlive a master that is killed.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::Child;

/// See the module.
#[derive(Debug)]
pub(super) struct Leader(pub(super) Child);

impl Leader {
    /// None if it has ended.
    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.0.id()?.try_into().ok()?)
    }

    /// Tells it, and nobody of its group, unless it has ended.
    pub(super) fn tell(&self, signal: Signal) -> std::io::Result<()> {
        match self.pid() {
            Some(pid) => Ok(kill_process(pid, signal)?),
            None => Ok(()),
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if let Some(pid) = self.pid()
            && let Err(error) = kill_process_group(pid, Signal::KILL)
        {
            tracing::debug!(%error, "Already gone");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{process::Command, time::sleep};

    use super::*;

    async fn eventually(asked: impl Fn() -> bool) {
        for _ in 0..250 {
            if asked() {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("it did not become so within 5 s");
    }

    #[tokio::test]
    async fn workers_end_with_their_master() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("worker");
        let mut command = Command::new("sh");
        let works = format!("sleep 60 & echo $! > {}; wait", file.display());
        command.args(["-c", &works]).process_group(0);
        let leader = Leader(command.spawn().unwrap());
        let said = || std::fs::read_to_string(&file).unwrap_or_default();
        eventually(|| said().ends_with('\n')).await;
        let stat = format!("/proc/{}/stat", said().trim());
        // Whoever is to clear it away may be slow.
        let works = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z"));
        assert!(works());
        drop(leader);
        eventually(|| !works()).await;
    }
}
