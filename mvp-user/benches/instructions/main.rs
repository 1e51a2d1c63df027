//! Instructions of what every request passes, and of merging discovery, counted by callgrind: figures that are the same on a busy
//! machine, to be compared between commits. Not time: see `route` and `discovery`.
//!
//! `cargo bench -p mvp-user --bench instructions [-- NAME]`. The program has callgrind run it twice for each case, with one
//! round and with many more, and divides the difference: what comes before the rounds does not count.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a benchmark, for the terminal"
)]

use std::{
    env,
    hint::black_box,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use http::Method;
use mvp_user::{
    discovery::merge::{Source, merge},
    request_info::RequestInfo,
    table::SharedGroups,
};

mod recorded;
#[path = "../route/request.rs"]
mod request;
#[path = "../route/world.rs"]
mod world;

/// As in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How callgrind is told to run this program.
const CASE: &str = "--case";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let outcome = match words.as_slice() {
        [flag, name, rounds] if flag == CASE => go(name, rounds),
        // cargo adds --bench.
        _ => count(words.iter().find(|word| !word.starts_with('-'))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Names of cases, and rounds of each.
fn cases() -> Vec<(String, u32)> {
    let mut cases = Vec::new();
    for (name, _) in world::QUESTIONS {
        for what in ["parse", "decide"] {
            cases.push((format!("{what}/{name}"), 10_000));
        }
    }
    cases.push(("rewrite/clone of a head".to_owned(), 10_000));
    cases.push(("rewrite/clone and rewriting".to_owned(), 10_000));
    cases.push(("merge/three servers".to_owned(), 20));
    cases
}

/// What a round of a case does.
fn round(name: &str) -> Option<Box<dyn FnMut()>> {
    let uri = |asked: &str| {
        let mut questions = world::QUESTIONS.into_iter();
        let (_, uri) = questions.find(|(name, _)| *name == asked)?;
        Some(world::uri(uri))
    };
    let round: Box<dyn FnMut()> = match name.split_once('/')? {
        ("parse", asked) => {
            let uri = uri(asked)?;
            Box::new(move || {
                let info = RequestInfo::parse(&Method::GET, black_box(&uri));
                assert!(black_box(info).is_ok());
            })
        }
        ("decide", asked) => {
            let info = RequestInfo::parse(&Method::GET, &uri(asked)?).ok()?;
            let (table, asker) = (world::table(), world::asker());
            Box::new(move || {
                let decision = world::decision(&info, &table, &asker);
                assert!(black_box(decision).server().is_some());
            })
        }
        ("rewrite", "clone of a head") => {
            let asked = request::Asked::new();
            Box::new(move || drop(black_box(asked.head.clone())))
        }
        ("rewrite", _) => {
            let asked = request::Asked::new();
            Box::new(move || drop(black_box(asked.rewritten(asked.head.clone()))))
        }
        ("merge", _) => {
            let [base, one, two] =
                ["1.34", "1.36-all", "1.35"].map(|it| recorded::list(it, "apis__v2-nopeer"));
            let shared = SharedGroups::default();
            Box::new(move || {
                let others = [&one, &two].map(|groups| Source {
                    groups,
                    live: true,
                    fresh: true,
                });
                drop(black_box(merge(&base, &others, &shared)));
            })
        }
        _ => return None,
    };
    Some(round)
}

/// Under callgrind.
fn go(name: &str, rounds: &str) -> Result<()> {
    let mut round = round(name).with_context(|| format!("there is no case {name}"))?;
    for _ in 0..rounds.parse::<u32>()? {
        round();
    }
    Ok(())
}

/// Counts the cases whose names hold `filter`.
fn count(filter: Option<&String>) -> Result<()> {
    if let Err(error) = Command::new("valgrind").arg("--version").output() {
        // Not a failure: the other benchmarks of the package go on.
        eprintln!("instructions: nothing is counted without valgrind (package valgrind): {error}");
        return Ok(());
    }
    let program = env::current_exe()?;
    println!("{:40} {:>12}", "case", "instructions");
    for (name, rounds) in cases() {
        if filter.is_none_or(|filter| name.contains(filter.as_str())) {
            let few = collected(&program, &name, 1)?;
            let many = collected(&program, &name, 1 + rounds)?;
            println!(
                "{name:40} {:>12}",
                many.saturating_sub(few) / u64::from(rounds)
            );
        }
    }
    Ok(())
}

/// All instructions of a run of this program.
fn collected(program: &Path, name: &str, rounds: u32) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([CASE, name, &rounds.to_string()])
        .output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    let total = words
        .lines()
        .find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    match total {
        Some(total) if output.status.success() => Ok(total),
        _ => bail!("callgrind counted nothing of {name}:\n{words}"),
    }
}
