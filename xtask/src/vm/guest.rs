//! The guest: what its initramfs holds, its boot, and what it says on the serial line. Not for choosing tests.
#![expect(clippy::disallowed_types, reason = "wall time of a child process")]

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::cpio::Archive;
use crate::{sh::capture, totals::Totals};

/// An initramfs being filled.
#[derive(Debug)]
pub(super) struct Image {
    archive: Archive,
    libraries: Vec<PathBuf>,
    load: String,
    tests: String,
}

/// What the guest reported.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) passed: u64,
    pub(super) failed: u64,
    /// Test binaries that printed their summary.
    pub(super) binaries: usize,
}

impl Image {
    pub(super) fn new(busybox: &Path) -> Result<Self> {
        let mut archive = Archive::default();
        for directory in ["/proc", "/sys", "/dev", "/tmp", "/run"] {
            archive.directory(directory);
        }
        archive.device("/dev/console", 5, 1);
        archive.file("/bin/busybox", &read(busybox)?);
        Ok(Self {
            archive,
            libraries: Vec::new(),
            load: String::new(),
            tests: String::new(),
        })
    }

    /// A kernel module, loaded before the tests.
    pub(super) fn module(&mut self, module: &Path) -> Result<()> {
        let name = module.file_name().context("a module without a name")?;
        let inside = format!("/modules/{}", name.display());
        self.archive.file(&inside, &read(module)?);
        writeln!(self.load, "insmod {inside} || rc=1")?;
        Ok(())
    }

    /// A program with the libraries it names.
    pub(super) fn program(&mut self, program: &Path, inside: &str) -> Result<()> {
        self.archive.file(inside, &read(program)?);
        let libraries = capture(Command::new("ldd").arg(program))?;
        for library in libraries
            .split_whitespace()
            .filter(|it| it.starts_with('/'))
        {
            let library = PathBuf::from(library);
            if !self.libraries.contains(&library) {
                let path = library.to_str().context("a library that is not UTF-8")?;
                self.archive.file(path, &read(&library)?);
                self.libraries.push(library);
            }
        }
        Ok(())
    }

    /// Has the guest run a program that is inside.
    pub(super) fn run(&mut self, inside: &str, arguments: &[&str]) {
        let arguments: Vec<String> = arguments
            .iter()
            .map(|argument| format!(" '{}'", argument.replace('\'', "'\\''")))
            .collect();
        let arguments = arguments.concat();
        let line = format!("{inside}{arguments} </dev/null 2>&1 || rc=1\n");
        self.tests.push_str(&line);
    }

    pub(super) fn write(mut self, to: &Path) -> Result<()> {
        let (load, tests) = (&self.load, &self.tests);
        let init = format!(
            "#!/bin/busybox sh\n\
             /bin/busybox --install -s /bin\n\
             rm /bin/ip\n\
             export PATH=/sbin:/bin HOME=/tmp MVP_KERNEL_TESTS=require MVP_KTLS_TESTS=require RUST_BACKTRACE=1\n\
             mount -t proc proc /proc\n\
             mount -t sysfs sys /sys\n\
             mount -t devtmpfs dev /dev\n\
             mount -t tmpfs tmp /tmp\n\
             mount -t bpf bpf /sys/fs/bpf\n\
             ip link set lo up\n\
             rc=0\n\
             {load}\
             echo {READY}\n\
             uname -r\n\
             {tests}\
             echo {END}$rc\n\
             poweroff -f\n"
        );
        self.archive.file("/init", init.as_bytes());
        fs::write(to, self.archive.finish()).with_context(|| format!("writing {}", to.display()))
    }
}

/// The guest's first word.
const READY: &str = "READY";
/// Before the guest's verdict.
const END: &str = "RC=";

/// Hardware virtualisation that runs stock kernels. A nested kernel without either flag may have a `/dev/kvm` that hangs
/// them, so its presence alone says nothing.
fn accelerated() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |name| flags.split_whitespace().any(|flag| flag == name);
    (has("vmx") || has("svm"))
        && fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_ok()
}

/// Boots, shows the serial line, counts.
pub(super) fn boot(vmlinuz: &Path, initrd: &Path, limit: Duration) -> Result<Report> {
    let mut qemu = Command::new("qemu-system-x86_64");
    let accelerator = if accelerated() {
        ["-accel", "kvm"]
    } else {
        ["-accel", "tcg,thread=multi"]
    };
    qemu.args(accelerator);
    qemu.args(["-m", "1G", "-smp", "2", "-cpu", "max", "-no-reboot"]);
    qemu.args([
        "-nographic",
        "-nodefaults",
        "-serial",
        "stdio",
        "-monitor",
        "none",
    ]);
    qemu.arg("-kernel").arg(vmlinuz).arg("-initrd").arg(initrd);
    qemu.args(["-append", "console=ttyS0 quiet panic=-1"]);
    qemu.stdin(Stdio::null()).stdout(Stdio::piped());
    println!("vm-test: booting ({})", accelerator.join(" "));
    let mut guest = Guest(qemu.spawn().context("cannot start qemu")?);
    let output = guest.0.stdout.take().context("qemu has no output")?;
    let (send, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        // A guest that crashes may write anything.
        while output
            .read_until(b'\n', &mut line)
            .is_ok_and(|read| read > 0)
        {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if send.send(text).is_err() {
                return;
            }
        }
    });
    let (began, mut report, mut verdict) = (Instant::now(), Report::default(), None);
    loop {
        match lines.recv_timeout(limit.saturating_sub(began.elapsed())) {
            Ok(line) => {
                println!("| {line}");
                if let Some(totals) = Totals::parse(&line) {
                    report.passed += totals.passed;
                    report.failed += totals.failed;
                    report.binaries += 1;
                }
                if let Some(code) = line.strip_prefix(END) {
                    verdict = Some(code.to_owned());
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                drop(guest);
                bail!("the guest has not ended within {} s", limit.as_secs());
            }
        }
    }
    drop(guest);
    if reader.join().is_err() {
        bail!("reading the serial line failed");
    }
    println!(
        "vm-test: {:.0} s in the guest",
        began.elapsed().as_secs_f64()
    );
    match verdict.as_deref() {
        Some("0") => Ok(report),
        Some(_) if report.failed > 0 => Ok(report),
        Some(code) => bail!("the guest ends with {END}{code}, and no test has failed: see above"),
        None => bail!("the guest died before its end"),
    }
}

/// qemu, killed at the end whatever happens.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("vm-test: qemu stays behind: {error}");
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}
