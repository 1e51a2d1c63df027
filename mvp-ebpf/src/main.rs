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
    maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, SockMap, lpm_trie::Key},
    programs::SkLookupContext,
};
use aya_log_ebpf::debug;
use mvp_ebpf::{
    AF_INET, AF_INET6, HAS_CANARY, HAS_EXEMPT, HAS_TUPLES, LISTENER_V4, LISTENER_V6, MAX_CIDRS,
    MAX_EXEMPT_TUPLES, MAX_KEYS, MAX_PORTS, MAX_SLOTS, MODE_FULL, MODE_ON, Outcome, Port, SPECIFIC,
    STEER, Settings, SteerKey, share,
};

use crate::ctx::Connection;

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
    let outcome = match Connection::read(&ctx) {
        Some(connection) => {
            let outcome = decide(&ctx, &connection);
            debug!(
                &ctx,
                "port {} from port {}: outcome {}",
                connection.local.port,
                connection.remote.port,
                outcome as u32
            );
            outcome
        }
        None => Outcome::NoKey,
    };
    ctx::count(&COUNTERS, outcome);
    SK_PASS
}

/// The walk, cheapest and most frequent way out first.
#[inline(always)]
fn decide(ctx: &SkLookupContext, connection: &Connection) -> Outcome {
    let Connection { local, remote } = connection;
    let (v4, v6) = ctx::at_port(&PORTS, local.port);
    let at = if local.family == AF_INET { v4 } else { v6 };
    // The specific address first: another program's listener on one address (a virtual IP) hides
    // the wildcard of kube-apiserver there, as it does in the kernel's own look-up.
    let specific = if at & SPECIFIC == 0 {
        None
    } else {
        ctx::verdict(&KEYS, local)
    };
    match specific.unwrap_or(at & !SPECIFIC) {
        STEER => {}
        0 => return Outcome::NoKey,
        _ => return Outcome::PassKey,
    }
    let Some(settings) = SETTINGS.get(0) else {
        return Outcome::Off;
    };
    match settings.mode {
        MODE_ON => {}
        MODE_FULL => return Outcome::Full,
        _ => return Outcome::Off,
    }
    // mvp's own connections to kube-apiserver, or they would come back to mvp for ever.
    if remote.family == AF_INET && remote.addr[0] == settings.exempt_source {
        return Outcome::ExemptSource;
    }
    if settings.used & HAS_TUPLES != 0
        && remote.family == AF_INET6
        && ctx::announced(&EXEMPT_TUPLES, remote)
    {
        return Outcome::ExemptTuple;
    }
    if settings.used & HAS_EXEMPT != 0 && within(&EXEMPT_V4, &EXEMPT_V6, remote) {
        return Outcome::ExemptCidr;
    }
    // The dead man's switch: a stopped, wedged or starved mvp stops getting connections.
    if !fresh(settings) {
        return Outcome::Stale;
    }
    if settings.used & HAS_CANARY != 0 && !within(&CANARY_V4, &CANARY_V6, remote) {
        return Outcome::NotChosen;
    }
    if settings.percent < 100 && share(&remote.addr) >= settings.percent {
        return Outcome::NotChosen;
    }
    assign(ctx, local.family)
}

/// Whether the oldest used heartbeat slot is young enough. No slot in use: nobody is there.
#[inline(always)]
fn fresh(settings: &Settings) -> bool {
    let now = ctx::now();
    let mut used = false;
    // A constant bound for the verifier (bounded loops: kernel 5.3), `slots` to end it early.
    for slot in 0..MAX_SLOTS {
        if slot >= settings.slots {
            break;
        }
        match HEARTBEATS.get(slot) {
            None | Some(0) => {}
            Some(beat) if now.saturating_sub(*beat) > settings.heartbeat_max_age => return false,
            Some(_) => used = true,
        }
    }
    used
}

/// Whether the remote address lies in a prefix of the trie of its family.
#[inline(always)]
fn within(v4: &LpmTrie<u32, u32>, v6: &LpmTrie<[u32; 4], u32>, remote: &SteerKey) -> bool {
    if remote.family == AF_INET {
        v4.get(Key::new(32, remote.addr[0])).is_some()
    } else {
        v6.get(Key::new(128, remote.addr)).is_some()
    }
}

/// Hands the connection to mvp's listener of its family. A program attached earlier that already
/// chose a socket keeps it: replacing it could take traffic that was never kube-apiserver's.
#[inline(always)]
fn assign(ctx: &SkLookupContext, family: u16) -> Outcome {
    const ENOENT: i32 = -2;
    const EEXIST: i32 = -17;
    const EAFNOSUPPORT: i32 = -97;
    let index = if family == AF_INET {
        LISTENER_V4
    } else {
        LISTENER_V6
    };
    match LISTENERS.redirect_sk_lookup(ctx, index, 0) {
        Ok(()) => Outcome::Steered,
        Err(ENOENT) => Outcome::NoSocket,
        Err(EEXIST) => Outcome::AlreadySelected,
        Err(EAFNOSUPPORT) => Outcome::WrongFamily,
        Err(_) => Outcome::AssignError,
    }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
