//! `cargo xtask setup`: finds or installs what the eBPF half needs, and says what it does.
//!
//! 1. A tool chain with the sources of `core`, linked for rustup as `mvp-bpf`, the name that
//!    `mvp-user/build.rs` asks for: the pinned one, a nightly, or Debian's, whichever is there;
//!    else the first of them that can be installed. A stable compiler serves, because build.rs
//!    sets `RUSTC_BOOTSTRAP`.
//! 2. `bpf-linker`, whose LLVM must be able to read that compiler's bitcode.
//! 3. iproute2, for the network namespaces of tests and demo.
//!
//! Every other verb runs it first; when all is there it takes a moment and says nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::sh::{capture, exec, has, root};

/// Options of `cargo xtask setup`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Look and report, install nothing.
    #[arg(long)]
    check: bool,
}

/// The name under which the tool chain is linked; `mvp-user/build.rs` has the same.
pub(crate) const TOOLCHAIN: &str = "mvp-bpf";

/// The oldest compiler that takes the workspace's `rust-version`.
const OLDEST: (u32, u32) = (1, 95);

/// LLVM versions that bpf-linker 0.13 can be built with, as its features name them.
const LINKER_LLVMS: [u32; 3] = [21, 22, 23];

/// The verb: everything found is named.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.check {
        let toolchain = linked().context("no usable tool chain for eBPF is linked")?;
        if !links(&toolchain) {
            bail!("bpf-linker is missing, or cannot read the bitcode of {toolchain}");
        }
        if !has("ip") {
            bail!("`ip` (package iproute2) is missing");
        }
    } else {
        ensure()?;
    }
    let toolchain = linked().context("the tool chain vanished again")?;
    println!("setup: eBPF tool chain {toolchain}");
    println!(
        "setup: {}",
        capture(Command::new("bpf-linker").arg("--version"))?.trim()
    );
    Ok(())
}

/// What every other verb calls: installs what is missing, silent when nothing is.
pub(crate) fn ensure() -> Result<()> {
    let toolchain = match linked() {
        Some(toolchain) => toolchain,
        None => link()?,
    };
    if !links(&toolchain) {
        install_linker(&toolchain)?;
    }
    if !has("ip") {
        apt(&["iproute2"]).context("`ip` is missing: network namespaces need iproute2")?;
    }
    Ok(())
}

/// A compiler and where it lives.
#[derive(Debug)]
struct Toolchain {
    sysroot: PathBuf,
    release: (u32, u32),
    llvm: u32,
}

impl std::fmt::Display for Toolchain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.release;
        let path = self.sysroot.display();
        write!(f, "{path} (rustc {major}.{minor}, LLVM {})", self.llvm)
    }
}

impl Toolchain {
    /// The tool chain of a `rustc`; `None` when there is none or it is too old.
    fn of(rustc: &[&str]) -> Option<Self> {
        let ask = |question: &[&str]| {
            let (program, arguments) = rustc.split_first()?;
            capture(Command::new(program).args(arguments).args(question)).ok()
        };
        let version = ask(&["-vV"])?;
        let field = |name: &str| version.lines().find_map(|line| line.strip_prefix(name));
        let mut release = field("release: ")?.split('.');
        let release = (release.next()?.parse().ok()?, release.next()?.parse().ok()?);
        let llvm = field("LLVM version: ")?.split('.').next()?.parse().ok()?;
        let sysroot = ask(&["--print", "sysroot"])?.trim().into();
        (release >= OLDEST).then_some(Self {
            sysroot,
            release,
            llvm,
        })
    }

    fn of_rustup(name: &str) -> Option<Self> {
        Self::of(&["rustup", "run", name, "rustc"])
    }

    fn has_sources(&self) -> bool {
        self.sysroot
            .join("lib/rustlib/src/rust/library/core")
            .is_dir()
    }
}

/// The tool chain that build.rs would use, when it is complete.
fn linked() -> Option<Toolchain> {
    let toolchain = if has("rustup") {
        Toolchain::of_rustup(TOOLCHAIN)
    } else {
        Toolchain::of(&["rustc"])
    };
    toolchain.filter(Toolchain::has_sources)
}

/// Finds, or else installs, a tool chain with sources, and links it.
fn link() -> Result<Toolchain> {
    if !has("rustup") {
        eprintln!("setup: rustup is not there; installing the sources of Debian's Rust");
        apt(DEBIAN)?;
        return linked().context(
            "the cargo in PATH has no sources of core for eBPF: install rustup, or a rust-src that fits it",
        );
    }
    let pinned = pinned()?;
    let candidates = [pinned.as_str(), "nightly"];
    let debian = || Toolchain::of(&["/usr/bin/rustc"]);
    let here = candidates
        .iter()
        .filter_map(|name| Toolchain::of_rustup(name))
        .chain(debian())
        .find(Toolchain::has_sources);
    if let Some(toolchain) = here {
        return link_as(toolchain);
    }
    for name in candidates {
        eprintln!("setup: no tool chain has the sources of core; installing rust-src for {name}");
        let mut rustup = Command::new("rustup");
        rustup.args(["toolchain", "install", name, "--profile", "minimal"]);
        rustup.args(["--component", "rust-src", "--no-self-update"]);
        match exec(&mut rustup) {
            Ok(()) => {
                if let Some(toolchain) = Toolchain::of_rustup(name).filter(Toolchain::has_sources) {
                    return link_as(toolchain);
                }
                eprintln!("setup: {name} is too old or still has no sources");
            }
            Err(error) => eprintln!("setup: {error:#}"),
        }
    }
    eprintln!("setup: rustup could not help; installing Debian's tool chain");
    apt(DEBIAN)?;
    let toolchain = debian().filter(Toolchain::has_sources).context(
        "no tool chain with the sources of core (component rust-src) of Rust 1.95 or newer: \
         neither rustup nor Debian's packages gave one",
    )?;
    link_as(toolchain)
}

/// Debian's compiler, cargo and sources, kept current for its browsers.
const DEBIAN: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];

/// The channel of `rust-toolchain.toml`.
fn pinned() -> Result<String> {
    let file = root().join("rust-toolchain.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    text.lines()
        .find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'))
        .map(String::from)
        .with_context(|| format!("{} names no channel", file.display()))
}

fn link_as(toolchain: Toolchain) -> Result<Toolchain> {
    eprintln!("setup: linking {toolchain} as rustup tool chain {TOOLCHAIN}");
    let mut rustup = Command::new("rustup");
    rustup.args(["toolchain", "link", TOOLCHAIN]);
    exec(rustup.arg(&toolchain.sysroot))?;
    Ok(toolchain)
}

/// Whether bpf-linker is there and reads this compiler's bitcode (its LLVM is not older).
fn links(toolchain: &Toolchain) -> bool {
    try_link(toolchain).unwrap_or(false)
}

fn try_link(toolchain: &Toolchain) -> Result<bool> {
    if !has("bpf-linker") {
        return Ok(false);
    }
    let scratch = tempfile::tempdir().context("making a temporary directory")?;
    let file = |name: &str| scratch.path().join(name);
    fs::write(
        file("probe.rs"),
        "#![no_std]\npub fn probe() -> u32 { 1 }\n",
    )?;
    let mut rustc = Command::new(toolchain.sysroot.join("bin/rustc"));
    rustc.args(["--edition=2024", "--crate-type=lib", "--emit=llvm-bc", "-o"]);
    capture(rustc.arg(file("probe.bc")).arg(file("probe.rs")))?;
    let mut linker = Command::new("bpf-linker");
    linker.args(["--target=bpfel", "--emit=llvm-bc", "-o"]);
    linker.arg(file("linked.bc")).arg(file("probe.bc"));
    Ok(capture(&mut linker).is_ok())
}

/// Builds bpf-linker against the oldest LLVM that can read the compiler's bitcode.
fn install_linker(toolchain: &Toolchain) -> Result<()> {
    eprintln!(
        "setup: bpf-linker is missing or too old for LLVM {}",
        toolchain.llvm
    );
    let usable = || LINKER_LLVMS.into_iter().filter(|v| *v >= toolchain.llvm);
    let mut found = usable().find_map(|version| Some((version, llvm_prefix(version)?)));
    if found.is_none() {
        for version in usable() {
            let packages = [
                format!("llvm-{version}-dev"),
                format!("libpolly-{version}-dev"),
            ];
            if apt(&[packages[0].as_str(), packages[1].as_str()]).is_ok() {
                found = llvm_prefix(version).map(|prefix| (version, prefix));
                break;
            }
        }
    }
    let Some((version, prefix)) = found else {
        let wanted: Vec<String> = usable().map(|v| format!("llvm-{v}-dev")).collect();
        bail!(
            "bpf-linker needs the LLVM libraries that go with {toolchain}: install {} (and libpolly-…-dev), \
             or put a bpf-linker with LLVM {} or newer into PATH",
            wanted.join(" or "),
            toolchain.llvm
        );
    };
    eprintln!(
        "setup: building bpf-linker with LLVM {version} from {}",
        prefix.display()
    );
    let mut cargo = Command::new("cargo");
    cargo.args([
        "install",
        "bpf-linker",
        "--version",
        "^0.13",
        "--force",
        "--locked",
    ]);
    cargo.args([
        "--no-default-features",
        "--features",
        &format!("llvm-{version}"),
    ]);
    // Outside of the checkout: its pinned tool chain and configuration are not bpf-linker's.
    cargo.current_dir(std::env::temp_dir());
    exec(cargo.env("LLVM_PREFIX", prefix))?;
    if !links(toolchain) {
        bail!(
            "the bpf-linker in PATH still cannot read the bitcode of {toolchain}; is ~/.cargo/bin in PATH?"
        );
    }
    Ok(())
}

/// Where Debian, or whoever, installed this LLVM with its headers.
fn llvm_prefix(version: u32) -> Option<PathBuf> {
    let names = [
        format!("llvm-config-{version}"),
        format!("/usr/lib/llvm-{version}/bin/llvm-config"),
    ];
    let prefix = names
        .iter()
        .find_map(|name| capture(Command::new(name).arg("--prefix")).ok())?;
    let prefix = Path::new(prefix.trim()).to_path_buf();
    prefix.join("include/llvm-c").is_dir().then_some(prefix)
}

/// Installs Debian packages, with sudo unless already root; says so.
pub(crate) fn apt(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    if !has("apt-get") {
        bail!("missing: {list} (there is no apt-get to install them with)");
    }
    eprintln!("setup: installing Debian packages {list}");
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(packages);
    if capture(&mut apt_get(&install)).is_ok() {
        return Ok(());
    }
    // The package lists may be missing or old.
    apt_update().with_context(|| format!("missing: {list}"))?;
    capture(&mut apt_get(&install)).with_context(|| format!("missing: {list}"))?;
    Ok(())
}

/// Has apt read its package lists again.
pub(crate) fn apt_update() -> Result<()> {
    capture(&mut apt_get(&["update"])).map(drop)
}

fn apt_get(arguments: &[&str]) -> Command {
    let mut command = if nix::unistd::geteuid().is_root() {
        Command::new("apt-get")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "apt-get"]);
        sudo
    };
    command
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive");
    command
}
