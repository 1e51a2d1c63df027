//! `cargo xtask manifests`: renders the plain manifests of `deploy/manifests` from the chart in `deploy/chart`, with its
//! default values, in the namespace kube-system. A test keeps both equal. Not for applying anything.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::sh::root;

mod template;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod validate;

/// The header of every rendered file.
const HEADER: &str = "# Made by `cargo xtask manifests` from deploy/chart with its default values; change it there.\n";
/// Templates whose rendering is kept: those that give something with the default values.
const PLAIN: [&str; 3] = ["rbac.yaml", "flowcontrol.yaml", "daemonset.yaml"];

/// Options of `cargo xtask manifests`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Write nothing; fail if a file is not what the chart gives.
    #[arg(long)]
    check: bool,
}

/// The verb.
pub(crate) fn run(options: &Options) -> Result<()> {
    let directory = root().join("deploy/manifests");
    let mut stale = Vec::new();
    for (name, text) in plain()? {
        let path = directory.join(name);
        if fs::read_to_string(&path).is_ok_and(|now| now == text) {
            continue;
        }
        if options.check {
            stale.push(name);
        } else {
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
            println!("wrote deploy/manifests/{name}");
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    bail!(
        "not what deploy/chart gives: {}; run `cargo xtask manifests`",
        stale.join(", ")
    )
}

/// The plain manifests by file name.
fn plain() -> Result<Vec<(&'static str, String)>> {
    let rendered = render(&values()?)?;
    PLAIN
        .into_iter()
        .map(|name| {
            let text = rendered
                .get(name)
                .with_context(|| format!("the chart has no template {name}"))?;
            Ok((name, format!("{HEADER}{text}")))
        })
        .collect()
}

fn chart(path: &str) -> Result<String> {
    let path = root().join("deploy/chart").join(path);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// The chart's default values.
fn values() -> Result<Value> {
    serde_yaml_ng::from_str(&chart("values.yaml")?).context("values.yaml")
}

/// Every template with these values, in the namespace kube-system, by file name.
fn render(values: &Value) -> Result<BTreeMap<String, String>> {
    let about: Value = serde_yaml_ng::from_str(&chart("Chart.yaml")?).context("Chart.yaml")?;
    let context = json!({
        "Values": values,
        "Release": {"Namespace": "kube-system", "Name": "mvp"},
        "Chart": {"AppVersion": about["appVersion"], "Name": about["name"]},
    });
    let mut rendered = BTreeMap::new();
    for entry in fs::read_dir(root().join("deploy/chart/templates"))? {
        let path = entry?.path();
        if path.extension() != Some("yaml".as_ref()) {
            continue;
        }
        let name = path
            .file_name()
            .map_or_else(String::new, |it| it.to_string_lossy().into_owned());
        let text = template_text(&path)?;
        let text = template::render(&text, &context).with_context(|| format!("template {name}"))?;
        rendered.insert(name, text);
    }
    Ok(rendered)
}

fn template_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
