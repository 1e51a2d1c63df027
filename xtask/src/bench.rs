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
    profile, setup,
    sh::{capture, cargo, exec, has, root},
};

/// Options of `cargo xtask bench`.
#[derive(Args, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Options {
    /// Within ten minutes on two cores: short runs, three repeats.
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
    /// Where raw data and reports are written.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/results")]
    results: PathBuf,
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
        return print(
            options,
            &merged(&options.merge)?,
            &root().join(&options.results),
        );
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
    let programs = programs(options, &against, effort)?;
    let directory = if effort == Effort::Smoke {
        root().join("target/bench-smoke")
    } else {
        root().join(&options.results)
    };
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
    print(options, &results, &directory)?;
    if effort == Effort::Smoke {
        flawless(&results)
    } else {
        Ok(())
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
        results: results.to_owned(),
        ..Options::default()
    })
}

/// Writes the report, and prints it or its comparisons.
fn print(options: &Options, results: &Results, directory: &Path) -> Result<()> {
    compare::report::write(results, directory)?;
    if options.json {
        for comparison in &results.comparisons {
            println!("{}", serde_json::to_string(comparison)?);
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
            Some(merged) if merged.machine.commit == results.machine.commit => {
                merged.measured.extend(results.measured);
                merged.skipped.extend(results.skipped);
                merged.comparisons.extend(results.comparisons);
            }
            Some(_) => bail!("{} is of another commit", path.display()),
        }
    }
    merged.context("nothing to merge")
}

/// The comparison; Ctrl-C ends it, and every process with it.
async fn until_interrupted(settings: &compare::Options) -> Result<Results> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        results = compare::run(settings) => results,
        _ = terminate.recv() => bail!("terminated"),
        _ = interrupt.recv() => bail!("interrupted"),
    }
}

/// A smoke run is there to fail.
fn flawless(results: &Results) -> Result<()> {
    let expected = |line: &&String| !line.contains("no kube-apiserver was given");
    let mut faults: Vec<String> = results.skipped.iter().filter(expected).cloned().collect();
    for measured in &results.measured {
        for (name, samples) in &measured.samples {
            for failure in samples
                .iter()
                .filter_map(|sample| sample.failure.as_deref())
            {
                faults.push(format!("{} through {name}: {failure}", measured.scenario));
            }
        }
    }
    if !faults.is_empty() {
        bail!("the smoke run has faults:\n  {}", faults.join("\n  "));
    }
    Ok(())
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

/// Builds and finds what takes part; what cannot be had is said, and the comparison goes on without.
fn programs(options: &Options, against: &[Against], effort: Effort) -> Result<Programs> {
    setup::ensure()?;
    let release = effort != Effort::Smoke;
    let mut build = cargo();
    build.args(["build", "--package", "bench", "--bin", "bench"]);
    if options.mvp.is_none() {
        build.args(["--package", "mvp-user", "--bin", "mvp"]);
    }
    if release {
        build.arg("--release");
        profile::guide(&mut build)?;
    }
    if !options.built {
        exec(&mut build)?;
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
    Ok(Programs {
        mvp: options.mvp.clone().unwrap_or_else(|| built.join("mvp")),
        bench: built.join("bench"),
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

/// The commit of the checkout, with `+` if there are changes.
fn commit() -> String {
    let git = |arguments: &[&str]| capture(Command::new("git").args(arguments).current_dir(root()));
    let hash = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])
        .is_ok_and(|text| !text.trim().is_empty());
    format!("{}{}", hash.trim(), if changed { "+" } else { "" })
}
