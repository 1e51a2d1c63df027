//! What only a running mvp knows: its process, what it has learnt, why it steers or not, and whom it turned away.

use std::time::Duration;

use super::{State, fail, finding, ok, servers::title, warn};
use crate::{
    admin::wire::{Finding, Grade},
    config,
    identity::Reason,
    table::{Freshness, Membership},
};

/// A catalogue that was not read for so long is not kept up to date.
const OLD: Duration = Duration::from_mins(2);

/// That it runs.
pub(super) fn process(state: &State) -> Finding {
    const NAME: &str = "mvp";
    let problems = state.not_ready();
    let found = format!(
        "version {}, pid {}",
        env!("CARGO_PKG_VERSION"),
        std::process::id()
    );
    if problems.is_empty() {
        ok(NAME, format!("{found}, ready"))
    } else {
        let found = format!("{found}, not ready: {}", problems.join("; "));
        warn(NAME, found, "the lines below say what to do")
    }
}

/// Everything else.
pub(super) fn all(state: &State) -> Vec<Finding> {
    let mut findings: Vec<Finding> = manifest(state).into_iter().collect();
    findings.extend(learnt(state));
    findings.push(steering(state));
    findings.extend(turned_away(state));
    findings
}

/// Whether kube-apiserver was told something else since mvp started.
fn manifest(state: &State) -> Option<Finding> {
    let changed = config::changed(&state.flags, &state.settings);
    (!changed.is_empty()).then(|| {
        let flags = changed.join(", --");
        fail(
            "flags of kube-apiserver",
            format!("its manifest says something else than when mvp started: --{flags}"),
            "start mvp again (delete its pod on this node, or systemctl restart mvp): it reads the manifest at its start",
        )
    })
}

fn learnt(state: &State) -> Vec<Finding> {
    let view = state.learner.view();
    let members = state.table.members_now();
    let mut findings = Vec::new();
    if !view.listed {
        findings.push(fail(
            "list of peers",
            "it was not read in this run",
            "may the service account (or the user of --kubeconfig) list EndpointSlices in default? or give --peer",
        ));
    }
    for server in std::iter::once(&members.local).chain(members.peers.iter()) {
        if server.membership() == Membership::Departed {
            findings.push(warn(
                title(server),
                "it has left; what only it serves is answered 503",
                format!(
                    "mvp peers forget {}, if it will not come back",
                    server.address
                ),
            ));
            continue;
        }
        let check = format!("discovery of {}", server.id);
        let trouble = view.troubles.get(&server.id).copied();
        let known = state
            .table
            .look(server.id, |it| (it.freshness, it.read_at.elapsed()));
        findings.push(match known {
            None => fail(
                check,
                format!("never read ({})", trouble.unwrap_or("not tried")),
                "requests for what only it serves fail; the line of this server above says why it cannot be read",
            ),
            Some((Freshness::Stale, age)) => warn(
                check,
                format!(
                    "stale: read {} s ago; since then: {}",
                    age.as_secs(),
                    trouble.unwrap_or("nothing")
                ),
                "it is routed by what was known; the line of this server above says what is wrong",
            ),
            Some((Freshness::Fresh, age)) if age > OLD => warn(
                check,
                format!("read {} s ago", age.as_secs()),
                "it should be read every --discovery-interval: is the node short of CPU?",
            ),
            Some((Freshness::Fresh, age)) => ok(check, format!("read {} s ago", age.as_secs())),
        });
    }
    findings
}

fn steering(state: &State) -> Finding {
    let now = state.daemon.steering();
    let found = format!("{} ({}), mode {}", now.state, now.why, now.mode);
    let (grade, hint) = match (now.state.as_str(), now.why.as_str()) {
        ("full", _) => (
            Grade::Warn,
            Some(
                "new connections go direct: raise --max-connections or the memory limit; if neither is near, look who has the ports of --exempt-source, or all descriptors",
            ),
        ),
        ("off", "no_proof" | "forwarding_refused") => (
            Grade::Warn,
            Some(
                "the line of the local server above says why its proof of identity forwarding is missing",
            ),
        ),
        ("off", "no_listener") => (
            Grade::Warn,
            Some("no listener shows the certificate of --tls-cert-file; see the listeners above"),
        ),
        ("off", "local_down_refused") => (
            Grade::Warn,
            Some("local is not up, and --local-down=refuse leaves its clients to the kernel"),
        ),
        _ => (Grade::Ok, None),
    };
    finding("steering", grade, found, hint.map(ToOwned::to_owned))
}

/// User certificates in use that lose their identity at mvp, and not at kube-apiserver.
fn turned_away(state: &State) -> Vec<Finding> {
    const NAME: &str = "user certificates";
    let count = |reason| state.daemon.certificates_without_identity(reason);
    let mut findings = Vec::new();
    let unrepresentable = count(Reason::NotRepresentable);
    if unrepresentable > 0 {
        findings.push(warn(
            NAME,
            format!("{unrepresentable} requests came with a name, UID or group that no header can carry"),
            "they were answered 401 unless a token came with them: the log names the subjects; reissue those certificates without spaces at the ends and control characters",
        ));
    }
    let undecidable = count(Reason::Undecidable);
    if undecidable > 0 {
        findings.push(warn(
            NAME,
            format!("{undecidable} requests came with a certificate that cannot be judged (X.509 v1, an unknown critical extension)"),
            "they were answered 401 unless a token came with them: the log names the subjects; reissue those certificates as X.509 v3",
        ));
    }
    if findings.is_empty() {
        findings.push(ok(
            NAME,
            "all that were used since the start can be represented",
        ));
    }
    findings
}
