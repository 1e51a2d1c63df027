//! `cargo xtask VERB`: conducts builds, tests, the demo and the load tests. One file per verb,
//! each with its own options; this one only parses and dispatches.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal"
)]

mod bench;
mod build;
mod demo;
#[cfg(test)]
mod documented;
mod lab;
mod lint;
mod manifests;
mod order;
mod profile;
mod setup;
mod sh;
mod test;
mod totals;
mod train;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser, Debug)]
#[command(name = "cargo xtask", about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Find or install the tool chain of the eBPF half (all other verbs do it by themselves).
    Setup(setup::Options),
    /// Build the `mvp` binary.
    Build(build::Options),
    /// Check format, lints, the order of rooms.
    Lint(lint::Options),
    /// Run all tests, or one tier of them.
    Test(test::Options),
    /// Render deploy/manifests from the chart.
    Manifests(manifests::Options),
    /// Compare mvp with no proxy and with other proxies, under load.
    Bench(bench::Options),
    /// Take the profile anew by which release builds are optimised (about a quarter of an hour)
    Profile(train::Options),
    /// Run kernel tests on a stock Debian kernel in qemu.
    VmTest(vm::Options),
    /// Show a mixed-version control plane on this machine, before and after mvp.
    Demo(demo::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().verb {
        Verb::Setup(options) => setup::run(&options),
        Verb::Build(options) => build::run(&options),
        Verb::Lint(options) => lint::run(&options),
        Verb::Test(options) => test::run(&options),
        Verb::Manifests(options) => manifests::run(&options),
        Verb::Bench(options) => bench::run(&options),
        Verb::Profile(options) => train::run(&options),
        Verb::VmTest(options) => vm::run(&options),
        Verb::Demo(options) => demo::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
