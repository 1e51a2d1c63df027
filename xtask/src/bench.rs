//! `cargo xtask bench`: the comparisons of `bench::compare`: gets the programs (builds ours, installs the others), runs,
//! writes the report. See `BENCHMARKING.md`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use bench::compare::{self, Against, Effort, Native, Programs, Results, Scenario, scenario::Kind};
use clap::Args;

use crate::{
    build, setup,
    sh::{capture, cargo, exec, has, root},
};

/// Options of `cargo xtask bench`.
#[derive(Args, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Options {
    /// Within ten minutes on two cores: short runs, four repeats, two of what has no bound.
    #[arg(long)]
    quick: bool,
    /// Everything once, tiny, with debug builds: only that it works.
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// Only these scenarios (repeatable); see --list.
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,
    /// What it costs as connections and watches grow, instead of the scenarios.
    #[arg(long, conflicts_with_all = ["scenario", "smoke"])]
    curves: bool,
    /// Whom to compare with.
    #[arg(long, value_enum, value_delimiter = ',')]
    against: Vec<Against>,
    /// A kube-apiserver whose own peer proxy takes part (v1.36=PATH); needs --etcd.
    #[arg(long, value_name = "VERSION=PATH", requires = "etcd")]
    kube_apiserver: Option<String>,
    /// etcd for it.
    #[arg(long, value_name = "PATH")]
    etcd: Option<PathBuf>,
    /// Threads of each proxy; 1 compares CPU per request most fairly. Default: one a CPU, at most 16.
    #[arg(long)]
    threads: Option<usize>,
    /// Print one JSON object per comparison instead of the report.
    #[arg(long)]
    json: bool,
    /// Where raw data and reports are written. Default: bench/results; of some scenarios, some peers, given programs or curves:
    /// target/bench-results.
    #[arg(long, value_name = "DIRECTORY")]
    results: Option<PathBuf>,
    /// A built mvp to measure instead of building one, for experiments.
    #[arg(long, value_name = "PATH")]
    mvp: Option<PathBuf>,
    /// Another built mvp to compare it with.
    #[arg(long, value_name = "PATH")]
    other_mvp: Option<PathBuf>,
    /// Measure nothing: write one report of earlier runs, whose --results these were (repeatable; of one build).
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["quick", "smoke", "scenario", "curves"])]
    merge: Vec<PathBuf>,
    /// Build nothing: measure what was built before.
    #[arg(long)]
    built: bool,
    /// Name the scenarios and end.
    #[arg(long)]
    list: bool,
}

/// The verb.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.list {
        for scenario in compare::all().into_iter().chain(compare::curves()) {
            println!("{:20} {}", scenario.name, scenario.what);
        }
        return Ok(());
    }
    if !options.merge.is_empty() {
        return print(options, &merged(&options.merge)?, &directory(options));
    }
    let mut scenarios = if options.curves {
        compare::curves()
    } else {
        chosen(&options.scenario)?
    };
    if options.smoke {
        // A debug build under valgrind takes minutes.
        scenarios.retain(|scenario| !matches!(scenario.kind, Kind::Copies(_)));
    }
    let against = if options.smoke && options.against.is_empty() {
        // What is here; nothing is installed or built for it.
        let mut against = vec![Against::Direct];
        against.extend(find("haproxy").map(|_| Against::Haproxy));
        against.extend(find("nginx").map(|_| Against::Nginx));
        against
    } else if options.against.is_empty() {
        let mut against = vec![
            Against::Direct,
            Against::Haproxy,
            Against::Nginx,
            Against::Pingora,
        ];
        against.extend(options.kube_apiserver.is_some().then_some(Against::Native));
        against
    } else {
        options.against.clone()
    };
    let effort = match (options.smoke, options.quick) {
        (true, _) => Effort::Smoke,
        (false, true) => Effort::Quick,
        (false, false) => Effort::Full,
    };
    let programs = programs(options, &against, effort, given(options)?)?;
    let settings = compare::Options {
        scenarios,
        against,
        effort,
        lean: options.quick && options.against.is_empty(),
        threads: options.threads,
        programs,
        commit: commit(),
        logs: root().join("target/bench-logs"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let results =
        runtime.block_on(tokio::task::LocalSet::new().run_until(until_interrupted(&settings)))?;
    print(options, &results, &directory(options))?;
    if effort == Effort::Smoke {
        flawless(&results)
    } else {
        whole(&results)
    }
}

/// The work by which release builds are optimised: everything that is frequent, none of it by itself.
const TRAINING: [&str; 15] = [
    "get-h2-cert",
    "get-h2-cert-single",
    "get-h1-cert",
    "get-h2-token",
    "get-h1-token",
    "rerouted",
    "create-64k",
    "list-100k",
    "list-10m",
    "watch-1000",
    "storm",
    "exec",
    "discovery-warm",
    "discovery-304",
    "mixed",
];

/// Has an instrumented mvp do it.
pub(crate) fn train(mvp: &Path, results: &Path) -> Result<()> {
    run(&Options {
        quick: true,
        scenario: TRAINING.map(str::to_owned).to_vec(),
        against: vec![Against::Direct],
        mvp: Some(mvp.to_owned()),
        results: Some(results.to_owned()),
        ..Options::default()
    })
}

/// Where results go. The report in the checkout is of a whole run and README shows its chart: a part does not replace them.
fn directory(options: &Options) -> PathBuf {
    let part = !options.scenario.is_empty()
        || !options.against.is_empty()
        || options.curves
        || options.mvp.is_some()
        || options.other_mvp.is_some();
    let default = match (options.smoke, part) {
        (true, _) => "target/bench-smoke",
        (false, true) => "target/bench-results",
        (false, false) => "bench/results",
    };
    let given = options.results.as_deref();
    given.map_or_else(|| root().join(default), |given| root().join(given))
}

/// Writes the report, and prints it or its comparisons.
fn print(options: &Options, results: &Results, directory: &Path) -> Result<()> {
    compare::report::write(results, directory)?;
    if options.json {
        for comparison in &results.comparisons {
            println!("{}", serde_json::to_string(comparison)?);
        }
        // The objects have no place for it.
        for line in results.skipped.iter().chain(&failures(results)) {
            eprintln!("bench: {line}");
        }
    } else {
        println!("{}", compare::report::markdown(results));
        println!("written to {}", directory.display());
    }
    Ok(())
}

/// Runs in pieces, as one.
fn merged(directories: &[PathBuf]) -> Result<Results> {
    let mut merged: Option<Results> = None;
    for directory in directories {
        let path = root().join(directory).join("raw.json");
        let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let results: Results =
            serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
        match &mut merged {
            None => merged = Some(results),
            Some(merged) if merged.machine.is_like(&results.machine) => merged.append(results),
            Some(_) => bail!(
                "{} is of another commit or machine, or of other threads",
                path.display()
            ),
        }
    }
    merged.context("nothing to merge")
}

/// The comparison; Ctrl-C ends it, and every process with it, as does a terminal that is closed: an ssh connection that breaks.
async fn until_interrupted(settings: &compare::Options) -> Result<Results> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // Whoever listens for a signal ignores it no longer.
    let mut hangup = if ignores_hangup(&status) {
        None
    } else {
        Some(signal(SignalKind::hangup())?)
    };
    let gone = async {
        match &mut hangup {
            Some(hangup) => hangup.recv().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        results = compare::run(settings) => results,
        _ = gone => bail!("the terminal is gone"),
        _ = terminate.recv() => bail!("terminated"),
        _ = interrupt.recv() => bail!("interrupted"),
    }
}

/// Whether a process is to outlive its terminal, by its /proc/PID/status: `nohup` had it ignore SIGHUP, the first of signals.
fn ignores_hangup(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

/// A smoke run is there to fail.
fn flawless(results: &Results) -> Result<()> {
    let expected = |line: &&String| !line.contains("no kube-apiserver was given");
    let mut faults: Vec<String> = results.skipped.iter().filter(expected).cloned().collect();
    faults.extend(failures(results));
    if !faults.is_empty() {
        bail!("the smoke run has faults:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// A scenario that was begun and has no result is a failure of the run; who cannot take part, or has no time left, is none.
fn whole(results: &Results) -> Result<()> {
    let lines = results.skipped.iter().map(String::as_str);
    let failed: Vec<&str> = lines.filter(|line| line.contains(": failed: ")).collect();
    if !failed.is_empty() {
        bail!("not everything was measured:\n  {}", failed.join("\n  "));
    }
    Ok(())
}

/// What requests failed with.
fn failures(results: &Results) -> Vec<String> {
    let mut failures = Vec::new();
    for measured in &results.measured {
        for (name, samples) in &measured.samples {
            let said = samples
                .iter()
                .filter_map(|sample| sample.failure.as_deref());
            failures
                .extend(said.map(|said| format!("{} through {name}: {said}", measured.scenario)));
        }
    }
    failures
}

fn chosen(names: &[String]) -> Result<Vec<Scenario>> {
    if names.is_empty() {
        return Ok(compare::all());
    }
    let all: Vec<Scenario> = compare::all()
        .into_iter()
        .chain(compare::curves())
        .collect();
    let unknown = names
        .iter()
        .find(|name| !all.iter().any(|scenario| scenario.name == **name));
    if let Some(name) = unknown {
        bail!("there is no scenario {name}; --list names them");
    }
    Ok(all
        .into_iter()
        .filter(|scenario| names.iter().any(|name| name == scenario.name))
        .collect())
}

/// kube-apiserver, if one was given. A path that leads nowhere is an error now, not when everything has been built.
fn given(options: &Options) -> Result<Option<Native>> {
    let native = match (&options.kube_apiserver, &options.etcd) {
        (Some(given), Some(etcd)) => {
            let (version, program) = given
                .split_once('=')
                .context("--kube-apiserver takes VERSION=PATH")?;
            Some(Native {
                version: version.to_owned(),
                program: program.into(),
                etcd: etcd.clone(),
            })
        }
        _ => None,
    };
    let real = native
        .iter()
        .flat_map(|native| [&native.program, &native.etcd]);
    for path in real.chain(&options.mvp).chain(&options.other_mvp) {
        if !path.is_file() {
            bail!("there is no program {}", path.display());
        }
    }
    Ok(native)
}

/// Builds and finds what takes part; what cannot be had is said, and the comparison goes on without.
fn programs(
    options: &Options,
    against: &[Against],
    effort: Effort,
    native: Option<Native>,
) -> Result<Programs> {
    setup::ensure()?;
    let release = effort != Effort::Smoke;
    let mut build = cargo();
    build.args(["build", "--package", "bench", "--bin", "bench"]);
    if release {
        build.arg("--release");
    } else if options.mvp.is_none() {
        build.args(["--package", "mvp-user", "--bin", "mvp"]);
    }
    if !options.built {
        exec(&mut build)?;
        if release && options.mvp.is_none() {
            build::shipped()?;
        }
    }
    let built = target().join(if release { "release" } else { "debug" });
    let wanted = |against_: Against, package: &str| -> Option<PathBuf> {
        if !against.contains(&against_) {
            return None;
        }
        let found = find(package).or_else(|| {
            eprintln!("bench: {package} is not installed");
            setup::apt(&[package])
                .map_err(|error| eprintln!("bench: without {package}: {error:#}"))
                .ok()?;
            find(package)
        });
        if found.is_none() {
            eprintln!("bench: {package} does not take part");
        }
        found
    };
    let (mvp, bench) = (
        options.mvp.clone().unwrap_or_else(|| built.join("mvp")),
        built.join("bench"),
    );
    if let Some(path) = [&mvp, &bench].into_iter().find(|path| !path.is_file()) {
        bail!("{} has not been built", path.display());
    }
    Ok(Programs {
        mvp,
        bench,
        haproxy: wanted(Against::Haproxy, "haproxy"),
        nginx: wanted(Against::Nginx, "nginx"),
        pingora: if against.contains(&Against::Pingora) {
            pingora(options.built)
        } else {
            None
        },
        native,
        build: options.other_mvp.clone(),
    })
}

/// Where cargo builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |it| root().join(it))
}

/// In `PATH` or where Debian puts daemons.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    directories.extend(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    directories
        .into_iter()
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

/// A package of its own: nobody who builds mvp must build pingora. It needs cmake (zlib-ng).
fn pingora(built: bool) -> Option<PathBuf> {
    let program = target().join("pingora/release/pingora-peer");
    if built && program.is_file() {
        return Some(program);
    }
    let package = root().join("bench/peers/pingora");
    if !has("cmake") {
        eprintln!("bench: pingora-peer needs cmake");
        setup::apt(&["cmake"])
            .map_err(|error| eprintln!("bench: {error:#}"))
            .ok()?;
    }
    let mut build = cargo();
    build
        .args(["build", "--release", "--manifest-path"])
        .arg(package.join("Cargo.toml"));
    build.env("CARGO_TARGET_DIR", target().join("pingora"));
    if let Err(error) = exec(&mut build) {
        eprintln!("bench: without pingora: {error:#}");
        return None;
    }
    Some(program)
}

/// The commit of the checkout, with `+` if there are changes. Results are none: every run changes them.
fn commit() -> String {
    let git = |arguments: &[&str]| capture(Command::new("git").args(arguments).current_dir(root()));
    let hash = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    let changed = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ".",
        ":(exclude)bench/results",
    ]);
    let changed = changed.is_ok_and(|text| !text.trim().is_empty());
    format!("{}{}", hash.trim(), if changed { "+" } else { "" })
}

#[cfg(test)]
mod tests;
