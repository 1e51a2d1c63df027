//! Where answers and complaints go, and how much fits there.

use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
};

use super::{Output, table::Page};

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
pub(super) fn terminal_width() -> usize {
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

pub(super) fn complain(text: &str) {
    // Nobody to tell if standard error is closed.
    drop(writeln!(std::io::stderr().lock(), "mvp: {text}"));
}
