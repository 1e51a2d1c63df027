//! Which thread a connection lives on: the one that accepted it, unless that has far more than another.
//!
//! All threads wait at the same listeners, so that one that stands still keeps nobody from being accepted. Who comes first
//! may be the same one again and again. For a few connections that is good: one thread that is busy costs less than two
//! that fall asleep and are woken all the time (with 20 connections at half load on two processors, evenly spread, the
//! median over HTTP/1.1 was 1.47 times as long). But one must not have all of thousands.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{net::TcpStream, sync::mpsc};

use super::room::{Load, Slot};

/// How long a thread has to begin with what it was given; whoever gave it then does it. A thread that stands still holds up
/// a client for no longer.
pub(super) const TAKE_BACK: Duration = Duration::from_millis(20);
/// How many connections more than twice as many as another a thread may have.
const SLACK: usize = 16;

/// What was accepted and nobody has begun with. It is registered with no thread's event loop.
#[derive(Debug)]
pub(super) struct Arrival {
    stream: std::net::TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) slot: Slot,
}

impl Arrival {
    /// On the thread that begins with it.
    pub(super) fn begin(self) -> io::Result<(TcpStream, SocketAddr, Slot)> {
        Ok((TcpStream::from_std(self.stream)?, self.peer, self.slot))
    }
}

/// One arrival, for whoever takes it first.
#[derive(Clone, Debug)]
pub(super) struct Handed(Arc<Mutex<Option<Arrival>>>);

impl Handed {
    /// None: somebody else has it.
    pub(super) fn take(&self) -> Option<Arrival> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// One accepting thread.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    load: Load,
    door: mpsc::UnboundedSender<Handed>,
}

impl Seat {
    /// Gives it a connection, to be taken back from what is returned unless it begins with it ([`TAKE_BACK`]).
    pub(super) fn hand(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        mut slot: Slot,
    ) -> io::Result<Handed> {
        slot.belongs_to(&self.load);
        let arrival = Arrival {
            stream: stream.into_std()?,
            peer,
            slot,
        };
        let handed = Handed(Arc::new(Mutex::new(Some(arrival))));
        if self.door.send(handed.clone()).is_err() {
            tracing::debug!(%peer, "The thread with the fewest connections has just stopped");
        }
        Ok(handed)
    }
}

/// Every accepting thread.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<Vec<Seat>>);

impl Seats {
    /// For a thread that begins to accept: its load, and what others hand to it.
    pub(super) fn sit(&self) -> (Load, mpsc::UnboundedReceiver<Handed>) {
        let (door, inbox) = mpsc::unbounded_channel();
        let load = Load::default();
        let seat = Seat {
            load: load.clone(),
            door,
        };
        {
            let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            seats.retain(|seat| !seat.door.is_closed());
            seats.push(seat);
        }
        (load, inbox)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The thread with the fewest connections, if the caller has far more.
    pub(super) fn elsewhere(&self, own: &Load) -> Option<Seat> {
        let seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seats
            .iter()
            .filter(|seat| !seat.door.is_closed())
            .min_by_key(|seat| seat.load.get())
            .filter(|fewest| own.get() > 2 * fewest.load.get() + SLACK)
            .cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_with_the_fewest_is_chosen_by_one_that_has_far_more() {
        let seats = Seats::default();
        let (one, _inbox) = seats.sit();
        let (two, inbox) = seats.sit();
        let (three, _third) = seats.sit();
        let more = |load: &Load, by: usize| (0..by).map(|_| load.one_more()).collect::<Vec<_>>();
        let (_third, mut few) = (more(&three, 200), more(&one, SLACK));
        assert!(seats.elsewhere(&one).is_none());
        few.push(one.one_more());
        let chosen = seats.elsewhere(&one).unwrap();
        assert_eq!(chosen.load.get(), 0, "the second");
        assert!(seats.elsewhere(&two).is_none());
        few.extend(more(&two, 1));
        assert!(seats.elsewhere(&one).is_none(), "twice as many and 15");
        few.extend(more(&one, SLACK));
        drop(inbox);
        assert!(seats.elsewhere(&one).is_none(), "the other has stopped");
    }
}
