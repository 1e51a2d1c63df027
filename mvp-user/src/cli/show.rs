//! Tables for people: 80 columns unless there are more, colour only on a terminal.

use std::fmt::Write as _;

use crate::{
    admin::wire::{Difference, Explanation, Finding, Grade, Route, Server, Status, Steering, View},
    config::Setting,
};

/// Where it is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// Columns.
    pub(super) width: usize,
    /// Whether every column is shown.
    pub(super) wide: bool,
    /// Whether colours are.
    pub(super) colour: bool,
}

/// Between columns.
const GAP: usize = 2;
/// A column is not cut below this.
const LEAST: usize = 8;

/// Draws rows below a heading. If they do not fit, the widest column is narrowed, again and again, and its cells go on
/// in the next line: nothing is left out.
fn table(heading: &[&str], rows: &[Vec<String>], page: Page) -> String {
    let columns = heading.len();
    let mut widths: Vec<usize> = heading.iter().map(|it| it.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let gaps = GAP * columns.saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > page.width {
        let Some(widest) = widths.iter_mut().max().filter(|it| **it > LEAST) else {
            break;
        };
        *widest -= 1;
    }
    let mut out = String::new();
    let heading: Vec<String> = heading.iter().map(ToString::to_string).collect();
    for (number, row) in std::iter::once(&heading).chain(rows).enumerate() {
        let cells: Vec<Vec<String>> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| fold(cell, *width))
            .collect();
        for height in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(&widths) {
                let piece = cell.get(height).map_or("", String::as_str);
                let blank = width.saturating_sub(piece.chars().count());
                line.push_str(&if number > 0 {
                    paint(piece, page)
                } else {
                    piece.to_owned()
                });
                line.extend(std::iter::repeat_n(' ', blank + GAP));
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
    out
}

/// Cuts into pieces of at most `width`, behind a separator where there is one in the second half.
fn fold(text: &str, width: usize) -> Vec<String> {
    let letters: Vec<char> = text.chars().map(clean).collect();
    let mut pieces = Vec::new();
    let mut rest = letters.as_slice();
    while rest.len() > width {
        let head = &rest[..width];
        let at = head
            .iter()
            .rposition(|it| matches!(it, ',' | '/' | '.' | '-' | ' '))
            .map(|at| at + 1)
            .filter(|at| *at > width / 2)
            .unwrap_or(width);
        let (piece, tail) = rest.split_at(at);
        pieces.push(piece.iter().collect());
        rest = tail;
    }
    pieces.push(rest.iter().collect());
    pieces
}

/// Names come from the API: nothing in them may reach the terminal as a command.
fn clean(letter: char) -> char {
    if letter.is_control() {
        '\u{fffd}'
    } else {
        letter
    }
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.chars().map(clean).collect();
    }
    let mut kept: String = text
        .chars()
        .take(width.saturating_sub(1))
        .map(clean)
        .collect();
    kept.push('…');
    kept
}

fn paint(word: &str, page: Page) -> String {
    let colour = match word {
        _ if !page.colour => return word.to_owned(),
        "up" | "proven" | "ok" | "on" | "fresh" => 32,
        "starting" | "draining" | "stale" | "departed" | "warn" | "full" | "unproven" => 33,
        "down" | "refused" | "fail" => 31,
        _ => return word.to_owned(),
    };
    format!("\u{1b}[{colour}m{word}\u{1b}[0m")
}

/// `93784` is `1d2h`.
fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{minutes}m{}s", seconds % 60),
        7200..172_800 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

fn with_subresource(resource: &str, subresource: Option<&String>) -> String {
    match subresource {
        Some(subresource) => format!("{resource}/{subresource}"),
        None => resource.to_owned(),
    }
}

fn or_dash(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "-".to_owned())
}

/// Two columns of a fact sheet.
fn facts(rows: &[(&str, String)], page: Page) -> String {
    let widest = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, value) in rows {
        let room = page.width.saturating_sub(widest + GAP).max(LEAST);
        for (number, line) in wrap(value, room).iter().enumerate() {
            let name = if number == 0 { name } else { "" };
            // Writing to a String cannot fail.
            writeln!(out, "{name:widest$}  {}", paint(line, page)).unwrap_or_default();
        }
    }
    out
}

/// Breaks between words.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let word = cut(word, width.max(LEAST));
        if let Some(line) = lines.last_mut()
            && (line.is_empty() || line.chars().count() + 1 + word.chars().count() <= width)
        {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&word);
        } else {
            lines.push(word);
        }
    }
    lines
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
    let mut out = facts(
        &[
            ("steering", steering.state.clone()),
            ("for", age(steering.since)),
            ("because", because(steering).to_owned()),
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

/// `mvp skew`.
#[expect(clippy::ptr_arg, reason = "what the answer is read into")]
pub(super) fn skew(differences: &Vec<Difference>, page: Page) -> String {
    if differences.is_empty() {
        return "all servers that were read serve the same\n".to_owned();
    }
    let rows: Vec<_> = differences
        .iter()
        .map(|it| {
            let mut row = vec![
                group_version(&it.group, &it.version),
                with_subresource(&it.resource, it.subresource.as_ref()),
                verbs(&it.verbs),
                it.served_by.join(","),
            ];
            if page.wide {
                row.push(it.lacked_by.join(","));
                row.push(if it.shared { "yes" } else { "no" }.to_owned());
            }
            row
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
    table(&heading[..if page.wide { 6 } else { 4 }], &rows, page)
}

/// All verbs of an ordinary resource are one star.
fn verbs(verbs: &[String]) -> String {
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
    let rows: Vec<_> = routes
        .iter()
        .map(|it| {
            let mut row = vec![
                group_version(&it.group, &it.version),
                with_subresource(&it.resource, it.subresource.as_ref()),
                it.to.clone(),
                it.because.clone(),
            ];
            if page.wide {
                row.push(it.served_by.join(","));
            }
            row
        })
        .collect();
    let heading = ["GROUP/VERSION", "RESOURCE", "TO", "BECAUSE", "SERVED BY"];
    table(&heading[..if page.wide { 5 } else { 4 }], &rows, page)
}

/// `mvp explain`.
pub(super) fn explanation(it: &Explanation, page: Page) -> String {
    let mut rows = vec![(
        "request",
        format!("{} {} ({})", it.method, it.path, it.class),
    )];
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
        rows.push((name, format!("{}{status} ({})", step.to, step.because)));
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
        for (number, line) in lines.iter().enumerate() {
            if number == 0 {
                let check = cut(&it.check, widest);
                writeln!(out, "{}{blank}{check:widest$}  {line}", paint(word, page))
            } else {
                writeln!(out, "{:indent$}{line}", "")
            }
            .unwrap_or_default();
        }
    }
    let bad = findings.iter().filter(|it| it.result != Grade::Ok).count();
    writeln!(out, "{} checks, {bad} to look at", findings.len()).unwrap_or_default();
    out
}

/// `mvp run --print-config`.
pub(super) fn settings(settings: &[Setting], width: usize) -> String {
    let rows: Vec<_> = settings
        .iter()
        .map(|it| {
            let value = if it.value.is_empty() { "-" } else { &it.value };
            vec![
                format!("--{}", it.name),
                it.origin.to_string(),
                value.to_owned(),
            ]
        })
        .collect();
    let page = Page {
        width: width.max(120),
        wide: false,
        colour: false,
    };
    table(&["FLAG", "FROM", "VALUE"], &rows, page)
}
