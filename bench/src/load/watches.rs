//! Watches: many streams on which nothing happens, then events that reach all of them.

use std::{
    net::SocketAddr,
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    channel::Channels,
    drive::Tally,
    gate::Gate,
    plan::{Outcome, Plan, Shot},
};

/// How long the last event may be on its way to the last watch.
const PATIENCE: Duration = Duration::from_secs(20);
/// Every event begins with this and the time of its sending (nanoseconds of the epoch, 19 digits).
pub(super) const MARK: &[u8] = br#"{"sent":"#;

/// Now, in nanoseconds of the epoch: one clock for both processes.
pub(super) fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) async fn fan_out(
    plan: &Plan,
    channels: &Rc<Channels>,
    (events, every, origin): (u32, Duration, SocketAddr),
    gate: &mut dyn Gate,
) -> Result<Outcome> {
    let watch = channels.template(&Shot::get("/api/v1/namespaces/bench/pods?watch=1"))?;
    let mut bodies = Vec::new();
    for _ in 0..plan.connections {
        let mut channel = channels.open().await?;
        for _ in 0..plan.streams.max(1) {
            let answer = channel.start(&watch).await?;
            if !watch.is_wanted(answer.status()) {
                bail!("a watch was answered {}", answer.status());
            }
            bodies.push(answer.into_body());
        }
    }
    // Each has one event at once; the watches stand when it is here.
    let mut watches = Vec::new();
    for mut body in bodies {
        let mut pending = Vec::new();
        while !pending.contains(&b'\n') {
            let chunk = body.data().await.context("a watch ended early")??;
            body.flow_control().release_capacity(chunk.len())?;
            pending.extend_from_slice(&chunk);
        }
        watches.push(body);
    }
    // The server's own door: events begin there whatever lies between.
    let mut door = channels.at(origin).open().await?;
    let emit = channels.template(&Shot::post("/bench/emit", 0))?;
    gate.ready().await?;
    let tally = Tally::start()?;
    let mut readers = JoinSet::new();
    for mut body in watches {
        let tally = Rc::clone(&tally);
        readers.spawn_local(async move {
            let mut pending = Vec::new();
            let mut seen = 0;
            while seen < events {
                let chunk = body.data().await.context("a watch ended early")??;
                body.flow_control().release_capacity(chunk.len())?;
                pending.extend_from_slice(&chunk);
                let now = now();
                while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                    let sent = sent(&pending[..end])?;
                    tally.done(
                        Duration::from_nanos(now.saturating_sub(sent)),
                        end as u64 + 1,
                    );
                    pending.drain(..=end);
                    seen += 1;
                }
            }
            anyhow::Ok(())
        });
    }
    for _ in 0..events {
        let reply = door.exchange(&emit).await?;
        if !reply.status.is_success() {
            bail!("no event was sent: {}", reply.status);
        }
        sleep(every).await;
    }
    let all = async {
        while let Some(reader) = readers.join_next().await {
            if let Err(error) = reader? {
                tally.failed(&error);
            }
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, all)
        .await
        .context("events are missing")??;
    Ok(tally.outcome())
}

/// When an event was sent.
fn sent(line: &[u8]) -> Result<u64> {
    let digits = line.strip_prefix(MARK).and_then(|rest| rest.get(..19));
    let digits = digits.context("an event does not begin as it should")?;
    Ok(std::str::from_utf8(digits)?.parse()?)
}
