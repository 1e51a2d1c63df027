//! `standin-apiserver`: the stand-in kube-apiserver as a process, for demos and tests with network namespaces and signals. Flags are
//! kube-apiserver's where it has them; see `bench::standin` for what it does. SIGTERM and SIGINT stop it as they stop a kube-apiserver.
#![forbid(unsafe_code)]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use bench::standin::{
    Limits, Release, RequestHeader, Rule, Standin, Store, Timing, User,
    control::{self, Command},
};
use clap::{Parser, ValueEnum};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::signal::unix::{SignalKind, signal};

/// A stand-in kube-apiserver.
#[derive(Debug, Parser)]
#[command(name = "standin-apiserver", disable_version_flag = true)]
struct Flags {
    /// Serve the shared store of a cluster on this unix socket; without --tls-cert-file: nothing else.
    #[arg(long, value_name = "SOCKET")]
    serve_store: Option<PathBuf>,
    /// The shared store of the cluster: a socket that another process serves (with --serve-store).
    #[arg(long, value_name = "SOCKET", conflicts_with = "serve_store")]
    store: Option<PathBuf>,
    /// Control socket: JSON lines (`bench::standin::control::Command`).
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Send this command to the control socket, print the answer, and end.
    #[arg(long, value_name = "JSON", requires = "control")]
    send: Option<String>,
    /// Release whose recorded answers are given: v1.34, v1.35 or v1.36.
    #[arg(
        long = "version",
        alias = "release",
        default_value = "v1.36",
        value_name = "VERSION"
    )]
    release: Release,
    /// Host name, in the identity Lease.
    #[arg(long, default_value = "stand-in")]
    hostname: String,
    /// Switched off: GROUP/VERSION, GROUP/VERSION/RESOURCE[/SUBRESOURCE], with :VERB a verb of it.
    #[arg(long, value_name = "WHAT")]
    off: Vec<String>,
    /// api/all=true, or GROUP/VERSION=false.
    #[arg(long, value_delimiter = ',', value_name = "NAME=BOOL")]
    runtime_config: Vec<String>,
    /// Address to listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    bind_address: IpAddr,
    /// Port to listen on.
    #[arg(long, default_value_t = 6443)]
    secure_port: u16,
    /// Address in the endpoints of default/kubernetes.
    #[arg(long)]
    advertise_address: Option<IpAddr>,
    /// Serving certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Its key, PEM.
    #[arg(long, value_name = "FILE")]
    tls_private_key_file: Option<PathBuf>,
    /// Authorities of client certificates, PEM.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Authorities of front proxies, PEM.
    #[arg(long, value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Common names that front proxies may have; none: any.
    #[arg(long, value_delimiter = ',')]
    requestheader_allowed_names: Vec<String>,
    /// Headers with the user's name.
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-User")]
    requestheader_username_headers: Vec<String>,
    /// Headers with the user's UID.
    #[arg(long, value_delimiter = ',')]
    requestheader_uid_headers: Vec<String>,
    /// Headers with the user's groups.
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Group")]
    requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with extra values.
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Extra-")]
    requestheader_extra_headers_prefix: Vec<String>,
    /// Bearer tokens: lines of TOKEN,USER,UID,"GROUP,GROUP".
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// Whether anonymous requests are let in.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    anonymous_auth: bool,
    /// Users or groups that may do everything, beside system:masters.
    #[arg(long, value_name = "SUBJECT")]
    allow: Vec<String>,
    /// Concurrent streams of an HTTP/2 connection.
    #[arg(long, default_value_t = Limits::default().max_streams)]
    http2_max_streams_per_connection: u32,
    /// `real`: starts and stops as slowly as a kube-apiserver; `prompt`: at once.
    #[arg(long, value_enum, default_value_t = Pace::Real)]
    timing: Pace,
    /// How long the endpoint outlives a killed server.
    #[arg(long, default_value_t = 15, value_name = "SECONDS")]
    endpoint_ttl: u64,
    /// Serve with this many threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Whether the server asks itself over its own port, as kube-apiserver does, and is ready only while that works.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    loopback_client: bool,
    /// Do not keep a log of requests (for load).
    #[arg(long)]
    no_log: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Pace {
    Real,
    Prompt,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match run(Flags::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            write_line(
                &format!("standin-apiserver: {error:#}"),
                &mut std::io::stderr(),
            );
            ExitCode::FAILURE
        }
    }
}

fn write_line(line: &str, to: &mut dyn std::io::Write) {
    if writeln!(to, "{line}").is_err() {
        tracing::debug!("Nobody reads the output");
    }
}

async fn run(flags: Flags) -> anyhow::Result<()> {
    if let (Some(text), Some(path)) = (&flags.send, &flags.control) {
        let command: Command = serde_json::from_str(text).context("--send is no command")?;
        let answer = control::command(path, &command)
            .await
            .with_context(|| format!("{}", path.display()))?;
        write_line(&serde_json::to_string(&answer)?, &mut std::io::stdout());
        return Ok(());
    }
    let store = match &flags.store {
        Some(path) => Store::connect(path),
        None => Store::memory(),
    };
    let serving_store = async {
        match &flags.serve_store {
            Some(path) => store
                .serve(path)
                .await
                .with_context(|| format!("the store at {}", path.display())),
            None => std::future::pending().await,
        }
    };
    let server = async {
        match &flags.tls_cert_file {
            Some(certificate) => serve(&flags, certificate, &store).await,
            None if flags.serve_store.is_some() => stopped().await,
            None => bail!("--tls-cert-file is missing (or --serve-store, to serve a store only)"),
        }
    };
    tokio::select! {
        ended = serving_store => ended,
        ended = server => ended,
    }
}

async fn stopped() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

async fn serve(flags: &Flags, certificate: &Path, store: &Store) -> anyhow::Result<()> {
    let key = flags
        .tls_private_key_file
        .as_deref()
        .context("--tls-private-key-file is missing")?;
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("{} has no private key", key.display()))?;
    let mut builder = Standin::bare()
        .certificate_chain(chain, key)
        .release(flags.release)
        .name(&flags.hostname)
        .store(store)
        .bind(SocketAddr::new(flags.bind_address, flags.secure_port))
        .limits(Limits {
            max_streams: flags.http2_max_streams_per_connection,
            ..Limits::default()
        })
        .threads(flags.threads)
        .loopback_client(flags.loopback_client)
        .timing(Timing {
            endpoint_ttl: Duration::from_secs(flags.endpoint_ttl),
            endpoint_every: Duration::from_secs(flags.endpoint_ttl.div_ceil(2)),
            ..match flags.timing {
                Pace::Real => Timing::real(),
                Pace::Prompt => Timing::prompt(),
            }
        });
    if let Some(address) = flags.advertise_address {
        builder = builder.advertise(SocketAddr::new(address, flags.secure_port));
    }
    for what in &flags.off {
        builder = builder.off(what);
    }
    for setting in &flags.runtime_config {
        builder = match setting.split_once('=') {
            Some(("api/all", "true")) => builder.all_apis(),
            Some((group_version, "false")) => builder.off(group_version),
            _ => bail!(
                "--runtime-config {setting}: only api/all=true and GROUP/VERSION=false are known"
            ),
        };
    }
    for subject in &flags.allow {
        builder = builder.allow(Rule::everything(subject));
    }
    let client_ca = flags
        .client_ca_file
        .as_deref()
        .map(certificates)
        .transpose()?
        .unwrap_or_default();
    let front_proxy = flags
        .requestheader_client_ca_file
        .as_deref()
        .map(certificates)
        .transpose()?;
    let tokens = flags
        .token_auth_file
        .as_deref()
        .map(tokens)
        .transpose()?
        .unwrap_or_default();
    builder = builder.authentication(|known| {
        known.client_ca = client_ca;
        known.anonymous = flags.anonymous_auth;
        known.tokens.extend(tokens);
        known.request_header = front_proxy.map(|ca| RequestHeader {
            ca,
            allowed_names: flags.requestheader_allowed_names.clone(),
            username_headers: flags.requestheader_username_headers.clone(),
            uid_headers: flags.requestheader_uid_headers.clone(),
            group_headers: flags.requestheader_group_headers.clone(),
            extra_prefixes: flags.requestheader_extra_headers_prefix.clone(),
        });
    });
    let handle = Arc::new(builder.start_without_waiting().await?);
    handle.keep_log(!flags.no_log);
    let controlled = async {
        match &flags.control {
            Some(path) => control::serve(Arc::clone(&handle), path)
                .await
                .with_context(|| format!("the control socket {}", path.display())),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = controlled => return ended,
        ended = stopped() => ended?,
    }
    handle.stop_gracefully().await;
    Ok(())
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let name = || format!("{} has no certificates", path.display());
    let found: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(path)
        .with_context(name)?
        .collect::<Result<_, _>>()
        .with_context(name)?;
    if found.is_empty() {
        bail!(name());
    }
    Ok(found)
}

/// `TOKEN,USER,UID,"GROUP,GROUP"` (kube-apiserver's static token file).
fn tokens(path: &Path) -> anyhow::Result<Vec<(String, User)>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut fields = line
                .splitn(4, ',')
                .map(|field| field.trim().trim_matches('"'));
            let (Some(token), Some(name), Some(uid)) =
                (fields.next(), fields.next(), fields.next())
            else {
                bail!(
                    "{}: {line:?} is not TOKEN,USER,UID[,GROUPS]",
                    path.display()
                );
            };
            let groups: Vec<&str> = fields
                .next()
                .unwrap_or_default()
                .split(',')
                .filter(|group| !group.is_empty())
                .collect();
            let mut user = User::new(name, &groups);
            uid.clone_into(&mut user.uid);
            Ok((token.to_owned(), user))
        })
        .collect()
}
