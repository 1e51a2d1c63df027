//! What is said about metrics elsewhere is true of the code: `docs/metrics.md` and everything under `deploy/`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::*;
use crate::{admin::fixtures::Stage, metrics::Format};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[derive(Default)]
struct Described {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
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
                if name != "le" {
                    families
                        .get_mut(&current)
                        .unwrap()
                        .labels
                        .insert(name.to_owned());
                }
                name = next.rsplit_once("\",").map_or("", |(_, name)| name);
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
        let labels: Vec<String> = it.labels.iter().map(|label| format!("`{label}`")).collect();
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
