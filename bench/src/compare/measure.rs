//! Runs one scenario: every target in turn, again and again (A B A B), each sample by a load process of its own.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use super::{
    Options,
    ground::Ground,
    native,
    process::Usage,
    scenario::{Against, Kind, Metric, Mode, Scenario},
    target::{Target, Who},
};
use crate::load::{Curve, Identity, Outcome, Pace, Plan, Shot, Work, origin::TOKEN};

/// The one rate at which latencies are compared, as a share of what the slowest can do: busy, but nobody's queue grows.
const EQUAL_LOAD: f64 = 0.5;
/// The same in front of real kube-apiservers, which at half of what they can do take all processors of a small machine: what a
/// hop adds shows where nobody waits for one.
const LIGHT_LOAD: f64 = 0.1;
/// Connections that come and go before those whose memory is measured.
const WARMERS: usize = 16;

/// One scenario's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Its name.
    pub scenario: String,
    /// What happens in it.
    pub what: String,
    /// By target: one sample a repeat.
    pub samples: BTreeMap<String, Vec<Sample>>,
    /// Requests a second at which latencies were taken; none: not at one rate.
    pub rate: Option<f64>,
    /// How many connections, watches or streams.
    pub units: usize,
}

/// One repeat of one target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// The figures, in the units of [`Metric`].
    pub metrics: BTreeMap<Metric, f64>,
    /// Latency.
    pub latency: Curve,
    /// How late the asker itself was, p99, microseconds (open pace only).
    pub lag: Option<f64>,
    /// Requests that failed.
    pub failed: u64,
    /// What the first of them said.
    pub failure: Option<String>,
}

/// Everything about one scenario, and what could not take part.
pub(super) async fn measure(
    scenario: &Scenario,
    options: &Options,
    bar: &ProgressBar,
) -> Result<(Measured, Vec<String>)> {
    let run = Run {
        scenario,
        options,
        bar,
    };
    run.all().await
}

struct Run<'a> {
    scenario: &'a Scenario,
    options: &'a Options,
    bar: &'a ProgressBar,
}

/// Usage before the asker came, when it was ready, and when it was done.
struct Watched {
    outcome: Outcome,
    before: Usage,
    ready: Usage,
    done: Usage,
    peak: u64,
}

impl Run<'_> {
    async fn all(&self) -> Result<(Measured, Vec<String>)> {
        let (scenario, options) = (self.scenario, self.options);
        let (programs, logs) = (&options.programs, &options.logs);
        let (ground, plain) = match scenario.mode {
            Mode::Listen => (Ground::lay(programs, logs, true, None).await?, None),
            Mode::BeforeNative => (native::lay(programs, logs).await?, None),
            // What is steered needs a place where nothing is.
            Mode::Steered | Mode::Auto => {
                let plain = Ground::lay(programs, logs, false, Some("plain")).await?;
                (
                    Ground::lay(programs, logs, false, Some("mvp")).await?,
                    Some(plain),
                )
            }
        };
        let other_build = scenario.mode == Mode::Listen && options.programs.build.is_some();
        let wanted = scenario
            .against
            .iter()
            .filter(|against| options.against.contains(against))
            .filter(|against| !options.lean || scenario.matters(**against))
            .chain(other_build.then_some(&Against::Build));
        let mut who = vec![Who::Mvp(scenario.mode)];
        who.extend(wanted.map(|against| Who::Other(*against)));
        let place = |who: Who| match (&plain, who) {
            (Some(plain), Who::Other(_)) => plain,
            _ => &ground,
        };
        let mut measured = Measured {
            scenario: scenario.name.to_owned(),
            what: scenario.what.to_owned(),
            samples: BTreeMap::new(),
            rate: None,
            units: self.connections() * self.streams(),
        };
        let mut skipped = Vec::new();
        if self.is_heavy() {
            for repeat in 0..options.effort.heavy_repeats() {
                for who in turn(&who, repeat) {
                    match self.alone(who, place(who)).await {
                        Ok(sample) => measured.add(&who.name(), sample),
                        Err(error) => skipped.push(format!(
                            "{} through {}: {error:#}",
                            scenario.name,
                            who.name()
                        )),
                    }
                }
            }
        } else {
            let mut targets = Vec::new();
            for who in who {
                self.bar
                    .set_message(format!("{}: {} starts", scenario.name, who.name()));
                match Target::start(who, place(who), options.threads).await {
                    Ok(target) => targets.push((target, place(who))),
                    Err(error) => skipped.push(format!(
                        "{} through {}: {error:#}",
                        scenario.name,
                        who.name()
                    )),
                }
            }
            self.together(&mut measured, &targets).await?;
            for (target, _) in targets {
                target.end().await?;
            }
        }
        if !measured.samples.contains_key("mvp") {
            anyhow::bail!("{}", skipped.join("; "));
        }
        Ok((measured, skipped))
    }

    /// On a fresh proxy, so that memory is what this work needs.
    async fn alone(&self, who: Who, ground: &Ground) -> Result<Sample> {
        self.bar
            .set_message(format!("{}: {}", self.scenario.name, who.name()));
        let target = Target::start(who, ground, self.options.threads).await?;
        if matches!(self.scenario.kind, Kind::Idle | Kind::Watches { .. }) {
            // What a proxy makes once, whoever comes, is nobody's.
            self.watch_as(&target, ground, Work::Idle, WARMERS.min(self.connections()))
                .await?;
        }
        let watched = self.watch(&target, ground, self.work(None)?).await?;
        let sample = self.sample(&target, &watched);
        target.end().await?;
        Ok(sample)
    }

    /// All targets side by side, in turns: at full throughput, then at one rate.
    async fn together(&self, measured: &mut Measured, targets: &[(Target, &Ground)]) -> Result<()> {
        let effort = self.options.effort;
        let repeats = if self.options.lean && self.scenario.goals.is_empty() {
            effort.repeats().min(2)
        } else {
            effort.repeats()
        };
        for repeat in 0..repeats {
            for (target, ground) in turn_of(targets, repeat) {
                self.bar.set_message(format!(
                    "{}: {} {}/{repeats}",
                    self.scenario.name,
                    target.name,
                    repeat + 1
                ));
                let watched = self
                    .watch(target, ground, self.work(Some(Pace::Closed))?)
                    .await;
                let watched = watched.with_context(|| target.name.clone())?;
                measured.add(&target.name, self.sample(target, &watched));
            }
        }
        if !matches!(self.scenario.kind, Kind::Requests(_)) {
            return Ok(());
        }
        let slowest = measured
            .samples
            .values()
            .filter_map(|samples| median_of(samples, Metric::RequestsPerSecond));
        let share = if self.scenario.mode == Mode::BeforeNative {
            LIGHT_LOAD
        } else {
            EQUAL_LOAD
        };
        let rate = slowest.fold(f64::INFINITY, f64::min) * share;
        if !rate.is_finite() || rate <= 0.0 {
            return Ok(());
        }
        measured.rate = Some(rate);
        for repeat in 0..repeats {
            for (target, ground) in turn_of(targets, repeat) {
                self.bar.set_message(format!(
                    "{}: {} at {rate:.0}/s",
                    self.scenario.name, target.name
                ));
                let watched = self
                    .watch(target, ground, self.work(Some(Pace::Open(rate)))?)
                    .await;
                let watched = watched.with_context(|| target.name.clone())?;
                if let Some(sample) = measured
                    .samples
                    .get_mut(&target.name)
                    .and_then(|all| all.get_mut(repeat))
                {
                    sample.at_equal_load(target, &watched);
                }
            }
        }
        if self.is_rerouted() {
            measured.add_what_rerouting_adds();
        }
        Ok(())
    }

    async fn watch(&self, target: &Target, ground: &Ground, work: Work) -> Result<Watched> {
        self.watch_as(target, ground, work, self.connections())
            .await
    }

    async fn watch_as(
        &self,
        target: &Target,
        ground: &Ground,
        work: Work,
        connections: usize,
    ) -> Result<Watched> {
        let pki = ground.pki();
        let identity = if self.scenario.token {
            Identity::Token(TOKEN.to_owned())
        } else {
            Identity::Certificate(pki.join("user.crt"), pki.join("user.key"))
        };
        let work = match work {
            Work::Watches { events, every, .. } => Work::Watches {
                events,
                every,
                origin: ground.local,
            },
            work => work,
        };
        // What only the peer serves is asked of the peer where nobody reroutes.
        let elsewhere = self.is_rerouted() && !target.is_proxy();
        let to = if elsewhere {
            ground.peer
        } else {
            target.address
        };
        let plan = Plan {
            to,
            ca: pki.join("ca.crt"),
            identity,
            http2: !self.scenario.http1,
            connections,
            streams: self.streams(),
            work,
        };
        let before = target.usage()?;
        let mut load = ground.load(&plan).await?;
        load.expect("ready").await?;
        let ready = target.usage()?;
        load.say("go").await?;
        let outcome = load.outcome().await?;
        let done = target.usage()?;
        Ok(Watched {
            outcome,
            before,
            ready,
            done,
            peak: done.peak,
        })
    }

    /// The work of one sample.
    fn work(&self, pace: Option<Pace>) -> Result<Work> {
        let effort = self.options.effort;
        let most = |bytes: u64| {
            if effort == super::Effort::Smoke {
                bytes.min(1 << 20)
            } else {
                bytes
            }
        };
        Ok(match &self.scenario.kind {
            Kind::Requests(shots) => Work::Requests {
                shots: shots.iter().map(|shot| smaller(shot, effort)).collect(),
                pace: pace.context("requests have a pace")?,
                warm: effort.warm(),
                run: effort.run(),
            },
            Kind::First(shot) => Work::First { shot: shot.clone() },
            Kind::Storm => Work::Storm {
                run: effort.run() * 2,
            },
            Kind::Idle => Work::Idle,
            Kind::Slow { bytes, rate } => Work::Slow {
                bytes: *bytes,
                rate: *rate,
                hold: effort.run() * 4,
            },
            Kind::Tunnels { bytes } => Work::Tunnels {
                bytes: most(*bytes),
            },
            Kind::Watches { events, every } => Work::Watches {
                events: *events,
                every: *every,
                origin: ([127, 0, 0, 1], 0).into(),
            },
        })
    }

    fn connections(&self) -> usize {
        self.options.effort.cap(self.scenario.connections, 4)
    }

    fn streams(&self) -> usize {
        self.options.effort.cap(self.scenario.streams, 4)
    }

    fn is_rerouted(&self) -> bool {
        self.scenario.name.starts_with("rerouted")
    }

    /// Work whose memory matters, or that is only the first after a start.
    const fn is_heavy(&self) -> bool {
        matches!(
            self.scenario.kind,
            Kind::First(_) | Kind::Idle | Kind::Slow { .. } | Kind::Watches { .. }
        )
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "counts and bytes far below 2^52"
    )]
    fn sample(&self, target: &Target, watched: &Watched) -> Sample {
        let Watched {
            outcome,
            before,
            ready,
            done,
            peak,
        } = watched;
        let mut sample = Sample {
            failed: outcome.failed,
            failure: outcome.failure.clone(),
            ..Sample::default()
        };
        let (requests, mib) = (
            outcome.done as f64,
            outcome.bytes as f64 / f64::from(1 << 20),
        );
        let cpu = (done.cpu - ready.cpu) * 1e6;
        let held = matches!(
            self.scenario.kind,
            Kind::Idle | Kind::Slow { .. } | Kind::Watches { .. }
        );
        if held {
            if target.is_proxy() {
                let added = ready.resident.saturating_sub(before.resident) as f64;
                let units = self.connections() * self.streams();
                sample.set(Metric::MemoryPerUnit, added / units as f64);
            }
        } else if outcome.seconds > 0.0 {
            if !matches!(self.scenario.kind, Kind::Tunnels { .. } | Kind::First(_)) {
                sample.set(Metric::RequestsPerSecond, requests / outcome.seconds);
            }
            if mib / requests > 1.0 / 32.0 {
                sample.set(Metric::MibPerSecond, mib / outcome.seconds);
            }
        }
        if target.is_proxy() {
            sample.set(Metric::PeakMemory, *peak as f64);
            let counts = !matches!(
                self.scenario.kind,
                Kind::Idle | Kind::Slow { .. } | Kind::First(_) | Kind::Tunnels { .. }
            );
            if counts {
                sample.set(Metric::CpuPerRequest, cpu / requests);
            }
            if mib > 1.0 && mib / requests > 1.0 / 32.0 && !held {
                sample.set(Metric::CpuPerMib, cpu / mib);
            }
        }
        if matches!(
            self.scenario.kind,
            Kind::Storm | Kind::First(_) | Kind::Watches { .. }
        ) {
            sample.percentiles(&outcome.latency);
        }
        sample
    }
}

/// In turns; every other round backwards, so that nobody is always the one after somebody.
fn turn(who: &[Who], repeat: usize) -> Vec<Who> {
    let mut order = who.to_vec();
    if repeat % 2 == 1 {
        order.reverse();
    }
    order
}

fn turn_of<'a, 'b>(
    targets: &'a [(Target, &'b Ground)],
    repeat: usize,
) -> Vec<&'a (Target, &'b Ground)> {
    let mut order: Vec<_> = targets.iter().collect();
    if repeat % 2 == 1 {
        order.reverse();
    }
    order
}

/// A shot whose sizes suit a smoke run.
fn smaller(shot: &Shot, effort: super::Effort) -> Shot {
    let mut shot = shot.clone();
    if effort == super::Effort::Smoke {
        shot.body = shot.body.min(64 * 1024);
        if let Some((path, bytes)) = shot.path.rsplit_once("bytes=") {
            let bytes = bytes.parse::<u64>().unwrap_or(1024).min(200_000);
            shot.path = format!("{path}bytes={bytes}");
        }
    }
    shot
}

/// The median of a metric over repeats.
pub(super) fn median_of(samples: &[Sample], metric: Metric) -> Option<f64> {
    median(
        samples
            .iter()
            .filter_map(|sample| sample.metrics.get(&metric).copied())
            .collect(),
    )
}

/// The middle one, or between the two in the middle.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(*values.get(middle - 1)?, upper))
}

impl Measured {
    fn add(&mut self, name: &str, sample: Sample) {
        self.samples
            .entry(name.to_owned())
            .or_default()
            .push(sample);
    }

    /// Each repeat's median less that of asking the right server at once.
    fn add_what_rerouting_adds(&mut self) {
        let direct: Vec<Option<f64>> = self
            .samples
            .get("direct")
            .map(|all| {
                all.iter()
                    .map(|sample| sample.metrics.get(&Metric::P50).copied())
                    .collect()
            })
            .unwrap_or_default();
        for (name, samples) in &mut self.samples {
            for (sample, direct) in samples.iter_mut().zip(&direct) {
                if let (Some(own), Some(direct)) =
                    (sample.metrics.get(&Metric::P50).copied(), direct)
                    && name != "direct"
                {
                    sample.set(Metric::AddedP50, own - direct);
                }
            }
        }
    }

    /// The median of a figure.
    pub fn median(&self, target: &str, metric: Metric) -> Option<f64> {
        median_of(self.samples.get(target)?, metric)
    }

    /// The samples of one that was compared with.
    pub(super) fn other(&self, against: Against) -> Option<&[Sample]> {
        self.samples
            .get(&Who::Other(against).name())
            .map(Vec::as_slice)
    }
}

impl Sample {
    fn set(&mut self, metric: Metric, value: f64) {
        if value.is_finite() {
            self.metrics.insert(metric, value);
        }
    }

    fn percentiles(&mut self, latency: &Curve) {
        self.latency = latency.clone();
        let wanted = [
            (Metric::P50, 50.0),
            (Metric::P90, 90.0),
            (Metric::P99, 99.0),
            (Metric::P999, 99.9),
        ];
        for (metric, percentile) in wanted {
            if let Some(value) = latency.at(percentile) {
                self.set(metric, value);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    fn at_equal_load(&mut self, target: &Target, watched: &Watched) {
        self.percentiles(&watched.outcome.latency);
        self.lag = watched.outcome.lag.at(99.0);
        self.failed += watched.outcome.failed;
        if self.failure.is_none() {
            self.failure.clone_from(&watched.outcome.failure);
        }
        if target.is_proxy() {
            let cpu = (watched.done.cpu - watched.ready.cpu) * 1e6;
            self.set(
                Metric::CpuPerRequestAtEqualLoad,
                cpu / watched.outcome.done as f64,
            );
            self.set(Metric::PeakMemory, watched.peak as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_smoke_run_asks_for_little() {
        let shot = smaller(
            &Shot::get("/api/v1/pods?limit=5&bytes=100000000"),
            super::super::Effort::Smoke,
        );
        assert_eq!(shot.path, "/api/v1/pods?limit=5&bytes=200000");
        let same = smaller(&Shot::get("/apis"), super::super::Effort::Quick);
        assert_eq!(same.path, "/apis");
    }
}
