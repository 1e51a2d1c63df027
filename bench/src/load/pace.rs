//! When requests are due: a timer of the kernel (tokio's has a grain of 1 ms) hands out due times to whoever is free.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::{io::unix::AsyncFd, sync::Notify, time::Instant};

use super::drive::Tally;

/// Due times that nobody has taken yet, and their end.
#[derive(Debug, Default)]
pub(super) struct Queue {
    due: RefCell<VecDeque<Instant>>,
    over: Cell<bool>,
    more: Notify,
}

impl Queue {
    /// The next due time; none when the last was handed out.
    pub(super) async fn take(&self) -> Option<Instant> {
        loop {
            let due = self.due.borrow_mut().pop_front();
            if due.is_some() || self.over.get() {
                return due;
            }
            self.more.notified().await;
        }
    }
}

/// Hands out `rate` due times a second from `start` until `end`. How late it is with them is `tally`'s lag: time that a due
/// time then waits for a free stream is the server's.
pub(super) async fn keep(
    queue: Rc<Queue>,
    tally: Rc<Tally>,
    rate: f64,
    start: Instant,
    end: Instant,
) -> Result<()> {
    let timer = timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
    )
    .context("a timer of the kernel")?;
    #[expect(
        deprecated,
        reason = "`register` is unsafe; an owned descriptor that nobody else has is what it asks for"
    )]
    let timer = AsyncFd::new(timer)?;
    let mut number = 0_u64;
    loop {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a run has far fewer than 2^52 requests"
        )]
        let due = start + Duration::from_secs_f64(number as f64 / rate);
        if due >= end {
            break;
        }
        let now = Instant::now();
        if due > now {
            sleep(&timer, due - now).await?;
        }
        tally.lag(due.elapsed());
        queue.due.borrow_mut().push_back(due);
        queue.more.notify_one();
        number += 1;
    }
    queue.over.set(true);
    queue.more.notify_waiters();
    Ok(())
}

async fn sleep(timer: &AsyncFd<std::os::fd::OwnedFd>, time: Duration) -> Result<()> {
    let once = Itimerspec {
        it_interval: Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
        it_value: Timespec {
            tv_sec: i64::try_from(time.as_secs())?,
            // Zero would disarm it.
            tv_nsec: i64::from(time.subsec_nanos().max(1)),
        },
    };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
    let mut guard = timer.readable().await?;
    let mut expirations = [0_u8; 8];
    match rustix::io::read(timer.get_ref(), &mut expirations) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
        Err(error) => return Err(error.into()),
    }
    guard.clear_ready();
    Ok(())
}
