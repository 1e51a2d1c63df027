//! Every command of the documents but mvp's own (`mvp-user` checks those): `cargo xtask …` is understood, files that others
//! are given exist, links between documents lead somewhere. A command of an unknown program is an error, so that none goes
//! unchecked.

use std::{fs, path::Path};

use clap::Parser as _;

use crate::{Cli, sh::root};

#[path = "../../mvp-user/src/cli/documented/read.rs"]
mod read;

use read::{commands, documents};

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
                    | "curl" | "cargo" | "apt-get" | "sysctl" | "ssh" | "ss",
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
