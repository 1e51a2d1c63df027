//! Where figures come from: they mean nothing without it.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::{Effort, Options, target};

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
    /// When, UTC.
    pub when: String,
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
        }
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
            when: jiff::Timestamp::now()
                .strftime("%Y-%m-%d %H:%M UTC")
                .to_string(),
        }
    }

    /// As lines of text.
    pub fn lines(&self) -> Vec<String> {
        vec![
            format!(
                "{} x {}, {} MiB, Linux {}",
                self.cpus, self.processor, self.memory, self.kernel
            ),
            self.versions.join("; "),
            format!(
                "commit {}, {} run, {} proxy threads, load average {} at the start, {}",
                self.commit, self.effort, self.threads, self.load, self.when
            ),
        ]
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
