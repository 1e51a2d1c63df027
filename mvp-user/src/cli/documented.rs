//! Every `mvp …` of the documents is one that this command line takes, and every flag that they name exists.

use std::collections::BTreeSet;

use clap::{CommandFactory as _, Parser as _};

use super::Cli;

mod read;

use read::commands;

/// Flags of other programs that the documents name.
const FOREIGN: &[&str] = &[
    // cargo xtask
    "keep",
    "kube-apiserver",
    "etcd",
    "check",
    "release",
    "musl",
    "quick",
    "json",
    // kube-apiserver's, which mvp does not have
    "goaway-chance",
    "service-account-issuer",
    "anonymous-auth",
    "authorization-mode",
    "endpoint-reconciler-type",
    "request-timeout",
    "tracing-config-file",
    // kubectl's and docker's
    "raw",
    "validate",
    "server-side",
    // cargo's
    "bench",
    "platform",
];

/// README and docs by name: what stands beside them also tells of commands that were.
fn documents() -> Vec<(String, String)> {
    read::documents()
        .into_iter()
        .filter_map(|(path, text)| {
            let name = path.file_name()?.to_str()?.to_owned();
            (name == "README.md" || path.parent()?.ends_with("docs")).then_some((name, text))
        })
        .collect()
}

/// The words from `mvp` on, as a shell would hand them over; none: it does not run mvp.
fn ours(command: &str) -> Option<Vec<String>> {
    let words: Vec<String> = command
        .split_whitespace()
        .map(|word| word.trim_matches(['\'', '"']).to_owned())
        .collect();
    let first = words.iter().find(|word| *word != "sudo")?;
    let start = if first == "mvp" {
        words.iter().position(|word| word == "mvp")?
    } else {
        words.iter().position(|word| word == "/mvp")?
    };
    let end = words[start..]
        .iter()
        .position(|word| matches!(word.as_str(), "|" | ">" | "&&"));
    Some(words[start..end.map_or(words.len(), |end| start + end)].to_vec())
}

/// What stands between backticks in one line.
fn spans(text: &str) -> Vec<&str> {
    text.lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn every_command_of_the_documents_is_understood() {
    let mut seen = 0;
    for (name, text) in documents() {
        for command in commands(&text) {
            let Some(words) = ours(&command) else {
                continue;
            };
            if let Err(error) = Cli::try_parse_from(&words) {
                let wanted = !error.use_stderr();
                assert!(wanted, "{name}: {command}\n{error}");
            }
            seen += 1;
        }
        // Those that leave nothing open.
        for span in spans(&text) {
            let open = span.contains(['[', '|', '…']) || span.contains("...");
            let placeholder = span.split_whitespace().any(|word| {
                word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase()) || word == "N"
            });
            if !span.starts_with("mvp ") || open || placeholder {
                continue;
            }
            let words: Vec<&str> = span.split_whitespace().collect();
            if let Err(error) = Cli::try_parse_from(&words) {
                assert!(!error.use_stderr(), "{name}: `{span}`\n{error}");
            }
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn in_a_pod_mvp_is_called_by_its_path() {
    // The image is empty but for /mvp, and no PATH leads there.
    for (name, text) in documents() {
        assert!(!text.contains(" -- mvp"), "{name}");
    }
}

#[test]
fn every_flag_of_the_documents_exists() {
    let mut command = Cli::command();
    command.build();
    let mut known: BTreeSet<String> = FOREIGN.iter().map(|it| (*it).to_owned()).collect();
    let mut open = vec![&command];
    while let Some(command) = open.pop() {
        let longs = command.get_arguments().filter_map(clap::Arg::get_long);
        known.extend(longs.map(str::to_owned));
        open.extend(command.get_subcommands());
    }
    let mut seen = 0;
    for (name, text) in documents() {
        // xtask looks after its own commands.
        for span in spans(&text)
            .iter()
            .filter(|span| !span.starts_with("cargo "))
        {
            for word in span
                .split_whitespace()
                .filter_map(|word| word.strip_prefix("--"))
            {
                let flag = word.split(['=', '|', ',', '.']).next().unwrap_or(word);
                // A family of flags.
                if flag.is_empty() || flag.contains('*') {
                    continue;
                }
                assert!(
                    known.contains(flag),
                    "{name}: `{span}` has no flag --{flag}"
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn commands_are_found_in_blocks_and_behind_kubectl() {
    let text = "```sh\n# a comment\nmvp check \\\n  -o json # why\nkubectl exec x -- /mvp status\ncat > x <<'EOF'\nmvp nor that\nEOF\n```\nmvp not this\n```yaml\nmvp nor this\n```\n";
    let all = commands(text);
    assert_eq!(
        all[..2],
        ["mvp check -o json", "kubectl exec x -- /mvp status"]
    );
    assert_eq!(all[2..], ["cat > x <<'EOF'"]);
    assert_eq!(ours(&all[0]).unwrap(), ["mvp", "check", "-o", "json"]);
    assert_eq!(ours(&all[1]).unwrap(), ["/mvp", "status"]);
    assert_eq!(ours("kubectl get pods"), None);
}

#[test]
fn every_variable_of_the_documents_exists() {
    let mut command = Cli::command();
    command.build();
    let run = command.find_subcommand("run").unwrap();
    let mut known: BTreeSet<String> = run
        .get_arguments()
        .filter_map(|it| it.get_env())
        .map(|it| it.to_string_lossy().into_owned())
        .collect();
    // Read by the log before any flag is; by `cargo xtask test`.
    known.extend(["MVP_LOG".to_owned(), "MVP_KERNEL_TESTS".to_owned()]);
    let mut seen = 0;
    for (name, text) in documents() {
        let word = |it: char| it.is_ascii_uppercase() || it == '_';
        for variable in text
            .split(|it| !word(it))
            .filter(|it| it.starts_with("MVP_") && *it != "MVP_")
        {
            assert!(known.contains(variable), "{name}: no variable {variable}");
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}
