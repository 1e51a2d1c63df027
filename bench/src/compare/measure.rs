//! Runs one scenario: every target in turn, again and again (A B A B), each sample by a load process of its own.

mod copied;
mod figures;
mod work;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;

use super::{
    Options,
    ground::{Ground, Talker},
    native,
    process::Usage,
    scenario::{Against, Kind, Metric, Mode, Scenario, Shares},
    share::Held,
    target::{Target, Who},
    tunnelled::Tunnelled,
};
use crate::load::{Outcome, Pace, Work};

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

/// Who failed, and how.
type Lost = BTreeMap<String, anyhow::Error>;

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
        let mut skip = |name: &str, error| {
            skipped.push(format!("{} through {name}: {error:#}", scenario.name));
        };
        if self.is_heavy() {
            let repeats = if matches!(scenario.kind, Kind::First(_)) {
                // One request is one figure.
                options.effort.repeats()
            } else {
                options.effort.heavy_repeats()
            };
            for repeat in 0..repeats {
                for who in turn(&who, repeat) {
                    match self.alone(*who, ground).await {
                        Ok(sample) => measured.add(&who.name(), sample),
                        Err(error) => skip(&who.name(), error),
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
                    Err(error) => skip(&who.name(), error),
                }
            }
            for (name, error) in self.together(&mut measured, &stands, ground).await? {
                skip(&name, error);
            }
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

    /// Everybody in turns: at full throughput, then at one rate. Who failed, and how.
    async fn together(
        &self,
        measured: &mut Measured,
        stands: &[Stand],
        ground: &Ground,
    ) -> Result<Lost> {
        let mut lost = Lost::new();
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
                let watched = self.ask(stand, ground, Pace::Closed, &mut lost).await?;
                if let Some(watched) = watched {
                    measured.add(&name, self.sample(&watched));
                }
            }
        }
        // Who has used up its time waits for more: latency would be about that.
        if !matches!(self.scenario.kind, Kind::Requests(_)) || self.scenario.is_bounded() {
            return Ok(lost);
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
            return Ok(lost);
        }
        measured.rate = Some(rate);
        for repeat in 0..repeats {
            for stand in turn(stands, repeat) {
                let name = stand.name();
                self.bar
                    .set_message(format!("{}: {name} at {rate:.0}/s", self.scenario.name));
                let watched = self.ask(stand, ground, Pace::Open(rate), &mut lost).await?;
                let samples = measured.samples.get_mut(&name);
                if let Some(sample) = samples.and_then(|all| all.get_mut(repeat))
                    && let Some(watched) = watched
                {
                    sample.at_equal_load(&watched);
                }
            }
        }
        measured.add_what_a_proxy_adds();
        Ok(lost)
    }

    /// One sample; none of whoever fails or has failed, so that the others go on. Without mvp there is nothing to compare.
    async fn ask(
        &self,
        stand: &Stand,
        ground: &Ground,
        pace: Pace,
        lost: &mut Lost,
    ) -> Result<Option<Watched>> {
        let name = stand.name();
        if lost.contains_key(&name) {
            return Ok(None);
        }
        let work = self.work(Some(pace))?;
        match self.watch_stand(stand, ground, work).await {
            Ok(watched) => Ok(Some(watched)),
            Err(error) if name == "mvp" => Err(error.context(name)),
            Err(error) => {
                lost.insert(name, error);
                Ok(None)
            }
        }
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
        let held = self.hold(target, ground, &load)?;
        let ready = target.usage()?;
        load.say("go").await?;
        let outcome = load.outcome().await?;
        let done = target.usage()?;
        drop(held);
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

    /// Holds everybody to the scenario's shares.
    fn hold(&self, target: &Target, ground: &Ground, load: &Talker) -> Result<Vec<Held>> {
        let Shares { ends, proxy } = self.scenario.shares;
        let groups = [
            ("asker", ends, load.pid().into_iter().collect()),
            ("answerer", ends, ground.answerers()),
            ("proxy", proxy, target.pids()),
        ];
        let mut held = Vec::new();
        for (name, percent, pids) in groups {
            if let Some(percent) = percent.filter(|_| !pids.is_empty()) {
                held.push(Held::hold(name, percent, &pids)?);
            }
        }
        Ok(held)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::all;

    #[tokio::test]
    async fn who_fails_is_left_out_and_the_others_go_on() {
        let logs = tempfile::tempdir().unwrap();
        let options = Options::of_nothing(logs.path().to_owned());
        let scenarios = all();
        let run = Run {
            scenario: scenarios.first().unwrap(),
            options: &options,
            bar: &ProgressBar::hidden(),
        };
        let ground = Ground::bare(&options.programs, &options.logs, None).unwrap();
        let mut lost = Lost::new();
        let nginx = Stand::Anew(Who::Other(Against::Nginx));
        let asked = run.ask(&nginx, &ground, Pace::Closed, &mut lost).await;
        assert!(asked.unwrap().is_none());
        let said = lost.get("nginx").unwrap().to_string();
        assert!(said.contains("not installed"), "{said}");
        let mvp = Stand::Anew(Who::Mvp(Mode::Listen));
        let asked = run.ask(&mvp, &ground, Pace::Closed, &mut lost).await;
        assert_eq!(asked.err().unwrap().to_string(), "mvp");
    }
}
