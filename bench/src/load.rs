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

use std::rc::Rc;

use anyhow::{Context as _, Result};
pub use channel::Channels;
pub use gate::{Gate, Lines, Silent};
pub use plan::{Curve, Identity, Outcome, Pace, Plan, Shot, Work};

/// The name by which kube-apiserver asks itself: mvp passes such connections raw.
pub(crate) const LOOPBACK_NAME: &str = "apiserver-loopback-client";
/// What every answer's body is sent with at most at once.
pub(crate) const CHUNK: usize = 64 * 1024;

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

/// Lets this process have as many descriptors as the system allows: thousands of connections are opened.
pub fn raise_descriptor_limit() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("raising RLIMIT_NOFILE")
}
