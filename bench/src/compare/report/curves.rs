//! What grows with how many: figures of the scenarios `curve-*`, and their slope.
#![expect(
    clippy::let_underscore_must_use,
    reason = "writing to a String cannot fail"
)]

use std::fmt::Write as _;

use super::{Measured, Metric, Results, figure, names};

const SHOWN: [Metric; 4] = [
    Metric::CpuPerRequest,
    Metric::P50,
    Metric::PeakMemory,
    Metric::MemoryPerUnit,
];

/// A table for each curve; empty if none was measured.
pub(super) fn markdown(results: &Results) -> String {
    let mut out = String::new();
    for what in ["connections", "watches"] {
        let prefix = format!("curve-{what}-");
        let measured: Vec<&Measured> = results
            .measured
            .iter()
            .filter(|it| it.scenario.starts_with(&prefix))
            .collect();
        if measured.len() < 3 {
            continue;
        }
        let _ = write!(out, "\n## As {what} grow\n\n| | |");
        for it in &measured {
            let _ = write!(out, " {} |", it.units);
        }
        let _ = write!(
            out,
            " slope per 1,000 |\n| --- | --- |{}\n",
            " ---: |".repeat(measured.len() + 1)
        );
        for name in measured.first().map(|it| names(it)).unwrap_or_default() {
            for metric in SHOWN {
                row(&mut out, &measured, name, metric);
            }
        }
    }
    out
}

fn row(out: &mut String, measured: &[&Measured], name: &str, metric: Metric) {
    let values = measured.iter().map(|it| it.median(name, metric));
    let values: Vec<Option<f64>> = values.collect();
    if values.iter().flatten().count() < 3 {
        return;
    }
    let _ = write!(out, "| {name} | {} |", metric.name());
    for value in &values {
        let _ = match value {
            Some(value) => write!(out, " {} |", figure(metric, *value)),
            None => write!(out, " - |"),
        };
    }
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let points: Vec<(f64, f64)> = measured
        .iter()
        .zip(&values)
        .filter_map(|(it, value)| Some((it.units as f64, (*value)?)))
        .collect();
    let steep = slope(&points) * 1000.0;
    let unit = match metric {
        Metric::PeakMemory => steep / f64::from(1 << 20),
        Metric::MemoryPerUnit => steep / 1024.0,
        _ => steep,
    };
    let _ = writeln!(out, " {unit:+.3} |");
}

/// Of the line with the least squares.
pub(super) fn slope(points: &[(f64, f64)]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let count = points.len().max(1) as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let along: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    let width: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if width > 0.0 { along / width } else { 0.0 }
}
