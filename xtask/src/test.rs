//! `cargo xtask test`: everything that can fail, in the order of its price: lints, unit and
//! property tests, integration tests over loopback, kernel tests in namespaces as root. What takes
//! minutes is `cargo xtask test soak`, and only that.
//!
//! The last line says how many passed and failed, counted from what really ran: each test, and
//! each check of `lint.rs`. A test binary that does not build counts as one failure.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::{
    lint, setup,
    sh::{Shown, cargo, has},
    totals::Totals,
    vm,
};

/// Options of `cargo xtask test`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// What to run.
    #[arg(value_enum, default_value_t = Tier::All)]
    tier: Tier,
    /// Passed to the test binaries, for example a filter.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// The tiers of the testing pyramid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Tier {
    /// Unit and property tests of all crates.
    Unit,
    /// The integration binaries, over loopback.
    It,
    /// Kernel tests in network namespaces; root, or sudo.
    Kernel,
    /// A short form of `cargo xtask vm-test`: steering, splicing and kernel TLS on a stock kernel in qemu.
    Vm,
    /// Lints and all of the above.
    All,
    /// What takes minutes: servers that are away for long, definitions that come and go, gibibytes, thousands of clients;
    /// root, or sudo.
    Soak,
    /// The status page in headless Chromium, which is installed if it is missing; not in `all`.
    Ui,
}

/// The verb.
pub(crate) fn run(options: &Options) -> Result<()> {
    setup::ensure()?;
    let mut totals = Totals::default();
    let wants = |tier| options.tier == Tier::All || options.tier == tier;
    if options.tier == Tier::Ui {
        println!("== the status page in Chromium");
        totals.add(count(&mut browser()?, &options.arguments)?);
    }
    if options.tier == Tier::All {
        for (name, check) in lint::CHECKS {
            println!("== {name}");
            match check() {
                Ok(()) => totals.passed += 1,
                Err(error) => {
                    println!("{name} failed: {error:#}");
                    totals.failed += 1;
                }
            }
        }
    }
    if wants(Tier::Unit) {
        println!("== unit and property tests");
        let mut command = cargo();
        command.args(["test", "--workspace", "--lib", "--bins", "--no-fail-fast"]);
        totals.add(count(&mut command, &options.arguments)?);
    }
    if wants(Tier::It) {
        println!("== integration tests");
        let mut command = cargo();
        command.args(["test", "--workspace", "--no-fail-fast"]);
        command.args(["--test", "it", "--test", "allocations", "--test", "process"]);
        totals.add(count(&mut command, &options.arguments)?);
    }
    if wants(Tier::Kernel) {
        println!("== kernel tests");
        totals.add(count(&mut kernel(), &options.arguments)?);
    }
    if wants(Tier::Vm) {
        println!("== a stock kernel in qemu");
        totals.add(vm::short().unwrap_or_else(|error| {
            println!("vm-test failed: {error:#}");
            Totals {
                passed: 0,
                failed: 1,
            }
        }));
    }
    if options.tier == Tier::Soak {
        println!("== soak tests: about half an hour");
        let mut long = cargo();
        long.args([
            "test",
            "--workspace",
            "--lib",
            "--test",
            "it",
            "--no-fail-fast",
        ]);
        let ignored = ["--ignored", "--nocapture"].map(str::to_owned);
        totals.add(count(
            &mut long,
            &[&ignored, &options.arguments[..]].concat(),
        )?);
        let mut arguments = ["--ignored", "soak_", "--nocapture", "--test-threads=4"]
            .map(str::to_owned)
            .to_vec();
        arguments.extend(options.arguments.iter().cloned());
        totals.add(count(&mut kernel(), &arguments)?);
    }
    println!("{} passed, {} failed", totals.passed, totals.failed);
    if totals.failed > 0 {
        bail!("not everything passed");
    }
    if totals.passed == 0 {
        bail!("nothing ran");
    }
    Ok(())
}

/// The tests that need a browser: `CHROMIUM`, or the one in `PATH`, or Debian's.
fn browser() -> Result<Command> {
    if std::env::var_os("CHROMIUM").is_none() && !has("chromium") {
        setup::apt(&["chromium"]).context("chromium is missing; CHROMIUM names one elsewhere")?;
    }
    let mut command = cargo();
    command.args(["test", "--workspace", "--test", "browser"]);
    Ok(command)
}

/// A skipped kernel test must not look like a passed one, so skipping is forbidden here.
fn kernel() -> Command {
    let mut command = cargo();
    // `--workspace` throughout: with the same packages selected, dependencies are built once.
    command.args(["test", "--workspace", "--test", "kernel"]);
    command.env("MVP_KERNEL_TESTS", "require");
    if !nix::unistd::geteuid().is_root() {
        let target = format!(
            "CARGO_TARGET_{}_UNKNOWN_LINUX_{}_RUNNER",
            std::env::consts::ARCH.to_uppercase(),
            if cfg!(target_env = "musl") {
                "MUSL"
            } else {
                "GNU"
            }
        );
        command.env(target, "sudo -n -E");
    }
    command
}

/// Runs `cargo test`, shows its output and counts.
fn count(command: &mut Command, arguments: &[String]) -> Result<Totals> {
    command.arg("--").args(arguments).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", Shown(command)))?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut totals = Totals::default();
    for line in BufReader::new(output).lines() {
        let line = line.context("reading the output of cargo")?;
        println!("{line}");
        if let Some(binary) = Totals::parse(&line) {
            totals.add(binary);
        }
    }
    let status = child.wait().context("waiting for cargo")?;
    if !status.success() && totals.failed == 0 {
        println!("{} failed: {status}", Shown(command));
        totals.failed += 1;
    }
    Ok(totals)
}
