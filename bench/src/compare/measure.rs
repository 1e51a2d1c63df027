//! Runs one scenario: every target in turn, again and again (A B A B), each sample by a load process of its own.

mod copied;
mod figures;

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;

use super::{
    Options, copies,
    ground::Ground,
    native,
    process::Usage,
    scenario::{Against, Kind, Metric, Mode, Scenario},
    target::{Target, Who},
    tunnelled::Tunnelled,
};
use crate::load::{Identity, Outcome, Pace, Plan, Shot, Work, origin::TOKEN};

pub use figures::{Measured, Sample};
pub(super) use figures::{median, median_of};

/// The one rate at which latencies are compared, as a share of what the slowest can do: busy, but nobody's queue grows.
const EQUAL_LOAD: f64 = 0.5;
/// The same in front of real kube-apiservers, which at half of what they can do take all processors of a small machine: what a
/// hop adds shows where nobody waits for one.
const LIGHT_LOAD: f64 = 0.1;
/// Connections that are there before those whose memory is measured.
const WARMERS: usize = 16;

/// Everything about one scenario, and what could not take part.
pub(super) async fn measure(
    scenario: &Scenario,
    options: &Options,
    bar: &ProgressBar,
    natives: &mut Option<Ground>,
) -> Result<(Measured, Vec<String>)> {
    let run = Run {
        scenario,
        options,
        bar,
    };
    let (programs, logs) = (&options.programs, &options.logs);
    let laid;
    let ground = match scenario.mode {
        Mode::Listen => {
            let counts = matches!(scenario.kind, Kind::Copies(_));
            if counts {
                copies::look().await?;
            }
            let mut ground = Ground::lay(programs, logs, true, None).await?;
            ground.copies = counts;
            laid = ground;
            &laid
        }
        // What is steered needs a place where nothing else is.
        Mode::Steered | Mode::Auto => {
            laid = Ground::lay(programs, logs, false, Some("steered")).await?;
            &laid
        }
        Mode::BeforeNative => {
            if natives.is_none() {
                bar.set_message(format!("{}: kube-apiservers start", scenario.name));
                *natives = Some(native::lay(programs, logs).await?);
            }
            natives.as_ref().context("they were laid")?
        }
    };
    run.all(ground).await
}

struct Run<'a> {
    scenario: &'a Scenario,
    options: &'a Options,
    bar: &'a ProgressBar,
}

/// Who is asked.
enum Stand {
    /// Runs all the time.
    Up(Box<Target>),
    /// Starts for each sample: whoever asks the server meets it.
    Anew(Who),
}

/// Usage before the asker came, when it was ready, and when it was done.
struct Watched {
    proxy: bool,
    outcome: Outcome,
    before: Usage,
    ready: Usage,
    done: Usage,
    peak: u64,
    /// By mvp, in tunnels.
    spliced: Option<u64>,
}

impl Stand {
    fn name(&self) -> String {
        match self {
            Self::Up(target) => target.name.clone(),
            Self::Anew(who) => who.name(),
        }
    }
}

impl Run<'_> {
    async fn all(&self, ground: &Ground) -> Result<(Measured, Vec<String>)> {
        let (scenario, options) = (self.scenario, self.options);
        let other_build = scenario.mode == Mode::Listen && options.programs.build.is_some();
        let wanted = scenario
            .against
            .iter()
            .filter(|against| options.against.contains(against))
            .filter(|against| !options.lean || scenario.matters(**against))
            .chain(other_build.then_some(&Against::Build));
        let mut who = vec![Who::Mvp(scenario.mode)];
        who.extend(wanted.map(|against| Who::Other(*against)));
        let mut measured = Measured {
            scenario: scenario.name.to_owned(),
            what: scenario.what.to_owned(),
            samples: BTreeMap::new(),
            rate: None,
            units: self.connections() * self.streams(),
        };
        let mut skipped = Vec::new();
        let mut skip = |who: Who, error| {
            skipped.push(format!(
                "{} through {}: {error:#}",
                scenario.name,
                who.name()
            ));
        };
        if self.is_heavy() {
            for repeat in 0..options.effort.heavy_repeats() {
                for who in turn(&who, repeat) {
                    match self.alone(*who, ground).await {
                        Ok(sample) => measured.add(&who.name(), sample),
                        Err(error) => skip(*who, error),
                    }
                }
            }
        } else {
            let in_the_way = matches!(scenario.mode, Mode::Steered | Mode::Auto);
            let mut stands = Vec::new();
            for who in who {
                if in_the_way {
                    stands.push(Stand::Anew(who));
                    continue;
                }
                self.bar
                    .set_message(format!("{}: {} starts", scenario.name, who.name()));
                match Target::start(who, ground, options.threads).await {
                    Ok(target) => stands.push(Stand::Up(Box::new(target))),
                    Err(error) => skip(who, error),
                }
            }
            self.together(&mut measured, &stands, ground).await?;
            for stand in stands {
                if let Stand::Up(target) = stand {
                    target.end().await?;
                }
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
        if matches!(self.scenario.kind, Kind::Copies(_)) {
            return self.copied(who, ground).await;
        }
        let target = Target::start(who, ground, self.options.threads).await?;
        let warmers = if matches!(self.scenario.kind, Kind::First(_)) {
            None
        } else {
            // What a proxy makes once, whoever comes, is nobody's. They stay: what they had would be used again, and those
            // whose memory is measured would have cost less than they do.
            let plan = self.plan(&target, ground, Work::Idle, WARMERS);
            let mut load = ground.load(&plan).await?;
            load.expect("ready").await?;
            Some(load)
        };
        let watched = self.watch(&target, ground, self.work(None)?).await?;
        drop(warmers);
        let sample = self.sample(&watched);
        target.end().await?;
        Ok(sample)
    }

    /// Everybody in turns: at full throughput, then at one rate.
    async fn together(
        &self,
        measured: &mut Measured,
        stands: &[Stand],
        ground: &Ground,
    ) -> Result<()> {
        let effort = self.options.effort;
        let repeats = if self.options.lean && self.scenario.goals.is_empty() {
            effort.repeats().min(2)
        } else {
            effort.repeats()
        };
        for repeat in 0..repeats {
            for stand in turn(stands, repeat) {
                let name = stand.name();
                self.bar.set_message(format!(
                    "{}: {name} {}/{repeats}",
                    self.scenario.name,
                    repeat + 1
                ));
                let work = self.work(Some(Pace::Closed))?;
                let watched = self.watch_stand(stand, ground, work).await;
                let watched = watched.with_context(|| name.clone())?;
                measured.add(&name, self.sample(&watched));
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
        if !rate.is_finite() || rate * effort.run().as_secs_f64() < 1.0 {
            // Not one request would be due.
            return Ok(());
        }
        measured.rate = Some(rate);
        for repeat in 0..repeats {
            for stand in turn(stands, repeat) {
                let name = stand.name();
                self.bar
                    .set_message(format!("{}: {name} at {rate:.0}/s", self.scenario.name));
                let work = self.work(Some(Pace::Open(rate)))?;
                let watched = self.watch_stand(stand, ground, work).await;
                let watched = watched.with_context(|| name.clone())?;
                if let Some(sample) = measured
                    .samples
                    .get_mut(&name)
                    .and_then(|all| all.get_mut(repeat))
                {
                    sample.at_equal_load(&watched);
                }
            }
        }
        if self.is_rerouted() {
            measured.add_what_rerouting_adds();
        }
        Ok(())
    }

    async fn watch_stand(&self, stand: &Stand, ground: &Ground, work: Work) -> Result<Watched> {
        match stand {
            Stand::Up(target) => self.watch(target, ground, work).await,
            Stand::Anew(who) => {
                let target = Target::start(*who, ground, self.options.threads).await?;
                let watched = self.watch(&target, ground, work).await?;
                // It is in the way, and goes without a drain.
                target.kill().await?;
                Ok(watched)
            }
        }
    }

    /// What a load process is told.
    fn plan(&self, target: &Target, ground: &Ground, work: Work, connections: usize) -> Plan {
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
        Plan {
            to,
            ca: pki.join("ca.crt"),
            identity,
            http2: !self.scenario.http1,
            connections,
            streams: self.streams(),
            work,
        }
    }

    async fn watch(&self, target: &Target, ground: &Ground, work: Work) -> Result<Watched> {
        let plan = self.plan(target, ground, work, self.connections());
        let before = target.usage()?;
        let metrics = match self.scenario.kind {
            Kind::Tunnels { .. } => target.metrics,
            _ => None,
        };
        let earlier = match metrics {
            Some(metrics) => Tunnelled::look(metrics).await?,
            None => Tunnelled::default(),
        };
        let mut load = ground.load(&plan).await?;
        load.expect("ready").await?;
        let ready = target.usage()?;
        load.say("go").await?;
        let outcome = load.outcome().await?;
        let done = target.usage()?;
        let spliced = match metrics {
            Some(metrics) => Some(earlier.spliced_since(metrics, outcome.bytes).await?),
            None => None,
        };
        Ok(Watched {
            proxy: target.is_proxy(),
            outcome,
            before,
            ready,
            done,
            peak: done.peak,
            spliced,
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
            // All that goes through is counted.
            Kind::Copies(shot) => Work::Requests {
                shots: vec![smaller(shot, effort)],
                pace: Pace::Closed,
                warm: Duration::ZERO,
                run: effort.run(),
            },
            Kind::Storm => Work::Storm {
                run: effort.run() * 2,
            },
            Kind::Idle => Work::Idle,
            Kind::Slow { bytes, rate } => Work::Slow {
                bytes: *bytes,
                rate: *rate,
                hold: effort.run() * 4,
            },
            Kind::Tunnels { bytes, raw } => Work::Tunnels {
                bytes: most(*bytes),
                raw: *raw,
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
            Kind::First(_)
                | Kind::Idle
                | Kind::Slow { .. }
                | Kind::Copies(_)
                | Kind::Watches { .. }
        )
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "counts and bytes far below 2^52"
    )]
    fn sample(&self, watched: &Watched) -> Sample {
        let Watched {
            proxy,
            outcome,
            before,
            ready,
            done,
            peak,
            spliced,
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
            if *proxy {
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
        if let Some(spliced) = spliced {
            sample.set(Metric::Spliced, *spliced as f64);
        }
        if *proxy {
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
            sample.percentiles(outcome);
        }
        sample
    }
}

/// In turns; every other round backwards, so that nobody is always the one after somebody.
fn turn<T>(all: &[T], repeat: usize) -> Vec<&T> {
    let mut order: Vec<&T> = all.iter().collect();
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

#[cfg(test)]
mod tests {
    use super::*;

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
