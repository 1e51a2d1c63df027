//! Reports of made-up results.

use std::collections::BTreeMap;

use super::*;
use crate::{
    compare::{Machine, Sample, all, judge},
    load::Curve,
};

fn results() -> Results {
    let sample = |cpu: f64, tail: f64| Sample {
        metrics: BTreeMap::from([
            (Metric::CpuPerRequest, cpu),
            (Metric::P99, tail),
            (Metric::PeakMemory, 3e7),
        ]),
        latency: Curve {
            points: vec![(0.0, 50.0), (50.0, 80.0), (99.0, tail), (99.99, tail * 3.0)],
        },
        failed: u64::from(cpu > 30.0),
        failure: (cpu > 30.0).then(|| "answered 502 <Bad>".to_owned()),
        ..Sample::default()
    };
    let mut results = Results {
        machine: Machine::default(),
        measured: Vec::new(),
        skipped: vec!["exec: <x>".to_owned()],
        comparisons: Vec::new(),
    };
    for scenario in all()
        .into_iter()
        .filter(|it| ["get-h2-cert", "idle-100"].contains(&it.name))
    {
        let measured = Measured {
            scenario: scenario.name.to_owned(),
            what: scenario.what.to_owned(),
            samples: BTreeMap::from([
                (
                    "mvp".to_owned(),
                    vec![sample(12.0, 300.0), sample(14.0, 310.0)],
                ),
                (
                    "haproxy".to_owned(),
                    vec![sample(13.0, 250.0), sample(13.0, 260.0)],
                ),
                (
                    "nginx".to_owned(),
                    vec![sample(43.0, 900.0), sample(44.0, 910.0)],
                ),
            ]),
            rate: Some(5000.0),
            units: 200,
        };
        results.comparisons.extend(judge(&scenario, &measured));
        results.measured.push(measured);
    }
    results
}

#[test]
fn a_report_tells_every_bound_and_every_figure() {
    let text = markdown(&results());
    assert!(text.contains("| get-h2-cert | CPU ms per 1,000 requests | better | 13.0 | 13.0 | 1.00 [0.92, 1.08] | <= 1.00 | <= 0.80 | required |"), "{text}");
    assert!(
        text.contains("| get-h2-cert | p99 us | better |") && text.contains("| NO |"),
        "{text}"
    );
    assert!(
        text.contains("nginx: 2 requests failed, the first with: answered 502"),
        "{text}"
    );
    assert!(text.contains("* exec: <x>"));
}

#[test]
fn a_page_stands_alone_and_holds_nothing_unescaped() {
    let directory = tempfile::tempdir().unwrap();
    write(&results(), directory.path()).unwrap();
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("src=") && !page.contains("href="));
    assert!(!page.contains("<x>") && !page.contains("<Bad>"));
    let raw = fs::read_to_string(directory.path().join("raw.json")).unwrap();
    let back: Results = serde_json::from_str(&raw).unwrap();
    // Both ways through the parser, which rounds the last digit of a float.
    let same: Results = serde_json::from_str(&serde_json::to_string(&results()).unwrap()).unwrap();
    assert_eq!(back.comparisons, same.comparisons);
    let svg = fs::read_to_string(directory.path().join("cpu.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("<style>"), "{svg}");
}

#[test]
fn a_run_without_small_requests_leaves_the_readmes_chart() {
    let directory = tempfile::tempdir().unwrap();
    write(&results(), directory.path()).unwrap();
    let chart = || fs::read_to_string(directory.path().join("cpu.svg")).unwrap();
    let before = chart();
    let mut other = results();
    other.measured.retain(|it| it.scenario == "idle-100");
    write(&other, directory.path()).unwrap();
    assert_eq!(chart(), before);
}

#[test]
fn places_that_copy_are_told() {
    let mut results = results();
    for sample in results.measured[0].samples.get_mut("mvp").unwrap() {
        sample.copied = vec![("a::<b>::c".to_owned(), 1.0), ("d::e".to_owned(), 0.5)];
    }
    let text = markdown(&results);
    let wanted = "mvp copies, bytes for each forwarded: `1.00 a::<b>::c`, `0.50 d::e`";
    assert_eq!(text.matches(wanted).count(), 1, "{text}");
    assert!(!html(&results).contains("<b>"));
}

#[test]
fn what_grows_is_told_with_its_slope() {
    let mut results = results();
    assert_eq!(curves::markdown(&results), "");
    for (name, units) in [
        ("curve-connections-1", 1),
        ("curve-connections-1000", 1000),
        ("curve-connections-2000", 2000),
    ] {
        let sample = Sample {
            metrics: BTreeMap::from([(
                Metric::PeakMemory,
                f64::from(units) * 2.0 * f64::from(1 << 20),
            )]),
            ..Sample::default()
        };
        results.measured.push(Measured {
            scenario: name.to_owned(),
            what: String::new(),
            samples: BTreeMap::from([("mvp".to_owned(), vec![sample])]),
            rate: None,
            units: usize::try_from(units).unwrap(),
        });
    }
    let text = curves::markdown(&results);
    assert!(
        text.contains("| mvp | peak memory MiB | 2.0 | 2000 | 4000 | +2000.000 |"),
        "{text}"
    );
    assert!(curves::slope(&[]).abs() < 1e-9);
    let page = html(&results);
    assert!(page.contains("Peak memory over busy connections, MiB"));
    assert!(!page.contains("CPU per event over watches"));
}
