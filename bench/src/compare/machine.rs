//! Where figures come from: they mean nothing without it.

use std::{fs, path::Path, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{process::Command, time::sleep};

use super::{Effort, Options, target};

/// How long it is watched what others do.
const LOOK: Duration = Duration::from_millis(500);

/// Printed with every result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor.
    pub processor: String,
    /// How many this run may use.
    pub cpus: usize,
    /// MiB of memory.
    pub memory: u64,
    /// Kernel release.
    pub kernel: String,
    /// Commit of the checkout, `+` if it has changes.
    pub commit: String,
    /// Program and version, one each.
    pub versions: Vec<String>,
    /// Threads of each proxy.
    pub threads: String,
    /// smoke, quick or full.
    pub effort: String,
    /// Load average at the start: above the number of CPUs the machine was not quiet.
    pub load: String,
    /// Per cent of the processors' time in use before anything was started: a load average is also of the build before.
    #[serde(default)]
    pub busy: String,
    /// Per cent of the processors' time that a hypervisor took away during the run.
    #[serde(default)]
    pub stolen: String,
    /// When, UTC.
    pub when: String,
    /// Scenarios that are of runs of their own, and when those were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<String>,
}

impl Machine {
    pub(super) async fn look(options: &Options) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kibibytes: u64 = memory
            .split_whitespace()
            .next()
            .and_then(|it| it.parse().ok())
            .unwrap_or(0);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let programs = &options.programs;
        let mut versions = vec![version(&programs.mvp, "--version").await];
        for (program, flag) in [
            (&programs.haproxy, "-v"),
            (&programs.nginx, "-v"),
            (&programs.pingora, "--version"),
        ] {
            if let Some(program) = program {
                versions.push(version(program, flag).await);
            }
        }
        if let Some(native) = &programs.native {
            versions.push(format!("kube-apiserver {}", native.version));
            versions.push(version(&native.program, "--version").await);
            versions.push(version(&native.etcd, "--version").await);
        }
        let before = Ticks::now();
        sleep(LOOK).await;
        let (busy, _) = Ticks::now().since(before);
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name")
                .unwrap_or_else(|| "unknown".to_owned()),
            cpus,
            memory: kibibytes / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            commit: options.commit.clone(),
            versions,
            threads: target::threads(options.threads, cpus).to_string(),
            effort: match options.effort {
                Effort::Smoke => "smoke",
                Effort::Quick => "quick",
                Effort::Full => "full",
            }
            .to_owned(),
            load: read("/proc/loadavg")
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned(),
            busy,
            stolen: String::new(),
            when: jiff::Timestamp::now()
                .strftime("%Y-%m-%d %H:%M UTC")
                .to_string(),
            pieces: Vec::new(),
        }
    }

    /// Whether figures of both may stand in one report.
    pub fn is_like(&self, other: &Self) -> bool {
        let what = |it: &Self| {
            let machine = (it.processor.clone(), it.cpus, it.kernel.clone());
            (machine, it.commit.clone(), it.threads.clone())
        };
        what(self) == what(other)
    }

    /// As lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "{} x {}, {} MiB, Linux {}",
                self.cpus, self.processor, self.memory, self.kernel
            ),
            self.versions.join("; "),
            format!(
                "commit {}, {} run, {} proxy threads, load average {} at the start, {}",
                self.commit, self.effort, self.threads, self.load, self.when
            ),
        ];
        if !self.stolen.is_empty() {
            lines.push(format!(
                "processors: {} % in use before anything was started, {} % stolen by a hypervisor meanwhile",
                self.busy, self.stolen
            ));
        }
        lines.extend(self.pieces.iter().cloned());
        lines
    }
}

/// Time of all processors since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ticks {
    all: u64,
    idle: u64,
    stolen: u64,
}

impl Ticks {
    pub(super) fn now() -> Self {
        Self::read(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal, and those of guests, which are among users'.
    fn read(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let words = line.split_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = words.filter_map(|it| it.parse().ok()).collect();
        let at = |place: usize| ticks.get(place).copied().unwrap_or(0);
        Self {
            all: ticks.iter().sum(),
            idle: at(3) + at(4),
            stolen: at(7),
        }
    }

    /// Per cent that were in use since `earlier`, and that were stolen.
    pub(super) fn since(self, earlier: Self) -> (String, String) {
        let all = self.all.saturating_sub(earlier.all);
        let idle = self.idle.saturating_sub(earlier.idle);
        let stolen = self.stolen.saturating_sub(earlier.stolen);
        #[expect(clippy::cast_precision_loss, reason = "ticks of some hours")]
        let share = |part: u64| format!("{:.1}", part as f64 * 100.0 / all.max(1) as f64);
        (
            share(all.saturating_sub(idle).saturating_sub(stolen)),
            share(stolen),
        )
    }
}

/// The first line that a program says about itself.
async fn version(program: &Path, flag: &str) -> String {
    let name = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let output = Command::new(program).arg(flag).output().await;
    let text = output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
    );
    text.lines()
        .next()
        .filter(|line| !line.is_empty())
        .map_or(name, |line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_use_and_a_hypervisor_takes_is_told() {
        let before = Ticks::read("cpu  100 0 50 800 10 0 5 35 7 0\ncpu0 1 2 3\n");
        let after = Ticks::read("cpu  120 0 60 850 20 0 5 45 9 0\ncpu0 1 2 3\n");
        assert_eq!(after.since(before), ("30.0".to_owned(), "10.0".to_owned()));
        let machine = Machine {
            busy: "30.0".to_owned(),
            stolen: "10.0".to_owned(),
            ..Machine::default()
        };
        let last = machine.lines().pop().unwrap();
        assert!(last.contains("10.0 % stolen"), "{last}");
        assert_eq!(Machine::default().lines().len(), 3);
    }
}
