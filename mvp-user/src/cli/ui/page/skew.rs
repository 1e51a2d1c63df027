//! What differs: a matrix of facts and servers, folded by group and version.

use maud::{Markup, html};

use super::Keys;
use crate::{
    admin::wire::Difference,
    cli::{
        show::{group_version, verbs, with_subresource},
        words::count,
    },
};

/// Up to so many rows stand open.
const OPEN: usize = 12;
/// A page with more rows helps nobody; `mvp skew` has them all.
const MOST: usize = 2000;

pub(super) fn matrix(differences: &[Difference], keys: &Keys<'_>) -> Markup {
    let shown = &differences[..differences.len().min(MOST)];
    let groups: Vec<&[Difference]> = shown
        .chunk_by(|one, other| one.group == other.group && one.version == other.version)
        .collect();
    html! {
        h2 {
            "Differences "
            span class="muted" {
                @match differences.len() {
                    0 => "none",
                    rows => { (count(rows as u64)) " in " (count(groups.len() as u64)) " group versions" },
                }
            }
        }
        @if differences.is_empty() {
            p class="empty" {
                "All servers that were read serve the same resources, subresources and verbs. After an upgrade this is how it should be."
            }
        } @else {
            @for group in &groups { (fold(group, keys, shown.len() <= OPEN)) }
            @if shown.len() < differences.len() {
                p class="muted" {
                    (count((differences.len() - shown.len()) as u64)) " more: " code { "mvp skew" } " shows all."
                }
            }
        }
    }
}

fn fold(group: &[Difference], keys: &Keys<'_>, open: bool) -> Markup {
    let Some(first) = group.first() else {
        return html! {};
    };
    let name = group_version(&first.group, &first.version);
    let alike = group.iter().all(|it| it.served_by == first.served_by);
    html! {
        details id={ "gv-" (name) } open[open] {
            summary {
                span class="mono name" { (name) }
                " "
                span class="muted" {
                    (count(group.len() as u64)) @if group.len() == 1 { " difference" } @else { " differences" }
                    @if alike { ", only at " } @else { ", at different servers" }
                }
                @if alike {
                    @for (letter, server) in keys.all() {
                        @if first.served_by.contains(&server.id) { " " span class="key" { (letter) } }
                    }
                }
                @if first.shared { " " span class="tag" { "shared" } }
            }
            table class="matrix" {
                thead {
                    tr {
                        th scope="col" { "Resource" }
                        th scope="col" class="verbs" { "Verbs" }
                        @for (letter, server) in keys.all() {
                            th scope="col" class="cell" {
                                span class="key" title=(super::called(server)) { (letter) }
                            }
                        }
                    }
                }
                tbody {
                    @for it in group { (row(it, keys)) }
                }
            }
            @if first.shared {
                p class="muted small" {
                    "Shared: owned by a CRD or an aggregated APIService, so the servers differ only for a moment, and nothing is steered for it."
                }
            }
        }
    }
}

fn row(it: &Difference, keys: &Keys<'_>) -> Markup {
    let verbs = match verbs(&it.verbs) {
        all if all == "*" => "all verbs".to_owned(),
        some => some.replace(',', ", "),
    };
    html! {
        tr {
            th scope="row" class="mono" { (with_subresource(&it.resource, it.subresource.as_ref())) }
            td class="verbs" { (verbs) }
            @for (_, server) in keys.all() {
                td class="cell" {
                    @if it.served_by.contains(&server.id) {
                        span class="has" { span class="hidden" { "yes" } }
                    } @else if it.lacked_by.contains(&server.id) {
                        span class="lacks" { span class="hidden" { "no" } }
                    } @else {
                        span class="muted" title="never read" { "?" }
                    }
                }
            }
        }
    }
}
