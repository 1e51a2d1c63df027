//! The steering program: for each new TCP connection in its network namespace it says whether
//! mvp's listener takes it. Not here: who listens where, when to steer, which share; user space
//! writes all of that into the maps (`mvp-user/src/steer.rs`).
//!
//! It fails open. Whatever goes wrong it answers `SK_PASS` without a selection, and the
//! connection reaches kube-apiserver as if mvp did not exist; it never answers `SK_DROP`.
#![no_std]
#![no_main]
#![expect(
    clippy::inline_always,
    reason = "a call costs what these functions do, and older verifiers follow calls badly"
)]

mod ctx;

use aya_ebpf::{
    bindings::{BPF_F_NO_PREALLOC, sk_action::SK_PASS},
    macros::{map, sk_lookup},
    maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, SockMap},
    programs::SkLookupContext,
};
use aya_log_ebpf::debug;
use mvp_ebpf::{
    AF_INET, AF_INET6, HAS_CANARY, HAS_EXEMPT, HAS_TUPLES, LISTENER_V4, LISTENER_V6, MAX_CIDRS,
    MAX_EXEMPT_TUPLES, MAX_KEYS, MAX_PORTS, MAX_SLOTS, MODE_FULL, MODE_ON, Outcome, Port, SPECIFIC,
    STEER, Settings, SteerKey, share,
};

use crate::ctx::{Connection, Refused};

#[map]
static PORTS: Array<Port> = Array::with_max_entries(MAX_PORTS, 0);
#[map]
static KEYS: HashMap<SteerKey, u16> = HashMap::with_max_entries(MAX_KEYS, 0);
#[map]
static SETTINGS: Array<Settings> = Array::with_max_entries(1, 0);
#[map]
static LISTENERS: SockMap = SockMap::with_max_entries(2, 0);
#[map]
static HEARTBEATS: Array<u64> = Array::with_max_entries(MAX_SLOTS, 0);
#[map]
static EXEMPT_TUPLES: LruHashMap<SteerKey, u32> =
    LruHashMap::with_max_entries(MAX_EXEMPT_TUPLES, 0);
#[map]
static EXEMPT_V4: LpmTrie<u32, u32> = LpmTrie::with_max_entries(MAX_CIDRS, BPF_F_NO_PREALLOC);
#[map]
static EXEMPT_V6: LpmTrie<[u32; 4], u32> = LpmTrie::with_max_entries(MAX_CIDRS, BPF_F_NO_PREALLOC);
#[map]
static CANARY_V4: LpmTrie<u32, u32> = LpmTrie::with_max_entries(MAX_CIDRS, BPF_F_NO_PREALLOC);
#[map]
static CANARY_V6: LpmTrie<[u32; 4], u32> = LpmTrie::with_max_entries(MAX_CIDRS, BPF_F_NO_PREALLOC);
#[map]
static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Outcome::COUNT, 0);

/// Runs once per new connection (and per UDP look-up) in the namespace.
#[sk_lookup]
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
fn steer(ctx: SkLookupContext) -> u32 {
    run::<false>(&ctx)
}

/// The same with a log. A program of its own, because verifiers up to 6.8 refuse aya's logging without `CAP_PERFMON`, also
/// where it is switched off: they follow what a mispredicting processor would do.
#[sk_lookup]
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
fn steer_logging(ctx: SkLookupContext) -> u32 {
    run::<true>(&ctx)
}

#[inline(always)]
fn run<const LOG: bool>(ctx: &SkLookupContext) -> u32 {
    let outcome = match Connection::of(ctx) {
        Some(connection) => {
            let outcome = decide(ctx, connection);
            if LOG {
                debug!(
                    ctx,
                    "port {} from port {}: outcome {}",
                    connection.local_port(),
                    connection.remote_port(),
                    outcome as u32
                );
            }
            outcome
        }
        None => Outcome::NoKey,
    };
    ctx::count(&COUNTERS, outcome);
    SK_PASS
}

/// The walk, cheapest and most frequent way out first.
#[inline(always)]
fn decide(ctx: &SkLookupContext, connection: Connection<'_>) -> Outcome {
    let family = connection.family();
    let port = connection.local_port();
    let (v4, v6) = ctx::at_port(&PORTS, port);
    let at = if family == AF_INET { v4 } else { v6 };
    // The specific address first: another program's listener on one address (a virtual IP) hides
    // the wildcard of kube-apiserver there, as it does in the kernel's own look-up.
    let specific = if at & SPECIFIC == 0 {
        None
    } else {
        ctx::verdict(&KEYS, &SteerKey::of(family, port, connection.local_addr()))
    };
    match specific.unwrap_or(at & !SPECIFIC) {
        STEER => {}
        0 => return Outcome::NoKey,
        _ => return Outcome::PassKey,
    }
    let Some(settings) = ctx::at(&SETTINGS, 0) else {
        return Outcome::Off;
    };
    match settings.mode {
        MODE_ON => {}
        MODE_FULL => return Outcome::Full,
        _ => return Outcome::Off,
    }
    // mvp's own connections to kube-apiserver, or they would come back to mvp for ever. Known by their addresses alone, so
    // that those of another mvp, which this one replaces, are known too.
    let own = if family == AF_INET {
        connection.remote_v4() == settings.exempt_source
    } else {
        connection.crosses_v6_loopback()
    };
    if own {
        return Outcome::ExemptSource;
    }
    if settings.used & HAS_TUPLES != 0 && family == AF_INET6 {
        let remote = SteerKey::of(family, connection.remote_port(), connection.remote_addr());
        if ctx::announced(&EXEMPT_TUPLES, &remote) {
            return Outcome::ExemptTuple;
        }
    }
    if settings.used & HAS_EXEMPT != 0 && within(&EXEMPT_V4, &EXEMPT_V6, connection) {
        return Outcome::ExemptCidr;
    }
    // The dead man's switch: a stopped, wedged or starved mvp stops getting connections.
    if !fresh(settings) {
        return Outcome::Stale;
    }
    if settings.used & HAS_CANARY != 0 && !within(&CANARY_V4, &CANARY_V6, connection) {
        return Outcome::NotChosen;
    }
    if settings.percent < 100 && share(&connection.remote_addr()) >= settings.percent {
        return Outcome::NotChosen;
    }
    assign(ctx, family)
}

/// Whether the oldest used heartbeat slot is young enough. No slot in use: nobody is there.
///
/// Without a loop, because verifiers without `CAP_PERFMON` follow what a mispredicting processor would do: for one that
/// misses the end of a loop the counter is unknown, and the loop infinite.
#[inline(always)]
fn fresh(settings: &Settings) -> bool {
    let now = ctx::now();
    let mut used = false;
    macro_rules! slots {
        ($($slot:literal)+) => {
            $(
                if $slot >= settings.slots {
                    return used;
                }
                match ctx::at(&HEARTBEATS, $slot) {
                    None | Some(0) => {}
                    Some(beat) if now.saturating_sub(*beat) > settings.heartbeat_max_age => {
                        return false;
                    }
                    Some(_) => used = true,
                }
            )+
            // One for each, and no other.
            const _: () = assert!([$($slot),+].len() == MAX_SLOTS as usize);
        };
    }
    slots!(
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
    );
    used
}

/// Whether the remote address lies in a prefix of the trie of its family.
#[inline(always)]
fn within(v4: &LpmTrie<u32, u32>, v6: &LpmTrie<[u32; 4], u32>, from: Connection<'_>) -> bool {
    if from.family() == AF_INET {
        ctx::covers_v4(v4, from.remote_v4())
    } else {
        ctx::covers_v6(v6, &from.remote_addr())
    }
}

/// Hands the connection to mvp's listener of its family. A program attached earlier that already
/// chose a socket keeps it: replacing it could take traffic that was never kube-apiserver's.
#[inline(always)]
fn assign(ctx: &SkLookupContext, family: u16) -> Outcome {
    const EEXIST: i64 = -17;
    const EAFNOSUPPORT: i64 = -97;
    let index = if family == AF_INET {
        LISTENER_V4
    } else {
        LISTENER_V6
    };
    match ctx::assign(ctx, &LISTENERS, index) {
        Ok(()) => Outcome::Steered,
        Err(Refused::Empty) => Outcome::NoSocket,
        Err(Refused::Error(EEXIST)) => Outcome::AlreadySelected,
        Err(Refused::Error(EAFNOSUPPORT)) => Outcome::WrongFamily,
        Err(Refused::Error(_)) => Outcome::AssignError,
    }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
