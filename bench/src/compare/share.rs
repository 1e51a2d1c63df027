//! Processor time as the limit: a control group lets processes use no more than a share of one processor while something is
//! measured. Both versions of the kernel's interface, because containers and some machines still have the first.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use rustix::io::Errno;

/// The kernel gives out time anew so often, microseconds.
const PERIOD: u32 = 100_000;
/// Members of a group, in both versions.
const MEMBERS: &str = "cgroup.procs";
/// How often, and after which pauses, a group is removed in which somebody has not quite ended.
const TRIES: (u32, Duration) = (30, Duration::from_millis(10));

/// Whether there are control groups that bound processor time; says what is missing.
pub(super) fn look() -> Result<()> {
    Held::hold("look", 100, &[]).map(drop)
}

/// Processes that are held to a share until this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    group: PathBuf,
    /// Where they were before: where this process is. In a container that may be a path of its host's, and is the root here.
    home: PathBuf,
}

impl Held {
    /// `percent` of one processor for all of `pids` together.
    pub(super) fn hold(name: &str, percent: u32, pids: &[u32]) -> Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::below(Path::new("/sys/fs/cgroup"), &own, name, (percent, pids))
            .context("processor time is bounded by control groups, which need root and a writable /sys/fs/cgroup")
    }

    fn below(
        mounted: &Path,
        own: &str,
        name: &str,
        (percent, pids): (u32, &[u32]),
    ) -> Result<Self> {
        let second = mounted.join("cgroup.controllers").is_file();
        let root = if second {
            mounted.to_owned()
        } else {
            mounted.join("cpu")
        };
        if second {
            let on = root.join("cgroup.subtree_control");
            let given = fs::read_to_string(&on)?;
            if !given.split_whitespace().any(|it| it == "cpu") {
                fs::write(&on, "+cpu")?;
            }
        }
        let group = root.join(format!("mvp-bench-{name}-{}", std::process::id()));
        match fs::create_dir(&group) {
            // It could not be removed the last time.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.with_context(|| format!("{}", group.display()))?,
        }
        let home = root.join(place(own, second));
        let held = Self {
            home: if home.is_dir() { home } else { root },
            group,
        };
        let quota = percent * (PERIOD / 100);
        if second {
            held.put("cpu.max", &format!("{quota} {PERIOD}"))?;
        } else {
            held.put("cpu.cfs_period_us", &PERIOD.to_string())?;
            held.put("cpu.cfs_quota_us", &quota.to_string())?;
        }
        for pid in pids {
            held.put(MEMBERS, &pid.to_string())?;
        }
        Ok(held)
    }

    fn put(&self, file: &str, value: &str) -> Result<()> {
        let path = self.group.join(file);
        fs::write(&path, value).with_context(|| format!("{value} into {}", path.display()))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a drop cannot wait otherwise, and nothing is measured meanwhile"
    )]
    fn release(&self) -> io::Result<()> {
        for pid in fs::read_to_string(self.group.join(MEMBERS))?.lines() {
            match fs::write(self.home.join(MEMBERS), pid) {
                Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
                moved => moved?,
            }
        }
        let (tries, pause) = TRIES;
        for _ in 0..tries {
            match fs::remove_dir(&self.group) {
                // The asker ends when it has said what was done, and cannot be moved any more.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                removed => return removed,
            }
            std::thread::sleep(pause);
        }
        fs::remove_dir(&self.group)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, group = %self.group.display(), "A control group stays behind");
        }
    }
}

/// The group of a process below the root of those that bound processor time: `/proc/self/cgroup` has a line for each hierarchy.
fn place(own: &str, second: bool) -> &str {
    let found = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let wanted = if second {
            controllers.is_empty()
        } else {
            controllers.split(',').any(|it| it == "cpu")
        };
        wanted.then_some(path)
    });
    found.unwrap_or_default().trim_start_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "3:cpuset:/\n2:cpu,cpuacct:/jobs/one\n0::/\n";
    const SECOND: &str = "0::/user.slice/session-1.scope\n";

    fn said(held: &Held, file: &str) -> String {
        fs::read_to_string(held.group.join(file)).unwrap()
    }

    #[test]
    fn a_share_is_said_in_the_words_of_either_version() {
        let mounted = tempfile::tempdir().unwrap();
        let cpu = mounted.path().join("cpu");
        fs::create_dir_all(cpu.join("jobs/one")).unwrap();
        let held = Held::below(mounted.path(), FIRST, "proxy", (50, &[7, 8])).unwrap();
        assert_eq!(said(&held, "cpu.cfs_quota_us"), "50000");
        assert_eq!(said(&held, MEMBERS), "8");
        assert_eq!(held.home, cpu.join("jobs/one"));

        let mounted = tempfile::tempdir().unwrap();
        let root = mounted.path();
        fs::write(root.join("cgroup.controllers"), "cpu io").unwrap();
        fs::write(root.join("cgroup.subtree_control"), "io").unwrap();
        fs::create_dir_all(root.join("user.slice/session-1.scope")).unwrap();
        let held = Held::below(root, SECOND, "proxy", (80, &[7])).unwrap();
        assert_eq!(said(&held, "cpu.max"), "80000 100000");
        assert_eq!(held.home, root.join("user.slice/session-1.scope"));
        let on = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap();
        assert_eq!(on, "+cpu");
    }

    #[test]
    fn processes_go_back_to_where_they_were() {
        let mounted = tempfile::tempdir().unwrap();
        let home = mounted.path().join("cpu/jobs/one");
        fs::create_dir_all(&home).unwrap();
        drop(Held::below(mounted.path(), FIRST, "proxy", (50, &[7])).unwrap());
        assert_eq!(fs::read_to_string(home.join(MEMBERS)).unwrap(), "7");
    }

    #[test]
    fn a_group_that_could_not_be_removed_is_used_again() {
        let mounted = tempfile::tempdir().unwrap();
        fs::create_dir(mounted.path().join("cpu")).unwrap();
        // Its files keep it, as does a process of a real one that has not quite ended.
        drop(Held::below(mounted.path(), FIRST, "asker", (40, &[])).unwrap());
        let held = Held::below(mounted.path(), FIRST, "asker", (80, &[])).unwrap();
        assert_eq!(said(&held, "cpu.cfs_quota_us"), "80000");
    }

    #[test]
    fn in_a_container_processes_go_back_to_its_own_root() {
        let mounted = tempfile::tempdir().unwrap();
        let cpu = mounted.path().join("cpu");
        fs::create_dir(&cpu).unwrap();
        // The path is of the host.
        drop(Held::below(mounted.path(), FIRST, "proxy", (50, &[7])).unwrap());
        assert_eq!(fs::read_to_string(cpu.join(MEMBERS)).unwrap(), "7");
    }

    #[test]
    fn a_machine_without_control_groups_is_told_so() {
        let mounted = tempfile::tempdir().unwrap();
        assert!(Held::below(mounted.path(), "", "proxy", (50, &[])).is_err());
    }
}
