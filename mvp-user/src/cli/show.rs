//! The answers of the control socket as people read them; how they are drawn is `table`'s.

use std::fmt::Write as _;

use super::{
    table::{GAP, Page, facts, fold, paint, table, wrap},
    words,
};
use crate::admin::wire::{
    Difference, Explanation, Finding, Grade, Route, Server, Setting, Status, Steering, View,
};

/// `93784` is `1d2h`.
pub(super) fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{minutes}m{}s", seconds % 60),
        7200..172_800 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

pub(super) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

pub(super) fn with_subresource(resource: &str, subresource: Option<&String>) -> String {
    match subresource {
        Some(subresource) => format!("{resource}/{subresource}"),
        None => resource.to_owned(),
    }
}

fn or_dash(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "-".to_owned())
}

/// `mvp status`.
pub(super) fn status(status: &Status, page: Page) -> String {
    let ready = if status.ready {
        "yes".to_owned()
    } else {
        format!("no: {}", status.not_ready.join("; "))
    };
    let mut out = facts(
        &[
            (
                "mvp",
                format!(
                    "{}, process {}, up {}",
                    status.version,
                    status.pid,
                    age(status.uptime)
                ),
            ),
            ("ready", ready),
            ("steering", steering_line(&status.steering)),
            (
                "connections",
                format!(
                    "{} of {}",
                    status.connections.open, status.connections.bound
                ),
            ),
            (
                "differences",
                match status.skew {
                    0 => "none".to_owned(),
                    count => format!("{count} (mvp skew)"),
                },
            ),
        ],
        page,
    );
    out.push('\n');
    out.push_str(&peers(&status.servers, page));
    out
}

/// The reason, as full as it is known.
fn because(steering: &Steering) -> &str {
    if steering.detail.starts_with(&steering.why) {
        &steering.detail
    } else {
        &steering.why
    }
}

fn steering_line(steering: &Steering) -> String {
    let mut line = format!(
        "{} for {} ({}), mode {}",
        steering.state,
        age(steering.since),
        because(steering),
        steering.mode
    );
    if steering.percent != 100 {
        write!(line, ", {} % of clients", steering.percent).unwrap_or_default();
    }
    if let Some(older @ 1..) = steering.older_connections {
        write!(line, ", {older} older direct connections").unwrap_or_default();
    }
    line
}

/// `mvp steer`.
pub(super) fn steering(steering: &Steering, page: Page) -> String {
    let mut why = because(steering).to_owned();
    if let Some(sentence) = words::why(&steering.why)
        && why == steering.why
    {
        write!(why, ": {sentence}").unwrap_or_default();
    }
    let mut out = facts(
        &[
            ("steering", steering.state.clone()),
            ("for", age(steering.since)),
            ("because", why),
            ("mode", steering.mode.clone()),
            ("share", format!("{} %", steering.percent)),
            (
                "older",
                match steering.older_connections {
                    Some(count) => format!("{count} direct connections"),
                    None => "not counted".to_owned(),
                },
            ),
        ],
        page,
    );
    if !steering.lookups.is_empty() {
        let rows: Vec<_> = steering
            .lookups
            .iter()
            .map(|(outcome, count)| vec![outcome.clone(), count.to_string()])
            .collect();
        out.push('\n');
        out.push_str(&table(&["NEW CONNECTIONS", "COUNT"], &rows, page));
    }
    out
}

/// `mvp peers`.
#[expect(clippy::ptr_arg, reason = "what the answer is read into")]
pub(super) fn peers(servers: &Vec<Server>, page: Page) -> String {
    let state = |server: &Server| match server.membership.as_str() {
        "departed" => "departed".to_owned(),
        _ => server.health.clone(),
    };
    let read = |server: &Server| server.age.map_or_else(|| "never".to_owned(), age);
    if page.wide {
        let rows: Vec<_> = servers
            .iter()
            .map(|it| {
                vec![
                    it.id.clone(),
                    it.address.clone(),
                    or_dash(it.name.as_ref()),
                    or_dash(it.version.as_ref()),
                    state(it),
                    it.proof.clone(),
                    or_dash(it.catalogue.as_ref()),
                    read(it),
                    it.resources.to_string(),
                    it.latency_us.map_or_else(
                        || "-".to_owned(),
                        |it| words::seconds(std::time::Duration::from_micros(it).as_secs_f64()),
                    ),
                    or_dash(it.trouble.as_ref()),
                    it.forgotten_in.map_or_else(|| "-".to_owned(), age),
                ]
            })
            .collect();
        let heading = [
            "SERVER",
            "ADDRESS",
            "NAME",
            "VERSION",
            "STATE",
            "FORWARDING",
            "KNOWLEDGE",
            "READ",
            "RESOURCES",
            "LATENCY",
            "TROUBLE",
            "FORGOTTEN IN",
        ];
        return table(&heading, &rows, page);
    }
    let rows: Vec<_> = servers
        .iter()
        .map(|it| {
            vec![
                it.id.clone(),
                or_dash(it.name.as_ref()),
                or_dash(it.version.as_ref()),
                state(it),
                it.proof.clone(),
                read(it),
                it.resources.to_string(),
            ]
        })
        .collect();
    let heading = [
        "SERVER",
        "NAME",
        "VERSION",
        "STATE",
        "FORWARDING",
        "READ",
        "RESOURCES",
    ];
    table(&heading, &rows, page)
}

/// `mvp skew`: by group and version, so that 80 columns hold a row; `wide` is one row a line, for `grep`.
#[expect(clippy::ptr_arg, reason = "what the answer is read into")]
pub(super) fn skew(differences: &Vec<Difference>, page: Page) -> String {
    if differences.is_empty() {
        return "all servers that were read serve the same\n".to_owned();
    }
    if page.wide {
        let rows: Vec<_> = differences
            .iter()
            .map(|it| {
                vec![
                    group_version(&it.group, &it.version),
                    with_subresource(&it.resource, it.subresource.as_ref()),
                    verbs(&it.verbs),
                    it.served_by.join(","),
                    it.lacked_by.join(","),
                    if it.shared { "yes" } else { "no" }.to_owned(),
                ]
            })
            .collect();
        let heading = [
            "GROUP/VERSION",
            "RESOURCE",
            "VERBS",
            "ONLY AT",
            "NOT AT",
            "SHARED",
        ];
        return table(&heading, &rows, page);
    }
    let mut rows = Vec::new();
    for group in
        differences.chunk_by(|one, other| one.group == other.group && one.version == other.version)
    {
        rows.extend(group.first().map(|first| {
            let shared = if first.shared { " (shared)" } else { "" };
            vec![format!(
                "{}{shared}",
                group_version(&first.group, &first.version)
            )]
        }));
        rows.extend(group.iter().map(|it| {
            // The shorter list says it all: every server that was read is on one of both.
            let at = if it.lacked_by.len() < it.served_by.len() {
                format!("not {}", it.lacked_by.join(", "))
            } else {
                format!("only {}", it.served_by.join(", "))
            };
            let resource = with_subresource(&it.resource, it.subresource.as_ref());
            vec![format!("  {resource}"), verbs(&it.verbs), at]
        }));
    }
    let mut out = table(&["GROUP/VERSION, RESOURCE", "VERBS", "AT"], &rows, page);
    if differences.iter().any(|it| it.shared) {
        out.push_str("\nshared: owned by a CRD or an APIService; nothing is steered for it\n");
    }
    out
}

/// All verbs of an ordinary resource are one star.
pub(super) fn verbs(verbs: &[String]) -> String {
    const ORDINARY: [&str; 8] = [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ];
    if verbs.len() == ORDINARY.len()
        && ORDINARY
            .iter()
            .all(|it| verbs.iter().any(|verb| verb == it))
    {
        "*".to_owned()
    } else {
        verbs.join(",")
    }
}

/// `mvp routes`.
#[expect(clippy::ptr_arg, reason = "what the answer is read into")]
pub(super) fn routes(routes: &Vec<Route>, page: Page) -> String {
    if routes.is_empty() {
        return "no server is known to serve that\n".to_owned();
    }
    if page.wide {
        let rows: Vec<_> = routes
            .iter()
            .map(|it| {
                vec![
                    group_version(&it.group, &it.version),
                    with_subresource(&it.resource, it.subresource.as_ref()),
                    it.to.clone(),
                    it.because.clone(),
                    it.served_by.join(","),
                ]
            })
            .collect();
        let heading = ["GROUP/VERSION", "RESOURCE", "TO", "BECAUSE", "SERVED BY"];
        return table(&heading, &rows, page);
    }
    let mut rows = Vec::new();
    for group in
        routes.chunk_by(|one, other| one.group == other.group && one.version == other.version)
    {
        rows.extend(
            group
                .first()
                .map(|first| vec![group_version(&first.group, &first.version)]),
        );
        rows.extend(group.iter().map(|it| {
            let resource = with_subresource(&it.resource, it.subresource.as_ref());
            vec![format!("  {resource}"), it.to.clone(), it.because.clone()]
        }));
    }
    table(&["GROUP/VERSION, RESOURCE", "TO", "BECAUSE"], &rows, page)
}

/// `mvp explain`.
pub(super) fn explanation(it: &Explanation, page: Page) -> String {
    let mut rows = vec![
        ("method", it.method.clone()),
        ("path", format!("{} ({})", it.path, it.class)),
    ];
    if let Some(resource) = &it.resource {
        let verb = it.verb.as_deref().unwrap_or("(no verb)");
        rows.push((
            "asks",
            format!(
                "{verb} {}",
                with_subresource(resource, it.subresource.as_ref())
            ),
        ));
    }
    if let Some(namespace) = &it.namespace {
        rows.push(("namespace", namespace.clone()));
    }
    if let Some(name) = &it.name {
        rows.push(("name", name.clone()));
    }
    rows.push(("caller", it.caller.clone()));
    for (number, step) in it.steps.iter().enumerate() {
        let status = step.status.map_or_else(String::new, |it| format!(" {it}"));
        let name = if number == 0 {
            "goes to"
        } else {
            "if it fails"
        };
        let words = match (step.to.as_str(), step.because.as_str()) {
            // `words::event` has the words of a peer that stands in for local.
            ("local", "authority_serves") => Some("it serves it"),
            ("local", "authority_unread" | "discovery" | "non_resource") => None,
            (to, because) => words::event(because).or_else(|| words::event(to)),
        };
        let words = words.map_or_else(String::new, |it| format!(": {it}"));
        rows.push((
            name,
            format!("{}{status} ({}){words}", step.to, step.because),
        ));
    }
    let servers: Vec<_> = it
        .servers
        .iter()
        .map(
            |View {
                 server,
                 name,
                 health,
                 proof,
                 membership,
                 serves,
             }| {
                let state = if membership == "departed" {
                    membership
                } else {
                    health
                };
                vec![
                    server.clone(),
                    or_dash(name.as_ref()),
                    serves.clone(),
                    state.clone(),
                    proof.clone(),
                ]
            },
        )
        .collect();
    let mut out = facts(&rows, page);
    out.push('\n');
    out.push_str(&table(
        &["SERVER", "NAME", "SERVES IT", "STATE", "FORWARDING"],
        &servers,
        page,
    ));
    out
}

/// `mvp check`.
pub(super) fn findings(findings: &[Finding], page: Page) -> String {
    let mut out = String::new();
    let widest = findings
        .iter()
        .map(|it| it.check.chars().count())
        .max()
        .unwrap_or(0)
        .min(36);
    for it in findings {
        let word = match it.result {
            Grade::Ok => "ok",
            Grade::Warn => "warn",
            Grade::Fail => "fail",
        };
        let indent = 6 + widest + GAP;
        let room = page.width.saturating_sub(indent).max(24);
        let blank = " ".repeat(6 - word.len());
        let mut lines = wrap(&it.found, room);
        if let Some(hint) = &it.hint {
            lines.extend(wrap(&format!("-> {hint}"), room));
        }
        let names = fold(&it.check, widest);
        for number in 0..names.len().max(lines.len()) {
            let lead = if number == 0 {
                format!("{}{blank}", paint(word, page))
            } else {
                " ".repeat(6)
            };
            let name = names.get(number).map_or("", String::as_str);
            let line = lines.get(number).map_or("", String::as_str);
            let row = format!("{lead}{name:widest$}  {line}");
            writeln!(out, "{}", row.trim_end()).unwrap_or_default();
        }
    }
    let bad = findings.iter().filter(|it| it.result != Grade::Ok).count();
    writeln!(out, "{} checks, {bad} to look at", findings.len()).unwrap_or_default();
    out
}

/// `mvp config`, and `mvp run --print-config`.
#[expect(clippy::ptr_arg, reason = "what the answer is read into")]
pub(super) fn settings(settings: &Vec<Setting>, page: Page) -> String {
    let rows: Vec<_> = settings
        .iter()
        .map(|it| {
            let value = if it.value.is_empty() { "-" } else { &it.value };
            vec![
                format!("--{}", it.name),
                it.origin.clone(),
                value.to_owned(),
            ]
        })
        .collect();
    // An `on` or `off` here is neither good nor bad.
    let page = Page {
        colour: false,
        ..page
    };
    table(&["FLAG", "FROM", "VALUE"], &rows, page)
}
