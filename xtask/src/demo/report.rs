//! What the demo says: progress on standard error while it works, one JSON object a check on standard output, a table
//! at the end.

use std::{io::Write as _, time::Duration};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// One check of one node.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    /// What was checked.
    pub(crate) name: String,
    /// Through which node.
    pub(crate) node: String,
    /// What a client saw without mvp.
    pub(crate) before: String,
    /// With mvp.
    pub(crate) after: String,
    /// Whether both are as they should be.
    pub(crate) ok: bool,
}

/// Collects lines and shows how far the demo is.
#[derive(Debug)]
pub(crate) struct Report {
    lines: Vec<Line>,
    json: bool,
    bar: ProgressBar,
}

impl Report {
    /// An empty report.
    pub(crate) fn new(json: bool) -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self {
            lines: Vec::new(),
            json,
            bar,
        }
    }

    /// What is being done now.
    pub(crate) fn doing(&self, what: &str) {
        if self.bar.is_hidden() {
            eprintln!("{what}");
        } else {
            self.bar.set_message(what.to_owned());
        }
    }

    /// A finished check.
    pub(crate) fn add(&mut self, line: Line) -> Result<()> {
        let mark = mark(line.ok);
        let text = format!(
            "{mark} {} through {}: {} -> {}",
            line.name, line.node, line.before, line.after
        );
        if self.bar.is_hidden() {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
        if self.json {
            let mut out = std::io::stdout().lock();
            serde_json::to_writer(&mut out, &line)?;
            out.write_all(b"\n")?;
            out.flush()?;
        }
        self.lines.push(line);
        Ok(())
    }

    /// The end of the progress.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// How many checks there were, and how many did not hold.
    pub(crate) fn totals(&self) -> (usize, usize) {
        let failed = self.lines.iter().filter(|line| !line.ok).count();
        (self.lines.len(), failed)
    }

    /// The table: a row a check, a column a node.
    pub(crate) fn table(&self, columns: &[(String, String)]) -> String {
        let mut names: Vec<&str> = Vec::new();
        for line in &self.lines {
            if !names.contains(&line.name.as_str()) {
                names.push(&line.name);
            }
        }
        let mut rows = vec![vec!["check, before -> after".to_owned()]];
        rows[0].extend(
            columns
                .iter()
                .map(|(node, version)| format!("{node} ({version})")),
        );
        for name in names {
            let mut row = vec![name.to_owned()];
            row.extend(columns.iter().map(|(node, _)| {
                let line = self
                    .lines
                    .iter()
                    .find(|line| line.name == name && line.node == *node);
                line.map_or_else(String::new, |line| {
                    format!("{} {} -> {}", mark(line.ok), line.before, line.after)
                })
            }));
            rows.push(row);
        }
        let width = |column: usize| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<usize> = (0..=columns.len()).map(width).collect();
        let mut text = String::new();
        for row in &rows {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

const fn mark(ok: bool) -> &'static str {
    if ok { "ok  " } else { "FAIL" }
}
