//! Where answers and complaints go, and how much fits there.

use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
};

use super::{
    Output,
    table::{self, Page},
};

impl Output {
    pub(super) fn page(self) -> Page {
        Page {
            width: match self {
                Self::Wide => usize::MAX,
                Self::Table | Self::Json => terminal_width(),
            },
            wide: self == Self::Wide,
            colour: std::io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty())
                && std::env::var_os("TERM").is_none_or(|it| it != "dumb"),
        }
    }
}

/// A terminal's width, 80 elsewhere.
fn terminal_width() -> usize {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return 80;
    }
    match rustix::termios::tcgetwinsize(&stdout) {
        Ok(size) if size.ws_col >= 40 => usize::from(size.ws_col),
        _ => 80,
    }
}

/// To standard output; a reader that has gone away (`| head`) is no error.
pub(super) fn print(text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Some of what went wrong is in a server's words; lines are ours.
const fn clean_but_lines(letter: char) -> char {
    match letter {
        '\n' => letter,
        _ => table::clean(letter),
    }
}

pub(super) fn complain(text: &str) {
    // Nobody to tell if standard error is closed.
    let text: String = text.chars().map(clean_but_lines).collect();
    drop(writeln!(std::io::stderr().lock(), "mvp: {text}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_commands_no_terminal() {
        let text: String = "no \u{1b}[2J\u{9b}1m\nnext"
            .chars()
            .map(clean_but_lines)
            .collect();
        assert_eq!(text, "no \u{fffd}[2J\u{fffd}1m\nnext");
    }
}
