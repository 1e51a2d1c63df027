//! Load: a process that asks ([`run`]) and a process that answers ([`origin`]), so that what is measured between them is
//! the proxy. Not for conducting them or for judging figures (`compare`).
//!
//! The asking process is told what to do by one [`Plan`] (JSON, first line of its standard input) and speaks with its
//! conductor in lines: it says `ready` when everything is open and warm, goes when it is told to, and says `done` with an
//! [`Outcome`]. So the conductor reads the proxy's counters exactly around what is measured.

mod channel;
mod drive;
mod gate;
mod holds;
pub mod origin;
mod pace;
mod plan;
mod requests;
#[cfg(test)]
mod tests;
mod watches;

use std::{rc::Rc, sync::Arc};

use anyhow::{Context as _, Result};
pub use channel::Channels;
pub use gate::{Gate, Lines, Silent};
pub use plan::{Curve, Identity, Outcome, Pace, Plan, Shot, Work};
use rustls::{
    CipherSuite,
    crypto::{CryptoProvider, aws_lc_rs},
};

/// The name by which kube-apiserver asks itself: mvp passes such connections raw.
pub(crate) const LOOPBACK_NAME: &str = "apiserver-loopback-client";
/// What every answer's body is sent with at most at once.
pub(crate) const CHUNK: usize = 64 * 1024;

/// Cipher suites in the order of kube-apiserver and its clients (Go's `crypto/tls`): AES with keys of 128 bits first.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// Does what `plan` says. Must be called inside a `LocalSet`.
pub async fn run(plan: &Plan, gate: &mut dyn Gate) -> Result<Outcome> {
    let channels = Rc::new(Channels::new(plan)?);
    match &plan.work {
        Work::Requests {
            shots,
            pace,
            warm,
            run,
        } => {
            let work = requests::Requests {
                plan,
                shots,
                pace: *pace,
                warm: *warm,
                run: *run,
            };
            work.run(&channels, gate).await
        }
        Work::First { shot } => requests::first(plan, shot, &channels, gate).await,
        Work::Storm { run } => holds::storm(plan, &channels, *run, gate).await,
        Work::Idle => holds::idle(plan, &channels, gate).await,
        Work::Slow { bytes, rate, hold } => {
            holds::slow(plan, &channels, (*bytes, *rate, *hold), gate).await
        }
        Work::Tunnels { bytes, raw } => holds::tunnels(plan, &channels, (*bytes, *raw), gate).await,
        Work::Watches {
            events,
            every,
            origin,
        } => watches::fan_out(plan, &channels, (*events, *every, *origin), gate).await,
    }
}

/// What a proxy needs for 5,000 connections and as many upstream, and `HAProxy` for its `maxconn`.
const DESCRIPTORS: u64 = 20_000;

/// Lets this process have as many descriptors as the system allows, and for root as are needed: thousands of connections are
/// opened.
pub fn raise_descriptor_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let allowed = getrlimit(Resource::Nofile).maximum;
    let set = |most: Option<u64>| {
        let (current, maximum) = (most, most);
        setrlimit(Resource::Nofile, Rlimit { current, maximum })
    };
    set(allowed.map(|most| most.max(DESCRIPTORS)))
        .or_else(|_| set(allowed))
        .context("raising RLIMIT_NOFILE")
}
