//! Requests, as fast as they are answered or as fast as was said.

use std::{cell::Cell, rc::Rc, time::Duration};

use anyhow::{Context as _, Result, bail};
use http::header;
use tokio::{
    task::{JoinSet, spawn_local},
    time::Instant,
};

use super::{
    channel::{Channel, Channels, Template},
    drive::Tally,
    gate::Gate,
    pace::{self, Queue},
    plan::{Outcome, Pace, Plan, Shot},
};

/// After a failure a stream waits, so that a server that is gone is not counted a million times.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

pub(super) struct Requests<'a> {
    pub(super) plan: &'a Plan,
    pub(super) shots: &'a [Shot],
    pub(super) pace: Pace,
    pub(super) warm: Duration,
    pub(super) run: Duration,
}

impl Requests<'_> {
    pub(super) async fn run(
        &self,
        channels: &Rc<Channels>,
        gate: &mut dyn Gate,
    ) -> Result<Outcome> {
        let mut open = open(self.plan, channels).await?;
        let first = open.first_mut().context("no connections are asked for")?;
        let magazine = Rc::new(Magazine::load(channels, self.shots, first).await?);
        let warm = Tally::start()?;
        let until = Instant::now() + self.warm;
        let open = volley(open, channels, &magazine, &warm, &Until::Time(until)).await?;
        gate.ready().await?;
        let tally = Tally::start()?;
        let end = Instant::now() + self.run;
        match self.pace {
            Pace::Closed => {
                volley(open, channels, &magazine, &tally, &Until::Time(end)).await?;
            }
            Pace::Open(rate) => {
                let queue = Rc::new(Queue::default());
                let keeper = spawn_local(pace::keep(
                    Rc::clone(&queue),
                    Rc::clone(&tally),
                    rate,
                    Instant::now(),
                    end,
                ));
                volley(open, channels, &magazine, &tally, &Until::Queue(queue)).await?;
                keeper.await??;
            }
        }
        Ok(tally.outcome())
    }
}

/// The first answer on a fresh connection.
pub(super) async fn first(
    plan: &Plan,
    shot: &Shot,
    channels: &Channels,
    gate: &mut dyn Gate,
) -> Result<Outcome> {
    gate.ready().await?;
    let tally = Tally::start()?;
    let template = channels.template(shot)?;
    for _ in 0..plan.connections {
        let mut channel = channels.open().await?;
        shoot(&mut channel, &template, Instant::now(), &tally).await?;
    }
    Ok(tally.outcome())
}

/// One handle per stream.
async fn open(plan: &Plan, channels: &Channels) -> Result<Vec<Channel>> {
    let mut open = Vec::new();
    for _ in 0..plan.connections {
        let channel = channels.open().await?;
        for _ in 1..plan.streams {
            open.extend(channel.again());
        }
        open.push(channel);
    }
    Ok(open)
}

/// The requests, in an order that follows their weights.
#[derive(Debug)]
struct Magazine {
    templates: Vec<Template>,
    /// Indices of templates.
    order: Vec<usize>,
    next: Cell<usize>,
}

impl Magazine {
    async fn load(channels: &Channels, shots: &[Shot], channel: &mut Channel) -> Result<Self> {
        let mut templates = Vec::new();
        for shot in shots {
            let mut template = channels.template(shot)?;
            if shot.conditional {
                let answer = channel.exchange(&template).await?;
                let etag = answer.headers.get(header::ETAG);
                template.unless(
                    etag.with_context(|| format!("{} has no ETag", shot.path))?
                        .clone(),
                );
            }
            templates.push(template);
        }
        Ok(Self {
            templates,
            order: order(shots),
            next: Cell::new(0),
        })
    }

    fn next(&self) -> Option<&Template> {
        let at = self.next.get();
        self.next.set((at + 1) % self.order.len().max(1));
        self.templates.get(*self.order.get(at)?)
    }
}

/// Each index as often as its shot weighs, spread evenly (smooth weighted round robin, as nginx does it).
fn order(shots: &[Shot]) -> Vec<usize> {
    let total: i64 = shots.iter().map(|shot| i64::from(shot.weight)).sum();
    let mut credit = vec![0_i64; shots.len()];
    let mut order = Vec::new();
    for _ in 0..total {
        for (credit, shot) in credit.iter_mut().zip(shots) {
            *credit += i64::from(shot.weight);
        }
        let best = (0..shots.len()).max_by_key(|at| (credit[*at], std::cmp::Reverse(*at)));
        if let Some(best) = best {
            credit[best] -= total;
            order.push(best);
        }
    }
    order
}

/// How long streams go on.
#[derive(Clone, Debug)]
enum Until {
    Time(Instant),
    Queue(Rc<Queue>),
}

impl Until {
    /// When the next request is due; none: no more.
    async fn next(&self) -> Option<Instant> {
        match self {
            Self::Time(end) => {
                let now = Instant::now();
                (now < *end).then_some(now)
            }
            Self::Queue(queue) => queue.take().await,
        }
    }
}

/// Every channel at once; they come back.
async fn volley(
    open: Vec<Channel>,
    channels: &Rc<Channels>,
    magazine: &Rc<Magazine>,
    tally: &Rc<Tally>,
    until: &Until,
) -> Result<Vec<Channel>> {
    let mut streams = JoinSet::new();
    for mut channel in open {
        let (channels, magazine, tally, until) = (
            Rc::clone(channels),
            Rc::clone(magazine),
            Rc::clone(tally),
            until.clone(),
        );
        streams.spawn_local(async move {
            while let Some(due) = until.next().await {
                let Some(template) = magazine.next() else {
                    break;
                };
                if let Err(error) = shoot(&mut channel, template, due, &tally).await {
                    tally.failed(&error);
                    tokio::time::sleep(AFTER_FAILURE).await;
                    match channels.open().await {
                        Ok(fresh) => channel = fresh,
                        Err(error) => tally.failed(&error),
                    }
                }
            }
            channel
        });
    }
    let mut back = Vec::new();
    while let Some(channel) = streams.join_next().await {
        back.push(channel?);
    }
    Ok(back)
}

async fn shoot(
    channel: &mut Channel,
    template: &Template,
    due: Instant,
    tally: &Tally,
) -> Result<()> {
    let reply = channel.exchange(template).await?;
    if !template.is_wanted(reply.status) {
        bail!("answered {}", reply.status);
    }
    tally.done(due.elapsed(), reply.bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_follow_their_weights_and_are_spread() {
        let shots = [
            Shot::get("/a").weighing(3),
            Shot::get("/b"),
            Shot::get("/c").weighing(2),
        ];
        assert_eq!(order(&shots), [0, 2, 0, 1, 2, 0]);
    }
}
