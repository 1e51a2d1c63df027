//! What the process gives up, so that who breaks into it gains little. Not here: what steering
//! needs before it is attached (`steer.rs` asks for that and names what is missing).

use std::io;

use aya::util::KernelVersion;
use rustix::{
    process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit},
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};

/// Later work that needs a capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Map updates after attach: `CAP_BPF` before Linux 5.19, nothing since (commit `c8644cd0efe7`,
    /// "bpf: refine `kernel.unprivileged_bpf_disabled` behaviour").
    pub steering: bool,
    /// Closing older direct connections (`SOCK_DESTROY`): `CAP_NET_ADMIN`.
    pub draining: bool,
    /// Reading certificate files of other owners again when they change: `CAP_DAC_READ_SEARCH`.
    pub reading_files: bool,
}

impl Needs {
    /// What is kept of the capabilities `held`; `old`: before Linux 5.19.
    fn kept(self, held: CapabilitySet, old: bool) -> CapabilitySet {
        let mut kept = CapabilitySet::empty();
        if self.steering && old {
            // The second is for who was not given the first, which it contains: it is next to everything.
            kept |= if held.contains(CapabilitySet::BPF) {
                CapabilitySet::BPF
            } else {
                CapabilitySet::SYS_ADMIN
            };
        }
        if self.steering || self.draining {
            // Also lets sock_diag show what it hides from others (marks, cgroups of older kernels).
            kept |= CapabilitySet::NET_ADMIN;
        }
        if self.reading_files {
            kept |= CapabilitySet::DAC_READ_SEARCH;
        }
        kept & held
    }
}

/// Drops every capability of the calling thread that is not needed, for good. Capabilities belong
/// to threads: call it on the main thread after attaching and before any other thread starts
/// (threads inherit), or on each thread.
pub fn drop_capabilities(needs: Needs) -> io::Result<()> {
    let held = capabilities(None)?;
    let old = KernelVersion::current().is_ok_and(|v| v < KernelVersion::new(5, 19, 0));
    let kept = needs.kept(held.permitted, old);
    for capability in CapabilitySet::all().iter() {
        if !kept.contains(capability) {
            // Needs CAP_SETPCAP; without it the sets below are still emptied, which is what counts.
            if let Err(error) = remove_capability_from_bounding_set(capability) {
                tracing::trace!(?capability, %error, "capability stays in the bounding set");
            }
        }
    }
    clear_ambient_capability_set()?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    set_no_new_privs(true)?;
    Ok(())
}

/// Keeps keys and tokens out of core files and out of reach of `ptrace` by the same user.
pub fn forbid_dumps() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none)?;
    Ok(())
}

/// Before Linux 5.11 maps count against `RLIMIT_MEMLOCK`, whose default is too small for them.
pub(super) fn unlock_memory() {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    if setrlimit(Resource::Memlock, unlimited).is_err() {
        tracing::debug!("RLIMIT_MEMLOCK stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_written_with_no_more_than_the_kernel_asks_for() {
        let needs = Needs {
            steering: true,
            ..Needs::default()
        };
        let (bpf, admin) = (CapabilitySet::BPF, CapabilitySet::SYS_ADMIN);
        let net = CapabilitySet::NET_ADMIN;
        for (held, old, wanted) in [
            (CapabilitySet::all(), true, bpf | net),
            (CapabilitySet::all(), false, net),
            (admin | net, true, admin | net),
            (bpf | net, true, bpf | net),
        ] {
            assert_eq!(needs.kept(held, old), wanted, "{held:?} {old}");
        }
    }
}
