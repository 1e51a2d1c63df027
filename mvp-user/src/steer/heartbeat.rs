//! Heartbeat slots: how each thread that holds connections shows the kernel that it lives.
//! Not here: the loop that beats (each thread's own event loop does), and what is done when one
//! stops (the program leaves new connections alone).

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

use aya::maps::{Array, Map, MapData, MapError};
use mvp_ebpf::{MAX_SLOTS, maps};
use rustix::time::{ClockId, clock_gettime};

use super::{SteerError, in_map};

/// The map of slots, and which of them are taken.
pub(super) struct Slots {
    map: Map,
    taken: Mutex<u64>,
}

const _: () = assert!(MAX_SLOTS <= u64::BITS);

impl Slots {
    pub(super) fn new(map: Map) -> Arc<Self> {
        Arc::new(Self {
            map,
            taken: Mutex::new(0),
        })
    }

    /// Takes the lowest free slot and beats once.
    pub(super) fn take(self: &Arc<Self>) -> Result<Heartbeat, SteerError> {
        let array = self.open().map_err(in_map(maps::HEARTBEATS))?;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = taken.trailing_ones();
        if slot >= MAX_SLOTS {
            return Err(SteerError::Slots);
        }
        *taken |= 1 << slot;
        drop(taken);
        let mut beat = Heartbeat {
            slot,
            array,
            slots: Arc::clone(self),
        };
        beat.beat()?;
        Ok(beat)
    }

    /// A handle of its own for each thread, so that beating takes no lock.
    fn open(&self) -> Result<Array<MapData, u64>, MapError> {
        let Map::Array(data) = &self.map else {
            return Err(MapError::InvalidName {
                name: maps::HEARTBEATS.into(),
            });
        };
        let fd: OwnedFd = data.fd().as_fd().try_clone_to_owned()?;
        Array::try_from(Map::from_map_data(MapData::from_fd(fd)?)?)
    }
}

/// One thread's slot. Dropping it frees the slot: this thread no longer holds connections. When
/// the thread panics the slot is left to grow old instead, and steering stops.
pub struct Heartbeat {
    slot: u32,
    array: Array<MapData, u64>,
    slots: Arc<Slots>,
}

impl Heartbeat {
    /// Writes the time of `CLOCK_MONOTONIC`; one system call. To be called from the thread's own
    /// event loop every [`HEARTBEAT_INTERVAL`](super::HEARTBEAT_INTERVAL).
    pub fn beat(&mut self) -> Result<(), SteerError> {
        let now = clock_gettime(ClockId::Monotonic);
        // The monotonic clock counts from boot: neither part is negative.
        let now = now
            .tv_sec
            .unsigned_abs()
            .saturating_mul(1_000_000_000)
            .saturating_add(now.tv_nsec.unsigned_abs());
        self.write(now)
    }

    pub(super) const fn slot(&self) -> u32 {
        self.slot
    }

    fn write(&mut self, value: u64) -> Result<(), SteerError> {
        self.array
            .set(self.slot, value, 0)
            .map_err(in_map(maps::HEARTBEATS))
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // If the write fails the slot grows old and steering stops: the safe side.
        if self.write(0).is_ok() {
            let mut taken = self
                .slots
                .taken
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *taken &= !(1 << self.slot);
        }
    }
}
