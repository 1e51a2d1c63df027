//! The part of `mvp check` that a running mvp answers: certificates, forwarding, peers, knowledge, steering. Not for
//! what can be looked at without one (`cli`).

use std::time::{Duration, SystemTime};

use super::{
    State,
    report::{health, proof},
    wire::{Finding, Grade},
};
use crate::{
    api::ServerId,
    table::{Freshness, Health, Membership, Proof, Server},
};

/// A certificate that ends within this deserves a word.
const SOON: i64 = 7 * 24 * 3600;
/// A catalogue that was not read for so long is not kept up to date.
const OLD: Duration = Duration::from_mins(2);

/// All checks, in an order in which one repairs them.
pub(super) async fn run(state: &State) -> Vec<Finding> {
    let mut findings = certificates(state);
    findings.extend(servers(state).await);
    findings.extend(knowledge(state));
    findings.push(steering(state));
    findings
}

fn finding(
    check: impl Into<String>,
    result: Grade,
    found: impl Into<String>,
    hint: Option<&str>,
) -> Finding {
    Finding {
        check: check.into(),
        result,
        found: found.into(),
        hint: hint.map(ToOwned::to_owned),
    }
}

fn certificates(state: &State) -> Vec<Finding> {
    let material = state.tls.current();
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|it| i64::try_from(it.as_secs()).ok())
        .unwrap_or_default();
    let mut findings: Vec<Finding> = material
        .certificates
        .iter()
        .map(|it| {
            let left = it.not_after - now;
            let days = left / (24 * 3600);
            let file = it.file.display();
            let (grade, found) = if it.not_before > now {
                (Grade::Fail, format!("{file} is not valid yet"))
            } else if left <= 0 {
                (Grade::Fail, format!("{file} has expired"))
            } else if left < SOON {
                (Grade::Warn, format!("{file} expires in {days} days"))
            } else {
                (Grade::Ok, format!("valid for {days} days"))
            };
            let hint = (grade != Grade::Ok).then_some("renew it; mvp reads the new one by itself");
            finding(format!("certificate {}", it.flag), grade, found, hint)
        })
        .collect();
    findings.extend(
        material
            .warnings
            .iter()
            .map(|warning| finding("certificates", Grade::Warn, warning.to_string(), None)),
    );
    if !material.can_forward() {
        findings.push(finding(
            "front-proxy certificate",
            Grade::Fail,
            "there is none, so nothing is steered",
            Some("give --proxy-client-cert-file and --proxy-client-key-file"),
        ));
    }
    findings
}

async fn servers(state: &State) -> Vec<Finding> {
    let members = state.table.members_now();
    let mut findings = Vec::new();
    for server in std::iter::once(&members.local).chain(members.peers.iter()) {
        let name = title(server);
        if server.membership() == Membership::Departed {
            let found = "it has left; what only it serves is 503";
            let hint = "mvp peers forget ADDRESS, if it will not come back";
            findings.push(finding(name, Grade::Warn, found, Some(hint)));
            continue;
        }
        if server.health() != Health::Up {
            let grade = if server.id == ServerId::Local {
                Grade::Fail
            } else {
                Grade::Warn
            };
            let found = format!("it is {}", health(server.health()));
            let hint = "is it running, and reachable from this node on its port?";
            findings.push(finding(name, grade, found, Some(hint)));
            continue;
        }
        let proven = match state.prober.probe_now(server).await {
            // Nothing was decided just now: the last word counts.
            Proof::Unproven => server.proof(),
            decided => decided,
        };
        findings.push(match proven {
            Proof::Proven => finding(name, Grade::Ok, "up, accepts forwarded identities", None),
            other => finding(
                name,
                Grade::Fail,
                format!("up, identity forwarding is {}", proof(other)),
                Some("its --requestheader-client-ca-file and --requestheader-allowed-names must accept mvp's front-proxy certificate"),
            ),
        });
    }
    findings
}

fn title(server: &Server) -> String {
    let title = match server.id {
        ServerId::Local => "local".to_owned(),
        ServerId::Peer(address) => format!("peer {address}"),
    };
    match server.name.load().as_deref() {
        Some(name) => format!("{title} ({name})"),
        None => title,
    }
}

fn knowledge(state: &State) -> Vec<Finding> {
    let view = state.learner.view();
    let members = state.table.members();
    let mut findings = Vec::new();
    if !view.listed {
        findings.push(finding(
            "list of peers",
            Grade::Fail,
            "it was not read in this run",
            Some("does the service account (or --kubeconfig) may list EndpointSlices and Leases? or give --peer"),
        ));
    }
    for server in std::iter::once(&members.local).chain(members.peers.iter()) {
        if server.membership() == Membership::Departed {
            continue;
        }
        let check = format!("discovery of {}", server.id);
        let trouble = view.troubles.get(&server.id).copied();
        let known = state
            .table
            .look(server.id, |it| (it.freshness, it.read_at.elapsed()));
        findings.push(match (known, trouble) {
            (None, trouble) => finding(
                check,
                Grade::Fail,
                format!("never read ({})", trouble.unwrap_or("not tried")),
                Some("mvp peers -o wide; the log says more"),
            ),
            (Some((Freshness::Stale, age)), trouble) => finding(
                check,
                Grade::Warn,
                format!(
                    "read {} s ago; since then: {}",
                    age.as_secs(),
                    trouble.unwrap_or("nothing")
                ),
                Some("it is routed by what was known"),
            ),
            (Some((Freshness::Fresh, age)), _) if age > OLD => finding(
                check,
                Grade::Warn,
                format!("read {} s ago", age.as_secs()),
                None,
            ),
            (Some((Freshness::Fresh, age)), _) => finding(
                check,
                Grade::Ok,
                format!("read {} s ago", age.as_secs()),
                None,
            ),
        });
    }
    findings
}

fn steering(state: &State) -> Finding {
    let now = state.daemon.steering();
    let found = format!("{} ({}), mode {}", now.state, now.why, now.mode);
    let grade = match (now.state.as_str(), now.why.as_str()) {
        ("full", _) | ("off", "unproven" | "no_listener") => Grade::Warn,
        _ => Grade::Ok,
    };
    finding("steering", grade, found, None)
}
