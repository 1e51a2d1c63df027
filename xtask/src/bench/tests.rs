//! What a run is told and what it writes, without one.

use super::*;

#[test]
fn a_scenario_that_failed_is_a_failure_and_one_without_somebody_is_none() {
    let run = |skipped: &[&str]| {
        whole(&Results {
            machine: compare::Machine::default(),
            measured: Vec::new(),
            skipped: skipped.iter().map(|line| (*line).to_owned()).collect(),
            comparisons: Vec::new(),
        })
    };
    let left_out = [
        "steered: needs root",
        "get-h2-cert through nginx: nginx is not installed",
        "raw: out of time",
    ];
    assert!(run(&left_out).is_ok());
    let error = run(&["exec: failed: mvp: it says nothing"]).unwrap_err();
    assert!(error.to_string().contains("exec: failed"), "{error}");
}

#[test]
fn a_wrong_path_is_named_before_anything_is_built() {
    let with = |server: &str| Options {
        kube_apiserver: Some(server.to_owned()),
        etcd: Some("/nowhere/etcd".into()),
        ..Options::default()
    };
    let said = |options: &Options| given(options).unwrap_err().to_string();
    assert!(said(&with("v1.36=/nowhere/server")).contains("/nowhere/server"));
    assert!(said(&with("/nowhere/server")).contains("VERSION=PATH"));
    let other = Options {
        other_mvp: Some("/nowhere/mvp".into()),
        ..Options::default()
    };
    assert!(said(&other).contains("/nowhere/mvp"));
    assert!(given(&Options::default()).unwrap().is_none());
}

#[test]
fn the_published_report_is_replaced_by_whole_runs_only() {
    let written = |options: &Options| directory(options).strip_prefix(root()).unwrap().to_owned();
    let whole = || Options {
        quick: true,
        ..Options::default()
    };
    assert_eq!(written(&whole()), Path::new("bench/results"));
    let part = Options {
        scenario: vec!["get-h2-cert".to_owned()],
        ..whole()
    };
    assert_eq!(written(&part), Path::new("target/bench-results"));
    let curves = Options {
        curves: true,
        results: Some("bench/results/curves".into()),
        ..whole()
    };
    assert_eq!(written(&curves), Path::new("bench/results/curves"));
}

#[test]
fn a_run_outlives_its_terminal_if_it_was_started_to() {
    let status =
        |ignored: &str| format!("Name:\tsh\nSigBlk:\tffffffffffffffff\nSigIgn:\t{ignored}\n");
    // As `nohup sh` and `sh` have it.
    assert!(ignores_hangup(&status("0000000000000001")));
    assert!(ignores_hangup(&status("0000000000001003")));
    assert!(!ignores_hangup(&status("0000000000001002")));
    assert!(!ignores_hangup(""));
}
