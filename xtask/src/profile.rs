//! Profile-guided optimisation: how release builds use the profile in the checkout. What it brings is in
//! `docs/performance.md`. Not for taking one (`train`).

use std::{
    ffi::OsString,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::sh::{capture, root};

/// The profile, of counts that `llvm-profdata merge --sparse` keeps.
pub(crate) const PROFILE: &str = "mvp-user/mvp.profdata";
/// The LLVM of the compiler that it was taken with: newer ones read it, older ones end with an error.
pub(crate) const LLVM: u32 = 22;

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

/// Adds to the flags that cargo takes from the environment.
pub(crate) fn flags(build: &mut Command, more: &[OsString]) -> Result<()> {
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
pub(crate) fn llvm() -> Result<u32> {
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
