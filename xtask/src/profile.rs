//! Profile-guided optimisation: how release builds use the profile in the checkout, and `cargo xtask profile`, which takes
//! a new one. What it brings is in `docs/performance.md`.

use std::{
    ffi::OsString,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    bench, setup,
    sh::{capture, cargo, exec, root},
};

/// The profile, of counts that `llvm-profdata merge --sparse` keeps.
const PROFILE: &str = "mvp-user/mvp.profdata";
/// The LLVM of the compiler that it was taken with: newer ones read it, older ones end with an error.
const LLVM: u32 = 22;

/// Options of `cargo xtask profile`.
#[derive(Args, Debug)]
pub(crate) struct Options {}

/// Has a release build use the profile. Functions that have changed since are built without it.
pub(crate) fn guide(build: &mut Command) -> Result<()> {
    let profile = root().join(PROFILE);
    if llvm()? < LLVM || !profile.is_file() {
        eprintln!("build: without the profile {PROFILE}, which LLVM {LLVM} or newer reads");
        return Ok(());
    }
    // cargo looks at the flags and not into the file, so its name says what is in it.
    let counts = fs::read(&profile).with_context(|| format!("{}", profile.display()))?;
    let mut hasher = DefaultHasher::new();
    counts.hash(&mut hasher);
    let used = root().join(format!("target/{:016x}.profdata", hasher.finish()));
    if !used.is_file() {
        fs::create_dir_all(root().join("target"))?;
        fs::write(&used, counts).with_context(|| format!("{}", used.display()))?;
    }
    let mut uses = OsString::from("-Cprofile-use=");
    uses.push(used);
    // What has changed is expected to differ.
    flags(build, &[uses, "-Cllvm-args=-no-pgo-warn-mismatch".into()])
}

/// The verb: builds an instrumented mvp, has the load tests use it, and writes what it counted into the checkout.
pub(crate) fn run(_: &Options) -> Result<()> {
    setup::ensure()?;
    let llvm = llvm()?;
    if llvm != LLVM {
        bail!("this compiler has LLVM {llvm}; set LLVM in xtask/src/profile.rs with the profile");
    }
    let merger = merger()?;
    let target = root().join("target/profile");
    let raw = target.join("raw");
    let mut build = cargo();
    build
        .args(["build", "--release", "--locked"])
        .args(["--package", "mvp-user", "--bin", "mvp"])
        .env("CARGO_TARGET_DIR", &target);
    let mut counts = OsString::from("-Cprofile-generate=");
    counts.push(&raw);
    flags(&mut build, &[counts])?;
    exec(&mut build)?;
    // Build scripts were instrumented as well, and have left theirs.
    if raw.exists() {
        fs::remove_dir_all(&raw).with_context(|| format!("{}", raw.display()))?;
    }
    bench::train(&target.join("release/mvp"), &target.join("results"))?;
    let counted: Vec<PathBuf> = fs::read_dir(&raw)
        .with_context(|| format!("nothing was counted: {}", raw.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    let mut merge = Command::new(merger);
    merge.args(["merge", "--sparse", "-o"]);
    exec(merge.arg(root().join(PROFILE)).args(counted))?;
    println!("written to {PROFILE}");
    Ok(())
}

/// Adds to the flags that cargo takes from the environment.
fn flags(build: &mut Command, more: &[OsString]) -> Result<()> {
    const BETWEEN: &str = "\x1f";
    let mut all: Vec<String> = match (
        std::env::var("CARGO_ENCODED_RUSTFLAGS"),
        std::env::var("RUSTFLAGS"),
    ) {
        (Ok(encoded), _) if !encoded.is_empty() => {
            encoded.split(BETWEEN).map(str::to_owned).collect()
        }
        (_, Ok(plain)) => plain.split_whitespace().map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    for flag in more {
        let flag = flag.to_str().context("the checkout's path is not UTF-8")?;
        all.push(flag.to_owned());
    }
    build.env("CARGO_ENCODED_RUSTFLAGS", all.join(BETWEEN));
    Ok(())
}

/// The LLVM of the checkout's compiler.
fn llvm() -> Result<u32> {
    let about = capture(Command::new("rustc").arg("-vV").current_dir(root()))?;
    about
        .lines()
        .find_map(|line| {
            line.strip_prefix("LLVM version: ")?
                .split('.')
                .next()?
                .parse()
                .ok()
        })
        .context("rustc -vV names no LLVM")
}

/// `llvm-profdata`: rustup's (component llvm-tools), or Debian's.
fn merger() -> Result<PathBuf> {
    let libraries = capture(
        Command::new("rustc")
            .args(["--print", "target-libdir"])
            .current_dir(root()),
    )?;
    let rustup = Path::new(libraries.trim()).with_file_name("bin/llvm-profdata");
    let debian = PathBuf::from(format!("/usr/lib/llvm-{LLVM}/bin/llvm-profdata"));
    if let Some(found) = [&rustup, &debian].into_iter().find(|path| path.is_file()) {
        return Ok(found.clone());
    }
    setup::apt(&[&format!("llvm-{LLVM}")])?;
    Ok(debian)
}
