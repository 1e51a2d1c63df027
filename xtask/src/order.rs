//! The order of rooms: a module of `mvp-user` may import only modules whose `mod` line in
//! `lib.rs` stands above its own (`lib.rs` says why). Tests may look anywhere.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::sh::root;

/// Fails with every import that points ahead.
pub(crate) fn check() -> Result<()> {
    let source = root().join("mvp-user/src");
    let floor_plan = fs::read_to_string(source.join("lib.rs")).context("reading lib.rs")?;
    let rooms = rooms(&floor_plan);
    let mut ahead = Vec::new();
    for (position, room) in rooms.iter().enumerate() {
        for file in files(&source, room)? {
            let text =
                fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            for import in imports(&text) {
                let place = rooms.iter().position(|room| *room == import);
                if place.is_some_and(|place| place > position) {
                    let file = file.strip_prefix(&source).unwrap_or(&file);
                    ahead.push(format!("{} imports {import}", file.display()));
                }
            }
        }
    }
    ahead.dedup();
    if !ahead.is_empty() {
        bail!("rooms that look ahead:\n  {}", ahead.join("\n  "));
    }
    Ok(())
}

/// The modules in the order of their `mod` lines.
fn rooms(floor_plan: &str) -> Vec<&str> {
    floor_plan
        .lines()
        .filter_map(|line| {
            let line = line.strip_prefix("pub ").unwrap_or(line);
            let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
            line.strip_prefix("mod ")?.strip_suffix(';')
        })
        .collect()
}

/// The files of a room: `room.rs` and what lies under `room/`, tests excepted.
fn files(source: &Path, room: &str) -> Result<Vec<PathBuf>> {
    let mut found = vec![source.join(format!("{room}.rs"))];
    let mut folders = vec![source.join(room)];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default();
            if name == "tests" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// The first segments of all paths that begin with `crate::`, in `use` trees and elsewhere,
/// comments and test modules at the end of a file left out.
fn imports(text: &str) -> Vec<&str> {
    let code_end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let mut found = Vec::new();
    let mut rest = &text[..code_end];
    while let Some(at) = rest.find("crate::") {
        let line_start = rest[..at].rfind('\n').map_or(0, |n| n + 1);
        let in_comment = rest[line_start..at].contains("//");
        let part_of_word =
            rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$');
        rest = &rest[at + "crate::".len()..];
        if !in_comment && !part_of_word {
            found.extend(heads(rest));
        }
    }
    found
}

/// The first identifiers of what follows `crate::`: one, or one per branch of a group.
fn heads(tree: &str) -> Vec<&str> {
    let word = |text: &str| {
        text.find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(text.len())
    };
    let Some(group) = tree.strip_prefix('{') else {
        return vec![&tree[..word(tree)]];
    };
    let mut heads = Vec::new();
    let (mut depth, mut at_branch) = (0_u32, true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => at_branch = true,
            c if at_branch && !c.is_whitespace() => {
                heads.push(&group[at..at + word(&group[at..])]);
                at_branch = false;
            }
            _ => {}
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_read_in_order_and_comments_are_not() {
        let plan = "//! mod no;\n// Ground.\npub mod api;\nmod b;\n\npub(crate) mod c;\n";
        assert_eq!(rooms(plan), ["api", "b", "c"]);
    }

    #[test]
    fn imports_are_found_in_every_form() {
        let text = "use crate::one::X;\nuse crate::{\n    two::{A, b::C},\n    three,\n};\n\
                    // crate::comment\nfn f() { crate::four::go() }\nmycrate::five\n\
                    #[cfg(test)]\nmod tests {\n use crate::six;\n}\n";
        assert_eq!(imports(text), ["one", "two", "three", "four"]);
    }
}
