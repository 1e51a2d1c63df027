//! `cargo xtask build`: the `mvp` binary with its eBPF half. Not here: the container image.

use std::process::Command;

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
    let mut cargo = command();
    if options.release {
        optimise(&mut cargo)?;
    }
    if options.musl {
        let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
        cargo.args(["--target", &target]);
    }
    exec(&mut cargo)
}

/// `mvp` as it is shipped. Alone: beside other packages its dependencies would have their features as well, and with them other
/// names of functions, for which the profile has nothing.
pub(crate) fn shipped() -> Result<()> {
    let mut cargo = command();
    optimise(&mut cargo)?;
    exec(&mut cargo)
}

fn optimise(cargo: &mut Command) -> Result<()> {
    cargo.arg("--release");
    profile::guide(cargo)
}

fn command() -> Command {
    let mut cargo = cargo();
    cargo.args(["build", "--locked", "--package", "mvp-user", "--bin", "mvp"]);
    cargo
}
