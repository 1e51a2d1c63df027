//! `cargo xtask lint`: format, clippy for the host crates and for the eBPF program, the order of
//! rooms (`order.rs`), and whether every manifest inherits the workspace's lints.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    order, setup,
    sh::{capture, cargo, exec, root},
};

/// Options of `cargo xtask lint`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Also check the grouping of imports, which only a nightly rustfmt can.
    #[arg(long)]
    imports: bool,
}

/// One check: its name, and what does it.
pub(crate) type Check = (&'static str, fn() -> Result<()>);

/// All checks, the quick ones first.
pub(crate) const CHECKS: [Check; 6] = [
    ("lints inherited by every crate", inheritance),
    ("order of rooms", order::check),
    ("format", format),
    ("clippy", clippy),
    ("clippy of the shared library", clippy_library),
    ("clippy of the eBPF program", clippy_program),
];

/// The verb: runs all checks, and fails at the end if any did.
pub(crate) fn run(options: &Options) -> Result<()> {
    setup::ensure()?;
    let mut failed = Vec::new();
    let imports: Option<Check> = options.imports.then_some(("grouping of imports", imports));
    for (name, check) in CHECKS.into_iter().chain(imports) {
        println!("lint: {name}");
        if let Err(error) = check() {
            println!("lint: {name} failed: {error:#}");
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// A lint table nobody inherits is decoration.
fn inheritance() -> Result<()> {
    let manifest = root().join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    let members = text
        .lines()
        .find_map(|line| line.strip_prefix("members = [")?.strip_suffix(']'))
        .context("Cargo.toml lists no members on one line")?;
    let mut without = Vec::new();
    for member in members.split(',').map(|m| m.trim().trim_matches('"')) {
        let manifest = fs::read_to_string(root().join(member).join("Cargo.toml"))
            .with_context(|| format!("reading the manifest of {member}"))?;
        if !manifest.contains("[lints]\nworkspace = true") {
            without.push(member);
        }
    }
    if !without.is_empty() {
        bail!("no `[lints] workspace = true` in: {}", without.join(", "));
    }
    Ok(())
}

fn format() -> Result<()> {
    exec(cargo().args(["fmt", "--all", "--check"]))
}

fn imports() -> Result<()> {
    let nightly =
        capture(Command::new("rustup").args(["run", "nightly", "cargo-fmt", "--version"]));
    nightly.context("there is no nightly rustfmt")?;
    let mut fmt = Command::new("rustup");
    fmt.args(["run", "nightly", "cargo-fmt", "--all", "--check", "--"]);
    fmt.args(["--config-path", "rustfmt.nightly.toml"]);
    exec(fmt.current_dir(root()))
}

fn clippy() -> Result<()> {
    let mut clippy = cargo();
    clippy.args([
        "clippy",
        "--workspace",
        "--exclude",
        "mvp-ebpf",
        "--all-targets",
    ]);
    exec(clippy.args(["--keep-going", "--", "-D", "warnings"]))
}

/// Apart from the others, because its targets need features that exclude each other.
fn clippy_library() -> Result<()> {
    let mut clippy = cargo();
    clippy.args([
        "clippy",
        "--package",
        "mvp-ebpf",
        "--lib",
        "--features",
        "user",
    ]);
    exec(clippy.args(["--", "-D", "warnings"]))
}

/// On its own target, with the tool chain that builds it; without its clippy the compiler's own
/// lints have to do (Debian ships clippy in a package of its own).
fn clippy_program() -> Result<()> {
    let rustup = |program: &str| {
        let mut command = Command::new("rustup");
        command.args(["run", setup::TOOLCHAIN, program]);
        command
    };
    let has_clippy = capture(rustup("cargo-clippy").arg("--version")).is_ok();
    let mut cargo = rustup("cargo");
    cargo.arg(if has_clippy { "clippy" } else { "check" });
    cargo.args(["--package", "mvp-ebpf", "--bins", "--no-default-features"]);
    cargo.args([
        "--features",
        "program",
        "--release",
        "--target",
        "bpfel-unknown-none",
    ]);
    cargo.args(["-Z", "build-std=core", "--target-dir", "target/ebpf-lint"]);
    cargo.env("RUSTC_BOOTSTRAP", "1").current_dir(root());
    // Set for the cargo that runs xtask; they would lead back to its own compiler.
    for name in ["RUSTC", "RUSTC_WORKSPACE_WRAPPER", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(name);
    }
    let mut flags = format!("--cfg\x1fbpf_target_arch=\"{}\"", std::env::consts::ARCH);
    if has_clippy {
        cargo.args(["--", "-D", "warnings"]);
    } else {
        println!(
            "lint: {} has no clippy; checking with rustc alone",
            setup::TOOLCHAIN
        );
        flags.push_str("\x1f-Dwarnings");
    }
    exec(cargo.env("CARGO_ENCODED_RUSTFLAGS", flags))
}
