//! Charts as inline SVG: lines and bars, light and dark, without anything from elsewhere.
#![expect(
    clippy::let_underscore_must_use,
    reason = "writing to a String cannot fail"
)]

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;

/// One line or one colour of bars.
#[derive(Clone, Debug)]
pub struct Series {
    /// Who.
    pub name: String,
    /// (x, y); of bars only y counts.
    pub points: Vec<(f64, f64)>,
}

/// The colour of a target, the same in every chart.
pub fn colour(name: &str) -> &'static str {
    match name {
        "mvp" => "#d9480f",
        "direct" => "#868e96",
        "haproxy" => "#1971c2",
        "nginx" => "#2f9e44",
        "pingora" => "#9c36b5",
        _ => "#e0a800",
    }
}

/// Style of all charts of a page.
pub const STYLE: &str = ".chart text{font:12px system-ui,sans-serif;fill:currentColor}.chart .title{font-size:14px;font-weight:600}\
    .chart .grid{stroke:currentColor;stroke-opacity:.15}.chart .axis{stroke:currentColor;stroke-opacity:.5}";

/// Where 0 and 1 of each axis lie, and how values get there.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
    log: bool,
}

impl Frame {
    fn x(&self, value: f64) -> f64 {
        let share = (value - self.x.0) / (self.x.1 - self.x.0).max(f64::MIN_POSITIVE);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let (low, high) = self.y;
        let share = if self.log {
            (value.max(low).ln() - low.ln()) / (high.ln() - low.ln()).max(f64::MIN_POSITIVE)
        } else {
            (value - low) / (high - low).max(f64::MIN_POSITIVE)
        };
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

/// A latency distribution: percentiles of each series, the tail stretched (x is 1/(1-p), logarithmic), y logarithmic.
pub fn distribution(title: &str, series: &[Series]) -> String {
    const MARKS: [f64; 6] = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99];
    let place = |percentile: f64| -(1.0 - percentile.min(99.99) / 100.0).log10();
    let ys = series
        .iter()
        .flat_map(|one| one.points.iter().map(|point| point.1))
        .filter(|y| *y > 0.0);
    let (low, high) = ys.fold((f64::INFINITY, 0.0_f64), |(low, high), y| {
        (low.min(y), high.max(y))
    });
    if !low.is_finite() {
        return String::new();
    }
    let frame = Frame {
        x: (0.0, place(99.99)),
        y: (low * 0.9, (high * 1.1).max(low * 2.0)),
        log: true,
    };
    let mut svg = open(title);
    for mark in MARKS {
        let x = frame.x(place(mark));
        grid(&mut svg, (x, TOP), (x, HEIGHT - BOTTOM));
        // The last one has no room on its right.
        let anchor = if mark > 99.9 { "end" } else { "middle" };
        let under = (x, HEIGHT - BOTTOM + 16.0);
        text(&mut svg, under, anchor, &format!("p{mark}"));
    }
    for y in decades(frame.y) {
        grid(&mut svg, (LEFT, frame.y(y)), (WIDTH - RIGHT, frame.y(y)));
        text(&mut svg, (LEFT - 6.0, frame.y(y) + 4.0), "end", &time(y));
    }
    for one in series {
        let points = one
            .points
            .iter()
            .filter(|(percentile, y)| *percentile <= 99.99 && *y > 0.0);
        line(
            &mut svg,
            one,
            points.map(|(percentile, y)| (frame.x(place(*percentile)), frame.y(*y))),
        );
    }
    legend(&mut svg, series);
    svg + "</svg>"
}

/// Values over counts, both linear.
pub fn lines(title: &str, axis: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|one| one.points.iter());
    let (right, high) = points().fold((0.0_f64, 0.0_f64), |(right, high), (x, y)| {
        (right.max(*x), high.max(*y))
    });
    if right <= 0.0 || high <= 0.0 {
        return String::new();
    }
    let frame = Frame {
        x: (0.0, right),
        y: (0.0, high * 1.1),
        log: false,
    };
    let mut svg = open(title);
    for y in steps(frame.y.1) {
        grid(&mut svg, (LEFT, frame.y(y)), (WIDTH - RIGHT, frame.y(y)));
        text(&mut svg, (LEFT - 6.0, frame.y(y) + 4.0), "end", &short(y));
    }
    for x in steps(right) {
        text(
            &mut svg,
            (frame.x(x), HEIGHT - BOTTOM + 16.0),
            "middle",
            &short(x),
        );
    }
    text(&mut svg, (WIDTH / 2.0, HEIGHT - 8.0), "middle", axis);
    for one in series {
        // What is bounded is measured first, so points come in any order.
        let mut points = one.points.clone();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let placed = points.into_iter().map(|(x, y)| (frame.x(x), frame.y(y)));
        line(&mut svg, one, placed);
    }
    legend(&mut svg, series);
    svg + "</svg>"
}

/// One group of bars for each label, one bar for each series that has a point there (x is the index of the label).
pub fn bars(title: &str, labels: &[&str], series: &[Series]) -> String {
    let high = series
        .iter()
        .flat_map(|one| one.points.iter().map(|point| point.1))
        .fold(0.0_f64, f64::max);
    if high <= 0.0 || labels.is_empty() {
        return String::new();
    }
    let frame = Frame {
        x: (0.0, count(labels.len())),
        y: (0.0, high * 1.1),
        log: false,
    };
    let mut svg = open(title);
    for y in steps(frame.y.1) {
        grid(&mut svg, (LEFT, frame.y(y)), (WIDTH - RIGHT, frame.y(y)));
        text(&mut svg, (LEFT - 6.0, frame.y(y) + 4.0), "end", &short(y));
    }
    let width = (WIDTH - LEFT - RIGHT) / count(labels.len()) * 0.8 / count(series.len());
    for (number, one) in series.iter().enumerate() {
        for (x, y) in &one.points {
            let left = frame.x(*x + 0.1) + width * count(number);
            let _ = write!(
                svg,
                r#"<rect x="{left:.1}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{}"><title>{}: {}</title></rect>"#,
                frame.y(*y),
                width * 0.9,
                HEIGHT - BOTTOM - frame.y(*y),
                colour(&one.name),
                escape(&one.name),
                short(*y)
            );
        }
    }
    for (number, label) in labels.iter().enumerate() {
        // Long names stand on two levels.
        let down = if labels.len() > 5 && number % 2 == 1 {
            30.0
        } else {
            16.0
        };
        text(
            &mut svg,
            (frame.x(count(number) + 0.5), HEIGHT - BOTTOM + down),
            "middle",
            label,
        );
    }
    legend(&mut svg, series);
    svg + "</svg>"
}

#[expect(clippy::cast_precision_loss, reason = "small counts")]
const fn count(number: usize) -> f64 {
    number as f64
}

fn open(title: &str) -> String {
    format!(
        r#"<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{title}"><text class="title" x="{LEFT}" y="14">{title}</text>"#,
        title = escape(title)
    )
}

fn grid(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = write!(
        svg,
        r#"<line class="grid" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, words: &str) {
    let _ = write!(
        svg,
        r#"<text x="{:.1}" y="{:.1}" text-anchor="{anchor}">{}</text>"#,
        at.0,
        at.1,
        escape(words)
    );
}

fn line(svg: &mut String, one: &Series, points: impl Iterator<Item = (f64, f64)>) {
    let list: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = write!(
        svg,
        r#"<polyline fill="none" stroke="{}" stroke-width="2" points="{}"><title>{}</title></polyline>"#,
        colour(&one.name),
        list.join(" "),
        escape(&one.name)
    );
}

fn legend(svg: &mut String, series: &[Series]) {
    for (number, one) in series.iter().enumerate() {
        let x = LEFT + 90.0 * count(number);
        let _ = write!(
            svg,
            r#"<rect x="{x:.1}" y="20" width="10" height="10" fill="{}"/>"#,
            colour(&one.name)
        );
        text(svg, (x + 14.0, 29.0), "start", &one.name);
    }
}

/// Round numbers between 0 and `high`, about five.
fn steps(high: f64) -> Vec<f64> {
    let raw = high / 5.0;
    let scale = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * scale)
        .into_iter()
        .find(|step| *step >= raw)
        .unwrap_or(raw);
    let mut all = vec![0.0];
    while let Some(next) = all
        .last()
        .map(|last| last + step)
        .filter(|next| *next <= high)
    {
        all.push(next);
    }
    all
}

/// Powers of ten, and thirds of them, within a range.
fn decades((low, high): (f64, f64)) -> Vec<f64> {
    let mut all = Vec::new();
    let mut decade = 10_f64.powf(low.log10().floor());
    while decade <= high {
        all.extend(
            [decade, decade * 3.0]
                .into_iter()
                .filter(|it| (low..=high).contains(it)),
        );
        decade *= 10.0;
    }
    all
}

fn short(value: f64) -> String {
    if value >= 1e6 {
        format!("{}M", trim(value / 1e6))
    } else if value >= 10_000.0 {
        format!("{}k", trim(value / 1e3))
    } else {
        trim(value)
    }
}

fn trim(value: f64) -> String {
    let digits = if value >= 100.0 || value.fract() == 0.0 {
        0
    } else {
        1 + usize::from(value < 1.0)
    };
    format!("{value:.digits$}")
}

/// Microseconds as people read them.
fn time(microseconds: f64) -> String {
    if microseconds >= 1e6 {
        format!("{} s", trim(microseconds / 1e6))
    } else if microseconds >= 1e3 {
        format!("{} ms", trim(microseconds / 1e3))
    } else {
        format!("{} us", trim(microseconds))
    }
}

/// Text within XML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(steps(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(decades((20.0, 2000.0)), [30.0, 100.0, 300.0, 1000.0]);
        assert_eq!(
            (short(12_345.0), short(0.25), time(1500.0)),
            ("12.3k".to_owned(), "0.25".to_owned(), "1.5 ms".to_owned())
        );
    }

    #[test]
    fn charts_stand_alone_and_hold_every_series() {
        let series = [
            Series {
                name: "mvp".to_owned(),
                points: vec![(0.0, 10.0), (99.0, 100.0)],
            },
            Series {
                name: "a<b".to_owned(),
                points: vec![(0.0, 20.0), (99.0, 50.0)],
            },
        ];
        for svg in [
            distribution("t", &series),
            lines("t", "x", &series),
            bars("t", &["one"], &series[..1]),
        ] {
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"), "{svg}");
            assert!(
                !svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<b"),
                "{svg}"
            );
        }
        assert!(distribution("t", &series).contains("a&lt;b"));
        assert_eq!(lines("t", "x", &[]), "");
    }
}
