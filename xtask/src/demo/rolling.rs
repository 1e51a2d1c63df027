//! `cargo xtask demo --rolling`: three old servers, each replaced in turn by the new version, while clients list,
//! watch, create and read discovery through every node. The same run without mvp, with it always steering, with
//! `--steer=auto`, and with one mvp killed and started again.

mod clients;
mod ledger;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    rc::Rc,
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    task::JoinSet,
    time::{Duration, Instant, sleep},
};

use self::{
    clients::{OBJECTS, Seat, Shown},
    ledger::{Anomaly, Ledger, Row},
};
use super::{
    cluster::{Cluster, Launch},
    report::Report,
};

/// How long every state of the control plane lasts: before, between and after the replacements.
const DWELL: Duration = Duration::from_secs(3);
/// How long watches may take to show the last objects.
const CATCH_UP: Duration = Duration::from_secs(10);

/// One run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// How it is asked for.
    pub(super) key: &'static str,
    /// What it is called.
    pub(super) name: &'static str,
    /// `--steer`; none: without mvp.
    steer: Option<&'static str>,
    /// One node's mvp is killed on the way.
    kill: bool,
    /// Whether the exit code depends on it.
    pub(super) promised: bool,
}

/// All runs, in order.
pub(super) const WAYS: [Way; 4] = [
    Way {
        key: "without",
        name: "without mvp",
        steer: None,
        kill: false,
        promised: false,
    },
    Way {
        key: "always",
        name: "with mvp, always",
        steer: Some("always"),
        kill: false,
        promised: true,
    },
    Way {
        key: "auto",
        name: "with mvp, auto",
        steer: Some("auto"),
        kill: false,
        promised: false,
    },
    Way {
        key: "killed",
        name: "with mvp, always, one killed",
        steer: Some("always"),
        kill: true,
        promised: false,
    },
];

/// One run from start to end.
pub(super) async fn play(
    cluster: &mut Cluster,
    report: &Report,
    way: Way,
    new: &str,
) -> Result<Row> {
    let doing = |what: &str| report.doing(&format!("{}: {what}", way.name));
    doing("starting three old servers");
    cluster.start_servers().await?;
    let launch = way.steer.map(|steer| Launch {
        steer,
        ..super::ALWAYS
    });
    if let Some(launch) = launch {
        doing("starting mvp on every node");
        for node in 0..cluster.nodes.len() {
            cluster.start_mvp(node, launch)?;
        }
        // Auto steers at first, until it has read every server, and for a while after that.
        let steering = (launch.steer == "always").then_some("on");
        cluster.settled_as(steering).await?;
    }
    let ledger = Rc::new(Ledger::new());
    let mut crowd = Crowd::new(cluster, &ledger);
    let outcome = replace_all(cluster, &ledger, &doing, way, launch, new).await;
    doing("waiting for the last events");
    let judged = crowd.leave(cluster, &ledger).await;
    let notes = cluster.directory().join("clients.log");
    std::fs::write(&notes, ledger.notes()).with_context(|| notes.display().to_string())?;
    outcome?;
    judged?;
    Ok(ledger.row(way.name, way.steer.is_some()))
}

async fn replace_all(
    cluster: &mut Cluster,
    ledger: &Ledger,
    doing: &impl Fn(&str),
    way: Way,
    launch: Option<Launch<'_>>,
    new: &str,
) -> Result<()> {
    sleep(DWELL).await;
    let last = cluster.nodes.len() - 1;
    for node in 0..=last {
        let name = cluster.nodes[node].name().to_owned();
        doing(&format!("replacing the server of {name}"));
        if node == last {
            ledger.old_until.set(Some(Instant::now()));
        }
        ledger.note(&format!("-- {name}: SIGTERM to the server"));
        cluster.stop_server(node).await?;
        ledger.note(&format!("-- {name}: the server has left"));
        new.clone_into(&mut cluster.nodes[node].version);
        cluster.start_server(node)?;
        cluster.ready(node).await?;
        ledger.note(&format!("-- {name}: the new server is ready"));
        if ledger.new_since.get().is_none() {
            ledger.new_since.set(Some(Instant::now()));
        }
        sleep(DWELL).await;
        if let (true, 0, Some(launch)) = (way.kill, node, launch) {
            doing("killing the mvp of cp2");
            ledger.note("-- cp2: mvp is killed");
            cluster.kill_mvp(1)?;
            sleep(Duration::from_secs(1)).await;
            cluster.start_mvp(1, launch)?;
            cluster.settled().await?;
            ledger.note("-- cp2: mvp steers again");
        }
    }
    Ok(())
}

/// All clients of a run.
struct Crowd {
    tasks: JoinSet<()>,
    watchers: JoinSet<()>,
    shown: Vec<(String, Shown)>,
}

impl Crowd {
    /// Through every node: two readers (one keeps its connection), a writer and a watcher.
    fn new(cluster: &Cluster, ledger: &Rc<Ledger>) -> Self {
        let mut crowd = Self {
            tasks: JoinSet::new(),
            watchers: JoinSet::new(),
            shown: Vec::new(),
        };
        for node in &cluster.nodes {
            let seat = Seat {
                node: node.name().to_owned(),
                to: node.address(),
                client: cluster.people.admin.clone(),
                ledger: Rc::clone(ledger),
            };
            crowd.tasks.spawn_local(clients::read(seat.clone(), true));
            crowd.tasks.spawn_local(clients::read(seat.clone(), false));
            crowd.tasks.spawn_local(clients::write(seat.clone()));
            let shown = Shown::default();
            crowd.shown.push((seat.node.clone(), Rc::clone(&shown)));
            crowd.watchers.spawn_local(clients::watch(seat, shown));
        }
        crowd
    }

    /// Readers and writers stop; then what the watches have shown is held against what was created, and what was
    /// created against what was asked for.
    async fn leave(&mut self, cluster: &Cluster, ledger: &Ledger) -> Result<()> {
        ledger.over.set(true);
        while self.tasks.join_next().await.is_some() {}
        let created = ledger.created.borrow().clone();
        let missing = |shown: &Shown| created.difference(&shown.borrow()).count();
        let until = Instant::now() + CATCH_UP;
        while Instant::now() < until && self.shown.iter().any(|(_, shown)| missing(shown) > 0) {
            sleep(Duration::from_millis(100)).await;
        }
        for (node, shown) in &self.shown {
            let missing = missing(shown);
            if missing > 0 {
                ledger.saw(
                    Anomaly::LostWatch,
                    &format!("{node}: {missing} of {} events missed", created.len()),
                );
            }
        }
        self.watchers.shutdown().await;
        let path = format!("{OBJECTS}?labelSelector=rolling%3Dyes");
        let answer = cluster
            .people
            .admin
            .once(cluster.newest().address(), "GET", &path)
            .await?;
        if answer.status != 200 {
            bail!("the objects could not be counted: {}", answer.status);
        }
        let listed = answer.json()?;
        let mut writes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for item in listed["items"].as_array().into_iter().flatten() {
            let metadata = &item["metadata"];
            if let (Some(mark), Some(name)) = (
                metadata["labels"]["write"].as_str(),
                metadata["name"].as_str(),
            ) {
                writes.entry(mark).or_default().insert(name);
            }
        }
        if writes.is_empty() {
            bail!("nothing was created at all");
        }
        for (mark, names) in writes.iter().filter(|(_, names)| names.len() > 1) {
            ledger.saw(Anomaly::DoubleWrite, &format!("{mark}: {names:?}"));
        }
        Ok(())
    }
}

/// One JSON object a run on standard output.
pub(super) fn print(row: &Row) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, row)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// The rows as a table, a column a run.
pub(super) fn table(rows: &[Row]) -> String {
    type Value = fn(&Row) -> u64;
    let lines: [(&str, Value); 8] = [
        ("requests", |row| row.requests),
        ("false 404", |row| row.false_404),
        ("failed reads", |row| row.failed_reads),
        ("double writes", |row| row.double_writes),
        ("watches lost", |row| row.watches_lost),
        ("raw resets", |row| row.raw_resets),
        ("failed writes (not retried)", |row| row.failed_writes),
        ("half of discovery", |row| row.half_discovery),
    ];
    let header = rows
        .iter()
        .map(|row| format!("  {}", row.name))
        .collect::<Vec<_>>()
        .concat();
    let mut text = format!("{:28}{header}\n", "");
    for (name, value) in lines {
        let cell =
            |row: &Row| format!("  {:>width$}", value(row), width = row.name.chars().count());
        let cells = rows.iter().map(cell).collect::<Vec<_>>().concat();
        text.push_str(&[&format!("{name:28}"), cells.as_str(), "\n"].concat());
    }
    text
}
