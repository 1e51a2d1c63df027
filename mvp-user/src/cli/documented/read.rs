//! The documents, and the commands in them. For tests of mvp's command line and of xtask's, which takes this file by its
//! path: both look at the same.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// README, docs and what stands beside them.
pub(super) fn documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files: Vec<PathBuf> = [root.join("docs"), root]
        .iter()
        .flat_map(|directory| fs::read_dir(directory).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension() == Some("md".as_ref()))
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path, text)
        })
        .collect()
}

/// Commands of the blocks that are marked `sh`: without comments and here-documents, continued lines joined.
pub(super) fn commands(text: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let (mut inside, mut continued, mut until) = (false, false, None::<String>);
    for line in text.lines() {
        if let Some(end) = &until {
            if line.trim() == *end {
                until = None;
            }
            continue;
        }
        let line = line.trim();
        if line.starts_with("```") {
            inside = !inside && line == "```sh";
            continue;
        }
        if !inside || line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.split(" # ").next().unwrap_or(line).trim();
        if let Some((_, end)) = line.split_once("<<") {
            until = Some(end.trim_matches('\'').to_owned());
        }
        let (line, goes_on) = match line.strip_suffix('\\') {
            Some(line) => (line.trim(), true),
            None => (line, false),
        };
        match commands.last_mut() {
            Some(last) if continued => {
                last.push(' ');
                last.push_str(line);
            }
            _ => commands.push(line.to_owned()),
        }
        continued = goes_on;
    }
    commands
}
