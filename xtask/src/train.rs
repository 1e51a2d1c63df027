//! `cargo xtask profile`: takes a new profile for release builds (`profile`).

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    bench,
    profile::{LLVM, PROFILE, flags, llvm},
    setup,
    sh::{capture, cargo, exec, root},
};

/// Options of `cargo xtask profile`.
#[derive(Args, Debug)]
pub(crate) struct Options {}

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
