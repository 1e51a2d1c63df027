//! `cargo xtask vm-test`: the kernel tests and those of splicing on a stock Debian kernel, in qemu.
//!
//! Debian's cloud kernel 6.1 (by `apt-get download`, into `target/vm`), an initramfs that is written
//! here, and the test binaries with the libraries they name. Without hardware virtualisation qemu
//! emulates the processor, so only what happens is tested, never how fast. What is missing is
//! installed where apt can, else named as an error: nothing is skipped. The last line is counted
//! from what ran in the guest; a guest that dies before its `RC=` line has failed.

mod cpio;
mod guest;
mod modules;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use crate::{
    setup,
    sh::{capture, cargo, has, target},
    totals::Totals,
};

/// Options of `cargo xtask vm-test`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only some of the tests of each kind; for every commit.
    #[arg(long)]
    short: bool,
    /// A kernel package to use instead of Debian's 6.1 cloud kernel.
    #[arg(long, value_name = "FILE.deb")]
    kernel: Option<PathBuf>,
    /// Seconds that the guest may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    within: u64,
    /// Passed to each test binary in place of the form's own filters, for example a name.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Debian's name for the newest kernel of its release that has the drivers of virtual machines only.
const KERNEL: &str = "linux-image-cloud-amd64";
/// The series that boots reliably in emulation; later ones die at times under qemu 7.2.
const SERIES: &str = "linux-image-6.1.";

/// What the tests ask of the kernel that Debian does not build in: `sock_diag` with its TCP half, and a cable to another
/// host. Then TLS, and the ciphers that it finds by name when a key is set, which no module says that it needs; `insmod` does
/// not look for them as `modprobe` would.
const MODULES: &[&str] = &[
    "inet_diag",
    "tcp_diag",
    "veth",
    "ctr",
    "gcm",
    "ghash_generic",
    "seqiv",
    "chacha_generic",
    "poly1305_generic",
    "chacha20poly1305",
    "tls",
];

/// The short form: one file of steering tests, what an attachment needs, and tunnels.
const SHORT: [&[&str]; 2] = [
    &["choice::", "two_capabilities", "--skip", "life::"],
    &[
        "splice::",
        "tunnel::",
        "--skip",
        "what_arrives_is_what_was_sent_by_either_way",
        "--skip",
        "small_segments",
    ],
];
/// Not those of the real `mvp` under load, for which an emulated machine is too slow.
const LONG: [&[&str]; 2] = [&["--skip", "life::"], &["splice::", "tunnel::", "steer::"]];

/// The verb.
pub(crate) fn run(options: &Options) -> Result<()> {
    let totals = play(options)?;
    println!("{} passed, {} failed", totals.passed, totals.failed);
    ensure!(totals.failed == 0, "not everything passed");
    Ok(())
}

/// The short form, as a part of all tests.
pub(crate) fn short() -> Result<Totals> {
    play(&Options {
        short: true,
        kernel: None,
        within: 300,
        arguments: Vec::new(),
    })
}

fn play(options: &Options) -> Result<Totals> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "vm-test knows x86_64 only: its kernel package and qemu's options are that machine's"
    );
    setup::ensure()?;
    for (program, package) in [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("dpkg-deb", "dpkg"),
        ("ldd", "libc-bin"),
    ] {
        if !has(program) {
            setup::apt(&[package]).with_context(|| format!("{program} is missing"))?;
        }
    }
    let directory = target().join("vm");
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    let kernel = match &options.kernel {
        Some(package) => unpack(package, &directory)?,
        None => match debian_kernel().and_then(|name| fetch(&name, &directory)) {
            Ok(files) => files,
            // Offline, one of an earlier run will do.
            Err(error) => {
                let package = only(&directory, SERIES).map_err(|_none| {
                    error.context("no kernel to test on: a Debian mirror has to be reachable, or --kernel FILE.deb given")
                })?;
                unpack(&package, &directory)?
            }
        },
    };
    let busybox = fetch("busybox-static", &directory)?.join("bin/busybox");
    let vmlinuz = only(&kernel.join("boot"), "vmlinuz-")?;
    println!("vm-test: {}", vmlinuz.display());

    let filters = if options.short { SHORT } else { LONG };
    let tests = build()?;
    let mut image = guest::Image::new(&busybox)?;
    for module in modules::in_order(&kernel, MODULES)? {
        image.module(&module)?;
    }
    image.program(&which("ip")?, "/sbin/ip")?;
    for (number, (test, filter)) in tests.iter().zip(filters).enumerate() {
        let inside = format!("/tests/{number}");
        image.program(&stripped(test, &directory)?, &inside)?;
        if options.arguments.is_empty() {
            image.run(&inside, filter);
        } else {
            let own: Vec<&str> = options.arguments.iter().map(String::as_str).collect();
            image.run(&inside, &own);
        }
    }
    let initrd = directory.join("initramfs.cpio");
    image.write(&initrd)?;
    let limit = Duration::from_secs(options.within);
    let totals = guest::boot(&vmlinuz, &initrd, limit)?;
    ensure!(
        totals.binaries == tests.len() && totals.passed > 0,
        "{} of {} test binaries came to their end",
        totals.binaries,
        tests.len()
    );
    Ok(Totals {
        passed: totals.passed,
        failed: totals.failed,
    })
}

/// The package that [`KERNEL`] stands for now; the archive drops older ones.
fn debian_kernel() -> Result<String> {
    let ask = || capture(Command::new("apt-cache").args(["depends", KERNEL]));
    let name = |text: &str| {
        text.lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with("linux-image-"))
            .map(String::from)
    };
    let mut found = ask().ok().as_deref().and_then(name);
    if found.is_none() {
        setup::apt_update()?;
        found = name(&ask()?);
    }
    let found = found.with_context(|| format!("apt-cache names no kernel behind {KERNEL}"))?;
    ensure!(
        found.starts_with(SERIES),
        "this Debian has {found}, and vm-test needs a kernel 6.1 (Debian 12): download one and name it with --kernel"
    );
    Ok(found)
}

/// Downloads a package, unless it is there, and unpacks it.
fn fetch(name: &str, directory: &Path) -> Result<PathBuf> {
    let here = || only(directory, &format!("{name}_"));
    if here().is_err() {
        println!("vm-test: downloading Debian package {name}");
        let download = || {
            let mut apt = Command::new("apt-get");
            apt.args(["download", "-q", name]).current_dir(directory);
            capture(&mut apt)
        };
        if download().is_err() {
            setup::apt_update()?;
            download()?;
        }
    }
    unpack(&here()?, directory)
}

/// Unpacks a package, unless it has been; where its files are.
fn unpack(package: &Path, directory: &Path) -> Result<PathBuf> {
    let stem = package
        .file_stem()
        .with_context(|| format!("{} is no package", package.display()))?;
    let files = directory.join("unpacked").join(stem);
    if !files.is_dir() {
        // Under its name only when it is complete.
        let partial = files.with_extension("partial");
        fs::create_dir_all(&partial)?;
        capture(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(package)
                .arg(&partial),
        )?;
        fs::rename(&partial, &files)?;
    }
    Ok(files)
}

/// The file of a directory whose name begins so, the last by name if there are several.
fn only(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(directory)
        .with_context(|| format!("reading {}", directory.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(prefix))
        })
        .collect();
    found.sort();
    found
        .pop()
        .with_context(|| format!("{} has no {prefix}…", directory.display()))
}

/// Builds the test binaries: kernel tests, then unit tests.
fn build() -> Result<[PathBuf; 2]> {
    println!("vm-test: building the tests");
    let mut command = cargo();
    command.args([
        "test",
        "--workspace",
        "--no-run",
        "--test",
        "kernel",
        "--lib",
    ]);
    command.arg("--message-format=json-render-diagnostics");
    command.stderr(std::process::Stdio::inherit());
    let output = command.output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let find = |kind: &str, name: &str| {
        messages
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .find_map(|message| {
                let target = message.get("target")?;
                let kinds = target.get("kind")?.as_array()?;
                let wanted = target.get("name")? == name && kinds.iter().any(|it| it == kind);
                let path = message.get("executable")?.as_str()?;
                wanted.then(|| PathBuf::from(path))
            })
            .with_context(|| format!("cargo built no {kind} {name}"))
    };
    Ok([find("test", "kernel")?, find("lib", "mvp_user")?])
}

/// A copy without what only a debugger reads: the image is held in the guest's memory.
fn stripped(binary: &Path, directory: &Path) -> Result<PathBuf> {
    let name = binary.file_name().context("a test without a name")?;
    let copy = directory.join(name).with_extension("stripped");
    if has("strip") {
        capture(Command::new("strip").arg("-o").arg(&copy).arg(binary))?;
        Ok(copy)
    } else {
        Ok(binary.to_path_buf())
    }
}

fn which(program: &str) -> Result<PathBuf> {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(program))
        .find(|path| path.is_file())
        .with_context(|| format!("`{program}` is missing"))
}
