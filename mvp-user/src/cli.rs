//! The command line: clap types and one function per verb.
//!
//! Not for what a flag means (`config`) nor for what `run` does (`daemon`).

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::{
    config::{Flags, LogFormat, resolve},
    daemon,
    tls::Tls,
};

/// `EX_USAGE` of sysexits(3): the configuration is wrong, and starting again will not help.
const EX_USAGE: u8 = 64;

/// A mixed version proxy for Kubernetes control planes.
#[derive(Parser, Debug)]
#[command(name = "mvp", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Steer, serve and learn until stopped.
    Run(Box<Flags>),
}

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let usage = error.use_stderr();
            return match error.print() {
                Ok(()) if !usage => ExitCode::SUCCESS,
                _ => ExitCode::from(EX_USAGE),
            };
        }
    };
    match cli.verb {
        Verb::Run(flags) => run(&flags),
    }
}

fn run(flags: &Flags) -> ExitCode {
    let check_tls = |tls: &_| match Tls::load(tls) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    };
    let resolved = match resolve(flags, check_tls) {
        Ok(resolved) => resolved,
        Err(errors) => {
            for error in errors {
                complain(&error);
            }
            return ExitCode::from(EX_USAGE);
        }
    };
    start_logging(resolved.config.log_format);
    match daemon::run(resolved) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn start_logging(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.with_target(false).init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}

#[expect(
    clippy::print_stderr,
    reason = "errors of the command line go to the terminal"
)]
fn complain(error: &str) {
    eprintln!("mvp: {error}");
}
