//! What the steering program and user space share: map names, keys, values and counter indexes.
//!
//! Not here: the program itself (`main.rs`, built for the eBPF target only) and everything that
//! reads or writes the maps (`mvp-user/src/steer.rs`). Every type is `repr(C)`, made of unsigned
//! integers and arrays of them, without holes, so that both sides agree on each byte; the sizes
//! are asserted below. Addresses are kept as they lie on the wire: a word of `[u32; 4]` is four
//! bytes in network order, read as a native integer.
#![no_std]
#![expect(
    clippy::inline_always,
    reason = "both halves of a look-up run in the kernel, where a call costs what they do"
)]

use core::net::IpAddr;

/// Name of the program in the object file, and of its section's function.
pub const PROGRAM: &str = "steer";

/// Name of the program that does the same and writes a log.
pub const LOGGING_PROGRAM: &str = "steer_logging";

/// Names of the maps in the object file; one constant per map, asserted against the object by a
/// test of `mvp-user`.
pub mod maps {
    /// One [`Port`](super::Port) per port number: the keys of the unspecified addresses.
    pub const PORTS: &str = "PORTS";
    /// `SteerKey` of a specific address -> [`STEER`](super::STEER) or [`PASS`](super::PASS).
    pub const KEYS: &str = "KEYS";
    /// One [`Settings`](super::Settings) at index 0.
    pub const SETTINGS: &str = "SETTINGS";
    /// mvp's listeners: [`LISTENER_V4`](super::LISTENER_V4), [`LISTENER_V6`](super::LISTENER_V6).
    pub const LISTENERS: &str = "LISTENERS";
    /// Nanoseconds of `CLOCK_MONOTONIC` per slot; 0 is an unused slot.
    pub const HEARTBEATS: &str = "HEARTBEATS";
    /// `SteerKey` of the remote end (address and port) of mvp's own connections to `::1`.
    pub const EXEMPT_TUPLES: &str = "EXEMPT_TUPLES";
    /// IPv4 sources that are never steered.
    pub const EXEMPT_V4: &str = "EXEMPT_V4";
    /// IPv6 sources that are never steered.
    pub const EXEMPT_V6: &str = "EXEMPT_V6";
    /// IPv4 sources that alone are steered, when any are set.
    pub const CANARY_V4: &str = "CANARY_V4";
    /// IPv6 sources that alone are steered, when any are set.
    pub const CANARY_V6: &str = "CANARY_V6";
    /// Connections per [`Outcome`](super::Outcome), per CPU.
    pub const COUNTERS: &str = "COUNTERS";

    /// All of the above.
    pub const ALL: [&str; 11] = [
        PORTS,
        KEYS,
        SETTINGS,
        LISTENERS,
        HEARTBEATS,
        EXEMPT_TUPLES,
        EXEMPT_V4,
        EXEMPT_V6,
        CANARY_V4,
        CANARY_V6,
        COUNTERS,
    ];
}

/// `AF_INET` of the Linux ABI.
pub const AF_INET: u16 = 2;
/// `AF_INET6` of the Linux ABI.
pub const AF_INET6: u16 = 10;

/// Verdict of a key: connections to it go to mvp's listener.
pub const STEER: u16 = 1;
/// Verdict of a key: another program listens there, so connections to it are left alone.
pub const PASS: u16 = 2;

/// Index of the IPv4 listener in [`maps::LISTENERS`].
pub const LISTENER_V4: u32 = 0;
/// Index of the IPv6 listener in [`maps::LISTENERS`].
pub const LISTENER_V6: u32 = 1;

/// Heartbeat slots: one for each thread that holds connections and one for the self-request.
pub const MAX_SLOTS: u32 = 64;

/// Exact-tuple exemptions kept at once; the least recently used goes first.
pub const MAX_EXEMPT_TUPLES: u32 = 4096;

/// Keys of specific addresses kept at once.
pub const MAX_KEYS: u32 = 1024;

/// Prefixes kept in each of the four CIDR tries.
pub const MAX_CIDRS: u32 = 4096;

/// An address family, an address and a port: a steered local end, or an exempt remote one.
///
/// Whole 64-bit words, because the program writes its keys on its stack: verifiers of 6.1 to 6.8 refuse, without
/// `CAP_PERFMON`, a store into a part of a stack slot that holds a number they still follow ("attempt to corrupt spilled
/// pointer"), and which part of a smaller field is written first is the compiler's choice.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SteerKey {
    /// [`AF_INET`] or [`AF_INET6`] above 16 bits of port in host byte order.
    place: u64,
    /// Address bytes in network order, as [`words`] gives them, two to a number; all zero is "unspecified".
    addr: [u64; 2],
}

const _: () = assert!(size_of::<SteerKey>() == 24);

impl SteerKey {
    /// The key of an address and port.
    pub fn new(address: IpAddr, port: u16) -> Self {
        let (family, addr) = words(address);
        Self::of(family, port, addr)
    }

    /// The key of an address in the form of [`words`].
    #[inline(always)]
    pub const fn of(family: u16, port: u16, addr: [u32; 4]) -> Self {
        let [first, second, third, fourth] = addr;
        Self {
            place: (family as u64) << 16 | port as u64,
            addr: [pair(first, second), pair(third, fourth)],
        }
    }
}

/// Two words as they lie behind each other in memory.
#[inline(always)]
pub const fn pair(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") {
        first as u64 | (second as u64) << 32
    } else {
        (first as u64) << 32 | second as u64
    }
}

/// What listens at a port. An array by port number instead of unspecified keys in the hash map:
/// the verifier turns its look-up into two instructions, and most connections of a node end there.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Port {
    /// In IPv4: the verdict for addresses without a key of their own ([`STEER`], [`PASS`], or 0 for
    /// none), and [`SPECIFIC`].
    pub v4: u16,
    /// The same in IPv6.
    pub v6: u16,
}

/// Bit of [`Port`]: [`maps::KEYS`] has specific addresses of this family and port.
pub const SPECIFIC: u16 = 1 << 8;

const _: () = assert!(size_of::<Port>() == 4);

/// Entries of [`maps::PORTS`]: every port number.
pub const MAX_PORTS: u32 = 1 << 16;

/// The family of an address, and its bytes as the maps hold them.
pub fn words(address: IpAddr) -> (u16, [u32; 4]) {
    match address {
        IpAddr::V4(v4) => (AF_INET, [u32::from_ne_bytes(v4.octets()), 0, 0, 0]),
        IpAddr::V6(v6) => {
            let mut addr = [0; 4];
            let octets = v6.octets();
            let (chunks, _) = octets.as_chunks::<4>();
            for (word, chunk) in addr.iter_mut().zip(chunks) {
                *word = u32::from_ne_bytes(*chunk);
            }
            (AF_INET6, addr)
        }
    }
}

/// [`Settings::mode`]: nothing is steered.
pub const MODE_OFF: u32 = 0;
/// [`Settings::mode`]: new connections are steered.
pub const MODE_ON: u32 = 1;
/// [`Settings::mode`]: mvp has no room, nothing is steered (design: reason "full").
pub const MODE_FULL: u32 = 2;

/// [`Settings::used`]: the exempt tries hold something.
pub const HAS_EXEMPT: u32 = 1;
/// [`Settings::used`]: the canary tries hold something, so only those sources are steered.
pub const HAS_CANARY: u32 = 2;
/// [`Settings::used`]: an exact tuple was exempted since the start.
pub const HAS_TUPLES: u32 = 4;

/// What user space tells the program; read once per new connection to a steered key.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The oldest used heartbeat must be younger than this, in nanoseconds.
    pub heartbeat_max_age: u64,
    /// IPv4 source of mvp's own connections, bytes in network order.
    pub exempt_source: u32,
    /// [`MODE_OFF`], [`MODE_ON`] or [`MODE_FULL`].
    pub mode: u32,
    /// Share of source addresses that are steered, 0 to 100.
    pub percent: u32,
    /// Heartbeat slots to look at: the highest one ever used, plus one.
    pub slots: u32,
    /// [`HAS_EXEMPT`] | [`HAS_CANARY`] | [`HAS_TUPLES`]: saves look-ups in empty maps.
    pub used: u32,
    /// Keeps the size free of holes.
    pub pad: u32,
}

const _: () = assert!(size_of::<Settings>() == 32);

/// What became of a look-up; the index into [`maps::COUNTERS`]. All but the first are `SK_PASS`
/// without a selection: the connection reaches whatever it would have reached without mvp.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Goes to mvp's listener.
    Steered = 0,
    /// Not TCP, or no key for this address and port.
    NoKey = 1,
    /// Another program listens on this address.
    PassKey = 2,
    /// Steering is off.
    Off = 3,
    /// mvp has no room for more connections.
    Full = 4,
    /// From mvp's own source address; in IPv6 from `::1` to another address.
    ExemptSource = 5,
    /// From an exact address and port that mvp announced.
    ExemptTuple = 6,
    /// From a network that the operator exempted.
    ExemptCidr = 7,
    /// The oldest heartbeat is too old, or there is none.
    Stale = 8,
    /// Not in the canary's networks or share.
    NotChosen = 9,
    /// mvp has no listener of this family (closed, or never made).
    NoSocket = 10,
    /// The listener in the map is of another family (`EAFNOSUPPORT`).
    WrongFamily = 11,
    /// A program attached earlier had already chosen a socket (`EEXIST`); its choice stands.
    AlreadySelected = 12,
    /// The kernel refused the listener for another reason.
    AssignError = 13,
}

impl Outcome {
    /// How many there are.
    pub const COUNT: u32 = 14;

    /// Every outcome, in the order of its index.
    pub const ALL: [Self; Self::COUNT as usize] = [
        Self::Steered,
        Self::NoKey,
        Self::PassKey,
        Self::Off,
        Self::Full,
        Self::ExemptSource,
        Self::ExemptTuple,
        Self::ExemptCidr,
        Self::Stale,
        Self::NotChosen,
        Self::NoSocket,
        Self::WrongFamily,
        Self::AlreadySelected,
        Self::AssignError,
    ];

    /// The word that metrics and logs use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steered => "steered",
            Self::NoKey => "no_key",
            Self::PassKey => "pass_key",
            Self::Off => "off",
            Self::Full => "full",
            Self::ExemptSource => "exempt_source",
            Self::ExemptTuple => "exempt_tuple",
            Self::ExemptCidr => "exempt_cidr",
            Self::Stale => "stale",
            Self::NotChosen => "not_chosen",
            Self::NoSocket => "no_socket",
            Self::WrongFamily => "wrong_family",
            Self::AlreadySelected => "already_selected",
            Self::AssignError => "assign_error",
        }
    }
}

/// Where a source address falls among 100 equal shares; the program steers those below
/// [`Settings::percent`]. A fixed hash: an address is always in the same share, on every node.
#[inline(always)]
pub const fn share(addr: &[u32; 4]) -> u32 {
    // The finaliser of MurmurHash3 after folding the words with odd multipliers: neighbouring
    // addresses, which differ in one byte, land far apart.
    let mut hash = addr[0]
        ^ addr[1].wrapping_mul(0x9e37_79b1)
        ^ addr[2].wrapping_mul(0x85eb_ca77)
        ^ addr[3].wrapping_mul(0xc2b2_ae3d);
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^= hash >> 16;
    hash % 100
}

#[cfg(feature = "user")]
#[expect(
    unsafe_code,
    reason = "aya asks for a marker that a type is plain data"
)]
mod pod {
    /// Marks shared types as plain data for aya.
    macro_rules! plain {
        ($($name:ty),+) => {
            $(
                // SAFETY: `repr(C)`, `Copy`, made of unsigned integers and arrays of them, no
                // padding (sizes asserted above): every byte is initialised, every pattern valid.
                unsafe impl aya::Pod for $name {}
            )+
        };
    }
    plain!(super::SteerKey, super::Port, super::Settings);
}
