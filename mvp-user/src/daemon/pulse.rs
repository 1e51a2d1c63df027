//! Shows the kernel that mvp works: each thread's heartbeat, and the request that mvp sends to itself.
//!
//! The self-request goes the way of any other (listener, handshake, parse, decide) and is answered by mvp; only while it
//! succeeds is the last heartbeat slot written (design 2, dead man's switch).

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{Request, StatusCode};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    sync::watch,
    task::spawn_local,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::{
    body::Body,
    serve::SelfCheck,
    steer::{HEARTBEAT_INTERVAL, Heartbeat, judge},
};

use super::Parts;

/// How often mvp asks itself.
const SELF_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Longer than this, and it counts as failed.
const SELF_CHECK_WITHIN: Duration = Duration::from_secs(1);

/// Why a self-request failed.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("no answer within 1 s")]
    Late,
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("cannot make the request: {0}")]
    Request(#[from] http::Error),
    #[error("answered {0}, not by this process")]
    Answer(StatusCode),
}

/// One loop's sign of life: in the kernel's slot, where there is one, and for probes and metrics.
pub struct Pulse {
    heartbeat: Option<Heartbeat>,
    last: Arc<Last>,
}

/// When a loop beat last.
#[derive(Debug)]
pub struct Last {
    start: Instant,
    milliseconds: AtomicU64,
}

impl Last {
    /// How long ago.
    pub fn ago(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(
            self.milliseconds.load(Ordering::Relaxed),
        ))
    }
}

impl Pulse {
    /// Beats once; the second part is for whoever looks on.
    pub fn new(heartbeat: Option<Heartbeat>) -> (Self, Arc<Last>) {
        let last = Arc::new(Last {
            start: Instant::now(),
            milliseconds: AtomicU64::new(0),
        });
        (
            Self {
                heartbeat,
                last: Arc::clone(&last),
            },
            last,
        )
    }

    fn beat(&mut self) {
        let now = u64::try_from(self.last.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.milliseconds.store(now, Ordering::Relaxed);
        if let Some(heartbeat) = &mut self.heartbeat
            && let Err(error) = heartbeat.beat()
        {
            tracing::error!(%error, "Heartbeat cannot be written: steering will stop");
        }
    }
}

/// Beats from this thread's event loop, for ever.
#[expect(clippy::infinite_loop, reason = "ends with its event loop")]
pub async fn beat(mut pulse: Pulse) {
    let mut tick = interval(HEARTBEAT_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        pulse.beat();
    }
}

/// Asks itself, and beats while the answer is right, until mvp drains: then the listener closes.
pub async fn check_self(
    parts: &Parts,
    listener: SocketAddr,
    mut pulse: Pulse,
    drain: watch::Receiver<bool>,
) {
    let mut tick = interval(SELF_CHECK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut well = true;
    loop {
        tick.tick().await;
        if *drain.borrow() {
            return;
        }
        let result = match timeout(SELF_CHECK_WITHIN, ask_self(parts, listener)).await {
            Ok(result) => result,
            Err(_elapsed) => Err(Failed::Late),
        };
        match result {
            Ok(()) => {
                well = true;
                pulse.beat();
            }
            Err(error) if well => {
                well = false;
                tracing::error!(%error, "mvp does not answer itself: steering stops within 2 s");
            }
            Err(_) => {}
        }
    }
}

async fn ask_self(parts: &Parts, listener: SocketAddr) -> Result<(), Failed> {
    let stream = TcpStream::connect(listener).await?;
    let stream = judge::handshake(&parts.tls, stream).await?;
    let (mut send, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = spawn_local(connection);
    let request = Request::get(SelfCheck::PATH)
        .header(http::header::HOST, "localhost")
        .header(SelfCheck::HEADER, parts.shared.self_check.token())
        .body(Body::Empty)?;
    let answer = send.send_request(request).await?;
    connection.abort();
    if parts.shared.self_check.answered(answer.headers()) {
        Ok(())
    } else {
        Err(Failed::Answer(answer.status()))
    }
}
