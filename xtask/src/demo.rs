//! `cargo xtask demo`: a mixed-version control plane on this machine, before and after mvp. Two old servers and a new
//! one in network namespaces, mvp on each node with the eBPF program attached there, and the questions of clients
//! through every node. Exit code 0 only if every check holds.
//!
//! Servers are stand-ins with the recorded answers of real ones, or real binaries (`--kube-apiserver`). Not here: load
//! (`bench`).

mod basics;
mod cluster;
mod failures;
mod kinds;
mod kubelet;
mod people;
mod probe;
mod process;
mod report;
mod rolling;
mod servers;

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::LocalSet,
};

use crate::{
    setup,
    sh::{cargo, exec, target},
};
use cluster::{ALWAYS, Cluster};
use failures::Going;
use report::{Line, Report};
use servers::{Etcd, Servers};

/// Options of `cargo xtask demo`.
#[derive(Args, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches of a command line"
)]
pub(crate) struct Options {
    /// One JSON object a check on standard output: name, node, before, after, ok.
    #[arg(long)]
    json: bool,
    /// Instead, replace three old servers by new ones in turn, under load, with and without mvp.
    #[arg(long, conflicts_with = "keep")]
    rolling: bool,
    /// Of the rolling upgrades only this one (repeatable): without, always, auto, killed.
    #[arg(long, value_name = "RUN", requires = "rolling")]
    only: Vec<String>,
    /// Leave the control plane up, and say how to use it with kubectl.
    #[arg(long)]
    keep: bool,
    /// A real kube-apiserver, e.g. v1.34=/usr/local/bin/kube-apiserver (repeatable: an old and a new one).
    #[arg(long, value_name = "VERSION=PATH", value_parser = binary)]
    kube_apiserver: Vec<(String, PathBuf)>,
    /// The etcd of real kube-apiservers.
    #[arg(long, value_name = "PATH", conflicts_with = "etcd_wrapper")]
    etcd: Option<PathBuf>,
    /// The same, called as: `PATH DATADIR CLIENT_URL PEER_URL`.
    #[arg(long, value_name = "PATH")]
    etcd_wrapper: Option<PathBuf>,
    /// Use an optimised build of mvp.
    #[arg(long)]
    release: bool,
    /// Use this mvp instead of building one.
    #[arg(long, value_name = "PATH", conflicts_with = "release")]
    mvp: Option<PathBuf>,
    /// Remove what an earlier demo left up with --keep, and end.
    #[arg(long)]
    down: bool,
}

fn binary(text: &str) -> Result<(String, PathBuf)> {
    let (version, path) = text.split_once('=').context("wanted: VERSION=PATH")?;
    let version = format!("v{}", version.trim_start_matches('v'));
    let path = Path::new(path)
        .canonicalize()
        .with_context(|| path.to_owned())?;
    Ok((version, path))
}

/// The verb.
pub(crate) fn run(options: &Options) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("the demo makes network namespaces and attaches an eBPF program: run it as root");
    }
    let _lock = lock()?;
    if options.down {
        return crate::lab::Lab::new("mvp-demo").map(drop);
    }
    let chosen = choose(options)?;
    let mvp = build(options, &chosen.servers)?;
    let directory = tempfile::Builder::new()
        .prefix("mvp-demo-")
        .tempdir()?
        .keep();
    let outcome = if options.rolling {
        rolling(options, &chosen, &mvp, &directory)
    } else {
        mixed(options, &chosen, &mvp, &directory)
    };
    match &outcome {
        Ok(true) if !options.keep => std::fs::remove_dir_all(&directory)?,
        _ => eprintln!("logs and files: {}", directory.display()),
    }
    if outcome? {
        Ok(())
    } else {
        bail!("not every check holds")
    }
}

/// The table of requests; whether every check holds.
fn mixed(options: &Options, chosen: &Chosen, mvp: &Path, directory: &Path) -> Result<bool> {
    let (report, keep) = (Report::new(options.json), options.keep);
    let versions = [&chosen.old, &chosen.old, &chosen.new].map(String::as_str);
    report.doing(&format!(
        "three nodes, {} servers: {}",
        chosen.servers.kind(),
        versions.join(", ")
    ));
    let versions = versions.map(str::to_owned);
    let plan = Plan::new(chosen, mvp, directory, versions);
    plan.run(async move |cluster, stop| conduct(cluster, stop, report, keep).await)
}

/// The rolling upgrade, several ways; whether what is promised holds.
fn rolling(options: &Options, chosen: &Chosen, mvp: &Path, directory: &Path) -> Result<bool> {
    let mut rows = Vec::new();
    let mut holds = true;
    let wanted = |way: &rolling::Way| {
        options.only.is_empty() || options.only.iter().any(|key| key == way.key)
    };
    for way in rolling::WAYS.into_iter().filter(wanted) {
        let directory = directory.join(way.key);
        std::fs::create_dir(&directory)?;
        let versions = [(); 3].map(|()| chosen.old.clone());
        let (report, new) = (Report::new(options.json), chosen.new.clone());
        let row = Plan::new(chosen, mvp, &directory, versions).run(
            async move |mut cluster, mut stop| {
                let row = stop
                    .unless(rolling::play(&mut cluster, &report, way, &new))
                    .await;
                report.finish();
                row
            },
        )?;
        holds &= row.holds() || !way.promised;
        if options.json {
            rolling::print(&row)?;
        }
        rows.push(row);
    }
    if rows.is_empty() {
        bail!("--only: no run is called {:?}", options.only);
    }
    eprintln!("\n{}", rolling::table(&rows));
    Ok(holds)
}

/// One demo at a time: they share the names of their namespaces.
fn lock() -> Result<File> {
    let path = "/run/mvp-demo.lock";
    let file = File::create(path).context(path)?;
    if file.try_lock().is_err() {
        eprintln!("waiting for another demo to end");
        file.lock().context(path)?;
    }
    Ok(file)
}

/// Which servers, and the two versions.
#[derive(Debug)]
struct Chosen {
    servers: Servers,
    old: String,
    new: String,
}

fn choose(options: &Options) -> Result<Chosen> {
    if options.kube_apiserver.is_empty() {
        if options.etcd.is_some() || options.etcd_wrapper.is_some() {
            bail!("--etcd is for real servers: --kube-apiserver VERSION=PATH");
        }
        let servers = Servers::StandIn(target().join("debug/standin-apiserver"));
        return Ok(Chosen {
            servers,
            old: "v1.34".to_owned(),
            new: "v1.36".to_owned(),
        });
    }
    let binaries: BTreeMap<String, PathBuf> = options.kube_apiserver.iter().cloned().collect();
    let mut known: Vec<String> = binaries.keys().cloned().collect();
    known.sort_by_key(|version| {
        let parts = version.trim_start_matches('v').split('.');
        parts
            .map(|part| part.parse().unwrap_or(0))
            .collect::<Vec<u32>>()
    });
    let [old, new] = <[String; 2]>::try_from(known).map_err(|known| {
        anyhow!("real servers: --kube-apiserver is needed twice, for an old version and a new one, not {known:?}")
    })?;
    let full = |path: &Path| {
        path.canonicalize()
            .with_context(|| path.display().to_string())
    };
    let etcd = match (&options.etcd, &options.etcd_wrapper) {
        (Some(path), _) => Etcd::Plain(full(path)?),
        (_, Some(path)) => Etcd::Wrapper(full(path)?),
        _ => bail!("real servers need --etcd PATH or --etcd-wrapper PATH"),
    };
    Ok(Chosen {
        servers: Servers::Real { binaries, etcd },
        old,
        new,
    })
}

/// Builds what is to be shown; says so on standard error only.
fn build(options: &Options, servers: &Servers) -> Result<PathBuf> {
    if matches!(servers, Servers::StandIn(_)) {
        exec(cargo().args([
            "build",
            "--locked",
            "--package",
            "bench",
            "--bin",
            "standin-apiserver",
        ]))?;
    }
    if let Some(path) = &options.mvp {
        return path
            .canonicalize()
            .with_context(|| path.display().to_string());
    }
    setup::ensure()?;
    let mut mvp = cargo();
    mvp.args(["build", "--locked", "--package", "mvp-user", "--bin", "mvp"]);
    if options.release {
        mvp.arg("--release");
    }
    exec(&mut mvp)?;
    let profile = if options.release { "release" } else { "debug" };
    Ok(target().join(profile).join("mvp"))
}

/// What a cluster is made of.
struct Plan {
    servers: Servers,
    mvp: PathBuf,
    directory: PathBuf,
    versions: [String; 3],
}

impl Plan {
    fn new(chosen: &Chosen, mvp: &Path, directory: &Path, versions: [String; 3]) -> Self {
        let servers = chosen.servers.clone();
        Self {
            servers,
            mvp: mvp.to_owned(),
            directory: directory.to_owned(),
            versions,
        }
    }

    /// Makes the cluster and does something with it, on a thread that lives where the clients are. Whatever happens, the
    /// cluster is taken down when it is dropped.
    fn run<T, F>(self, what: F) -> Result<T>
    where
        T: Send + 'static,
        F: AsyncFnOnce(Cluster, Stop) -> Result<T> + Send + 'static,
    {
        let driver = thread::Builder::new()
            .name("clients".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(LocalSet::new().run_until(async move {
                    // Before anything is there that must be taken down.
                    let stop = Stop::new()?;
                    let versions = self.versions.each_ref().map(String::as_str);
                    let cluster =
                        Cluster::new(&self.directory, &self.mvp, self.servers, &versions)?;
                    cluster.outside.enter()?;
                    what(cluster, stop).await
                }))
            })?;
        driver
            .join()
            .unwrap_or_else(|_| bail!("the driver panicked"))
    }
}

/// Ctrl-C, SIGTERM and SIGHUP.
#[derive(Debug)]
struct Stop([Signal; 3]);

impl Stop {
    fn new() -> Result<Self> {
        let [terminate, interrupt, hangup] = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
        ]
        .map(signal);
        Ok(Self([terminate?, interrupt?, hangup?]))
    }

    /// They end it like an error, so that everything is taken down.
    async fn unless<T>(&mut self, what: impl Future<Output = Result<T>>) -> Result<T> {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            outcome = what => outcome,
            _ = terminate.recv() => Err(anyhow!("terminated")),
            _ = interrupt.recv() => Err(anyhow!("interrupted")),
            _ = hangup.recv() => Err(anyhow!("the terminal is gone")),
        }
    }
}

async fn conduct(
    mut cluster: Cluster,
    mut stop: Stop,
    mut report: Report,
    keep: bool,
) -> Result<bool> {
    let outcome = Box::pin(stop.unless(play(&mut cluster, &mut report, keep))).await;
    if let Err(error) = &outcome {
        let line = Line {
            name: "the demo itself".to_owned(),
            node: "all".to_owned(),
            before: String::new(),
            after: format!("{error:#}"),
            ok: false,
        };
        report.add(line)?;
    }
    report.finish();
    let (checks, failed) = report.totals();
    let columns: Vec<_> = cluster
        .nodes
        .iter()
        .map(|node| (node.name().to_owned(), node.version.clone()))
        .collect();
    eprintln!("\n{}", report.table(&columns));
    eprintln!("{} of {checks} checks hold", checks - failed);
    outcome?;
    if keep {
        eprintln!("{}", cluster.instructions());
        cluster.keep();
    }
    Ok(failed == 0)
}

/// The whole play, in its acts.
async fn play(cluster: &mut Cluster, report: &mut Report, keep: bool) -> Result<()> {
    report.doing("starting three kube-apiservers");
    let _kubelet = kubelet::start(cluster.outside.address, &cluster.serving()?)?;
    cluster.start_servers().await?;

    let before = basics::ask(cluster, report, "before").await?;
    let stopped = failures::absence(cluster, report, Going::Stopped, "before").await?;
    let killed = failures::absence(cluster, report, Going::Killed, "before").await?;

    report.doing("starting mvp on every node");
    for node in 0..cluster.nodes.len() {
        cluster.start_mvp(node, ALWAYS)?;
    }
    cluster.settled().await?;

    let after = basics::ask(cluster, report, "after").await?;
    basics::judge(cluster, &before, &after, report)?;
    let with = failures::absence(cluster, report, Going::Stopped, "after").await?;
    failures::judge_absence(cluster, Going::Stopped, &stopped, &with, report)?;
    cluster.settled().await?;
    let with = failures::absence(cluster, report, Going::Killed, "after").await?;
    failures::judge_absence(cluster, Going::Killed, &killed, &with, report)?;
    cluster.settled().await?;
    failures::lost_mvp(cluster, report).await?;
    failures::stranger(cluster, report).await?;
    failures::removal(cluster, report).await?;
    if keep {
        report.doing("starting mvp on every node again");
        for node in 0..cluster.nodes.len() {
            cluster.start_mvp(node, ALWAYS)?;
        }
        cluster.settled().await?;
    }
    Ok(())
}
