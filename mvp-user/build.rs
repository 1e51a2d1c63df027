//! Builds the eBPF program, so that `steer.rs` can embed it. Not here: finding or installing the
//! tool chain; `cargo xtask setup` does that and links it as `mvp-bpf`.
//!
//! With `AYA_BUILD_SKIP=1` an empty object is embedded instead and the tool chain is not needed:
//! enough for `cargo check`, and for a binary that can serve directly but not steer.
use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use aya_build::{Package, Toolchain};

/// The rustup tool chain that `cargo xtask setup` links (`xtask/src/setup.rs` uses the same name).
const TOOLCHAIN: &str = "mvp-bpf";

/// Lets a stable compiler build `core` for the eBPF target, as Debian's has to.
const BOOTSTRAP: &str = "RUSTC_BOOTSTRAP";

fn main() -> Result<()> {
    println!("cargo:rerun-if-env-changed=AYA_BUILD_SKIP");
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR").context("OUT_DIR is not set: run by cargo only")?;
    let object = Path::new(&out).join("mvp-ebpf");
    if env::var("AYA_BUILD_SKIP").is_ok_and(|v| v == "1" || v.eq_ignore_ascii_case("true")) {
        fs::write(&object, []).with_context(|| format!("writing {}", object.display()))?;
        println!("cargo:warning=AYA_BUILD_SKIP is set: this binary cannot steer");
        return Ok(());
    }
    // aya-build's children inherit this process's environment, and changing one's own is unsafe:
    // so this script runs itself once more with the variable set.
    if env::var(BOOTSTRAP).as_deref() != Ok("1") {
        check_tools()?;
        let again = Command::new(env::current_exe()?)
            .env(BOOTSTRAP, "1")
            .stderr(Stdio::inherit())
            .output()
            .context("running the build script again")?;
        let failed = !again.status.success();
        for line in String::from_utf8_lossy(&again.stdout).lines() {
            if failed || !is_progress(line) {
                println!("{line}");
            }
        }
        if failed {
            bail!("the eBPF program did not build; `cargo xtask setup` checks its tools");
        }
        return Ok(());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mvp-ebpf");
    let package = Package {
        name: "mvp-ebpf",
        root_dir: root
            .to_str()
            .context("the path of the checkout is not UTF-8")?,
        no_default_features: true,
        features: &["program"],
    };
    aya_build::build_ebpf([package], Toolchain::Custom(TOOLCHAIN))
}

/// Says what to do when setup has not run, instead of letting cargo fail somewhere in between.
fn check_tools() -> Result<()> {
    let advice =
        "run `cargo xtask setup` first (or set AYA_BUILD_SKIP=1 to build without steering)";
    let linker = Command::new("bpf-linker").arg("--version").output();
    if !linker.is_ok_and(|output| output.status.success()) {
        bail!("bpf-linker is not there: {advice}");
    }
    if Command::new("rustup").arg("--version").output().is_err() {
        return Ok(()); // No rustup: aya-build takes the cargo that is in PATH.
    }
    let sysroot = Command::new("rustup")
        .args(["run", TOOLCHAIN, "rustc", "--print", "sysroot"])
        .output()
        .context("running rustup")?;
    let core = Path::new(String::from_utf8_lossy(&sysroot.stdout).trim())
        .join("lib/rustlib/src/rust/library/core");
    if !sysroot.status.success() || !core.is_dir() {
        bail!("the tool chain `{TOOLCHAIN}` with the sources of core is not there: {advice}");
    }
    Ok(())
}

/// aya-build repeats cargo's progress as warnings, which cargo would then show at every build.
fn is_progress(line: &str) -> bool {
    const WORDS: [&str; 8] = [
        "Compiling",
        "Finished",
        "Downloading",
        "Downloaded",
        "Locking",
        "Updating",
        "Blocking",
        "Adding",
    ];
    line.strip_prefix("cargo:warning=").is_some_and(|text| {
        let text = text.trim_start();
        text.is_empty() || WORDS.iter().any(|word| text.starts_with(word))
    })
}
