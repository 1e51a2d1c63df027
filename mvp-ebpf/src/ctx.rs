//! Safe words over what the kernel hands to the program: the look-up context, map values, the
//! clock. Every `unsafe` of the program is in this file. Not here: any decision.
#![expect(
    unsafe_code,
    reason = "the kernel's context and map values are raw pointers, the licence has a fixed section"
)]

use aya_ebpf::{
    helpers::bpf_ktime_get_ns,
    maps::{Array, HashMap, LruHashMap, PerCpuArray},
    programs::SkLookupContext,
};
use mvp_ebpf::{Outcome, Port, SteerKey};

/// The new connection as the kernel describes it
/// (`struct bpf_sk_lookup`, <https://docs.kernel.org/bpf/prog_sk_lookup.html>).
pub(crate) struct Connection {
    /// Where it wants to go.
    pub(crate) local: SteerKey,
    /// Where it comes from.
    pub(crate) remote: SteerKey,
}

/// What the kernel, and with it every helper that is for GPL-compatible programs only, asks for.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

const IPPROTO_TCP: u32 = 6;

impl Connection {
    /// Reads the context; `None` when it is not TCP.
    ///
    /// `local_port` is in host order, `remote_port` and the addresses are in network order.
    /// `ingress_ifindex` is not read: kernels before 5.17 reject a program that does.
    #[inline(always)]
    pub(crate) fn read(ctx: &SkLookupContext) -> Option<Self> {
        let lookup = ctx.lookup;
        /// Reads one field. Volatile, because the verifier wants every field read by itself, at
        /// its own offset from the context; the compiler would merge and hoist plain reads.
        macro_rules! field {
            ($($name:tt)+) => {
                // SAFETY: the kernel passes a valid context for as long as the program runs.
                unsafe { (&raw const (*lookup).$($name)+).read_volatile() }
            };
        }
        if field!(protocol) != IPPROTO_TCP {
            return None;
        }
        // The kernel reads the addresses of the other family as zero, so "or" joins the two
        // without a branch.
        let local = [
            field!(local_ip4) | field!(local_ip6[0]),
            field!(local_ip6[1]),
            field!(local_ip6[2]),
            field!(local_ip6[3]),
        ];
        let remote = [
            field!(remote_ip4) | field!(remote_ip6[0]),
            field!(remote_ip6[1]),
            field!(remote_ip6[2]),
            field!(remote_ip6[3]),
        ];
        #[expect(
            clippy::cast_possible_truncation,
            reason = "families and ports have 16 bits"
        )]
        let (family, port) = (field!(family) as u16, field!(local_port) as u16);
        Some(Self {
            local: SteerKey {
                family,
                port,
                addr: local,
            },
            remote: SteerKey {
                family,
                port: u16::from_be(field!(remote_port)),
                addr: remote,
            },
        })
    }
}

/// What listens at a port in both families.
#[inline(always)]
pub(crate) fn at_port(ports: &Array<Port>, number: u16) -> (u16, u16) {
    match ports.get_ptr(u32::from(number)) {
        // SAFETY: array values are aligned and live as long as the map. Volatile, so that the
        // compiler selects between two values and not between two pointers: without CAP_PERFMON
        // the verifier lets nobody calculate with pointers.
        Some(port) => unsafe {
            (
                (&raw const (*port).v4).read_volatile(),
                (&raw const (*port).v6).read_volatile(),
            )
        },
        None => (0, 0),
    }
}

/// The verdict of a key.
#[inline(always)]
pub(crate) fn verdict(keys: &HashMap<SteerKey, u16>, key: &SteerKey) -> Option<u16> {
    // SAFETY: values are single words, which user space replaces but never rewrites in part.
    unsafe { keys.get(key) }.copied()
}

/// Whether user space announced this remote end.
#[inline(always)]
pub(crate) fn announced(tuples: &LruHashMap<SteerKey, u32>, remote: &SteerKey) -> bool {
    // SAFETY: only the presence of the value is looked at.
    unsafe { tuples.get(remote) }.is_some()
}

/// Adds one to the counter of an outcome.
#[inline(always)]
pub(crate) fn count(counters: &PerCpuArray<u64>, outcome: Outcome) {
    if let Some(counter) = counters.get_ptr_mut(outcome as u32) {
        // SAFETY: the value is this CPU's own, and the program is not preempted by itself: one
        // CPU runs one socket look-up at a time (softirq context).
        unsafe { *counter = (*counter).wrapping_add(1) };
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock that user space writes into its heartbeat slots.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_ktime_get_ns() }
}
