//! One HTTP/2 connection to an API server, driven by a task of its thread and used by that thread alone.
//!
//! The h2 crate is used directly, not through hyper's client: it says at once when the peer sends GOAWAY, which resets
//! were `REFUSED_STREAM`, what the stream limit is, when a 100 arrives; and a request costs no task and no channel.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    pin::{Pin, pin},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use h2::{
    Reason,
    client::{Builder, Connection, ResponseFuture, SendRequest},
};
use http::{HeaderMap, Request, Response, StatusCode, Version, header};
use tokio::{
    sync::{Notify, oneshot},
    task::spawn_local,
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};

use super::{
    Stream,
    settling::Settling,
    upload::{ClientGone, Upload},
};
use crate::{
    body::{Body, GIVEN_BACK, Gate, Open, Streamed},
    seldom::Seldom,
    wire::{Outlet, Wire, driven},
};

mod keepalive;

pub(super) use keepalive::Keeping;
use keepalive::{Keepalive, PING_INTERVAL};

/// How long the server's first SETTINGS may take; it sends them without being asked.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(3);
/// Streams used of a connection, however many the server allows: the connection window is made for as many.
pub(super) const MAX_STREAMS: usize = 100;
/// Requests of one connection: half of the stream numbers that HTTP/2 has. h2 refuses every request beyond them, and a
/// shared connection to local has no other end.
const MAX_REQUESTS: u32 = 1 << 29;
/// What an upstream may send ahead on one stream; kube-apiserver's own (`secure_serving.go`).
const STREAM_WINDOW: u32 = 256 * 1024;
const _: () = assert!(2 * GIVEN_BACK <= STREAM_WINDOW as usize);
/// What an upstream may send in one DATA frame: each is parsed, queued and waked for once, so that a long list in frames of
/// the least size (16 KiB) takes a sixth more CPU. kube-apiserver allows its own clients 1 MiB.
const FRAME: u32 = 64 * 1024;
/// The h2 crate bounds the number of an answer's header frames by this divided by [`FRAME`], and a quarter more; servers write
/// frames of the least size, so that [`MAX_HEADERS`] have to fit into as many of those.
const HTTP2_HEADERS: u32 = MAX_HEADERS * (FRAME / LEAST_FRAME);
/// What everybody takes (RFC 9113, 6.5.2).
const LEAST_FRAME: u32 = 16 * 1024;
/// So many stalled readers leave the window for others to go on.
#[expect(clippy::cast_possible_truncation, reason = "100")]
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * (MAX_STREAMS as u32 + 1);
/// Streams that were cancelled and whose frames on their way here are expected: as many as are opened in a busy second.
const REMEMBERED_RESETS: usize = 10 * MAX_STREAMS;
/// What h2 counts against small frames that nobody has read yet (256 bytes less their length, each); beyond it, it ends the
/// connection. By default one reader that stalls behind a stream of single bytes would end it for all: so much is a full
/// window of frames of 64 bytes on every stream.
const SMALL_FRAMES: usize = 3 * CONNECTION_WINDOW as usize;
/// kube-apiserver's bound of a header list.
pub(super) const MAX_HEADERS: u32 = 1024 * 1024;
/// No server sends this as its stream limit, so as long as it is the limit, no SETTINGS have come.
const NO_SETTINGS_YET: usize = 0x00BA_5E11;
/// How long a client that asked for 100-continue is kept waiting for the upstream's (design 7).
pub(super) const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// One connection.
pub(super) struct Link {
    /// None once retired: no further streams, and the connection ends with its last.
    sender: RefCell<Option<SendRequest<Bytes>>>,
    open: Arc<AtomicUsize>,
    /// Requests so far.
    requests: Cell<u32>,
    limit: Cell<usize>,
    /// A PING is not answered yet.
    doubtful: Cell<bool>,
    retired: Notify,
    last_heard: Cell<Instant>,
    /// Requests without an answer, and when the first of them was sent.
    waiting: Cell<usize>,
    waiting_since: Cell<Instant>,
    /// The request that ends to wait now has its answer.
    answered: Cell<bool>,
    settling: Settling,
}

/// Why a request got no answer.
#[derive(Debug)]
pub(super) enum LinkError {
    /// The connection takes no more requests; nothing was sent, and the request comes back.
    NotSent(Box<Request<Body>>),
    /// `REFUSED_STREAM`, or beyond the last stream of a GOAWAY: the server says that it did not look at it (RFC 9113, 8.7).
    Refused(h2::Error),
    /// The client's side of the request broke off.
    ClientGone(ClientGone),
    /// Anything else: it may have been executed.
    Broken(h2::Error),
}

impl Link {
    /// Speaks HTTP/2 on a fresh connection and waits for the server's limits. `ended` is called once, as soon as the
    /// server has sent GOAWAY or the connection is gone.
    pub(super) async fn open(
        stream: Stream,
        keeping: Keeping,
        ended: impl FnOnce() + 'static,
    ) -> Result<Rc<Self>, h2::Error> {
        let (tcp, tls) = stream.into_inner();
        let (wire, outlet) = Wire::new(tcp.into_stream(), tls);
        let (sender, mut connection) = Builder::new()
            .initial_max_send_streams(NO_SETTINGS_YET)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HTTP2_HEADERS)
            .max_concurrent_reset_streams(REMEMBERED_RESETS)
            // Each frame that still comes for a forgotten stream counts, for as long as the connection lives, and at the
            // 1,025th h2 would end it with everybody's watches. A server that we chose and verified need not be calmed.
            .max_local_error_reset_streams(None)
            .data_frame_budget(SMALL_FRAMES)
            .enable_push(false)
            .max_frame_size(FRAME)
            .handshake::<_, Bytes>(wire)
            .await?;
        let settled = poll_fn(|cx| match driven(Pin::new(&mut connection), &outlet, cx) {
            Poll::Ready(end) => Poll::Ready(end.and_then(|()| Err(Reason::NO_ERROR.into()))),
            Poll::Pending if sender.current_max_send_streams() == NO_SETTINGS_YET => Poll::Pending,
            Poll::Pending => Poll::Ready(Ok(())),
        });
        match timeout(SETTINGS_TIMEOUT, settled).await {
            Ok(result) => result?,
            Err(_elapsed) => return Err(Reason::SETTINGS_TIMEOUT.into()),
        }
        let link = Rc::new(Self {
            limit: Cell::new(sender.current_max_send_streams().min(MAX_STREAMS)),
            sender: RefCell::new(Some(sender)),
            open: Arc::default(),
            requests: Cell::new(0),
            doubtful: Cell::new(false),
            retired: Notify::new(),
            last_heard: Cell::new(Instant::now()),
            waiting: Cell::new(0),
            waiting_since: Cell::new(Instant::now()),
            answered: Cell::new(false),
            settling: Settling::new(),
        });
        spawn_local(drive(connection, outlet, Rc::clone(&link), keeping, ended));
        Ok(link)
    }

    /// Whether it will take no further request, ever.
    pub(super) fn is_retired(&self) -> bool {
        self.sender.borrow().is_none()
    }

    /// Whether one more request fits now.
    pub(super) fn has_room(&self) -> bool {
        !self.doubtful.get()
            && self.open.load(Ordering::Relaxed) < self.limit.get()
            && !self.is_retired()
    }

    /// Whether it is full, if what was just taken back counts.
    pub(super) fn is_crowded(&self) -> bool {
        self.open.load(Ordering::Relaxed) + self.settling.count() >= self.limit.get()
    }

    /// How long nothing was read from it.
    pub(super) fn silence(&self) -> Duration {
        self.last_heard.get().elapsed()
    }

    /// How long requests have been waiting without anything being heard.
    pub(super) fn owes(&self) -> Duration {
        if self.waiting.get() == 0 {
            return Duration::ZERO;
        }
        // One look at the clock: every request asks.
        let since = self.last_heard.get().max(self.waiting_since.get());
        since.elapsed()
    }

    /// Streams that are open.
    pub(super) fn open_streams(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Takes no more requests; ends when the last stream does.
    pub(super) fn retire(&self) {
        if self.sender.borrow_mut().take().is_some() {
            self.retired.notify_one();
        }
    }

    /// One request, one answer. The URI is absolute and there is no Host header.
    pub(super) async fn send(&self, request: Request<Body>) -> Result<Response<Body>, LinkError> {
        let open = Open::new(&self.open);
        let (mut parts, body) = request.into_parts();
        let version = parts.version;
        let ready = poll_fn(|cx| {
            Poll::Ready(match self.sender.borrow_mut().as_mut() {
                Some(sender) => matches!(sender.poll_ready(cx), Poll::Ready(Ok(()))),
                None => false,
            })
        });
        if !ready.await {
            return Err(LinkError::NotSent(Box::new(Request::from_parts(
                parts, body,
            ))));
        }
        let whole = http_body::Body::is_end_stream(&body);
        // HTTP/2 clients have no gate: nothing is told to them by reading their body.
        let gate = parts.extensions.remove::<Gate>().filter(|_| !whole);
        let announced = !whole && parts.headers.contains_key(header::TRAILER);
        parts.version = Version::HTTP_2;
        let sent = match self.sender.borrow_mut().as_mut() {
            Some(sender) => sender.send_request(Request::from_parts(parts, ()), whole),
            None => Err(Reason::CANCEL.into()),
        };
        let (mut response, stream) = sent.map_err(LinkError::Refused)?;
        let waiting = Waiting::begin(self);
        self.requests.set(self.requests.get() + 1);
        if self.requests.get() >= MAX_REQUESTS {
            self.retire();
        }
        let framed = version == Version::HTTP_2;
        let mut upload = (!whole).then(|| Upload::new(body, stream, framed, announced));
        let answered = match gate {
            Some(gate) => Box::pin(answered_before_continue(&mut response, gate)).await,
            None => false,
        };
        if answered {
            // To read the body now would tell the client to send it, and nobody wants it any more.
            upload = None;
        }
        let answer = poll_fn(|cx| {
            if let Poll::Ready(answer) = Pin::new(&mut response).poll(cx) {
                return Poll::Ready(answer.map_err(classify));
            }
            if let Some(sending) = &mut upload {
                match sending.poll(cx) {
                    Poll::Ready(Ok(())) => upload = None,
                    Poll::Ready(Err(gone)) => return Poll::Ready(Err(LinkError::ClientGone(gone))),
                    Poll::Pending => {}
                }
            }
            Poll::Pending
        });
        let (parts, recv) = answer.await?.into_parts();
        waiting.answered();
        let upload = upload.map(finish_behind);
        let body = if recv.is_end_stream() {
            Body::Empty
        } else {
            let length = content_length(&parts.headers);
            Body::Streamed(Streamed::new(recv, length, upload, open))
        };
        Ok(Response::from_parts(parts, body))
    }

    /// After reads: notices GOAWAY and new SETTINGS. Returns whether the server has just ended the connection.
    fn look(&self, cx: &mut Context<'_>) -> bool {
        let mut slot = self.sender.borrow_mut();
        let Some(sender) = slot.as_mut() else {
            return false;
        };
        if let Poll::Ready(Err(_)) = sender.poll_ready(cx) {
            *slot = None;
            return true;
        }
        self.limit
            .set(sender.current_max_send_streams().min(MAX_STREAMS));
        false
    }
}

/// A request without an answer; dropped as such, it was taken back.
struct Waiting<'a>(&'a Link);

impl<'a> Waiting<'a> {
    fn begin(link: &'a Link) -> Self {
        if link.waiting.get() == 0 {
            link.waiting_since.set(Instant::now());
        }
        link.waiting.set(link.waiting.get() + 1);
        Self(link)
    }

    /// Told through the link, because there is one of these in the future of every request.
    fn answered(self) {
        self.0.answered.set(true);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
        if !self.0.answered.take() {
            self.0.settling.note();
        }
    }
}

/// The gate of 100-continue: opens at the upstream's 100, when the client sends all the same, or after a while; true if
/// the final answer came first.
async fn answered_before_continue(response: &mut ResponseFuture, gate: Gate) -> bool {
    let asked = poll_fn(|cx| {
        if gate.poll_open(cx).is_ready() {
            return Poll::Ready(false);
        }
        loop {
            match response.poll_informational(cx) {
                Poll::Ready(Some(Ok(interim))) if interim.status() != StatusCode::CONTINUE => {}
                Poll::Ready(Some(Ok(_))) => return Poll::Ready(false),
                Poll::Ready(_) => return Poll::Ready(true),
                Poll::Pending => return Poll::Pending,
            }
        }
    });
    let answered = timeout(CONTINUE_TIMEOUT, asked).await.unwrap_or(false);
    gate.open();
    answered
}

/// The answer's headers came before the whole request was sent: the rest goes on for as long as the answer lives.
fn finish_behind(mut upload: Upload) -> oneshot::Sender<()> {
    let (alive, mut dropped) = oneshot::channel::<()>();
    spawn_local(poll_fn(move |cx| {
        if upload.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        Pin::new(&mut dropped).poll(cx).map(drop)
    }));
    alive
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

fn classify(error: h2::Error) -> LinkError {
    let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    // h2 gives this error only to streams beyond the last one that the server has looked at.
    if error.is_remote() && (refused || error.is_go_away()) {
        LinkError::Refused(error)
    } else {
        LinkError::Broken(error)
    }
}

/// Runs the connection until it ends.
async fn drive(
    mut connection: Connection<Wire, Bytes>,
    outlet: Outlet,
    link: Rc<Link>,
    keeping: Keeping,
    ended: impl FnOnce(),
) {
    let mut ended = Some(ended);
    let mut keepalive = Keepalive::new(keeping);
    let mut heard_lately = false;
    let mut tick = interval_at(keepalive.opened + PING_INTERVAL, PING_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tick = Seldom::new(poll_fn(|cx| tick.poll_tick(cx)));
    let mut retired = pin!(link.retired.notified());
    let mut waits = false;
    poll_fn(|cx| {
        // Wakes this task, and needs no further look, which would take a lock at every turn.
        if !waits {
            waits = retired.as_mut().poll(cx).is_pending();
        }
        let mut over = driven(Pin::new(&mut connection), &outlet, cx).is_ready();
        if outlet.heard() {
            heard_lately = true;
            link.last_heard.set(Instant::now());
            if !over && link.look(cx) {
                if let Some(ended) = ended.take() {
                    ended();
                }
                // With the last handle gone, h2 closes the connection after its last stream; it must be told to look.
                over = driven(Pin::new(&mut connection), &outlet, cx).is_ready();
            }
        }
        if over {
            return Poll::Ready(());
        }
        keepalive.hear(&link, cx);
        while Pin::new(&mut tick).poll(cx).is_ready() {
            let silent = !std::mem::take(&mut heard_lately);
            if !keepalive.tick(&link, &mut connection, silent, cx) {
                return Poll::Ready(());
            }
            if driven(Pin::new(&mut connection), &outlet, cx).is_ready() {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    })
    .await;
    if !link.is_retired() {
        link.retire();
        if let Some(ended) = ended.take() {
            ended();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_link_owes_since_it_was_asked_or_heard_whichever_was_later() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let link = Link {
            sender: RefCell::new(None),
            open: Arc::default(),
            requests: Cell::new(0),
            limit: Cell::new(1),
            doubtful: Cell::new(false),
            retired: Notify::new(),
            last_heard: Cell::new(now),
            waiting: Cell::new(0),
            waiting_since: Cell::new(now),
            answered: Cell::new(false),
            settling: Settling::new(),
        };
        tokio::time::advance(second).await;
        assert_eq!(link.owes(), Duration::ZERO, "nobody waits");
        let waiting = Waiting::begin(&link);
        tokio::time::advance(second).await;
        assert_eq!(link.owes(), second, "asked");
        link.last_heard.set(Instant::now());
        assert_eq!(link.owes(), Duration::ZERO, "heard");
        tokio::time::advance(second).await;
        assert_eq!(link.owes(), second, "silent again");
        waiting.answered();
        assert_eq!(link.owes(), Duration::ZERO, "answered");
        assert!(!link.is_crowded());
        drop(Waiting::begin(&link));
        assert!(link.is_crowded(), "taken back");
    }
}
