//! What clients ask every day, through every node: first without mvp, then with it.

use std::collections::BTreeSet;

use anyhow::Result;
use bench::client::Client;
use serde_json::{Value, json};
use tokio::time::Duration;

use super::{
    cluster::{Cluster, Node},
    kinds,
    probe::{self, Outcome},
    report::{Line, Report},
};

/// Longest wait for an ordinary answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ask {
    Get(&'static str),
    Create,
    Watch,
    Exec,
    Discovery,
    WhoAmI(Caller),
    /// The new kind, and one beside it that this caller may not read.
    NewKindAs(Caller),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Caller {
    Certificate,
    ServiceAccount,
    Anonymous,
}

/// What must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// Before: 404 through some nodes, this status through others. After: this status through every node.
    Everywhere(u16),
    /// After as before.
    Unchanged,
    /// Before: this status; after: this status.
    Always(u16),
    /// Before and after: what the server that serves it says directly.
    AsNewServer,
    /// After: nothing that some server lists is missing.
    Complete,
}

#[rustfmt::skip]
const CHECKS: &[(&str, Ask, Rule)] = &[
    ("API that only the new serves: list", Ask::Get(kinds::NEW_KIND), Rule::Everywhere(200)),
    ("API that only the old serves: list", Ask::Get(kinds::OLD_KIND), Rule::Everywhere(200)),
    ("subresource that only the new has", Ask::Get(kinds::NEW_SUBRESOURCE), Rule::Everywhere(200)),
    ("create", Ask::Create, Rule::Everywhere(201)),
    ("watch", Ask::Watch, Rule::Everywhere(200)),
    ("exec over WebSocket", Ask::Exec, Rule::Always(101)),
    ("discovery", Ask::Discovery, Rule::Complete),
    ("who am I: certificate", Ask::WhoAmI(Caller::Certificate), Rule::Unchanged),
    ("who am I: service account", Ask::WhoAmI(Caller::ServiceAccount), Rule::Unchanged),
    ("who am I: anonymous", Ask::WhoAmI(Caller::Anonymous), Rule::Unchanged),
    ("rights at the new: certificate", Ask::NewKindAs(Caller::Certificate), Rule::AsNewServer),
    ("rights at the new: service account", Ask::NewKindAs(Caller::ServiceAccount), Rule::AsNewServer),
    ("rights at the new: anonymous", Ask::NewKindAs(Caller::Anonymous), Rule::AsNewServer),
];

/// One answer: in a few words, and whole.
#[derive(Clone, Debug)]
struct Seen {
    shown: String,
    whole: Value,
}

/// All answers of one round: by check, then by node.
#[derive(Debug)]
pub(crate) struct Round(Vec<Vec<Seen>>);

/// Asks everything through every node. `round` names the objects that are made.
pub(crate) async fn ask(cluster: &Cluster, report: &Report, round: &str) -> Result<Round> {
    let mut all = Vec::new();
    for (name, ask, _) in CHECKS {
        report.doing(&format!("{round} mvp: {name}"));
        let mut row = Vec::new();
        for node in &cluster.nodes {
            row.push(one(cluster, node, *ask, round).await);
        }
        all.push(row);
    }
    Ok(Round(all))
}

async fn one(cluster: &Cluster, node: &Node, ask: Ask, round: &str) -> Seen {
    let (people, to) = (&cluster.people, node.address());
    let caller = |caller| match caller {
        Caller::Certificate => &people.alice,
        Caller::ServiceAccount => &people.robot,
        Caller::Anonymous => &people.anonymous,
    };
    match ask {
        Ask::Get(path) => {
            let outcome = probe::get(&people.admin, to, path, PATIENCE).await;
            Seen::status(outcome)
        }
        Ask::Create => {
            let name = format!("created-{round}-mvp-{}", node.name());
            Seen::status(Outcome::from(
                &probe::create(&people.admin, to, &name).await,
            ))
        }
        Ask::Watch => {
            let name = format!("watched-{round}-mvp-{}", node.name());
            let at = cluster.newest().address();
            Seen::of(probe::watch(&people.admin, to, at, &name).await)
        }
        Ask::Exec => Seen::of(probe::exec(&people.admin_http1, to).await),
        Ask::Discovery => match probe::discovery(&people.admin, to).await {
            Ok(listed) => Seen {
                shown: format!("{} entries", listed.len()),
                whole: json!(listed),
            },
            Err(error) => Seen::failed(&error),
        },
        Ask::WhoAmI(who) => match probe::who_am_i(caller(who), to).await {
            Ok((status, said)) => {
                let name = said["username"].as_str().unwrap_or_default();
                let name = name.trim_start_matches("system:serviceaccount:");
                Seen {
                    shown: format!("{status} {name}").trim_end().to_owned(),
                    whole: json!([status, said]),
                }
            }
            Err(error) => Seen::failed(&error),
        },
        Ask::NewKindAs(who) => match rights(caller(who), to).await {
            Ok(seen) => seen,
            Err(error) => Seen::failed(&error),
        },
    }
}

/// A list that the caller may have, and one that it may not.
async fn rights(caller: &Client, to: std::net::SocketAddr) -> Result<Seen> {
    let mut shown = Vec::new();
    let mut whole = Vec::new();
    for path in [kinds::NEW_KIND, kinds::NEW_KIND_DENIED] {
        let answer = caller.once(to, "GET", path).await?;
        let status = answer.status.as_u16();
        shown.push(status.to_string());
        // A refusal names the user: the words must be the same, not only the number.
        let message = if answer.status.is_success() {
            Value::Null
        } else {
            answer.json()?["message"].clone()
        };
        whole.push(json!([status, message]));
    }
    Ok(Seen {
        shown: shown.join(", "),
        whole: Value::Array(whole),
    })
}

impl Seen {
    fn status(outcome: Outcome) -> Self {
        Self {
            shown: outcome.to_string(),
            whole: Value::Null,
        }
    }

    fn of(result: Result<u16>) -> Self {
        match result {
            Ok(status) => Self::status(Outcome::Status(status)),
            Err(error) => Self::failed(&error),
        }
    }

    fn failed(error: &anyhow::Error) -> Self {
        Self {
            shown: format!("{error:#}"),
            whole: Value::Null,
        }
    }

    fn is(&self, status: u16) -> bool {
        self.shown == status.to_string()
    }

    fn listed(&self) -> BTreeSet<&str> {
        self.whole
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }
}

/// Holds the two rounds against each other.
pub(crate) fn judge(
    cluster: &Cluster,
    before: &Round,
    after: &Round,
    report: &mut Report,
) -> Result<()> {
    let newest = cluster.nodes.len() - 1;
    for (index, (name, _, rule)) in CHECKS.iter().enumerate() {
        let (before, after) = (&before.0[index], &after.0[index]);
        let everything: BTreeSet<&str> = before.iter().flat_map(Seen::listed).collect();
        for (at, node) in cluster.nodes.iter().enumerate() {
            let (was, is) = (&before[at], &after[at]);
            let ok = match rule {
                Rule::Everywhere(status) => {
                    // Without a gap before, the check would prove nothing.
                    before.iter().all(|seen| seen.is(*status) || seen.is(404))
                        && before.iter().any(|seen| seen.is(404))
                        && before.iter().any(|seen| seen.is(*status))
                        && is.is(*status)
                }
                Rule::Unchanged => !was.whole.is_null() && was.whole == is.whole,
                Rule::Always(status) => was.is(*status) && is.is(*status),
                Rule::AsNewServer => {
                    !before[newest].whole.is_null() && is.whole == before[newest].whole
                }
                Rule::Complete => {
                    before.iter().any(|seen| seen.listed() != everything)
                        && is.listed() == everything
                }
            };
            let (mut was, mut is) = (was.shown.clone(), is.shown.clone());
            if *rule == Rule::Complete {
                (was, is) = (
                    missing(&before[at], &everything),
                    missing(&after[at], &everything),
                );
            }
            report.add(Line {
                name: (*name).to_owned(),
                node: node.name().to_owned(),
                before: was,
                after: is,
                ok,
            })?;
        }
    }
    Ok(())
}

fn missing(seen: &Seen, everything: &BTreeSet<&str>) -> String {
    let listed = seen.listed();
    if listed.is_empty() {
        return seen.shown.clone();
    }
    let beyond = listed.difference(everything).count();
    let missing = everything.difference(&listed).count();
    match (missing, beyond) {
        (0, 0) => "complete".to_owned(),
        (missing, 0) => format!("{missing} missing"),
        (missing, beyond) => format!("{missing} missing, {beyond} invented"),
    }
}
