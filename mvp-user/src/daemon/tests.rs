//! What is said about metrics elsewhere is true of the code: `docs/metrics.md` and everything under `deploy/`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::*;
use crate::{
    admin::fixtures::Stage,
    config::LocalDown,
    metrics::Format,
    table::{Health, Proof},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[derive(Default)]
struct Described {
    kind: String,
    help: String,
    /// With the values that are seen.
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// Every family that this process has, as a scraper sees it.
fn families() -> BTreeMap<String, Described> {
    let stage = Stage::new();
    let parts = Parts::build((*stage.state.config).clone(), None).unwrap();
    parts.shared.metrics.show_all(&parts.table);
    let mut exposition = parts.exposition();
    exposition.collect(admin::collector(&stage.state));
    let text = exposition.encode(Format::Prometheus).unwrap();
    let mut families: BTreeMap<String, Described> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            name.clone_into(&mut current);
            let family = families.entry(current.clone()).or_default();
            assert!(family.help.is_empty(), "{name} is there twice");
            // The encoder ends each with a dot.
            help.trim_end_matches('.').clone_into(&mut family.help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, current);
            families.get_mut(name).unwrap().kind = kind.to_owned();
        } else if let Some((_, labels)) = line.split_once('{') {
            let labels = labels.rsplit_once('}').unwrap().0;
            let mut quoted = labels.split("=\"");
            let mut name = quoted.next().unwrap();
            for next in quoted {
                let (value, following) = next
                    .rsplit_once("\",")
                    .unwrap_or_else(|| (next.trim_end_matches('"'), ""));
                if name != "le" {
                    let labels = &mut families.get_mut(&current).unwrap().labels;
                    let values = labels.entry(name.to_owned()).or_default();
                    values.insert(value.to_owned());
                }
                name = following;
            }
        }
    }
    families
}

#[tokio::test]
async fn the_list_of_metrics_in_the_docs_is_that_of_the_code() {
    use std::fmt::Write as _;
    const BEGIN: &str = "<!-- begin: made from the code -->\n";
    const END: &str = "<!-- end -->\n";
    let mut table = String::from("| name | type | labels | meaning |\n| --- | --- | --- | --- |\n");
    for (name, it) in families() {
        let labels: Vec<String> = it.labels.keys().map(|label| format!("`{label}`")).collect();
        let labels = labels.join(", ");
        writeln!(table, "| `{name}` | {} | {labels} | {} |", it.kind, it.help).unwrap();
    }
    let path = root().join("docs/metrics.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (written, after) = rest.split_once(END).unwrap();
    if std::env::var_os("MVP_UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert_eq!(
            written, table,
            "MVP_UPDATE_DOCS=1 brings docs/metrics.md up to date"
        );
    }
}

#[tokio::test]
async fn names_keep_to_the_conventions() {
    for (name, it) in families() {
        assert!(
            !it.help.is_empty() && it.help.is_ascii(),
            "{name}: {:?}",
            it.help
        );
        assert_eq!(
            it.kind == "counter",
            name.ends_with("_total"),
            "{name} is a {}",
            it.kind
        );
        let known = ["mvp_", "process_", "apiserver_"];
        assert!(known.iter().any(|it| name.starts_with(it)), "{name}");
        for unit in ["_ms", "_millis", "_us", "_percent", "_kb", "_minutes"] {
            assert!(!name.contains(unit), "{name} is not in a base unit");
        }
    }
}

#[tokio::test]
async fn dashboards_and_alerts_ask_only_for_metrics_that_there_are() {
    let families = families();
    let mut files = Vec::new();
    let mut folders = vec![root().join("deploy")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    let mut asked = 0;
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else {
            continue;
        };
        if file.extension().is_some_and(|it| it == "json") {
            let read = serde_json::from_str::<serde_json::Value>(&text);
            assert!(read.is_ok(), "{}: {read:?}", file.display());
        }
        let letter = |it: char| it.is_ascii_alphanumeric() || it == '_';
        for word in text.split(|it| !letter(it)) {
            if !word.starts_with("mvp_") && !word.starts_with("apiserver_") {
                continue;
            }
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|it| word.strip_suffix(it));
            let known =
                families.contains_key(word) || base.is_some_and(|it| families.contains_key(it));
            assert!(known, "{} asks for {word}", file.display());
            asked += 1;
        }
    }
    assert!(asked > 10, "only {asked}");
}

/// Every word that `mvp_steering_reason` can have.
fn steering_reasons() -> BTreeSet<&'static str> {
    // That of a process which has nothing to choose.
    let mut reasons = BTreeSet::from(["no_ebpf"]);
    let modes = [SteerMode::Auto, SteerMode::Always, SteerMode::Never];
    // Of `peers::skew::Reason`, some of which need a cluster.
    let wanted = [
        None,
        Some("skew"),
        Some("local_down"),
        Some("unread"),
        Some("quiet"),
    ];
    for (mode, wanted) in modes
        .into_iter()
        .flat_map(|mode| wanted.map(|wanted| (mode, wanted)))
    {
        for local in [Health::Up, Health::Down] {
            for proof in [Proof::Proven, Proof::Unproven, Proof::Refused] {
                for local_down in [LocalDown::Failover, LocalDown::Refuse] {
                    for switches in 0..16_u8 {
                        let is_set = |bit: u8| (switches >> bit) & 1 == 1;
                        let (_, reason) = steering::choose(&steering::Situation {
                            mode,
                            draining: is_set(0),
                            listener: is_set(1),
                            full: is_set(2),
                            local,
                            proof,
                            peer: is_set(3),
                            local_down,
                            wanted,
                        });
                        reasons.insert(reason);
                    }
                }
            }
        }
    }
    reasons
}

#[tokio::test]
async fn every_word_of_a_label_is_explained_in_the_docs() {
    // Names and numbers, not words.
    const OPEN: [&str; 9] = [
        "code", "file", "flag", "group", "resource", "server", "thread", "version", "le",
    ];
    let text = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let (_, explained) = text.split_once("## Words in labels\n").unwrap();
    let (explained, _) = explained.split_once("\n## ").unwrap();
    let mut words: BTreeSet<String> = steering_reasons().into_iter().map(Into::into).collect();
    words.extend(mvp_ebpf::Outcome::ALL.map(|it| it.name().to_owned()));
    for (label, values) in families().into_values().flat_map(|it| it.labels) {
        if !OPEN.contains(&label.as_str()) {
            words.extend(values);
        }
    }
    assert!(words.len() > 50, "{words:?}");
    for word in words {
        assert!(
            explained.contains(&format!("`{word}`")),
            "docs/metrics.md does not say what {word} means"
        );
    }
}

#[tokio::test]
async fn alerts_choose_by_labels_and_words_that_there_are() {
    let families = families();
    let reasons = steering_reasons();
    let path = root().join("deploy/chart/templates/monitoring.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let letter = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let (mut chosen, mut told) = (0, 0);
    for rule in text.split("- alert: ").skip(1) {
        let expression = rule
            .lines()
            .find_map(|line| line.trim().strip_prefix("expr: "))
            .unwrap();
        let mut labels = BTreeSet::from(["instance", "job"]);
        for (at, _) in expression.match_indices("mvp_") {
            let rest = &expression[at..];
            let end = rest.find(|it| !letter(it)).unwrap_or(rest.len());
            let family = &families[&rest[..end]];
            labels.extend(family.labels.keys().map(String::as_str));
            let Some(selector) = rest[end..].strip_prefix('{') else {
                continue;
            };
            for one in selector.split('}').next().unwrap().split(',') {
                let (label, value) = one.split_once('=').unwrap();
                let values = &family.labels[label.trim_end_matches('!')];
                let value = value.trim_matches('"');
                assert!(
                    values.contains(value) || reasons.contains(value),
                    "{expression}: {value}"
                );
                chosen += 1;
            }
        }
        for (_, rest) in rule
            .match_indices("$labels.")
            .map(|(at, it)| (at, &rule[at + it.len()..]))
        {
            let end = rest.find(|it| !letter(it)).unwrap_or(rest.len());
            assert!(
                labels.contains(&rest[..end]),
                "{expression}: {}",
                &rest[..end]
            );
            told += 1;
        }
    }
    assert!(chosen >= 3 && told >= 10, "{chosen} {told}");
}
