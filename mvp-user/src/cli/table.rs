//! Tables and fact sheets for people: 80 columns unless there are more, colour only on a terminal. Nothing is left out,
//! and nothing in a name can command the terminal.

use std::fmt::Write as _;

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
pub(super) const GAP: usize = 2;
/// A column is not cut below this.
const LEAST: usize = 8;

/// Draws rows below a heading. If they do not fit, the widest column is narrowed, again and again, and its cells go on
/// in the next line: nothing is left out. A row of one cell is a title over the rows that follow.
pub(super) fn table(heading: &[&str], rows: &[Vec<String>], page: Page) -> String {
    let columns = heading.len();
    let mut widths: Vec<usize> = heading.iter().map(|it| it.chars().count()).collect();
    let is_title = |row: &[String]| row.len() == 1 && columns > 1;
    for row in rows.iter().filter(|row| !is_title(row)) {
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
        if let [title] = row.as_slice()
            && is_title(row)
        {
            for piece in fold(title, page.width) {
                out.push_str(&piece);
                out.push('\n');
            }
            continue;
        }
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
pub(super) fn fold(text: &str, width: usize) -> Vec<String> {
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

/// Names come from the API: nothing in them may reach the terminal as a command, or turn the text around them.
pub(super) const fn clean(letter: char) -> char {
    match letter {
        '\u{0}'..='\u{1f}'
        | '\u{7f}'..='\u{9f}'
        | '\u{61c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        _ => letter,
    }
}

pub(super) fn cut(text: &str, width: usize) -> String {
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

pub(super) fn paint(word: &str, page: Page) -> String {
    let colour = match word {
        _ if !page.colour => return word.to_owned(),
        "up" | "proven" | "ok" | "on" | "fresh" => 32,
        "starting" | "draining" | "stale" | "departed" | "warn" | "full" | "unproven" => 33,
        "down" | "refused" | "fail" => 31,
        _ => return word.to_owned(),
    };
    format!("\u{1b}[{colour}m{word}\u{1b}[0m")
}

/// Two columns of a fact sheet.
pub(super) fn facts(rows: &[(&str, String)], page: Page) -> String {
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

/// Breaks between words, and within one that is longer than a line.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(LEAST);
    let mut lines = vec![String::new()];
    let words = text.split_whitespace();
    for (word, whole) in words.flat_map(|word| {
        let pieces = fold(word, width);
        pieces.into_iter().enumerate().map(|(at, it)| (it, at == 0))
    }) {
        match lines.last_mut() {
            Some(line) if line.is_empty() => *line = word,
            Some(line) if whole && line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}
