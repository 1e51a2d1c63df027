//! What a process and its children have used. CPU time of threads that have ended is included.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use nix::{time::ClockId, unistd::Pid};

/// Used until now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Usage {
    /// User and system time, seconds.
    pub(super) cpu: f64,
    /// Resident now, bytes.
    pub(super) resident: u64,
    /// Resident at most, bytes.
    pub(super) peak: u64,
    /// Of what is resident, pages of files: programs and libraries.
    files: u64,
}

impl Usage {
    /// And that of a child. Programs and libraries are in memory once, whoever maps them.
    fn and(self, child: Self) -> Self {
        Self {
            cpu: self.cpu + child.cpu,
            resident: self.resident + child.resident.saturating_sub(child.files),
            peak: self.peak + child.peak.saturating_sub(child.files),
            files: self.files,
        }
    }
}

/// Of the process and everything below it.
pub(super) fn usage(pid: u32) -> Result<Usage> {
    let mut usage = one(pid)?;
    for child in children(pid) {
        // A child may have ended meanwhile.
        if let Ok(more) = self::usage(child) {
            usage = usage.and(more);
        }
    }
    Ok(usage)
}

/// It and everything below it.
pub(super) fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    all.extend(children(pid).into_iter().flat_map(tree));
    all
}

fn one(pid: u32) -> Result<Usage> {
    let cpu = cpu(pid).with_context(|| format!("process {pid} has ended"))?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(Usage {
        cpu,
        resident: kibibytes(&status, "VmRSS:").unwrap_or(0),
        peak: kibibytes(&status, "VmHWM:").unwrap_or(0),
        files: kibibytes(&status, "RssFile:").unwrap_or(0),
    })
}

/// User and system time, by `clock_getcpuclockid(3)`, which anybody may read of any process: nanoseconds, where
/// /proc/PID/stat has ticks of 10 ms, a tenth of what some quick runs use.
fn cpu(pid: u32) -> Result<f64> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid.try_into()?))?;
    Ok(Duration::from(clock.now()?).as_secs_f64())
}

fn kibibytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_the_kernel_are_read() {
        assert_eq!(
            kibibytes("VmPeak:\t 9 kB\nVmRSS:\t     12 kB\n", "VmRSS:"),
            Some(12 * 1024)
        );
    }

    #[test]
    fn programs_and_libraries_are_counted_once() {
        let of = |resident, files| Usage {
            cpu: 1.0,
            resident,
            peak: resident + 1,
            files,
        };
        let all = of(10, 8).and(of(12, 8)).and(of(12, 8));
        assert_eq!((all.resident, all.peak), (10 + 4 + 4, 11 + 5 + 5));
        assert!((all.cpu - 3.0).abs() < 1e-9);
    }

    #[test]
    fn this_process_has_used_something() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.resident > 0 && usage.peak >= usage.resident);
        assert!(super::usage(u32::MAX).is_err());
    }

    #[test]
    fn a_millisecond_of_work_is_seen() {
        let thread = || Duration::from(ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap());
        for _ in 0..10 {
            let (before, begun) = (cpu(std::process::id()).unwrap(), thread());
            while thread().checked_sub(begun).unwrap() < Duration::from_millis(1) {}
            let used = cpu(std::process::id()).unwrap() - before;
            assert!(used > 0.000_9, "{used}");
        }
    }
}
