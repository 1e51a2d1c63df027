//! The hyper servers of client connections, with kube-apiserver's limits (`k8s.io/apiserver/pkg/server/secure_serving.go`).

use std::{
    cell::Cell,
    future::poll_fn,
    pin::pin,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{FutureExt as _, TryFutureExt as _};
use http::{Request, Response};
use hyper::{
    body::Incoming,
    rt::Executor,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    sync::watch,
    task::spawn_local,
    time::{Interval, MissedTickBehavior, interval},
};
use tokio_rustls::server::TlsStream;

use super::{
    Visit,
    backlog::{Backlog, Counted},
    patience::{IDLE, Patience},
};
use crate::{
    accept::Watched,
    body::Body,
    seldom::Seldom,
    tls::RecordStream,
    wire::{Outlet, Wire, driven},
};

/// Bound of a request's headers.
pub(super) const MAX_HEADERS: u32 = 1024 * 1024;
/// What HTTP/2 reads of them: beyond it (a quarter more) the h2 crate ends the connection, and a request that is merely too
/// large shall leave it usable. Between the two bounds the answer is mvp's own.
const HTTP2_HEADERS: u32 = 2 * MAX_HEADERS;
/// What may be read beyond them.
const READ_AHEAD: usize = 64 * 1024;
/// Header lines of one HTTP/1.1 request: a user of 1,000 groups behind a front proxy, and then some.
const MAX_HEADER_LINES: usize = 2000;
/// Streams of one client connection; kube-apiserver's, so that one upstream connection has room for them.
const MAX_STREAMS: u32 = 100;
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * (MAX_STREAMS + 1);
/// What waits on one stream for the client's window and for the socket, whose own buffer is behind it: two frames of an
/// upstream, so that stream and connection take turns half as often as with one. A slow reader holds so much beside what
/// its upstream may send ahead.
const SEND_BUFFER: usize = 128 * 1024;
/// Streams that a client may cancel before they were looked at: twice a full connection (rapid reset, CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 2 * MAX_STREAMS as usize;
/// A third of kube-apiserver's 90 s, after three of which an unused connection is ended.
const IDLE_TICK: Duration = Duration::from_secs(30);
const IDLE_TICKS: u32 = 3;
/// Why a connection is ended where memory runs out.
const TOO_MUCH: &str =
    "Memory runs out, and the client takes little of much: the connection is closed";

pub(super) async fn serve_h1(
    io: TlsStream<RecordStream>,
    visit: Rc<Visit>,
    mut leave: watch::Receiver<u64>,
) {
    let io = Watched::new(io);
    let service = {
        let (visit, gate, served) = (Rc::clone(&visit), io.gate(), io.served());
        service_fn(move |mut request: Request<Incoming>| {
            served.store(true, Ordering::Relaxed);
            gate.shut_for(&mut request);
            // hyper keeps room for this future in every connection, idle ones as well.
            let place = Box::new_uninit();
            let walk = Box::into_pin(Box::write(place, Rc::clone(&visit).answer(request)));
            counted(walk, &visit.backlog)
        })
    };
    let unread = io.unread();
    let given_up = io.given_up();
    let mut connection = pin!(
        http1::Builder::new()
            .timer(Patience::new(io.read()))
            .header_read_timeout(IDLE)
            .max_headers(MAX_HEADER_LINES)
            .max_header_size(MAX_HEADERS as usize)
            .max_buf_size(MAX_HEADERS as usize + READ_AHEAD)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades()
    );
    let asked = pin!(leave.changed());
    let mut asked = Seldom::new(asked);
    let over = pin!(visit.backlog.over());
    let mut over = Seldom::new(over);
    let mut leaving = false;
    loop {
        tokio::select! {
            biased;
            end = connection.as_mut() => {
                if let Some(why) = unread.get() {
                    visit.thread.shared.metrics.unread(*why);
                }
                report(&visit, end);
                return;
            }
            asked = &mut asked, if !leaving => {
                // Fails only if whoever asks is gone.
                leaving = true;
                if asked.is_ok() {
                    connection.as_mut().graceful_shutdown();
                }
            }
            () = &mut over, if !given_up.load(Ordering::Relaxed) => {
                tracing::debug!(client = %visit.client, "{TOO_MUCH}");
                // It ends with the next write.
                given_up.store(true, Ordering::Relaxed);
            }
        }
    }
}

pub(super) async fn serve_h2(
    (wire, outlet): (Wire, Outlet),
    visit: Rc<Visit>,
    mut leave: watch::Receiver<u64>,
) {
    let service = {
        let visit = Rc::clone(&visit);
        // Boxed: the stream's task is moved when it is spawned, and lives as long as the answer's body. And not by `Box::pin`,
        // which makes it on the stack and then copies all of it, though nearly nothing of a walk that has not begun is set.
        service_fn(move |request| {
            let place = Box::new_uninit();
            let walk = Box::into_pin(Box::write(place, Rc::clone(&visit).answer(request)));
            counted(walk, &visit.backlog)
        })
    };
    let streams = Streams::default();
    let mut connection = pin!(
        http2::Builder::new(streams.clone())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(HTTP2_HEADERS)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .serve_connection(TokioIo::new(wire), service)
    );
    let mut leaving = false;
    let mut idle = 0;
    let mut answers = 0;
    let mut tick = interval(IDLE_TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = pin!(event(&visit, &mut leave, leaving, &mut tick));
        let event = tokio::select! {
            biased;
            end = poll_fn(|cx| driven(connection.as_mut(), &outlet, cx)) => {
                report(&visit, end);
                return;
            }
            event = Seldom::new(event) => event,
        };
        match event {
            Event::Flood => {
                tracing::debug!(client = %visit.client, "Too many requests were taken back, or came after GOAWAY: the connection is closed");
                return;
            }
            Event::TooMuch => {
                tracing::debug!(client = %visit.client, "{TOO_MUCH}");
                outlet.give_up();
                return;
            }
            Event::Farewell => {
                visit.ask_to_go();
                connection.as_mut().graceful_shutdown();
            }
            Event::Leave { asked } => {
                leaving = true;
                if asked {
                    visit.ask_to_go();
                    connection.as_mut().graceful_shutdown();
                }
            }
            Event::Tick => {
                let served = visit.answers.get();
                idle = if streams.0.get() == 0 && served == answers {
                    idle + 1
                } else {
                    0
                };
                answers = served;
                if idle > IDLE_TICKS + 1 {
                    // Asked to go one tick ago: h2 waits without end for the answer to the PING behind its GOAWAY.
                    tracing::debug!(client = %visit.client, "An unused connection is closed without its consent");
                    return;
                }
                if idle > IDLE_TICKS {
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// What happens to a connection beside its requests.
enum Event {
    /// Too many of them were taken back, or came after GOAWAY.
    Flood,
    /// Too much waits for the client.
    TooMuch,
    /// One of them asks for its end.
    Farewell,
    /// The thread does, or it cannot any more.
    Leave { asked: bool },
    /// A look at whether it is used.
    Tick,
}

async fn event(
    visit: &Visit,
    leave: &mut watch::Receiver<u64>,
    leaving: bool,
    tick: &mut Interval,
) -> Event {
    tokio::select! {
        biased;
        () = visit.taken_back.flood() => Event::Flood,
        () = visit.backlog.over() => Event::TooMuch,
        () = visit.farewell.notified() => Event::Farewell,
        asked = leave.changed(), if !leaving => Event::Leave { asked: asked.is_ok() },
        _ = tick.tick() => Event::Tick,
    }
}

/// What comes of a walk counts for the connection as long as it waits here.
fn counted<F, E>(
    walk: F,
    backlog: &Arc<Backlog>,
) -> impl Future<Output = Result<Response<Counted>, E>> + use<F, E>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    let backlog = Arc::clone(backlog);
    walk.map_ok(move |answer| answer.map(|body| Counted::new(body, backlog)))
}

fn report(visit: &Visit, end: hyper::Result<()>) {
    if let Err(error) = end {
        tracing::debug!(client = %visit.client, %error, "Client connection ended");
    }
}

/// Runs the streams of one connection as tasks of its thread, and counts them.
#[derive(Clone, Default)]
struct Streams(Rc<Cell<usize>>);

/// One stream, until its answer is sent.
struct Stream(Rc<Cell<usize>>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<F> Executor<F> for Streams
where
    F: Future + 'static,
{
    fn execute(&self, stream: F) {
        self.0.set(self.0.get() + 1);
        let counted = Stream(Rc::clone(&self.0));
        // Not an `async` block, which has room for what it holds and once more for what it awaits.
        spawn_local(stream.map(move |_end| drop(counted)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::Thread;

    fn size<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// It is allocated for every request.
    #[test]
    fn the_walk_of_a_request_is_a_small_future() {
        let size = size(Visit::answer);
        assert!(size <= 4608, "{size} bytes");
    }

    /// It is there for every connection, whatever that may become.
    #[test]
    fn the_task_of_a_connection_is_a_small_future() {
        let size = size(Thread::serve);
        assert!(size <= 1024, "{size} bytes");
    }
}
