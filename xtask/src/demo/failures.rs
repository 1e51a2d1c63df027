//! What goes wrong in a control plane, with mvp and, where that is a difference, without it: servers that stop and
//! die, mvps that die and hang, a bad certificate, removal.

use std::{cell::RefCell, collections::BTreeMap, net::SocketAddr, rc::Rc};

use anyhow::Result;
use nix::sys::signal::Signal;
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Duration, Instant, MissedTickBehavior, interval, sleep},
};

use super::{
    cluster::{ALWAYS, Cluster, Launch},
    kinds,
    probe::{self, Outcome},
    report::{Line, Report},
};

/// Longest wait for one answer of a poll; then it counts as late.
const PATIENCE: Duration = Duration::from_secs(10);
/// The dead man's switch: after this, new connections reach the server itself.
const DIRECT_WITHIN: Duration = Duration::from_secs(2);

/// One answer of a poll.
#[derive(Clone, Copy, Debug)]
struct Poll {
    /// When it was asked.
    at: Instant,
    outcome: Outcome,
}

/// Polls the new kind through one node until stopped.
struct Poller {
    polls: Rc<RefCell<Vec<Poll>>>,
    task: JoinHandle<()>,
}

impl Poller {
    /// One request every `pace`, each on a connection of its own, whether or not earlier ones are answered.
    fn start(cluster: &Cluster, to: SocketAddr, pace: Duration) -> Self {
        let polls = Rc::new(RefCell::new(Vec::new()));
        let (client, seen) = (cluster.people.admin.clone(), Rc::clone(&polls));
        let task = tokio::task::spawn_local(async move {
            let mut ticks = interval(pace);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut running = JoinSet::new();
            loop {
                ticks.tick().await;
                while running.try_join_next().is_some() {}
                let (client, seen) = (client.clone(), Rc::clone(&seen));
                running.spawn_local(async move {
                    let at = Instant::now();
                    let outcome = probe::get(&client, to, kinds::NEW_KIND, PATIENCE).await;
                    seen.borrow_mut().push(Poll { at, outcome });
                });
            }
        });
        Self { polls, task }
    }

    /// Stops asking; what is still unanswered after the patience of one request would have been late.
    async fn stop(self) -> Vec<Poll> {
        // Those already asked may finish: they run inside the task, which goes on asking meanwhile.
        sleep(Duration::from_millis(300)).await;
        self.task.abort();
        let mut polls = self.polls.borrow().clone();
        polls.sort_by_key(|poll| poll.at);
        polls
    }
}

/// How often each outcome was seen: `200 x31, 503 x120`.
fn summary(polls: &[Poll]) -> String {
    let mut counts: BTreeMap<Outcome, usize> = BTreeMap::new();
    for poll in polls {
        *counts.entry(poll.outcome).or_default() += 1;
    }
    let parts: Vec<String> = counts
        .iter()
        .map(|(outcome, count)| format!("{outcome} x{count}"))
        .collect();
    parts.join(", ")
}

/// How the only capable server goes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Going {
    /// SIGTERM.
    Stopped,
    /// SIGKILL.
    Killed,
}

impl Going {
    const fn name(self) -> &'static str {
        match self {
            Self::Stopped => "only capable server stopped",
            Self::Killed => "only capable server killed",
        }
    }
}

/// What was polled through each node while the only capable server went and came back.
#[derive(Debug)]
pub(crate) struct Absence(Vec<Vec<Poll>>);

/// Takes the only capable server away, brings it back, and polls through every node meanwhile.
pub(crate) async fn absence(
    cluster: &mut Cluster,
    report: &Report,
    going: Going,
    round: &str,
) -> Result<Absence> {
    report.doing(&format!("{round} mvp: {}", going.name()));
    let newest = cluster.nodes.len() - 1;
    let pace = Duration::from_millis(25);
    let pollers: Vec<Poller> = cluster
        .nodes
        .iter()
        .map(|node| Poller::start(cluster, node.address(), pace))
        .collect();
    sleep(Duration::from_millis(300)).await;
    match going {
        Going::Stopped => cluster.stop_server(newest).await?,
        Going::Killed => cluster.kill_server(newest)?,
    }
    sleep(Duration::from_secs(2)).await;
    cluster.start_server(newest)?;
    let back = cluster.ready(newest).await;
    // mvp believes in a server again after two seconds of being ready.
    sleep(Duration::from_secs(4)).await;
    let mut all = Vec::new();
    for poller in pollers {
        all.push(poller.stop().await);
    }
    back?;
    Ok(Absence(all))
}

/// 503 until it is back, never 404, never a refused or broken connection; and 200 in the end.
pub(crate) fn judge_absence(
    cluster: &Cluster,
    going: Going,
    before: &Absence,
    after: &Absence,
    report: &mut Report,
) -> Result<()> {
    for (at, node) in cluster.nodes.iter().enumerate() {
        let polls = &after.0[at];
        let allowed = |poll: &Poll| matches!(poll.outcome, Outcome::Status(200 | 503));
        let ok = polls.iter().all(allowed)
            && polls
                .iter()
                .any(|poll| poll.outcome == Outcome::Status(503))
            && polls
                .first()
                .is_some_and(|poll| poll.outcome == Outcome::Status(200))
            && polls
                .last()
                .is_some_and(|poll| poll.outcome == Outcome::Status(200));
        report.add(Line {
            name: going.name().to_owned(),
            node: node.name().to_owned(),
            before: summary(&before.0[at]),
            after: summary(polls),
            ok,
        })?;
    }
    Ok(())
}

/// kill -9 and SIGSTOP of the first node's mvp under traffic: no connect is refused, and after two seconds the server
/// itself answers (the false 404 is its signature).
pub(crate) async fn lost_mvp(cluster: &mut Cluster, report: &mut Report) -> Result<()> {
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let name = format!("mvp lost: {signal}");
        report.doing(&name);
        let poller = Poller::start(
            cluster,
            cluster.nodes[0].address(),
            Duration::from_millis(10),
        );
        sleep(Duration::from_millis(500)).await;
        let lost = Instant::now();
        match signal {
            Signal::SIGKILL => cluster.kill_mvp(0)?,
            other => cluster.mvp(0)?.signal(other)?,
        }
        sleep(DIRECT_WITHIN + Duration::from_secs(1)).await;
        // What is asked from here on would be seen unfinished.
        let until = Instant::now();
        let polls = if signal == Signal::SIGKILL {
            let polls = poller.stop().await;
            cluster.start_mvp(0, ALWAYS)?;
            polls
        } else {
            cluster.mvp(0)?.signal(Signal::SIGCONT)?;
            sleep(Duration::from_secs(1)).await;
            poller.stop().await
        };
        cluster.settled().await?;
        let asked: Vec<Poll> = polls.into_iter().filter(|poll| poll.at < until).collect();
        let (with, without): (Vec<Poll>, Vec<Poll>) = asked
            .iter()
            .partition(|poll| poll.at < lost + DIRECT_WITHIN);
        let ok = asked.iter().all(|poll| poll.outcome != Outcome::Refused)
            && with.iter().any(|poll| poll.outcome == Outcome::Status(200))
            && !without.is_empty()
            && without
                .iter()
                .all(|poll| poll.outcome == Outcome::Status(404));
        report.add(Line {
            name,
            node: cluster.nodes[0].name().to_owned(),
            before: summary(&with),
            after: format!("after 2 s: {}", summary(&without)),
            ok,
        })?;
    }
    Ok(())
}

/// mvp with a front-proxy certificate that no server trusts: it must not steer.
pub(crate) async fn stranger(cluster: &mut Cluster, report: &mut Report) -> Result<()> {
    const NAME: &str = "front-proxy certificate of a wrong CA";
    report.doing(NAME);
    let to = cluster.nodes[0].address();
    let before = probe::get(&cluster.people.admin, to, kinds::NEW_KIND, PATIENCE).await;
    cluster.stop_mvp(0).await?;
    cluster.start_mvp(
        0,
        Launch {
            front_proxy: "stranger",
            ..ALWAYS
        },
    )?;
    let poller = Poller::start(cluster, to, Duration::from_millis(50));
    // Longer than an mvp that is trusted takes until it steers.
    sleep(Duration::from_secs(6)).await;
    let polls = poller.stop().await;
    let status = cluster.mvp_status(0).await?;
    cluster.stop_mvp(0).await?;
    let steering = format!(
        "{}, {}",
        status["steering"]["state"], status["steering"]["why"]
    )
    .replace('"', "");
    let ok = before == Outcome::Status(200)
        && !polls.is_empty()
        && polls
            .iter()
            .all(|poll| poll.outcome == Outcome::Status(404))
        && status["steering"]["state"] == "off";
    report.add(Line {
        name: NAME.to_owned(),
        node: cluster.nodes[0].name().to_owned(),
        before: before.to_string(),
        after: format!("{} (steering {steering})", summary(&polls)),
        ok,
    })?;
    cluster.start_mvp(0, ALWAYS)?;
    cluster.settled().await
}

/// SIGTERM to every mvp under traffic: nothing fails, and afterwards everything is as if it had never been there.
pub(crate) async fn removal(cluster: &mut Cluster, report: &mut Report) -> Result<()> {
    report.doing("removal of mvp");
    for at in 0..cluster.nodes.len() {
        let to = cluster.nodes[at].address();
        let poller = Poller::start(cluster, to, Duration::from_millis(20));
        sleep(Duration::from_millis(500)).await;
        let stopped = cluster.stop_mvp(at).await;
        let gone = Instant::now();
        sleep(Duration::from_millis(700)).await;
        let polls = poller.stop().await;
        let capable = at + 1 == cluster.nodes.len();
        let direct = Outcome::Status(if capable { 200 } else { 404 });
        let (with, without): (Vec<Poll>, Vec<Poll>) = polls.iter().partition(|poll| poll.at < gone);
        let ok = stopped.is_ok()
            && with
                .iter()
                .all(|poll| poll.outcome == Outcome::Status(200) || poll.outcome == direct)
            && with
                .first()
                .is_some_and(|poll| poll.outcome == Outcome::Status(200))
            && !without.is_empty()
            && without.iter().all(|poll| poll.outcome == direct);
        let complaint = stopped
            .err()
            .map_or_else(String::new, |error| format!(" ({error:#})"));
        report.add(Line {
            name: "removal of mvp".to_owned(),
            node: cluster.nodes[at].name().to_owned(),
            before: summary(&with),
            after: format!("{}{complaint}", summary(&without)),
            ok,
        })?;
    }
    Ok(())
}
