//! Every command of the documents but mvp's own (`mvp-user` checks those): `cargo xtask …` is understood, files that others
//! are given exist, links between documents lead somewhere. A command of an unknown program is an error, so that none goes
//! unchecked.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Parser as _;

use crate::{Cli, sh::root};

/// README, docs and what stands beside them.
fn documents() -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> = [root(), root().join("docs")]
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
fn commands(text: &str) -> Vec<String> {
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

/// Files of the checkout that a command is given exist.
fn files_exist(command: &str) {
    for word in command.split_whitespace() {
        let word = word.trim_matches(['\'', '"']);
        // What is built lies under target.
        if word.starts_with("deploy/") || word.starts_with("docs/") || word.starts_with("bench/") {
            assert!(root().join(word).exists(), "{command}: no {word}");
        }
    }
}

#[test]
fn every_command_of_the_documents_is_understood() {
    let mut seen = 0;
    for (path, text) in documents() {
        for command in commands(&text) {
            let words: Vec<&str> = command
                .split_whitespace()
                .skip_while(|word| *word == "sudo")
                .collect();
            match words.as_slice() {
                ["cargo", "xtask", rest @ ..] => {
                    let words = std::iter::once("xtask").chain(rest.iter().copied());
                    if let Err(error) = Cli::try_parse_from(words) {
                        assert!(
                            !error.use_stderr(),
                            "{}: {command}\n{error}",
                            path.display()
                        );
                    }
                }
                [
                    "mvp" | "kubectl" | "helm" | "docker" | "systemctl" | "install" | "cat"
                    | "curl" | "cargo" | "apt-get" | "sysctl" | "ssh",
                    ..,
                ] => {}
                _ => panic!("{}: what does {command:?} run?", path.display()),
            }
            files_exist(&command);
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let mut seen = 0;
    for (path, text) in documents() {
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if link.contains("://") || link.starts_with('#') {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = path.parent().unwrap_or_else(|| Path::new(".")).join(file);
            assert!(target.exists(), "{}: {link}", path.display());
            if !anchor.is_empty() {
                let found = fs::read_to_string(&target).unwrap().lines().any(|line| {
                    line.starts_with('#')
                        && line
                            .trim_start_matches('#')
                            .trim()
                            .to_lowercase()
                            .replace(' ', "-")
                            == anchor
                });
                assert!(found, "{}: {link}", path.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}
