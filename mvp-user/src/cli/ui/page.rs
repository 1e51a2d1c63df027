//! The status page: one document, its style and its script, made of sections that are also sent alone when they change.
//!
//! `maud` escapes every text, so hostile names stay text. Everything that the script shows was rendered here: without
//! JavaScript the same page is a plain one that reloads itself.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest as _, Sha256};

use super::history::Paces;
use crate::{
    admin::wire::{Overview, Server},
    cli::{show::age, words},
};

mod events;
mod routes;
mod servers;
mod skew;

pub(super) const STYLE: &str = include_str!("style.css");
pub(super) const SCRIPT: &str = include_str!("script.js");
/// Seconds after which the page reloads itself where there is no JavaScript.
const RELOAD: u8 = 5;

/// What is shown.
#[derive(Debug)]
pub(super) struct Look<'a> {
    pub(super) overview: &'a Overview,
    pub(super) paces: &'a Paces,
    /// Of the last good answer, `HH:MM:SS UTC`.
    pub(super) time: &'a str,
    /// Why there is no newer answer, and for how many seconds.
    pub(super) trouble: Option<(String, u64)>,
}

/// A part of the page that changes.
pub(super) struct Section {
    /// Of its element.
    pub(super) id: &'static str,
    /// What is in it.
    pub(super) html: String,
}

/// All sections, in the order of the page.
pub(super) fn sections(look: &Look<'_>) -> Vec<Section> {
    let overview = look.overview;
    let keys = Keys::of(&overview.status.servers);
    let section = |id, markup: Markup| Section {
        id,
        html: markup.into_string(),
    };
    vec![
        section("top", top(look)),
        section("steering", steering(overview)),
        section("servers", servers::table(&overview.status.servers, &keys)),
        section("routes", routes::table(look.paces, &keys)),
        section("skew", skew::matrix(&overview.differences, &keys)),
        section(
            "rerouted",
            events::rerouted(&overview.traffic.rerouted, &keys),
        ),
        section("refused", events::refused(&overview.traffic.refused)),
        section("foot", foot(overview)),
    ]
}

/// The whole document.
pub(super) fn document(node: &str, sections: &[Section]) -> String {
    let part = |id: &str| {
        let found = sections.iter().find(|it| it.id == id);
        PreEscaped(found.map_or("", |it| it.html.as_str()))
    };
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "mvp on " (node) }
                link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M2 8h5l3-5h4M7 8l3 5h4' fill='none' stroke='%232f6fb5' stroke-width='2' stroke-linecap='round'/%3E%3C/svg%3E";
                noscript { meta http-equiv="refresh" content=(RELOAD); }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header id="top" { (part("top")) }
                main {
                    section id="steering" class="panel" aria-label="Steering" { (part("steering")) }
                    section id="servers" class="panel" aria-label="Servers" { (part("servers")) }
                    section id="routes" class="panel" aria-label="Requests" { (part("routes")) }
                    section id="skew" class="panel" aria-label="Differences" { (part("skew")) }
                    div class="pair" {
                        section id="rerouted" class="panel" aria-label="Rerouted" { (part("rerouted")) }
                        section id="refused" class="panel" aria-label="Refused" { (part("refused")) }
                    }
                }
                footer {
                    span id="foot" { (part("foot")) }
                    " "
                    span id="live" role="status" data-tone="quiet" {
                        noscript { "Reloads every " (RELOAD) " s." }
                    }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
    .into_string()
}

/// What the page may do: run its own script, wear its own style, listen to its own events. Nothing else.
pub(super) fn policy() -> String {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
}

/// A letter for each server, so that a matrix of seven of them is readable on a phone.
pub(super) struct Keys<'a>(&'a [Server]);

impl<'a> Keys<'a> {
    pub(super) const fn of(servers: &'a [Server]) -> Self {
        Self(servers)
    }

    /// Every server with its letter.
    pub(super) fn all(&self) -> impl Iterator<Item = (String, &'a Server)> {
        self.0
            .iter()
            .enumerate()
            .map(|(at, server)| (letter(at), server))
    }

    /// The letter and the name of `id`; an id that is not known stands for itself.
    pub(super) fn name(&self, id: &str) -> Markup {
        let known = self.all().find(|(_, server)| server.id == id);
        html! {
            @if let Some((letter, server)) = known {
                span class="key" aria-hidden="true" { (letter) }
                " "
                (called(server))
            } @else {
                (id)
            }
        }
    }
}

/// `A`, `B`, ... `Z`, `A1`, ...
fn letter(at: usize) -> String {
    let letter = char::from(b'A' + u8::try_from(at % 26).unwrap_or(0));
    match at / 26 {
        0 => letter.to_string(),
        round => format!("{letter}{round}"),
    }
}

/// What people call a server: the name of its node; local, with the name if it has one; else its address.
pub(super) fn called(server: &Server) -> String {
    match (&server.name, server.id.as_str()) {
        (Some(name), "local") => format!("{name} (local)"),
        (Some(name), _) => name.clone(),
        (None, id) => id.to_owned(),
    }
}

/// A word in its colour.
pub(super) fn word(text: &str) -> Markup {
    html! { span class=(words::tone(text).class()) { (text) } }
}

fn top(look: &Look<'_>) -> Markup {
    let status = &look.overview.status;
    html! {
        h1 { "mvp" span class="on" { " on " } (status.node) }
        p class="state" {
            @if status.ready {
                span class=(words::Tone::Good.class()) { "ready" }
            } @else {
                span class=(words::Tone::Bad.class()) { "not ready" }
            }
            span class="muted" { "as of " time { (look.time) } }
        }
        @if let Some((why, since)) = &look.trouble {
            p class="alarm" role="alert" {
                strong { "No news for " (age(*since)) ". " }
                "What follows is what was known before: " (why)
            }
        }
        @if !status.ready {
            ul class="alarm" {
                @for problem in &status.not_ready { li { (problem) } }
            }
        }
    }
}

fn steering(overview: &Overview) -> Markup {
    let (status, steering) = (&overview.status, &overview.status.steering);
    let share = if steering.percent == 100 {
        "all".to_owned()
    } else {
        format!("{} %", steering.percent)
    };
    html! {
        div class="lead" {
            p class="eyebrow" {
                "Steering " (word(&steering.state))
                span class="muted" { "for " (age(steering.since)) }
            }
            h2 { (words::steered(&steering.state)) }
            p {
                @match words::why(&steering.why) {
                    Some(sentence) => (sentence),
                    None => { "Reason: " (steering.why) "." }
                }
                @if !steering.detail.is_empty() && steering.detail != steering.why {
                    " " span class="muted" { "(" (steering.detail) ")" }
                }
            }
        }
        dl class="facts" {
            div { dt { "Mode" } dd { (steering.mode) } }
            div { dt { "Client addresses steered" } dd { (share) } }
            div {
                dt { "Client connections" }
                dd { (words::count(status.connections.open as u64)) span class="muted" { " of " (words::count(status.connections.bound as u64)) } }
            }
            div {
                dt { "Older direct connections" }
                dd {
                    @match steering.older_connections {
                        Some(count) => (words::count(count)),
                        None => span class="muted" { "not counted" },
                    }
                }
            }
        }
        @if !steering.lookups.is_empty() {
            details id="lookups" {
                summary { "What the kernel did with new connections" }
                dl class="facts" {
                    @for (outcome, count) in &steering.lookups {
                        div { dt { (outcome.replace('_', " ")) } dd { (words::count(*count)) } }
                    }
                }
            }
        }
    }
}

fn foot(overview: &Overview) -> Markup {
    let status = &overview.status;
    html! {
        "mvp " (status.version) ", process " (status.pid) ", up " (age(status.uptime)) ". "
        "Nothing can be changed here: use " code { "mvp steer" } " and " code { "mvp peers forget" } "."
    }
}
