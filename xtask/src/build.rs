//! `cargo xtask build`: the `mvp` binary with its eBPF half. Not here: the container image.

use anyhow::Result;
use clap::Args;

use crate::{
    profile, setup,
    sh::{cargo, exec},
};

/// Options of `cargo xtask build`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Optimised, as it is shipped and measured.
    #[arg(long)]
    release: bool,
    /// Static, for the container image (needs musl-gcc, and the rustup target ARCH-unknown-linux-musl of this machine).
    #[arg(long)]
    musl: bool,
}

/// The verb.
pub(crate) fn run(options: &Options) -> Result<()> {
    setup::ensure()?;
    let mut cargo = cargo();
    cargo.args(["build", "--locked", "--package", "mvp-user", "--bin", "mvp"]);
    if options.release {
        cargo.arg("--release");
        profile::guide(&mut cargo)?;
    }
    if options.musl {
        let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
        cargo.args(["--target", &target]);
    }
    exec(&mut cargo)
}
