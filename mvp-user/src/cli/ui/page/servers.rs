//! The servers: how they are, and how old what is known of them is.

use maud::{Markup, html};

use super::{Keys, word};
use crate::{
    admin::wire::Server,
    cli::{
        show::age,
        table::cut,
        words::{count, seconds},
    },
};

pub(super) fn table(servers: &[Server], keys: &Keys<'_>) -> Markup {
    html! {
        h2 { "Servers" }
        table class="cards" {
            thead {
                tr {
                    th scope="col" { "Server" }
                    th scope="col" { "Version" }
                    th scope="col" { "State" }
                    th scope="col" { "Identity forwarding" }
                    th scope="col" class="number" { "Latency" }
                    th scope="col" { "Knowledge" }
                    th scope="col" class="number" { "Serves" }
                }
            }
            tbody {
                @for (letter, server) in keys.all() {
                    tr {
                        th scope="row" {
                            span class="key" { (letter) } " " (super::called(server))
                            @if server.address != server.id || server.name.is_some() {
                                " " span class="muted mono small" { (server.address) }
                            }
                        }
                        td data-label="Version" class="mono" {
                            @match &server.version {
                                Some(version) => (cut(version, 32)),
                                None => span class="muted" { "unknown" },
                            }
                        }
                        td data-label="State" { (state(server)) }
                        td data-label="Identity forwarding" { (word(&server.proof)) }
                        td data-label="Latency" class="number" {
                            @match server.latency_us {
                                Some(micros) if server.health == "up" => (seconds(std::time::Duration::from_micros(micros).as_secs_f64())),
                                _ => span class="muted" { "–" },
                            }
                        }
                        td data-label="Knowledge" { (knowledge(server)) }
                        td data-label="Serves" class="number" { (count(server.resources as u64)) }
                    }
                    @if let Some(trouble) = &server.trouble {
                        tr class="note" {
                            td colspan="7" {
                                span class="muted" { "The last read of " (super::called(server)) " was not complete: " }
                                (trouble)
                            }
                        }
                    }
                }
            }
        }
        @if servers.len() == 1 {
            p class="muted" { "No other kube-apiserver is known. Alone, this one answers everything." }
        }
        p class="muted small" {
            "Latency: connection, TLS handshake and /readyz of the last probe. Serves: resources and subresources."
        }
    }
}

fn state(server: &Server) -> Markup {
    html! {
        @if server.membership == "departed" {
            (word("departed"))
            @if let Some(seconds) = server.forgotten_in {
                " " span class="muted" { "forgotten in " (age(seconds)) }
            }
        } @else {
            (word(&server.health))
        }
    }
}

fn knowledge(server: &Server) -> Markup {
    html! {
        @match (&server.catalogue, server.age) {
            (Some(freshness), Some(seconds)) => {
                (word(freshness)) " " span class="muted" { (age(seconds)) " old" }
            }
            _ => (word("never read")),
        }
    }
}
