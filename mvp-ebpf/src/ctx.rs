//! Safe words over what the kernel hands to the program: the look-up context, map values, the
//! clock. Every `unsafe` of the program is in this file. Not here: any decision.
//!
//! Keys of maps are made of whole 64-bit words, of which the map reads as much as its keys have. The program's stack
//! holds keys, and slots of the stack are used again: verifiers up to 6.8 refuse, without `CAP_PERFMON`, a store into a
//! part of a slot in which they follow a value ("attempt to corrupt spilled pointer on stack"). aya's own look-ups store
//! 32-bit indexes. A test of `mvp-user` asks the object for narrower stores on the stack.
#![expect(
    unsafe_code,
    reason = "the kernel's context and map values are raw pointers, the licence has a fixed section"
)]

use core::{
    ffi::c_void,
    ptr::{self, NonNull},
};

use aya_ebpf::{
    EbpfContext as _,
    helpers::{bpf_ktime_get_ns, bpf_map_lookup_elem, bpf_sk_assign, bpf_sk_release},
    maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, SockMap},
    programs::SkLookupContext,
};
use mvp_ebpf::{Outcome, Port, SteerKey, pair};

/// The new connection as the kernel describes it
/// (`struct bpf_sk_lookup`, <https://docs.kernel.org/bpf/prog_sk_lookup.html>).
///
/// `local_port` is in host order, `remote_port` and the addresses are in network order. `ingress_ifindex` is not read:
/// kernels before 5.17 reject a program that does.
#[derive(Clone, Copy)]
pub(crate) struct Connection<'a>(&'a SkLookupContext);

/// Reads one field. Volatile, because the verifier wants every field read by itself, at its own offset from the context;
/// the compiler would merge and hoist plain reads. Each is several instructions in the kernel, so what most connections
/// do not need is read where it is needed.
macro_rules! field {
    ($connection:expr, $($name:tt)+) => {
        // SAFETY: the kernel passes a valid context for as long as the program runs.
        unsafe { (&raw const (*$connection.0.lookup).$($name)+).read_volatile() }
    };
}

/// What the kernel, and with it every helper that is for GPL-compatible programs only, asks for.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

const IPPROTO_TCP: u32 = 6;

impl<'a> Connection<'a> {
    /// The connection of the context; `None` when it is not TCP.
    #[inline(always)]
    pub(crate) fn of(ctx: &'a SkLookupContext) -> Option<Self> {
        let connection = Self(ctx);
        (field!(connection, protocol) == IPPROTO_TCP).then_some(connection)
    }

    /// [`mvp_ebpf::AF_INET`] or [`mvp_ebpf::AF_INET6`], of both ends.
    #[inline(always)]
    pub(crate) fn family(self) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "families have 16 bits")]
        let family = field!(self, family) as u16;
        family
    }

    /// The port it wants to go to, in host byte order.
    #[inline(always)]
    pub(crate) fn local_port(self) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "ports have 16 bits")]
        let port = field!(self, local_port) as u16;
        port
    }

    /// The port it comes from, in host byte order.
    #[inline(always)]
    pub(crate) fn remote_port(self) -> u16 {
        u16::from_be(field!(self, remote_port))
    }

    /// The address it wants to go to, as [`mvp_ebpf::words`] gives it.
    #[inline(always)]
    pub(crate) fn local_addr(self) -> [u32; 4] {
        // The kernel reads the addresses of the other family as zero, so "or" joins the two
        // without a branch.
        [
            field!(self, local_ip4) | field!(self, local_ip6[0]),
            field!(self, local_ip6[1]),
            field!(self, local_ip6[2]),
            field!(self, local_ip6[3]),
        ]
    }

    /// The address it comes from, in the same form.
    #[inline(always)]
    pub(crate) fn remote_addr(self) -> [u32; 4] {
        [
            self.remote_v4() | field!(self, remote_ip6[0]),
            field!(self, remote_ip6[1]),
            field!(self, remote_ip6[2]),
            field!(self, remote_ip6[3]),
        ]
    }

    /// The same if it is IPv4, else 0.
    #[inline(always)]
    pub(crate) fn remote_v4(self) -> u32 {
        field!(self, remote_ip4)
    }

    /// Whether one end is `::1` and the other is not: the kernel makes nobody's so who has not bound to an address.
    #[inline(always)]
    pub(crate) fn crosses_v6_loopback(self) -> bool {
        is_v6_loopback(self.remote_addr()) != is_v6_loopback(self.local_addr())
    }
}

/// Word by word: a comparison of arrays may become a call.
#[inline(always)]
const fn is_v6_loopback([first, second, third, fourth]: [u32; 4]) -> bool {
    (first | second | third) == 0 && fourth == 1_u32.to_be()
}

/// The value of a key of `WORDS` words, of which a map may read less than the last.
///
/// # Safety
/// `M` is one of aya's maps, which are transparent over what the kernel takes for the map, and its keys are no longer.
#[inline(always)]
unsafe fn look_up<M, V, const WORDS: usize>(map: &M, key: [u64; WORDS]) -> Option<NonNull<V>> {
    let map: *mut c_void = ptr::from_ref(map).cast_mut().cast();
    // SAFETY: a map and a key of at least its length, by the caller's promise.
    NonNull::new(unsafe { bpf_map_lookup_elem(map, key.as_ptr().cast()) }.cast())
}

/// A value of an array.
#[inline(always)]
pub(crate) fn at<T>(array: &Array<T>, index: u32) -> Option<&T> {
    // SAFETY: keys of arrays have 32 bits; values are aligned and live as long as the map, and user space replaces words
    // of them at a time.
    unsafe { look_up(array, [pair(index, 0)]).map(|value| value.as_ref()) }
}

/// What listens at a port in both families.
#[inline(always)]
pub(crate) fn at_port(ports: &Array<Port>, number: u16) -> (u16, u16) {
    // SAFETY: as in `at`.
    match unsafe { look_up::<_, Port, 1>(ports, [pair(u32::from(number), 0)]) } {
        // SAFETY: array values are aligned and live as long as the map. Volatile, so that the
        // compiler selects between two values and not between two pointers: without CAP_PERFMON
        // the verifier lets nobody calculate with pointers.
        Some(port) => unsafe {
            (
                (&raw const (*port.as_ptr()).v4).read_volatile(),
                (&raw const (*port.as_ptr()).v6).read_volatile(),
            )
        },
        None => (0, 0),
    }
}

/// Whether a prefix of the trie covers an IPv4 address.
#[inline(always)]
pub(crate) fn covers_v4(trie: &LpmTrie<u32, u32>, addr: u32) -> bool {
    // SAFETY: keys are a prefix length and the address, 8 bytes.
    unsafe { look_up::<_, u32, 1>(trie, [pair(32, addr)]) }.is_some()
}

/// Whether a prefix of the trie covers an IPv6 address.
#[inline(always)]
pub(crate) fn covers_v6(trie: &LpmTrie<[u32; 4], u32>, addr: &[u32; 4]) -> bool {
    let [first, second, third, fourth] = *addr;
    let key = [pair(128, first), pair(second, third), pair(fourth, 0)];
    // SAFETY: keys are a prefix length and the address, 20 bytes.
    unsafe { look_up::<_, u32, 3>(trie, key) }.is_some()
}

/// Why [`assign`] did not.
pub(crate) enum Refused {
    /// The map has no socket there.
    Empty,
    /// The kernel's error, negative.
    Error(i64),
}

/// Gives the connection to a listener of the map.
#[inline(always)]
pub(crate) fn assign(
    ctx: &SkLookupContext,
    listeners: &SockMap,
    index: u32,
) -> Result<(), Refused> {
    // SAFETY: keys of a SockMap have 32 bits.
    let socket = unsafe { look_up::<_, c_void, 1>(listeners, [pair(index, 0)]) };
    let socket = socket.ok_or(Refused::Empty)?.as_ptr();
    // SAFETY: the kernel's own context, and a socket that the look-up has referenced for us.
    let result = unsafe { bpf_sk_assign(ctx.as_ptr().cast(), socket.cast(), 0) };
    // SAFETY: the one release of that reference, which cannot fail.
    unsafe { bpf_sk_release(socket.cast()) };
    if result == 0 {
        Ok(())
    } else {
        Err(Refused::Error(result))
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
    // SAFETY: as in `at`.
    let counter = unsafe { look_up::<_, u64, 1>(counters, [pair(outcome as u32, 0)]) };
    if let Some(counter) = counter {
        // SAFETY: the value is this CPU's own, and the program is not preempted by itself: one
        // CPU runs one socket look-up at a time (softirq context).
        unsafe { *counter.as_ptr() = (*counter.as_ptr()).wrapping_add(1) };
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock that user space writes into its heartbeat slots.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_ktime_get_ns() }
}
