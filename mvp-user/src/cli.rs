//! The command line: `mvp run`, and the verbs that ask a running mvp through its control socket.
//!
//! Not for what the flags of `mvp run` mean (`config`), nor for running (`daemon`).

use std::{
    ffi::OsString,
    io::IsTerminal as _,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum, error::ErrorKind};
use tracing_subscriber::EnvFilter;

use crate::{
    admin::wire::{Grade, Mode, Probe, SteerOrder, Steering},
    config::{Flags, LogFormat, Resolved, SameFlags, TlsConfig, published, resolve_with},
    daemon,
    tls::Tls,
};

mod check;
mod client;
#[cfg(test)]
mod documented;
mod show;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod ui;
mod words;

use client::{Client, ClientError, Query};
use table::Page;
use terminal::{complain, print};

/// The command line is wrong (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;

/// eBPF-assisted mixed version proxy for Kubernetes control planes.
#[derive(Debug, Parser)]
#[command(
    name = "mvp",
    version,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 done; 1 mvp does not answer or says no (`check`: warnings only; `probe`: not ready);\n\
                  2 `check` found a failure; 64 the command line or the configuration is wrong."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Proxy this node's kube-apiserver
    Run(Box<Flags>),
    /// Show steering, servers and how they are
    Status(Asking),
    /// Show what differs between the kube-apiservers
    #[command(
        after_help = "During an upgrade this is what would be a false 404 without mvp; after it, there should be nothing.\n\
                      `only A` and `not A`: who serves it, and who does not; -o wide shows both, one row a line."
    )]
    Skew(Asking),
    /// Show where requests for each resource go
    #[command(
        after_help = "For example: mvp routes apps/v1\n             mvp routes -o wide pods/"
    )]
    Routes {
        /// Only those whose group/version/resource[/subresource] contains this
        resource: Option<String>,
        #[command(flatten)]
        asking: Asking,
    },
    /// Tell where a request would go, and why
    #[command(
        after_help = "Nothing is sent. The first line is what happens now; the others are what happens if that server fails.\n\
                      For example: mvp explain GET /apis/resource.k8s.io/v1/deviceclasses\n             \
                      mvp explain --as token POST /api/v1/namespaces/default/pods"
    )]
    Explain {
        /// HTTP method, e.g. GET
        method: String,
        /// Path and query, e.g. /apis/apps/v1/deployments
        path: String,
        /// Kind of caller
        #[arg(long = "as", value_enum, default_value_t = Kind::User)]
        caller: Kind,
        /// Address of the client: its requests stick to one peer
        #[arg(long)]
        from: Option<IpAddr>,
        #[command(flatten)]
        asking: Asking,
    },
    /// Show or change whether new connections are steered
    #[command(
        after_help = "Lasts until mvp is restarted; --steer and --steer-percent of `mvp run` are for ever. Established connections\n\
                      are not touched by `on`; by `off` and `auto` those at mvp are asked to reconnect once they are idle."
    )]
    Steer {
        #[command(subcommand)]
        what: Option<Steer>,
        #[command(flatten)]
        asking: Asking,
    },
    /// Show the kube-apiservers, or forget one that left
    Peers {
        #[command(subcommand)]
        what: Option<Peers>,
        #[command(flatten)]
        asking: Asking,
    },
    /// Show the flags that the running mvp has, and where each is from
    Config(Asking),
    /// Serve a page that shows all of this, live, on a loopback port
    #[command(
        after_help = "Runs until Ctrl-C. It only shows: nothing can be changed through it.\n\
                      From another machine, and then open http://localhost:9741/ there:\n    \
                      ssh -tL 9741:127.0.0.1:9741 root@NODE mvp ui --listen 9741"
    )]
    Ui(ui::Options),
    /// Exit with 0 if mvp is ready (or live), for probes
    Probe {
        /// What to ask for
        #[arg(value_enum, default_value_t = Liveness::Ready)]
        what: Liveness,
        #[command(flatten)]
        asking: Asking,
    },
    /// Look for what could go wrong; exits with 1 for warnings, 2 for failures
    ///
    /// Asks the mvp that runs on this node; without one it looks by itself, with the flags of `mvp run`.
    Check {
        /// Form of the answer
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
        /// Look without a running mvp even if there is one
        #[arg(long)]
        offline: bool,
        #[command(flatten)]
        flags: Box<SameFlags>,
    },
    /// Print a completion script for a shell
    #[command(after_help = "For example: mvp completions bash > /etc/bash_completion.d/mvp")]
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Write man pages into a directory
    #[command(after_help = "For example: mvp man /usr/local/share/man/man1")]
    Man {
        /// Directory
        directory: PathBuf,
    },
}

/// How a running mvp is asked and its answer shown.
#[derive(Clone, Debug, Args)]
struct Asking {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t = Output::Table, global = true)]
    output: Output,
    /// Control socket [default: that of the newest ready mvp in /run/mvp]
    #[arg(
        long,
        value_name = "FILE",
        env = "MVP_CONTROL_SOCKET",
        hide_env = true,
        global = true
    )]
    control_socket: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Output {
    /// Fits 80 columns
    Table,
    /// More columns, nothing cut
    Wide,
    /// One JSON document
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Kind {
    /// A client certificate
    User,
    /// A verified front proxy
    FrontProxy,
    /// A bearer token
    Token,
    /// Nobody
    Anonymous,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Liveness {
    /// Ready to be steered to
    Ready,
    /// Working at all
    Live,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Steer {
    /// Steer whenever it is safe, the share that `percent` says
    On,
    /// Do not steer
    Off,
    /// Steer while kube-apiservers differ
    Auto,
    /// Show it
    Status,
    /// Steer only this share of client addresses, while any are steered
    Percent {
        /// From 0 to 100
        #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
        share: u8,
    },
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Peers {
    /// Forget a kube-apiserver that left: what only it served is 404 from now on
    Forget {
        /// Its address, ADDR:PORT
        address: SocketAddr,
    },
}

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    dispatch(std::env::args_os(), daemon::run)
}

fn dispatch(
    words: impl IntoIterator<Item = OsString>,
    run: impl FnOnce(Resolved) -> anyhow::Result<()>,
) -> ExitCode {
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            let wanted = matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            );
            // Nobody to tell if even this cannot be printed.
            drop(error.print());
            return ExitCode::from(if wanted { 0 } else { USAGE });
        }
    };
    let done = match cli.verb {
        Verb::Run(flags) => return start(&flags, run),
        verb => answer(verb),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// `mvp run`: all that is wrong with the configuration at once, or the daemon.
fn start(flags: &Flags, run: impl FnOnce(Resolved) -> anyhow::Result<()>) -> ExitCode {
    if std::process::id() == 1
        && let Err(error) = daemon::hold_signals()
    {
        complain(&format!(
            "a signal that comes during the start may be lost: {error}"
        ));
    }
    let check = |tls: &TlsConfig| match Tls::load(tls) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    };
    let resolved = resolve_with(flags, check, published::fetch);
    let resolved = match resolved {
        Ok(resolved) => resolved,
        Err(errors) => {
            for error in errors {
                complain(&error);
            }
            return ExitCode::from(USAGE);
        }
    };
    if flags.print_config {
        let settings = resolved.settings.iter().map(Into::into).collect();
        return print(&show::settings(&settings, Output::Table.page()));
    }
    start_logging(resolved.config.log_format);
    match run(resolved) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The whole chain: which file, which syscall.
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Logs go to standard error; `MVP_LOG` takes the filters of tracing-subscriber.
fn start_logging(format: LogFormat) {
    let filter = log_filter(std::env::var("MVP_LOG").ok().as_deref()).unwrap_or_else(|error| {
        complain(&format!("{error}; `info` is logged"));
        EnvFilter::new("info")
    });
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let done = match format {
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal())
            .try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let Err(error) = done {
        complain(&format!("logging: {error}"));
    }
}

/// What `MVP_LOG` says; `info` where it says nothing.
fn log_filter(said: Option<&str>) -> Result<EnvFilter, String> {
    let said = said.filter(|it| !it.is_empty()).unwrap_or("info");
    EnvFilter::try_new(said).map_err(|error| format!("MVP_LOG: {said:?}: {error}"))
}

/// Every verb but `run`.
fn answer(verb: Verb) -> Result<ExitCode, ClientError> {
    match verb {
        Verb::Run(_) => Ok(ExitCode::from(USAGE)),
        Verb::Status(asking) => asking.show("/v1/status", show::status),
        Verb::Skew(asking) => asking.show("/v1/skew", show::skew),
        Verb::Routes { resource, asking } => {
            let mut query = Query::of("/v1/routes");
            if let Some(resource) = resource {
                query.add("resource", &resource);
            }
            asking.show(&query.finish(), show::routes)
        }
        Verb::Explain {
            method,
            path,
            caller,
            from,
            asking,
        } => {
            let mut query = Query::of("/v1/explain");
            query.add("method", &method.to_uppercase());
            query.add("path", &path);
            let kind = caller.to_possible_value();
            query.add("as", kind.as_ref().map_or("user", |it| it.get_name()));
            if let Some(from) = from {
                query.add("from", &from.to_string());
            }
            asking.show(&query.finish(), show::explanation)
        }
        Verb::Steer { what, asking } => steer(what, &asking),
        Verb::Peers { what, asking } => match what {
            None => asking.show("/v1/peers", show::peers),
            Some(Peers::Forget { address }) => {
                let body = serde_json::json!({ "address": address });
                asking.client()?.post("/v1/peers/forget", &body)?;
                Ok(print(&if asking.output == Output::Json {
                    format!("{}\n", serde_json::json!({ "forgotten": address }))
                } else {
                    format!("{address} is forgotten\n")
                }))
            }
        },
        Verb::Config(asking) => asking.show("/v1/config", show::settings),
        Verb::Ui(options) => ui::run(&options),
        Verb::Probe { what, asking } => probe(what, &asking),
        Verb::Check {
            output,
            offline,
            flags,
        } => look(&flags, offline, output),
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "mvp", &mut script);
            Ok(print(&String::from_utf8_lossy(&script)))
        }
        Verb::Man { directory } => {
            std::fs::create_dir_all(&directory)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &directory))
                .map_err(|error| ClientError::Man { directory, error })?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl Asking {
    fn client(&self) -> Result<Client, ClientError> {
        Client::new(self.control_socket.as_deref())
    }

    fn page(&self) -> Page {
        self.output.page()
    }

    /// Asks, and prints the answer as JSON or as `table` draws it.
    fn show<T>(&self, path: &str, table: fn(&T, Page) -> String) -> Result<ExitCode, ClientError>
    where
        T: serde::de::DeserializeOwned,
    {
        let text = self.client()?.get(path)?;
        if self.output == Output::Json {
            return Ok(print(&pretty(&text)?));
        }
        let answer: T = serde_json::from_slice(&text).map_err(ClientError::Answer)?;
        Ok(print(&table(&answer, self.page())))
    }
}

fn steer(what: Option<Steer>, asking: &Asking) -> Result<ExitCode, ClientError> {
    let order = match what {
        None | Some(Steer::Status) => return asking.show("/v1/steer", show::steering),
        Some(Steer::On) => SteerOrder {
            mode: Some(Mode::On),
            percent: None,
        },
        Some(Steer::Off) => SteerOrder {
            mode: Some(Mode::Off),
            percent: None,
        },
        Some(Steer::Auto) => SteerOrder {
            mode: Some(Mode::Auto),
            percent: None,
        },
        Some(Steer::Percent { share }) => SteerOrder {
            mode: None,
            percent: Some(share),
        },
    };
    let text = asking.client()?.post("/v1/steer", &order)?;
    if asking.output == Output::Json {
        return Ok(print(&pretty(&text)?));
    }
    let now: Steering = serde_json::from_slice(&text).map_err(ClientError::Answer)?;
    Ok(print(&show::steering(&now, asking.page())))
}

fn probe(what: Liveness, asking: &Asking) -> Result<ExitCode, ClientError> {
    let text = asking.client()?.get("/v1/probe")?;
    let probe: Probe = serde_json::from_slice(&text).map_err(ClientError::Answer)?;
    let good = match what {
        Liveness::Ready => probe.ready,
        Liveness::Live => probe.live,
    };
    if asking.output == Output::Json {
        print(&pretty(&text)?);
    } else if good {
        print("ok\n");
    } else {
        for problem in &probe.problems {
            complain(problem);
        }
    }
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// `mvp check`.
fn look(flags: &SameFlags, offline: bool, output: Output) -> Result<ExitCode, ClientError> {
    let findings = check::all(flags, offline);
    let worst = findings.iter().map(|it| it.result).max();
    if output == Output::Json {
        let text = serde_json::to_vec(&findings).map_err(ClientError::Answer)?;
        print(&pretty(&text)?);
    } else {
        print(&show::findings(&findings, output.page()));
    }
    Ok(ExitCode::from(match worst {
        None | Some(Grade::Ok) => 0,
        Some(Grade::Warn) => 1,
        Some(Grade::Fail) => 2,
    }))
}

fn pretty(text: &[u8]) -> Result<String, ClientError> {
    let value: serde_json::Value = serde_json::from_slice(text).map_err(ClientError::Answer)?;
    let mut text = serde_json::to_string_pretty(&value).map_err(ClientError::Answer)?;
    text.push('\n');
    Ok(text)
}
