//! The last requests that went to a peer, and the last that mvp answered itself.

use maud::{Markup, html};

use super::Keys;
use crate::{
    admin::wire::Event,
    cli::{
        show::age,
        words::{count, event},
    },
};

/// So many are shown; the rest is folded.
const FIRST: usize = 8;

pub(super) fn rerouted(events: &[Event], keys: &Keys<'_>) -> Markup {
    html! {
        h2 { "Rerouted " span class="muted" { "last requests that another server answered" } }
        @if events.is_empty() {
            p class="empty" { "None. Every request could be answered by the kube-apiserver of this node." }
        }
        (list("more-rerouted", events, Some(keys)))
    }
}

pub(super) fn refused(events: &[Event]) -> Markup {
    html! {
        h2 { "Refused " span class="muted" { "last requests that mvp answered itself" } }
        @if events.is_empty() {
            p class="empty" { "None. Every request reached a kube-apiserver." }
        }
        (list("more-refused", events, None))
    }
}

fn list(id: &str, events: &[Event], keys: Option<&Keys<'_>>) -> Markup {
    let (first, rest) = events.split_at(events.len().min(FIRST));
    html! {
        @if !first.is_empty() { (rows(first, keys)) }
        @if !rest.is_empty() {
            details id=(id) {
                summary { (count(rest.len() as u64)) " more" }
                (rows(rest, keys))
            }
        }
    }
}

fn rows(events: &[Event], keys: Option<&Keys<'_>>) -> Markup {
    html! {
        ul class="events" {
            @for it in events {
                li {
                    span class="what" {
                        span class="method" { (it.method) }
                        " "
                        @if it.what.is_empty() {
                            span class="muted" { "not read" }
                        } @else {
                            span class="mono" { (it.what) }
                        }
                    }
                    span class="when" { (age(it.ago)) " ago" }
                    span class="why" {
                        @if let (Some(keys), Some(server)) = (keys, &it.server) {
                            "to " (keys.name(server)) ": "
                        }
                        (event(&it.why).unwrap_or(&it.why))
                        span class={ "status" @if it.status >= 500 { " bad" } } { " " (it.status) }
                    }
                    span class="times" {
                        @if it.count > 1 { "× " (count(it.count)) }
                    }
                }
            }
        }
    }
}
