//! The results for people: a Markdown table and an HTML page with charts.
#![expect(
    clippy::let_underscore_must_use,
    reason = "writing to a String cannot fail"
)]

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};

use super::{
    Comparison, Measured, Met, Metric, Results,
    chart::{self, Series, escape},
};

mod curves;

/// Writes `raw.json`, `report.md`, `report.html` and, if small requests were measured, `cpu.svg` into a directory.
pub fn write(results: &Results, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    let put = |name: &str, text: String| {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("{}", path.display()))
    };
    put("raw.json", serde_json::to_string_pretty(results)? + "\n")?;
    put("report.md", markdown(results))?;
    put("report.html", html(results))?;
    // For the README: an image has no page to take its style from.
    let chart = cpu(results);
    if let Some((open, rest)) = chart.split_once('>') {
        let style = chart::STYLE;
        put(
            "cpu.svg",
            format!("{open}><style>{style}{OWN_COLOURS}</style>{rest}"),
        )?;
    }
    Ok(())
}

/// What design 10 bounds, then everything.
pub fn markdown(results: &Results) -> String {
    let mut out = String::from("# Comparison\n\n");
    for line in results.machine.lines() {
        let _ = writeln!(out, "{line}  ");
    }
    out.push_str("\nRatios are mvp's figure divided by the other's, median of the repeats (least to greatest).\n\n## Bounds\n\n");
    out.push_str("| scenario | metric | against | mvp | other | ratio | required | goal | met |\n");
    out.push_str("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |\n");
    for it in results.comparisons.iter().filter(|it| it.met.is_some()) {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            it.scenario,
            it.metric.name(),
            it.against,
            figure(it.metric, it.mvp),
            it.other
                .map_or_else(|| "-".to_owned(), |other| figure(it.metric, other)),
            ratio(it),
            bound(it, it.required),
            bound(it, it.goal),
            met(it)
        );
    }
    for measured in &results.measured {
        let _ = writeln!(
            out,
            "\n## {}\n\n{}.{}\n",
            measured.scenario,
            measured.what,
            at_rate(measured)
        );
        table(&mut out, results, measured);
    }
    out.push_str(&curves::markdown(results));
    if !results.skipped.is_empty() {
        out.push_str("\n## Not measured\n\n");
        for line in &results.skipped {
            let _ = writeln!(out, "* {line}");
        }
    }
    out
}

fn at_rate(measured: &Measured) -> String {
    measured.rate.map_or_else(String::new, |rate| {
        format!(" Latency at {rate:.0} requests/s for all.")
    })
}

/// One scenario: a row for each metric, a column for each target with its ratio.
fn table(out: &mut String, results: &Results, measured: &Measured) {
    let names = names(measured);
    let metrics = metrics(measured);
    let _ = writeln!(out, "| metric | {} |", names.join(" | "));
    let _ = writeln!(out, "| --- |{}", " ---: |".repeat(names.len()));
    for metric in metrics {
        let _ = write!(out, "| {} |", metric.name());
        for name in &names {
            let value = measured
                .median(name, metric)
                .map_or_else(|| "-".to_owned(), |value| figure(metric, value));
            let compared = results.comparisons.iter().find(|it| {
                it.scenario == measured.scenario && it.against == *name && it.metric == metric
            });
            let _ = match compared {
                Some(compared) => write!(out, " {value} ({}) |", ratio(compared)),
                None => write!(out, " {value} |"),
            };
        }
        out.push('\n');
    }
    for (name, samples) in &measured.samples {
        let failed: u64 = samples.iter().map(|sample| sample.failed).sum();
        if failed > 0 {
            let why = samples
                .iter()
                .find_map(|sample| sample.failure.as_deref())
                .unwrap_or("unknown");
            let _ = writeln!(
                out,
                "\n{name}: {failed} requests failed, the first with: {why}"
            );
        }
        if let Some(sample) = samples.iter().find(|sample| !sample.copied.is_empty()) {
            let places = sample.copied.iter();
            let places: Vec<String> = places
                .map(|(place, each)| format!("{each:.2} {place}"))
                .collect();
            let _ = writeln!(
                out,
                "\n{name} copies, bytes for each forwarded: `{}`",
                places.join("`, `")
            );
        }
        let lag = samples
            .iter()
            .filter_map(|sample| sample.lag)
            .fold(0.0, f64::max);
        if lag > 5_000.0 {
            let _ = writeln!(
                out,
                "\n{name}: the asker was up to {:.0} ms late itself; latencies are no better than that",
                lag / 1e3
            );
        }
    }
}

/// mvp first, then in the order of the alphabet.
fn names(measured: &Measured) -> Vec<&str> {
    let mut names: Vec<&str> = measured.samples.keys().map(String::as_str).collect();
    names.sort_by_key(|name| (*name != "mvp", *name));
    names
}

fn metrics(measured: &Measured) -> Vec<Metric> {
    let samples = measured.samples.values().flatten();
    let mut metrics: Vec<Metric> = samples
        .flat_map(|sample| sample.metrics.keys().copied())
        .collect();
    metrics.sort_unstable();
    metrics.dedup();
    metrics
}

/// A figure in the unit of its metric's name.
fn figure(metric: Metric, value: f64) -> String {
    let value = match metric {
        Metric::PeakMemory | Metric::Spliced => value / f64::from(1 << 20),
        Metric::MemoryPerUnit => value / 1024.0,
        _ => value,
    };
    let digits = usize::from(value < 100.0);
    format!("{value:.digits$}")
}

fn ratio(it: &Comparison) -> String {
    let Some(ratio) = it.ratio else {
        return "-".to_owned();
    };
    match it.spread {
        Some((least, greatest)) if (greatest - least).abs() > 1e-9 => {
            format!("{ratio:.2} [{least:.2}, {greatest:.2}]")
        }
        _ => format!("{ratio:.2}"),
    }
}

fn bound(it: &Comparison, bound: Option<f64>) -> String {
    let sign = if it.metric.more_is_better() {
        ">="
    } else {
        "<="
    };
    match bound {
        None => "-".to_owned(),
        Some(bound) if it.ratio.is_none() => format!("{sign} {}", figure(it.metric, bound)),
        Some(bound) => format!("{sign} {bound:.2}"),
    }
}

const fn met(it: &Comparison) -> &'static str {
    match it.met {
        Some(Met::Goal) => "goal",
        Some(Met::Required) => "required",
        Some(Met::No) => "NO",
        None => "",
    }
}

/// Latency of every target.
fn distribution(measured: &Measured) -> String {
    let series = names(measured).into_iter().filter_map(|name| {
        let samples = measured.samples.get(name)?;
        // The middle repeat by p99, so that the line is one that was measured.
        let mut by_tail: Vec<_> = samples
            .iter()
            .filter(|sample| !sample.latency.points.is_empty())
            .collect();
        by_tail.sort_by(|a, b| {
            a.latency
                .at(99.0)
                .unwrap_or(0.0)
                .total_cmp(&b.latency.at(99.0).unwrap_or(0.0))
        });
        let middle = by_tail.get(by_tail.len() / 2)?;
        Some(Series {
            name: name.to_owned(),
            points: middle.told(),
        })
    });
    chart::distribution(
        &format!("{}: latency", measured.scenario),
        &series.collect::<Vec<_>>(),
    )
}

/// CPU per request of every proxy in every scenario of small requests.
fn cpu(results: &Results) -> String {
    let shown: Vec<&Measured> = results
        .measured
        .iter()
        .filter(|it| {
            it.scenario.starts_with("get-") || it.scenario == "mixed" || it.scenario == "rerouted"
        })
        .collect();
    let labels: Vec<&str> = shown.iter().map(|it| it.scenario.as_str()).collect();
    let series = ["mvp", "haproxy", "nginx", "pingora", "native"]
        .into_iter()
        .filter_map(|name| {
            let values = shown.iter().enumerate().filter_map(|(at, it)| {
                #[expect(clippy::cast_precision_loss, reason = "a handful")]
                Some((at as f64, it.median(name, Metric::CpuPerRequest)?))
            });
            let points: Vec<_> = values.collect();
            (!points.is_empty()).then(|| Series {
                name: name.to_owned(),
                points,
            })
        });
    chart::bars(
        "CPU of the proxy per request, us",
        &labels,
        &series.collect::<Vec<_>>(),
    )
}

/// A figure, divided by `unit`, over the number of connections or of watches.
fn growth(results: &Results, prefix: &str, (metric, unit): (Metric, f64), title: &str) -> String {
    let mut lines: Vec<Series> = Vec::new();
    for measured in results
        .measured
        .iter()
        .filter(|it| it.scenario.starts_with(prefix))
    {
        for name in names(measured) {
            let Some(value) = measured.median(name, metric) else {
                continue;
            };
            #[expect(clippy::cast_precision_loss, reason = "thousands")]
            let point = (measured.units as f64, value / unit);
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Series {
                    name: name.to_owned(),
                    points: vec![point],
                }),
            }
        }
    }
    let axis = if prefix.contains("watch") {
        "watches"
    } else {
        "connections"
    };
    chart::lines(title, axis, &lines)
}

fn html(results: &Results) -> String {
    let mut body = String::new();
    for line in results.machine.lines() {
        let _ = write!(body, "<p class=where>{}</p>", escape(&line));
    }
    body.push_str("<p>Ratios are mvp's figure divided by the other's, median of the repeats [least, greatest].</p>");
    body.push_str("<h2>Bounds</h2><table><tr><th>scenario<th>metric<th>against<th>mvp<th>other<th>ratio<th>required<th>goal<th>met");
    for it in results.comparisons.iter().filter(|it| it.met.is_some()) {
        let class = match it.met {
            Some(Met::No) => "no",
            Some(Met::Goal) => "goal",
            _ => "required",
        };
        let cells = [
            it.scenario.clone(),
            it.metric.name().to_owned(),
            it.against.clone(),
            figure(it.metric, it.mvp),
            it.other
                .map_or_else(|| "-".to_owned(), |other| figure(it.metric, other)),
            ratio(it),
            bound(it, it.required),
            bound(it, it.goal),
            met(it).to_owned(),
        ];
        let cells: String = cells
            .iter()
            .fold(String::new(), |row, cell| row + "<td>" + &escape(cell));
        let _ = write!(body, "<tr class={class}>{cells}");
    }
    body.push_str("</table><h2>Charts</h2><div class=charts>");
    body.push_str(&cpu(results));
    let memory = (Metric::PeakMemory, f64::from(1 << 20));
    let cpu = (Metric::CpuPerRequest, 1.0);
    for (prefix, figure, title) in [
        ("idle-", memory, "Peak memory over idle connections, MiB"),
        ("watch-", memory, "Peak memory over watches, MiB"),
        (
            "curve-connections-",
            memory,
            "Peak memory over busy connections, MiB",
        ),
        ("curve-watches-", memory, "Peak memory over watches, MiB"),
        (
            "curve-connections-",
            cpu,
            "CPU per request over connections, us",
        ),
        ("curve-watches-", cpu, "CPU per event over watches, us"),
    ] {
        body.push_str(&growth(results, prefix, figure, title));
    }
    for measured in &results.measured {
        body.push_str(&distribution(measured));
    }
    body.push_str("</div><h2>Everything</h2>");
    for measured in &results.measured {
        let _ = write!(
            body,
            "<h3>{}</h3><p>{}.{}</p>",
            measured.scenario,
            escape(&measured.what),
            at_rate(measured)
        );
        let mut rows = String::new();
        table(&mut rows, results, measured);
        body.push_str(&from_markdown(&rows));
    }
    body.push_str(&from_markdown(&curves::markdown(results)));
    if !results.skipped.is_empty() {
        body.push_str("<h2>Not measured</h2><ul>");
        for line in &results.skipped {
            let _ = write!(body, "<li>{}", escape(line));
        }
        body.push_str("</ul>");
    }
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>mvp: comparison</title><style>{STYLE}{}</style><h1>mvp: comparison</h1>{body}</html>\n",
        chart::STYLE
    )
}

/// What a page would say about the text of a chart.
const OWN_COLOURS: &str = ".chart{color:#222}@media(prefers-color-scheme:dark){.chart{color:#ddd}}";

const STYLE: &str = ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:1320px;margin:2rem auto;padding:0 1rem}\
    table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}th,td{padding:.2rem .7rem;text-align:right;\
    border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent)}td:first-child,th:first-child{text-align:left}.where{margin:.1rem 0;\
    opacity:.8}.no td:last-child{color:#e03131;font-weight:700}.goal td:last-child{color:#2f9e44}.charts{display:flex;flex-wrap:wrap;gap:1rem}\
    svg{max-width:100%;height:auto}";

/// The tables above, which are all the Markdown there is here.
fn from_markdown(text: &str) -> String {
    let mut out = String::new();
    let mut rows = 0;
    for line in text.lines() {
        if let Some(row) = line
            .strip_prefix("| ")
            .and_then(|line| line.strip_suffix(" |"))
        {
            if row.starts_with("---") {
                continue;
            }
            let cell = if rows == 0 {
                "<table><tr><th>"
            } else {
                "<tr><td>"
            };
            let next = if rows == 0 { "<th>" } else { "<td>" };
            out.push_str(cell);
            out.push_str(&row.split(" | ").map(escape).collect::<Vec<_>>().join(next));
            rows += 1;
        } else {
            if rows > 0 {
                out.push_str("</table>");
                rows = 0;
            }
            if !line.is_empty() {
                let _ = write!(out, "<p>{}</p>", escape(line));
            }
        }
    }
    if rows > 0 {
        out.push_str("</table>");
    }
    out
}

#[cfg(test)]
mod tests;
