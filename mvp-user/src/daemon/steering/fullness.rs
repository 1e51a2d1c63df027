//! Whether there is room for more connections: in number, descriptors and memory.

use std::{fs, time::Duration};

use crate::accept::Room;

/// Keeps *full* from flapping: true at 90 % of a bound, false below 80 % of all (design 2).
#[derive(Debug, Default)]
pub(super) struct Fullness {
    full: bool,
}

impl Fullness {
    /// Takes in shares of bounds, in per cent.
    pub(super) fn update(&mut self, percents: impl IntoIterator<Item = u64>) -> bool {
        let worst = percents.into_iter().max().unwrap_or(0);
        self.full = worst >= 90 || self.full && worst >= 80;
        self.full
    }
}

/// The memory that the kernel holds against the bound of this process's control group, and the bound; no bound: never full.
/// It is more than what is resident: what waits in sockets is the kernel's, and counts as well.
#[derive(Debug)]
pub(super) struct Memory {
    bound: Option<u64>,
    /// The file that tells what is used.
    used: String,
}

impl Memory {
    pub(super) fn new() -> Self {
        // cgroup v2: the limit of the group this process is in (proc(5), cgroups(7)); "max" does not parse.
        let group = fs::read_to_string("/proc/self/cgroup").ok();
        let group = group
            .as_deref()
            .and_then(|text| text.trim().rsplit("::").next())
            .unwrap_or("/")
            .to_owned();
        let second = |group: &str| {
            ["memory.max", "memory.current"].map(|it| format!("/sys/fs/cgroup{group}/{it}"))
        };
        // cgroup v1, as a container sees it; no bound is a number larger than any memory.
        let first = ["memory.limit_in_bytes", "memory.usage_in_bytes"]
            .map(|it| format!("/sys/fs/cgroup/memory/{it}"));
        Self::of([second(&group), second(""), first])
    }

    /// From the first of these pairs of files, bound and use, that is there.
    fn of(files: [[String; 2]; 3]) -> Self {
        let found = files.into_iter().find_map(|[bound, used]| {
            let bound = fs::read_to_string(bound).ok()?;
            Some((bound.trim().parse().ok(), used))
        });
        let (bound, used) = found.unwrap_or_default();
        Self { bound, used }
    }

    pub(super) fn percent(&self) -> u64 {
        let Some(bound) = self.bound else { return 0 };
        let used: u64 = fs::read_to_string(&self.used)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0);
        used.saturating_mul(100) / bound.max(1)
    }
}

pub(super) fn room_percent(room: &Room) -> u64 {
    if room.exhausted_within(Duration::from_secs(2)) {
        return 100;
    }
    room.open()
        .saturating_mul(100)
        .checked_div(room.max())
        .unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_the_kernel_counts_against_the_bound() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name).display().to_string();
        let pair = |one: &str, other: &str| [file(one), file(other)];
        let files = || {
            [
                pair("not", "there"),
                pair("memory.max", "memory.current"),
                pair("memory.current", "memory.max"),
            ]
        };
        assert_eq!(Memory::of(files()).percent(), 0);
        fs::write(file("memory.max"), "2147483648\n").unwrap();
        fs::write(file("memory.current"), "1932735284\n").unwrap();
        let memory = Memory::of(files());
        assert_eq!(memory.percent(), 90);
        fs::write(file("memory.current"), "1500000000\n").unwrap();
        assert_eq!(memory.percent(), 69);
        fs::write(file("memory.max"), "max\n").unwrap();
        assert_eq!(Memory::of(files()).percent(), 0);
    }

    #[test]
    fn full_begins_at_nine_tenths_and_ends_below_eight() {
        let mut fullness = Fullness::default();
        let seen: Vec<bool> = [89, 90, 85, 80, 79, 89]
            .into_iter()
            .map(|worst| fullness.update([0, worst]))
            .collect();
        assert_eq!(seen, [false, true, true, true, false, false]);
    }
}
