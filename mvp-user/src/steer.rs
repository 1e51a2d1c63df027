//! Loads, feeds and detaches the steering program (`mvp-ebpf`), and reads its counters.
//!
//! [`Steering`] owns the program's only link: dropping it, or the end of the process in any way,
//! detaches the program, and new connections reach kube-apiserver as if mvp did not exist. Not
//! here: when to steer, and which listener is kube-apiserver's (the caller knows both).
//!
//! * [`listen`]: mvp's own listeners; [`privileges`]: what the process gives up.
//! * [`judge`]: whether a listener is kube-apiserver's.
//! * [`listeners`]: who listens on the steered port, and the keys that follow from it.
//! * [`existing`]: closing direct connections that are older than steering.
//! * [`sockdiag`]: the kernel's socket tables, which both of these read.

pub mod existing;
pub mod judge;
pub mod listen;
pub mod listeners;
pub mod privileges;
pub mod sockdiag;

mod error;
mod heartbeat;
mod program;
#[cfg(test)]
mod tests;
mod tries;

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsRawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, MapData, PerCpuArray, SockMap},
    programs::{ProgramInfo, links::Link as _, sk_lookup::SkLookupLink},
};
use mvp_ebpf::{
    HAS_TUPLES, LISTENER_V4, LISTENER_V6, MODE_FULL, MODE_OFF, MODE_ON, Outcome, PASS, PROGRAM,
    Port, STEER, Settings, SteerKey, maps,
};

pub use self::{error::SteerError, heartbeat::Heartbeat};
use self::{
    error::{absent_is_fine, in_map, in_program},
    program::{Set, open, program_mut, take},
    tries::Tries,
};
use crate::config::Cidr;

/// The object that `build.rs` built; empty under `AYA_BUILD_SKIP=1`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/mvp-ebpf"));

/// How old the oldest heartbeat may be before the program stops steering.
pub const HEARTBEAT_MAX_AGE: Duration = Duration::from_secs(2);
/// How often each thread beats: ten beats may be lost before steering stops.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);

/// Whether tracing wants the program's log; `MVP_LOG=info,mvp_ebpf=debug` turns it on.
pub fn log_is_wanted() -> bool {
    tracing::enabled!(target: "mvp_ebpf", tracing::Level::DEBUG)
}

/// What is fixed when the program is loaded, and the first values of what is not.
#[derive(Clone, Debug)]
pub struct SteerOptions {
    /// IPv4 source address of mvp's own connections to local.
    pub exempt_source: Ipv4Addr,
    /// See [`HEARTBEAT_MAX_AGE`]; tests shorten it.
    pub heartbeat_max_age: Duration,
    /// Share of source addresses that is steered, in per cent.
    pub percent: u8,
    /// Sources that are never steered.
    pub exempt: Vec<Cidr>,
    /// When not empty, only these sources are steered.
    pub canary: Vec<Cidr>,
    /// Whether the program logs each decision (aya-log); costs time in the hot path.
    pub log: bool,
}

impl Default for SteerOptions {
    fn default() -> Self {
        Self {
            exempt_source: crate::config::DEFAULT_EXEMPT_SOURCE,
            heartbeat_max_age: HEARTBEAT_MAX_AGE,
            percent: 100,
            exempt: Vec::new(),
            canary: Vec::new(),
            log: false,
        }
    }
}

/// What the program does with new connections to its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// Leaves them alone.
    Off,
    /// Steers them, while heartbeats are fresh.
    On,
    /// Leaves them alone because mvp has no room; counted apart from [`Switch::Off`].
    Full,
}

/// What a key says about its address and port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// kube-apiserver listens there: steer.
    Steer,
    /// Another program listens there: leave alone.
    Pass,
}

impl Verdict {
    const fn value(self) -> u16 {
        match self {
            Self::Steer => STEER,
            Self::Pass => PASS,
        }
    }
}

/// The loaded and attached program. Shared by reference; all methods are short system calls.
pub struct Steering {
    inner: Mutex<Inner>,
    counters: PerCpuArray<MapData, u64>,
    heartbeats: Arc<heartbeat::Slots>,
}

struct Inner {
    // Holds the program; its maps were taken out and live in the fields below.
    ebpf: Ebpf,
    /// Of the program that was loaded.
    name: &'static str,
    link: Option<SkLookupLink>,
    settings: Settings,
    settings_map: Array<MapData, Settings>,
    ports: Array<MapData, Port>,
    keys: HashMap<MapData, SteerKey, u16>,
    // What the two maps above hold, as it was said.
    verdicts: BTreeMap<SocketAddr, Verdict>,
    listeners: SockMap<MapData>,
    tuples: HashMap<MapData, SteerKey, u32>,
    exempt: Tries,
    canary: Tries,
}

impl Steering {
    /// Loads the program and attaches it to the network namespace of the calling thread. Nothing
    /// is steered until keys, listeners and a heartbeat are there and the switch is [`Switch::On`].
    pub fn attach(options: &SteerOptions) -> Result<Self, SteerError> {
        if OBJECT.is_empty() {
            return Err(SteerError::NoObject);
        }
        error::check_kernel()?;
        error::check_capabilities()?;
        privileges::unlock_memory();
        let level = u8::from(options.log) * 0xff;
        let mut ebpf = EbpfLoader::new()
            .override_global("AYA_LOG_LEVEL", &level, false)
            .load(OBJECT)
            .map_err(|error| SteerError::Load(Box::new(error)))?;

        let settings = Settings {
            heartbeat_max_age: nanoseconds(options.heartbeat_max_age),
            exempt_source: u32::from_ne_bytes(options.exempt_source.octets()),
            mode: MODE_OFF,
            percent: u32::from(options.percent.min(100)),
            slots: 0,
            used: 0,
            pad: 0,
        };
        let mut inner = Inner {
            link: None,
            name: PROGRAM,
            settings,
            settings_map: open(&mut ebpf, maps::SETTINGS)?,
            ports: open(&mut ebpf, maps::PORTS)?,
            keys: open(&mut ebpf, maps::KEYS)?,
            verdicts: BTreeMap::new(),
            listeners: open(&mut ebpf, maps::LISTENERS)?,
            tuples: open(&mut ebpf, maps::EXEMPT_TUPLES)?,
            exempt: Tries::open(&mut ebpf, maps::EXEMPT_V4, maps::EXEMPT_V6)?,
            canary: Tries::open(&mut ebpf, maps::CANARY_V4, maps::CANARY_V6)?,
            ebpf,
        };
        let counters = open(&mut inner.ebpf, maps::COUNTERS)?;
        let heartbeats = heartbeat::Slots::new(take(&mut inner.ebpf, maps::HEARTBEATS)?);
        inner.set_cidrs(Set::Exempt, &options.exempt)?;
        inner.set_cidrs(Set::Canary, &options.canary)?;
        inner.write_settings()?;
        inner.load_one(options.log)?;
        inner.attach()?;
        Ok(Self {
            inner: Mutex::new(inner),
            counters,
            heartbeats,
        })
    }

    /// Has the kernel make the program's maps and verify the program, and takes both away again: nothing is attached.
    pub fn try_out() -> Result<(), SteerError> {
        if OBJECT.is_empty() {
            return Err(SteerError::NoObject);
        }
        error::check_kernel()?;
        error::check_capabilities()?;
        privileges::unlock_memory();
        let mut ebpf = EbpfLoader::new()
            .load(OBJECT)
            .map_err(|error| SteerError::Load(Box::new(error)))?;
        program_mut(&mut ebpf, PROGRAM)?
            .load()
            .map_err(in_program("load"))
    }

    /// Puts mvp's listening socket of one family into the map, in place of an earlier one.
    pub fn set_listener(&self, family: Family, socket: &impl AsRawFd) -> Result<(), SteerError> {
        self.lock()
            .listeners
            .set(family.index(), socket, 0)
            .map_err(in_map(maps::LISTENERS))
    }

    /// Takes a listener out of the map; new connections of its family are left alone. (Closing
    /// the socket does the same.)
    pub fn clear_listener(&self, family: Family) -> Result<(), SteerError> {
        let removed = self.lock().listeners.clear_index(&family.index());
        absent_is_fine(removed).map_err(in_map(maps::LISTENERS))
    }

    /// Says what is to be done with connections to an address and port (unspecified: any address
    /// of that family without a key of its own).
    pub fn set_key(&self, local: SocketAddr, verdict: Verdict) -> Result<(), SteerError> {
        let local = canonical(local);
        let mut inner = self.lock();
        if !local.ip().is_unspecified() {
            inner
                .keys
                .insert(key(local), verdict.value(), 0)
                .map_err(in_map(maps::KEYS))?;
        }
        inner.verdicts.insert(local, verdict);
        inner.write_port(local.port())
    }

    /// Removes a key; removing one that is not there is no error.
    pub fn remove_key(&self, local: SocketAddr) -> Result<(), SteerError> {
        let local = canonical(local);
        let mut inner = self.lock();
        inner.verdicts.remove(&local);
        inner.write_port(local.port())?;
        absent_is_fine(inner.keys.remove(&key(local))).map_err(in_map(maps::KEYS))
    }

    /// Turns steering on or off.
    pub fn set_switch(&self, switch: Switch) -> Result<(), SteerError> {
        let mut inner = self.lock();
        inner.settings.mode = match switch {
            Switch::Off => MODE_OFF,
            Switch::On => MODE_ON,
            Switch::Full => MODE_FULL,
        };
        inner.write_settings()
    }

    /// Sets the share of source addresses that is steered; more than 100 counts as 100.
    pub fn set_percent(&self, percent: u8) -> Result<(), SteerError> {
        let mut inner = self.lock();
        inner.settings.percent = u32::from(percent.min(100));
        inner.write_settings()
    }

    /// Replaces the sources that are never steered.
    pub fn set_exempt(&self, cidrs: &[Cidr]) -> Result<(), SteerError> {
        let mut inner = self.lock();
        inner.set_cidrs(Set::Exempt, cidrs)?;
        inner.write_settings()
    }

    /// Replaces the sources that alone are steered; none: all are.
    pub fn set_canary(&self, cidrs: &[Cidr]) -> Result<(), SteerError> {
        let mut inner = self.lock();
        inner.set_cidrs(Set::Canary, cidrs)?;
        inner.write_settings()
    }

    /// Exempts one connection of mvp's own by its exact IPv6 source; to be called between bind
    /// and connect. The oldest of 4096 such entries gives way to new ones.
    pub fn exempt_tuple(&self, source: SocketAddr) -> Result<(), SteerError> {
        let mut inner = self.lock();
        inner
            .tuples
            .insert(key(source), 1, 0)
            .map_err(in_map(maps::EXEMPT_TUPLES))?;
        if inner.settings.used & HAS_TUPLES == 0 {
            inner.settings.used |= HAS_TUPLES;
            inner.write_settings()?;
        }
        drop(inner);
        Ok(())
    }

    /// Takes back [`Self::exempt_tuple`], so that a later user of the same port is not exempt.
    pub fn forget_tuple(&self, source: SocketAddr) -> Result<(), SteerError> {
        let removed = self.lock().tuples.remove(&key(source));
        absent_is_fine(removed).map_err(in_map(maps::EXEMPT_TUPLES))
    }

    /// Takes a heartbeat slot for the calling thread and beats once. While it lives, steering
    /// stops when it has not beaten for [`HEARTBEAT_MAX_AGE`].
    pub fn heartbeat(&self) -> Result<Heartbeat, SteerError> {
        let beat = self.heartbeats.take()?;
        let mut inner = self.lock();
        inner.settings.slots = inner.settings.slots.max(beat.slot() + 1);
        inner.write_settings()?;
        drop(inner);
        Ok(beat)
    }

    /// Look-ups per outcome since the program was loaded, over all CPUs.
    pub fn counters(&self) -> Result<Counters, SteerError> {
        let mut counts = [0_u64; Outcome::ALL.len()];
        for outcome in Outcome::ALL {
            let values = self
                .counters
                .get(&(outcome as u32), 0)
                .map_err(in_map(maps::COUNTERS))?;
            counts[outcome as usize] = values.iter().fold(0, |sum, v| sum.wrapping_add(*v));
        }
        Ok(Counters(counts))
    }

    /// Detaches the program: no new connection is steered. What is steered already, or waits in
    /// the accept queue, stays. Further calls do nothing.
    pub fn detach(&self) -> Result<(), SteerError> {
        let link = self.lock().link.take();
        match link {
            None => Ok(()),
            Some(link) => link.detach().map_err(in_program("detach")),
        }
    }

    /// The kernel's identifier of the program, as `bpftool prog` shows it.
    pub fn program_id(&self) -> Result<u32, SteerError> {
        Ok(self.info()?.id())
    }

    /// Run time and number of runs of the program; both stand still unless the kernel's run-time
    /// statistics are on (`sysctl kernel.bpf_stats_enabled=1`).
    pub fn run_time(&self) -> Result<(Duration, u64), SteerError> {
        let info = self.info()?;
        Ok((info.run_time(), info.run_count()))
    }

    fn info(&self) -> Result<ProgramInfo, SteerError> {
        self.lock().program()?.info().map_err(in_program("info"))
    }

    /// The reader of the program's log, once. It writes to the `log` crate, from where
    /// tracing-subscriber takes it.
    pub fn take_log(&self) -> Option<aya_log::EbpfLogger<&'static dyn log::Log>> {
        aya_log::EbpfLogger::init(&mut self.lock().ebpf).ok()
    }

    /// Carries the program's log to tracing (target `mvp_ebpf`), for ever. There is nothing to
    /// carry unless [`SteerOptions::log`] asked for it. The buffer holds some hundred lines; what
    /// does not fit is lost.
    #[expect(clippy::infinite_loop, reason = "the task ends with the process")]
    pub async fn follow_log(&self) {
        let Some(mut log) = self.take_log() else {
            return;
        };
        // Looked at instead of waited for: registering the buffer with tokio is unsafe.
        loop {
            log.flush();
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves whole map writes behind, never half ones.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering")
            .field("settings", &self.lock().settings)
            .finish_non_exhaustive()
    }
}

/// Which of mvp's two listeners.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Takes IPv4 connections (also those that clients make as `::ffff:a.b.c.d`).
    V4,
    /// Takes IPv6 connections.
    V6,
}

impl Family {
    const fn index(self) -> u32 {
        match self {
            Self::V4 => LISTENER_V4,
            Self::V6 => LISTENER_V6,
        }
    }
}

/// Look-ups per outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counters([u64; Outcome::ALL.len()]);

impl Counters {
    /// How many ended this way.
    pub const fn get(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize]
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Outcome::ALL.into_iter().map(|o| (o.name(), self.get(o)))
    }
}

/// A key for a socket address.
fn key(address: SocketAddr) -> SteerKey {
    let address = canonical(address);
    SteerKey::new(address.ip(), address.port())
}

/// IPv4-mapped addresses are IPv4 to the kernel's look-up.
const fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
