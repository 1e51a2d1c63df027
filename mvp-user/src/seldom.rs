//! What seldom happens, waited for beside what is polled at every turn of a connection: a future that is polled only when
//! it asked for it. Each look at a `Notify`, a `watch` or a timer of tokio takes a lock or a few atomic operations, and a
//! connection is polled once or twice for each of its requests.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::task::AtomicWaker;

/// See the module. What is ready is polled anew at the next look, so that a stream of events may be waited for, too.
#[derive(Debug)]
pub struct Seldom<F> {
    future: F,
    bell: Arc<Bell>,
    /// Rings the bell.
    rings: Waker,
    /// The task that hears it.
    hears: Option<Waker>,
}

#[derive(Debug, Default)]
struct Bell {
    rung: AtomicBool,
    task: AtomicWaker,
}

impl<F> Seldom<F> {
    /// Nobody has looked at it yet.
    pub fn new(future: F) -> Self {
        let bell = Arc::<Bell>::default();
        Self {
            future,
            rings: Arc::clone(&bell).into(),
            bell,
            hears: None,
        }
    }
}

impl<F: Future + Unpin> Future for Seldom<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let task = context.waker();
        let heard = this.hears.as_ref().is_some_and(|it| it.will_wake(task));
        if heard && !this.bell.rung.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // First of all: whoever rings from now on wakes the task.
        this.bell.task.register(task);
        this.hears = Some(task.clone());
        this.bell.rung.store(false, Ordering::Release);
        let polled = Pin::new(&mut this.future).poll(&mut Context::from_waker(&this.rings));
        if polled.is_ready() {
            this.hears = None;
        }
        polled
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::poll_fn, pin::pin, sync::atomic::AtomicUsize, time::Duration};

    use futures_util::FutureExt as _;
    use tokio::{
        sync::Notify,
        time::{Instant, interval},
    };

    use super::*;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn it_is_polled_when_it_asked_for_it_and_by_whom_it_was_polled_last() {
        let (notify, polls) = (Notify::new(), Cell::new(0));
        let mut notified = pin!(notify.notified());
        let counted = poll_fn(|context| {
            polls.set(polls.get() + 1);
            notified.as_mut().poll(context)
        });
        let mut seldom = Seldom::new(counted);
        let tasks = [Arc::<Task>::default(), Arc::default()];
        let mut poll = |task: &Arc<Task>| {
            let waker: Waker = Arc::clone(task).into();
            Pin::new(&mut seldom).poll(&mut Context::from_waker(&waker))
        };
        for _ in 0..100 {
            assert!(poll(&tasks[0]).is_pending());
        }
        assert_eq!(polls.get(), 1);
        assert!(poll(&tasks[1]).is_pending());
        assert_eq!(polls.get(), 2, "another task");
        notify.notify_one();
        let woken = tasks.each_ref().map(|it| it.0.load(Ordering::Relaxed));
        assert_eq!(woken, [0, 1]);
        assert!(poll(&tasks[1]).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn each_tick_of_an_interval_is_heard() {
        let mut tick = interval(Duration::from_secs(5));
        let mut seldom = Seldom::new(poll_fn(|context| tick.poll_tick(context)));
        let begin = Instant::now();
        for seconds in [0, 5, 10, 15] {
            (&mut seldom).await;
            assert_eq!(begin.elapsed().as_secs(), seconds);
            assert!((&mut seldom).now_or_never().is_none(), "{seconds}");
        }
    }
}
