//! How long a connection is kept: while it is used and its server shows that it lives. Not for running it (`link`), nor for
//! which connection a request takes (`lot`).

use std::{task::Context, time::Duration};

use bytes::Bytes;
use h2::{Ping, PingPong, client::Connection};
use tokio::time::Instant;

use super::Link;
use crate::wire::Wire;

/// A connection without a read for this long is asked for a sign of life, and given as long to show one (design 7).
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(5);
/// An unused connection is closed; kube-apiserver closes it after 90 s, and a race with that costs a retry.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);

/// What is different for the connections of one lane.
#[derive(Clone, Copy, Debug)]
pub(in crate::upstream) struct Keeping {
    /// Ping also while no stream is open.
    pub(in crate::upstream) ping_idle: bool,
    /// Retire after this time.
    pub(in crate::upstream) max_age: Option<Duration>,
}

impl Keeping {
    /// Whether a connection opened then takes no more requests, over HTTP/1.1 as over HTTP/2.
    pub(in crate::upstream) fn is_over(&self, opened: Instant) -> bool {
        self.max_age.is_some_and(|age| opened.elapsed() >= age)
    }
}

/// Whether a connection is used, and whether its server still answers.
pub(super) struct Keepalive {
    keeping: Keeping,
    pub(super) opened: Instant,
    last_used: Instant,
    /// Not before it is needed: with it, h2 looks at every frame whether there is a PING to be sent.
    pings: Option<PingPong>,
}

impl Keepalive {
    /// The connection was opened just now.
    pub(super) fn new(keeping: Keeping) -> Self {
        let now = Instant::now();
        Self {
            keeping,
            opened: now,
            last_used: now,
            pings: None,
        }
    }

    /// Notices the answer to a PING.
    pub(super) fn hear(&mut self, link: &Link, cx: &mut Context<'_>) {
        if let Some(pings) = &mut self.pings
            && link.doubtful.get()
            && pings.poll_pong(cx).is_ready()
        {
            link.doubtful.set(false);
        }
    }

    /// Once every [`PING_INTERVAL`], `silent` if nothing was read in it. False if the server does not answer any more.
    pub(super) fn tick(
        &mut self,
        link: &Link,
        connection: &mut Connection<Wire, Bytes>,
        silent: bool,
        cx: &mut Context<'_>,
    ) -> bool {
        let streams = link.open_streams();
        let now = Instant::now();
        if streams > 0 {
            self.last_used = now;
        }
        if silent && link.doubtful.get() {
            tracing::debug!(streams, "No answer to PING");
            return false;
        }
        let idle = streams == 0 && now - self.last_used >= IDLE_TIMEOUT;
        if idle || self.keeping.is_over(self.opened) {
            link.retire();
        }
        let asks = silent && (streams > 0 || self.keeping.ping_idle);
        if asks && self.pings.is_none() {
            self.pings = connection.ping_pong();
        }
        if asks
            && let Some(pings) = &mut self.pings
            && pings.send_ping(Ping::opaque()).is_ok()
        {
            link.doubtful.set(true);
            // Registers for the answer.
            self.hear(link, cx);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_to_peers_are_renewed_and_those_to_local_are_not() {
        let opened = Instant::now();
        let keeping = |max_age| Keeping {
            ping_idle: true,
            max_age,
        };
        let age = Duration::from_mins(10);
        tokio::time::advance(age.saturating_sub(Duration::from_millis(1))).await;
        assert!(!keeping(Some(age)).is_over(opened));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(keeping(Some(age)).is_over(opened));
        assert!(!keeping(None).is_over(opened));
    }
}
