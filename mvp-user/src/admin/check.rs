//! `mvp check`: looks for what could go wrong, and says what to do about it. Changes nothing, attaches nothing.
//!
//! The same looks are taken by a running mvp, which adds what only it knows ([`running`]), and without one from the
//! flags alone ([`alone`]). They run on a thread of their own: nothing that mvp serves waits for them.

use std::{sync::Arc, thread};

use tokio::{
    runtime,
    sync::{Semaphore, oneshot},
    task::LocalSet,
};

use super::{
    State,
    wire::{Finding, Grade},
};
use crate::{
    config::{self, Config, Flags, SteerMode},
    health::link::Marker,
    table::{Server, Table},
    upstream::Dialer,
};

mod cluster;
mod files;
mod knowledge;
pub mod node;
mod port;
mod servers;
#[cfg(test)]
mod tests;

/// One look at a time: each opens connections to every server.
static TURN: Semaphore = Semaphore::const_new(1);

/// What servers are looked at with.
#[derive(Clone, Debug)]
pub struct Ground {
    /// What `mvp run` was told.
    pub config: Arc<Config>,
    /// Who the servers are, as far as that is known.
    pub table: Arc<Table>,
    /// Opens connections.
    pub dialer: Arc<Dialer>,
}

/// What a running mvp finds, in an order in which one repairs it.
pub(super) async fn running(state: &State) -> Vec<Finding> {
    let mut findings = vec![knowledge::process(state)];
    match state.daemon.ground() {
        Some(ground) => findings.extend(on_a_thread(ground).await),
        None => findings.extend(files::validity(&state.tls.current(), &state.config.tls)),
    }
    findings.extend(knowledge::all(state));
    findings
}

/// What can be found without a running mvp, by the flags that `mvp run` would be given. Blocks.
pub fn alone(flags: &Flags) -> Vec<Finding> {
    let resolved = config::resolve_with(flags, |_| Vec::new(), config::published::fetch);
    // Where nothing is steered, none of this is needed.
    let direct = resolved
        .as_ref()
        .is_ok_and(|it| !it.config.listen.is_empty() || it.config.steer == SteerMode::Never);
    let mut findings = if direct {
        Vec::new()
    } else {
        vec![node::rights(), node::program()]
    };
    let resolved = match resolved {
        Ok(resolved) => resolved,
        Err(errors) => {
            findings.extend(errors.into_iter().map(|error| {
                let hint = "mvp run --print-config shows every value and where it is from";
                fail("configuration", error, hint)
            }));
            return findings;
        }
    };
    let config = Arc::new(resolved.config);
    let (found, tls) = files::look(&config.tls);
    findings.extend(found);
    let Some(tls) = tls else {
        findings.push(warn(
            "kube-apiservers",
            "not looked at: without these files none can be verified",
            "repair the files first, then check again",
        ));
        return findings;
    };
    let local = Arc::new(Server::new(crate::api::ServerId::Local, config.local));
    let ground = Ground {
        table: Arc::new(Table::new(local)),
        dialer: Arc::new(Dialer::new(config.exempt_source, tls, None)),
        config,
    };
    findings.extend(survey(&ground));
    findings
}

async fn on_a_thread(ground: Ground) -> Vec<Finding> {
    let _turn = TURN.acquire().await;
    let (answer, answered) = oneshot::channel();
    let started = thread::Builder::new()
        .name("check".to_owned())
        .spawn(move || {
            let (mut findings, _) = files::look(&ground.config.tls);
            findings.extend(survey(&ground));
            // Whoever asked may have left.
            drop(answer.send(findings));
        });
    let trouble = match started {
        Ok(_) => match answered.await {
            Ok(findings) => return findings,
            Err(_) => "the look at the servers broke off".to_owned(),
        },
        Err(error) => error.to_string(),
    };
    vec![fail("check", trouble, "look at the log of mvp run")]
}

/// Everything behind files: the port, the servers, the cluster.
fn survey(ground: &Ground) -> Vec<Finding> {
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return vec![fail("check", error.to_string(), "try again")],
    };
    LocalSet::new().block_on(&runtime, async {
        let mut findings = port::look(ground).await;
        let cluster = cluster::read(ground).await;
        let marker = Marker::new(&ground.config.request_headers);
        let servers = cluster.servers(ground);
        let looks = servers
            .iter()
            .map(|server| servers::look(ground, server, &marker));
        let looks = futures_util::future::join_all(looks).await;
        findings.extend(looks.iter().map(|look| look.finding.clone()));
        findings.extend(servers::clocks(&servers, &looks));
        findings.extend(cluster.findings(&looks));
        findings
    })
}

fn finding(
    check: impl Into<String>,
    result: Grade,
    found: impl Into<String>,
    hint: Option<String>,
) -> Finding {
    Finding {
        check: check.into(),
        result,
        found: found.into(),
        hint,
    }
}

fn ok(check: impl Into<String>, found: impl Into<String>) -> Finding {
    finding(check, Grade::Ok, found, None)
}

fn warn(check: impl Into<String>, found: impl Into<String>, hint: impl Into<String>) -> Finding {
    finding(check, Grade::Warn, found, Some(hint.into()))
}

fn fail(check: impl Into<String>, found: impl Into<String>, hint: impl Into<String>) -> Finding {
    finding(check, Grade::Fail, found, Some(hint.into()))
}
