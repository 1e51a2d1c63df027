//! How much goes where, and how long it takes.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::Keys;
use crate::cli::{
    show::age,
    ui::history::{Pace, Paces},
    words::{count, rate, seconds},
};

/// Size of a curve.
const WIDTH: f64 = 120.0;
const HEIGHT: f64 = 24.0;
/// Points of a curve; an incomplete one begins at the right.
const POINTS: usize = 30;

pub(super) fn table(paces: &Paces, keys: &Keys<'_>) -> Markup {
    let served = paces.routes.iter().any(|it| it.total > 0);
    html! {
        h2 {
            "Requests " span class="muted" {
                @match paces.span {
                    Some(span) => { "in the last " (age(span.as_secs())) },
                    None => "since mvp started",
                }
            }
        }
        @if served {
            table class="cards numbers" {
                thead {
                    tr {
                        th scope="col" { "Answered by" }
                        th scope="col" class="number" { "Per second" }
                        th scope="col" { span class="hidden" { "Curve of requests per second" } }
                        th scope="col" class="number" { "2xx, 3xx" }
                        th scope="col" class="number" { "4xx" }
                        th scope="col" class="number" { "5xx" }
                        th scope="col" class="number" { "50 %" }
                        th scope="col" class="number" { "90 %" }
                        th scope="col" class="number" { "99 %" }
                        th scope="col" class="number" { "In all" }
                    }
                }
                tbody {
                    @for pace in &paces.routes { (row(pace, keys)) }
                }
            }
            p class="muted small" {
                "Times: from the head of a request to the head of its answer; so many were answered within."
            }
        } @else {
            p class="empty" {
                "No request came through mvp yet. While nothing is steered, clients talk to kube-apiserver directly and mvp costs nothing."
            }
        }
    }
}

fn row(pace: &Pace, keys: &Keys<'_>) -> Markup {
    let [early, good, moved, wrong, broken] = pace.answers;
    html! {
        tr {
            th scope="row" {
                @if pace.server == "former" {
                    "servers that are gone"
                } @else {
                    (keys.name(&pace.server))
                }
            }
            td data-label="Per second" class="number" { (rate(pace.rate)) }
            td class="curve" { (curve(&pace.rates)) }
            td data-label="2xx, 3xx" class="number" { (count(early + good + moved)) }
            td data-label="4xx" class="number" { (count(wrong)) }
            td data-label="5xx" class={ "number" @if broken > 0 { " bad" } } { (count(broken)) }
            @for (label, at) in [("50 %", 0), ("90 %", 1), ("99 %", 2)] {
                td data-label=(label) class="number" {
                    @match pace.percentiles.and_then(|it| it.get(at).copied()) {
                        Some(value) => (seconds(value)),
                        None => span class="muted" { "–" },
                    }
                }
            }
            td data-label="In all" class="number" { (count(pace.total)) }
        }
    }
}

/// A small curve of rates, oldest left.
fn curve(rates: &[f64]) -> Markup {
    let rates = &rates[rates.len().saturating_sub(POINTS)..];
    let most = rates.iter().copied().fold(0.0, f64::max);
    let mut points = String::new();
    let empty = POINTS - rates.len();
    for (at, value) in rates.iter().enumerate() {
        let step = u32::try_from(empty + at).unwrap_or(0);
        let x = f64::from(step) * WIDTH / 29.0;
        let y = if most > 0.0 {
            (HEIGHT - 2.0) * (1.0 - value / most) + 1.0
        } else {
            HEIGHT - 1.0
        };
        // Writing to a String cannot fail.
        write!(points, "{x:.1},{y:.1} ").unwrap_or_default();
    }
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) role="img"
            aria-label={ "requests per second, at most " (rate(most)) } {
            polyline points=(points.trim_end());
        }
    }
}
