//! Comparisons: the same work through mvp, through other proxies and through none, in one run, interleaved, on one machine.
//! Ratios with their spread are the result ([`judge`]); absolute figures are for orientation only.
//!
//! Not for making load ([`crate::load`]).

pub mod chart;
mod copies;
mod ground;
mod judge;
mod leader;
mod machine;
mod measure;
mod native;
mod process;
mod programs;
pub mod report;
pub mod scenario;
mod share;
mod target;
mod tunnelled;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
pub use judge::{Comparison, Met, judge};
pub use machine::Machine;
pub use measure::{Measured, Sample};
pub use programs::{Native, Programs};
pub use scenario::{Against, Metric, Mode, Scenario, all, curves};

use tokio::time::Instant;

/// How long and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// That it works; figures mean nothing.
    Smoke,
    /// Within ten minutes on two cores.
    Quick,
    /// As long as it takes.
    Full,
}

impl Effort {
    /// Interleaved repeats.
    const fn repeats(self) -> usize {
        match self {
            Self::Smoke => 1,
            Self::Quick => 4,
            Self::Full => 5,
        }
    }

    /// Repeats of work that opens thousands of connections, on fresh proxies.
    const fn heavy_repeats(self) -> usize {
        match self {
            Self::Smoke | Self::Quick => 1,
            Self::Full => 3,
        }
    }

    const fn warm(self) -> Duration {
        Duration::from_millis(match self {
            Self::Smoke => 20,
            Self::Quick => 150,
            Self::Full => 1000,
        })
    }

    const fn run(self) -> Duration {
        Duration::from_millis(match self {
            Self::Smoke => 120,
            Self::Quick => 600,
            Self::Full => 4000,
        })
    }

    /// When no further scenario is begun.
    const fn budget(self) -> Duration {
        match self {
            Self::Smoke => Duration::from_mins(5),
            Self::Quick => Duration::from_secs(560),
            Self::Full => Duration::from_hours(12),
        }
    }

    /// A count, as large as it may be here.
    fn cap(self, count: usize, most: usize) -> usize {
        if self == Self::Smoke {
            count.min(most)
        } else {
            count
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which scenarios.
    pub scenarios: Vec<Scenario>,
    /// Whom to compare with.
    pub against: Vec<Against>,
    /// How long.
    pub effort: Effort,
    /// Only who matters to a bound, and `HAProxy`, so that everything fits into the time of a quick run.
    pub lean: bool,
    /// Threads of each proxy; none: one a CPU, 16 at most.
    pub threads: Option<usize>,
    /// What to run.
    pub programs: Programs,
    /// Of the checkout.
    pub commit: String,
    /// Where logs of the proxies are left.
    pub logs: PathBuf,
}

#[cfg(test)]
impl Options {
    /// Nothing is run, and no program is anywhere.
    fn of_nothing(logs: PathBuf) -> Self {
        Self {
            scenarios: Vec::new(),
            against: Vec::new(),
            effort: Effort::Smoke,
            lean: false,
            threads: None,
            programs: Programs {
                mvp: "/nowhere/mvp".into(),
                bench: "/nowhere/bench".into(),
                haproxy: None,
                nginx: None,
                pingora: None,
                native: None,
                build: None,
            },
            commit: String::new(),
            logs,
        }
    }
}

/// All that was measured.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Results {
    /// Where.
    pub machine: Machine,
    /// What, in the order of [`all`].
    pub measured: Vec<Measured>,
    /// What was not, and why.
    pub skipped: Vec<String>,
    /// What follows.
    pub comparisons: Vec<Comparison>,
}

impl Results {
    /// Adds another run's: what both have measured, as the later one did. The report says what is of a run of its own.
    pub fn append(&mut self, later: Self) {
        let names: Vec<&str> = later
            .measured
            .iter()
            .map(|it| it.scenario.as_str())
            .collect();
        self.measured
            .retain(|it| !names.contains(&it.scenario.as_str()));
        self.comparisons
            .retain(|it| !names.contains(&it.scenario.as_str()));
        // Lines begin with the name of a scenario.
        self.skipped.retain(|line| {
            let name = line.split([':', ' ']).next().unwrap_or_default();
            !names.contains(&name)
        });
        self.machine.pieces.push(format!(
            "{}: a {} run of their own, load average {} at the start, {}",
            names.join(", "),
            later.machine.effort,
            later.machine.load,
            later.machine.when
        ));
        self.machine.pieces.extend(later.machine.pieces);
        self.measured.extend(later.measured);
        self.comparisons.extend(later.comparisons);
        self.skipped.extend(later.skipped);
    }
}

/// Runs everything. Must be called inside a `LocalSet`.
pub async fn run(options: &Options) -> Result<Results> {
    let began = Instant::now();
    // What is started has this limit too: nginx and pingora do not raise it themselves, and 5,000 connections need 10,000.
    crate::load::raise_descriptor_limit()?;
    // A program's last words are told when it fails: they must not be those of an earlier run.
    if options.logs.is_dir() {
        std::fs::remove_dir_all(&options.logs)
            .with_context(|| format!("{}", options.logs.display()))?;
    }
    let mut results = Results {
        machine: Machine::look(options).await,
        measured: Vec::new(),
        skipped: Vec::new(),
        comparisons: Vec::new(),
    };
    let start = machine::Ticks::now();
    let bar = progress(options);
    let mut natives = None;
    let mut scenarios: Vec<&Scenario> = options.scenarios.iter().collect();
    if options.lean {
        // What is bounded first, in case that time runs out.
        scenarios.sort_by_key(|scenario| scenario.goals.is_empty());
    }
    for scenario in scenarios {
        bar.set_message(scenario.name);
        if scenario.mode != Mode::BeforeNative {
            // Real kube-apiservers have something to do even when nobody asks.
            natives = None;
        }
        tracing::info!(scenario = scenario.name, "Begins");
        if let Some(missing) = missing(scenario, options).await {
            results
                .skipped
                .push(format!("{}: {missing}", scenario.name));
        } else if began.elapsed() > options.effort.budget() {
            results
                .skipped
                .push(format!("{}: out of time", scenario.name));
        } else {
            match measure::measure(scenario, options, &bar, &mut natives).await {
                Ok((measured, skipped)) => {
                    results.comparisons.extend(judge(scenario, &measured));
                    results.measured.push(measured);
                    results.skipped.extend(skipped);
                }
                // One that fails must not take the others with it, and must be seen.
                Err(error) => results
                    .skipped
                    .push(format!("{}: failed: {error:#}", scenario.name)),
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    (_, results.machine.stolen) = machine::Ticks::now().since(start);
    results
        .measured
        .first()
        .with_context(|| format!("nothing was measured: {}", results.skipped.join("; ")))?;
    Ok(results)
}

/// What a scenario needs and is not here.
async fn missing(scenario: &Scenario, options: &Options) -> Option<String> {
    if scenario.mode == Mode::BeforeNative && options.programs.native.is_none() {
        return Some("no kube-apiserver was given (--kube-apiserver)".to_owned());
    }
    // For network namespaces and control groups.
    if scenario.needs_root() && !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    let looked = match scenario.kind {
        scenario::Kind::Copies(_) => copies::look().await,
        _ if scenario.is_bounded() => share::look(),
        _ => Ok(()),
    };
    looked.err().map(|error| format!("{error:#}"))
}

fn progress(options: &Options) -> ProgressBar {
    let bar = ProgressBar::new(options.scenarios.len() as u64);
    if let Ok(style) =
        ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {msg}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, getrlimit, setrlimit};
    use tokio::task::LocalSet;

    use super::*;

    /// A run without scenarios; says how it ended.
    fn nothing(logs: PathBuf) -> String {
        let options = Options::of_nothing(logs);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let ended = runtime.block_on(LocalSet::new().run_until(run(&options)));
        ended.unwrap_err().to_string()
    }

    #[test]
    fn a_report_of_two_runs_says_so_and_has_each_scenario_once() {
        let run = |when: &str, names: &[&str], skipped: &[&str]| Results {
            machine: Machine {
                when: when.to_owned(),
                ..Machine::default()
            },
            measured: names
                .iter()
                .map(|name| Measured {
                    scenario: (*name).to_owned(),
                    what: when.to_owned(),
                    samples: std::collections::BTreeMap::new(),
                    rate: None,
                    units: 1,
                })
                .collect(),
            skipped: skipped.iter().map(|line| (*line).to_owned()).collect(),
            comparisons: Vec::new(),
        };
        let mut both = run(
            "noon",
            &["raw", "storm"],
            &["exec: failed: x", "raw through nginx: y", "steered: z"],
        );
        both.append(run("later", &["exec", "raw"], &[]));
        let measured: Vec<_> = both
            .measured
            .iter()
            .map(|it| (it.scenario.as_str(), it.what.as_str()))
            .collect();
        assert_eq!(
            measured,
            [("storm", "noon"), ("exec", "later"), ("raw", "later")]
        );
        assert_eq!(both.skipped, ["steered: z"]);
        let last = both.machine.lines().pop().unwrap();
        assert!(last.starts_with("exec, raw: ") && last.ends_with("later"));
    }

    #[test]
    fn what_programs_said_in_an_earlier_run_is_not_told_again() {
        let directory = tempfile::tempdir().unwrap();
        let logs = directory.path().join("logs");
        std::fs::create_dir(&logs).unwrap();
        std::fs::write(logs.join("mvp.log"), "a port is in use").unwrap();
        nothing(logs.clone());
        assert!(!logs.join("mvp.log").exists());
    }

    #[test]
    fn what_takes_part_may_have_as_many_descriptors_as_the_system_allows() {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum.map(|most| most - 1);
        setrlimit(Resource::Nofile, limit).unwrap();
        let words = nothing(PathBuf::new());
        assert!(words.contains("nothing was measured"), "{words}");
        assert!(getrlimit(Resource::Nofile).current >= limit.maximum);
    }
}
