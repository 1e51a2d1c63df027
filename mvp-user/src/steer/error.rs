//! Why steering cannot be had, in words that name what is missing: the capability, the kernel
//! feature, the file, the map.

use std::io;

use aya::{maps::MapError, programs::ProgramError, util::KernelVersion};
use rustix::thread::CapabilitySet;

/// Why steering cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// Built with `AYA_BUILD_SKIP=1`.
    #[error(
        "this binary was built without its eBPF half: run `cargo xtask setup` and build again without AYA_BUILD_SKIP"
    )]
    NoObject,
    /// `sk_lookup` programs exist since Linux 5.9.
    #[error("kernel {0} is too old for steering: sk_lookup programs need Linux 5.9 or newer")]
    OldKernel(String),
    /// A capability is not in the effective set of this thread.
    #[error(
        "steering needs the capability {0}, which this process does not have (run as root, or add it to the container)"
    )]
    Capability(&'static str),
    /// A file of the kernel's cannot be opened.
    #[error("cannot open {path}: {source}")]
    File {
        /// Which file.
        path: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The object was refused while its maps were made.
    #[error("the kernel refused the maps of the steering program: {}", chain(.0))]
    Load(#[source] Box<aya::EbpfError>),
    /// The program was refused, by the verifier or for want of `CONFIG_BPF_SYSCALL`.
    #[error("the kernel refused the steering program at {step}: {}", chain(.source))]
    Program {
        /// Loading or attaching.
        step: &'static str,
        /// What the kernel said.
        source: Box<ProgramError>,
    },
    /// A map of the program cannot be read or written.
    #[error("map {map} of the steering program: {}", chain(.source))]
    Map {
        /// Its name.
        map: &'static str,
        /// What the kernel said.
        source: MapError,
    },
    /// All 64 heartbeat slots are taken.
    #[error("more than {} threads want a heartbeat slot", mvp_ebpf::MAX_SLOTS)]
    Slots,
}

/// An error and its causes in one line; aya's own messages name neither.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

pub(super) fn in_map(map: &'static str) -> impl FnOnce(MapError) -> SteerError {
    move |source| SteerError::Map { map, source }
}

pub(super) fn in_program(step: &'static str) -> impl FnOnce(ProgramError) -> SteerError {
    move |source| SteerError::Program {
        step,
        source: Box::new(source),
    }
}

/// Removing what is not there is what the caller wanted.
pub(super) fn absent_is_fine(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound | MapError::ElementNotFound) => Ok(()),
        Err(MapError::SyscallError(error))
            if matches!(
                error.io_error.raw_os_error(),
                Some(libc::ENOENT | libc::EINVAL)
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

pub(super) fn check_kernel() -> Result<(), SteerError> {
    let version =
        KernelVersion::current().map_err(|error| SteerError::OldKernel(error.to_string()))?;
    if version < KernelVersion::new(5, 9, 0) {
        let release = rustix::system::uname().release().to_string_lossy().into();
        return Err(SteerError::OldKernel(release));
    }
    Ok(())
}

/// Asked before the kernel is, whose EPERM says nothing about what is missing.
pub(super) fn check_capabilities() -> Result<(), SteerError> {
    // Not being told is no reason to give up; the kernel decides in the end.
    let Ok(sets) = rustix::thread::capabilities(None) else {
        return Ok(());
    };
    let held = sets.effective;
    if !held.intersects(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN) {
        return Err(SteerError::Capability("CAP_BPF"));
    }
    if !held.contains(CapabilitySet::NET_ADMIN) {
        return Err(SteerError::Capability("CAP_NET_ADMIN"));
    }
    Ok(())
}
