//! `bench`: the processes between which a proxy is measured. `cargo xtask bench` starts them; see `BENCHMARKING.md`.
#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "a program for the terminal")]

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use bench::load::{self, Lines, origin};
use clap::{Parser, Subcommand};
use tokio::task::LocalSet;

#[derive(Debug, Parser)]
#[command(name = "bench", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Answers, fast, in the manner of a kube-apiserver
    Origin {
        /// Where to listen (repeatable)
        #[arg(long, required = true)]
        listen: Vec<SocketAddr>,
        /// Directory of certificates, as kubeadm lays it out
        #[arg(long)]
        pki: PathBuf,
        /// Group-version that is not served (repeatable)
        #[arg(long)]
        off: Vec<String>,
    },
    /// Asks: reads a plan (JSON, one line), says ready, goes on at the next line, says done
    Load,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = runtime
        .context("no runtime")
        .and_then(|runtime| runtime.block_on(LocalSet::new().run_until(run(Cli::parse().role))));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(role: Role) -> Result<()> {
    load::raise_descriptor_limit()?;
    match role {
        Role::Origin { listen, pki, off } => {
            let mut lines = Lines::standard();
            lines.say("starting").await?;
            let settings = origin::Settings { listen, pki, off };
            let (here, told) = tokio::sync::oneshot::channel();
            let serving = origin::serve(&settings, || {
                if here.send(()).is_err() {
                    tracing::debug!("Nobody waits for the origin");
                }
            });
            let talk = async {
                told.await.context("the origin does not listen")?;
                lines.say("ready").await?;
                // It ends with whoever started it.
                while lines.read().await.is_ok() {}
                anyhow::Ok(())
            };
            tokio::select! {
                ended = serving => ended,
                ended = talk => ended,
            }
        }
        Role::Load => {
            let mut lines = Lines::standard();
            let plan: load::Plan =
                serde_json::from_str(&lines.read().await?).context("the plan")?;
            let outcome = load::run(&plan, &mut lines).await?;
            lines
                .say(&format!("done {}", serde_json::to_string(&outcome)?))
                .await
        }
    }
}
