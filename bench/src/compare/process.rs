//! What a process and its children have used, from /proc. CPU time of threads that have ended is included.

use std::fs;

use anyhow::{Context as _, Result};

/// Used until now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Usage {
    /// User and system time, seconds.
    pub(super) cpu: f64,
    /// Resident now, bytes.
    pub(super) resident: u64,
    /// Resident at most, bytes.
    pub(super) peak: u64,
}

/// Of the process and everything below it.
pub(super) fn usage(pid: u32) -> Result<Usage> {
    let mut usage = one(pid)?;
    for child in children(pid) {
        // A child may have ended meanwhile.
        if let Ok(more) = self::usage(child) {
            usage.cpu += more.cpu;
            usage.resident += more.resident;
            usage.peak += more.peak;
        }
    }
    Ok(usage)
}

fn one(pid: u32) -> Result<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} has ended"))?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(Usage {
        cpu: cpu(&stat).context("/proc/PID/stat is not as it was")?,
        resident: kibibytes(&status, "VmRSS:").unwrap_or(0),
        peak: kibibytes(&status, "VmHWM:").unwrap_or(0),
    })
}

/// Fields 14 and 15 of `proc_pid_stat(5)`, in ticks; the name in field 2 may hold anything, so count from its end.
#[expect(clippy::cast_precision_loss, reason = "ticks of a few hours")]
fn cpu(stat: &str) -> Option<f64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
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
    fn figures_of_the_kernel_are_read_whatever_the_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 1 1 1";
        let ticks = 200.0;
        #[expect(clippy::cast_precision_loss, reason = "100")]
        let wanted = ticks / rustix::param::clock_ticks_per_second() as f64;
        assert!((cpu(stat).unwrap() - wanted).abs() < 1e-9);
        assert_eq!(
            kibibytes("VmPeak:\t 9 kB\nVmRSS:\t     12 kB\n", "VmRSS:"),
            Some(12 * 1024)
        );
    }

    #[test]
    fn this_process_has_used_something() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.resident > 0 && usage.peak >= usage.resident);
        assert!(super::usage(u32::MAX).is_err());
    }
}
