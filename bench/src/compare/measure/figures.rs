//! The figures of one scenario: samples by target, and what follows from their repeats.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Run, Watched};
use crate::{
    compare::{
        scenario::{Against, Kind, Metric},
        target::Who,
    },
    load::{Curve, Outcome},
};

/// A percentile beyond the median is told if at least so many requests took longer: the slowest of two is no p99.
const BEYOND: f64 = 5.0;

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
    /// Of how many requests (handshakes, events); none: an older file that does not say.
    #[serde(default)]
    pub timed: Option<u64>,
    /// How late the asker itself was, p99, microseconds (open pace only).
    pub lag: Option<f64>,
    /// Requests that failed.
    pub failed: u64,
    /// What the first of them said.
    pub failure: Option<String>,
    /// Where bytes were copied, and how many for each that was forwarded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copied: Vec<(String, f64)>,
}

/// The median of a metric over repeats.
pub(in crate::compare) fn median_of(samples: &[Sample], metric: Metric) -> Option<f64> {
    median(
        samples
            .iter()
            .filter_map(|sample| sample.metrics.get(&metric).copied())
            .collect(),
    )
}

/// The middle one, or between the two in the middle.
pub(in crate::compare) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(*values.get(middle - 1)?, upper))
}

impl Measured {
    pub(super) fn add(&mut self, name: &str, sample: Sample) {
        self.samples
            .entry(name.to_owned())
            .or_default()
            .push(sample);
    }

    /// Each repeat's median less that of asking the right server at once.
    pub(super) fn add_what_a_proxy_adds(&mut self) {
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
    pub(in crate::compare) fn other(&self, against: Against) -> Option<&[Sample]> {
        self.samples
            .get(&Who::Other(against).name())
            .map(Vec::as_slice)
    }
}

impl Run<'_> {
    /// What was watched, as figures.
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts and bytes far below 2^52"
    )]
    pub(super) fn sample(&self, watched: &Watched) -> Sample {
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

impl Sample {
    pub(super) fn set(&mut self, metric: Metric, value: f64) {
        if value.is_finite() {
            self.metrics.insert(metric, value);
        }
    }

    /// Whether enough requests took longer for a percentile to mean something.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    fn tells(&self, percentile: f64) -> bool {
        percentile <= 50.0
            || self
                .timed
                .is_none_or(|timed| timed as f64 * (100.0 - percentile) / 100.0 >= BEYOND)
    }

    /// The points of the latency curve that mean something.
    pub(in crate::compare) fn told(&self) -> Vec<(f64, f64)> {
        let points = self.latency.points.iter().copied();
        points
            .filter(|(percentile, _)| self.tells(*percentile))
            .collect()
    }

    pub(super) fn percentiles(&mut self, outcome: &Outcome) {
        self.latency = outcome.latency.clone();
        self.timed = Some(outcome.done);
        let wanted = [
            (Metric::P50, 50.0),
            (Metric::P90, 90.0),
            (Metric::P99, 99.0),
            (Metric::P999, 99.9),
        ];
        for (metric, percentile) in wanted {
            if let Some(value) = outcome.latency.at(percentile)
                && self.tells(percentile)
            {
                self.set(metric, value);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub(super) fn at_equal_load(&mut self, watched: &Watched) {
        self.percentiles(&watched.outcome);
        self.lag = watched.outcome.lag.at(99.0);
        self.failed += watched.outcome.failed;
        if self.failure.is_none() {
            self.failure.clone_from(&watched.outcome.failure);
        }
        if watched.proxy {
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
    fn what_a_proxy_adds_is_what_a_request_takes_longer_than_without() {
        let samples = |values: [f64; 2]| {
            let sample = |value| Sample {
                metrics: BTreeMap::from([(Metric::P50, value)]),
                ..Sample::default()
            };
            values.map(sample).to_vec()
        };
        let scenario = crate::compare::all()
            .into_iter()
            .find(|it| it.name == "discovery-304")
            .unwrap();
        let mut measured = Measured {
            scenario: scenario.name.to_owned(),
            what: String::new(),
            samples: BTreeMap::from([
                ("mvp".to_owned(), samples([80.0, 90.0])),
                ("direct".to_owned(), samples([40.0, 40.0])),
                ("haproxy".to_owned(), samples([120.0, 140.0])),
            ]),
            rate: None,
            units: 1,
        };
        measured.add_what_a_proxy_adds();
        let added: Vec<_> = crate::compare::judge(&scenario, &measured)
            .into_iter()
            .filter(|it| it.metric == Metric::AddedP50)
            .map(|it| (it.against, it.spread))
            .collect();
        assert_eq!(added, [("haproxy".to_owned(), Some((0.5, 0.5)))]);
    }

    #[test]
    fn a_percentile_is_told_where_enough_requests_took_longer() {
        let points = [50.0, 90.0, 99.0, 99.9].map(|percentile| (percentile, 1.0));
        let percentile = |metric: &Metric| match metric {
            Metric::P50 => 50.0,
            Metric::P90 => 90.0,
            Metric::P99 => 99.0,
            _ => 99.9,
        };
        let told = |done| {
            let mut sample = Sample::default();
            sample.percentiles(&Outcome {
                done,
                latency: Curve {
                    points: points.to_vec(),
                },
                ..Outcome::default()
            });
            // The charts' curve ends where the table does.
            let told = sample.told().last().map(|(percentile, _)| *percentile);
            let last = sample.metrics.last_key_value();
            assert_eq!(told, last.map(|(metric, _)| percentile(metric)));
            sample.metrics.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(told(2), [Metric::P50]);
        assert_eq!(told(510), [Metric::P50, Metric::P90, Metric::P99]);
        assert_eq!(told(5100).last(), Some(&Metric::P999));
    }
}
