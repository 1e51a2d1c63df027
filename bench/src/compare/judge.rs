//! From samples to ratios, and whether they are what design 10 wants. A ratio is mvp's figure divided by the other's, repeat
//! by repeat (they ran one after the other); its spread is the least and the greatest of them.

use serde::{Deserialize, Serialize};

use super::{
    measure::{Measured, Sample, median, median_of},
    scenario::{Against, Goal, Metric, Rival, Scenario},
};

/// One object of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Its name.
    pub scenario: String,
    /// With whom; `better`: the better of `HAProxy` and nginx; `-`: with nobody, the figure itself is bounded.
    pub against: String,
    /// Of what.
    pub metric: Metric,
    /// mvp's median.
    pub mvp: f64,
    /// The other's.
    pub other: Option<f64>,
    /// Median of mvp's divided by the other's.
    pub ratio: Option<f64>,
    /// Least and greatest ratio over the repeats.
    pub spread: Option<(f64, f64)>,
    /// What the ratio (with nobody: the figure) must be.
    pub required: Option<f64>,
    /// And should be.
    pub goal: Option<f64>,
    /// Whether it is.
    pub met: Option<Met>,
}

/// How a bound is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Met {
    /// Not what is required.
    No,
    /// What is required.
    Required,
    /// What is wanted.
    Goal,
}

impl Met {
    fn judge(value: f64, metric: Metric, required: f64, goal: f64) -> Self {
        // As they are printed: 1.004 is 1.00.
        let value = if value < 100.0 {
            (value * 100.0).round() / 100.0
        } else {
            value
        };
        let within = |bound: f64| {
            if metric.more_is_better() {
                value >= bound
            } else {
                value <= bound
            }
        };
        if within(goal) {
            Self::Goal
        } else if within(required) {
            Self::Required
        } else {
            Self::No
        }
    }
}

/// Every metric against everybody, and the bounds.
pub fn judge(scenario: &Scenario, measured: &Measured) -> Vec<Comparison> {
    let Some(own) = measured.samples.get("mvp") else {
        return Vec::new();
    };
    let mut comparisons = Vec::new();
    let mut metrics: Vec<Metric> = own
        .iter()
        .flat_map(|sample| sample.metrics.keys().copied())
        .collect();
    metrics.sort_unstable();
    metrics.dedup();
    let bound = |metric, rival| {
        scenario
            .goals
            .iter()
            .find(|goal: &&Goal| goal.metric == metric && goal.rival == rival)
    };
    for metric in metrics {
        let Some(mvp) = median_of(own, metric) else {
            continue;
        };
        if let Some(bound) = bound(metric, Rival::Nobody) {
            comparisons.push(Comparison {
                met: Some(Met::judge(mvp, metric, bound.required, bound.goal)),
                required: Some(bound.required),
                goal: Some(bound.goal),
                ..Comparison::bare(scenario, "-", metric, mvp)
            });
        }
        for against in scenario.against.iter().chain([&Against::Build]) {
            let Some(others) = measured.other(*against) else {
                continue;
            };
            let name = serde_json::to_string(against).unwrap_or_default();
            let bound = bound(metric, Rival::One(*against));
            comparisons.extend(compare(
                scenario,
                name.trim_matches('"'),
                (metric, mvp),
                (own, others),
                bound,
            ));
        }
        if let (Some(bound), Some(better)) =
            (bound(metric, Rival::Better), better(measured, metric))
        {
            comparisons.extend(compare(
                scenario,
                "better",
                (metric, mvp),
                (own, better),
                Some(bound),
            ));
        }
    }
    comparisons
}

impl Comparison {
    fn bare(scenario: &Scenario, against: &str, metric: Metric, mvp: f64) -> Self {
        Self {
            scenario: scenario.name.to_owned(),
            against: against.to_owned(),
            metric,
            mvp,
            other: None,
            ratio: None,
            spread: None,
            required: None,
            goal: None,
            met: None,
        }
    }
}

fn compare(
    scenario: &Scenario,
    against: &str,
    (metric, mvp): (Metric, f64),
    (own, others): (&[Sample], &[Sample]),
    bound: Option<&Goal>,
) -> Option<Comparison> {
    let other = median_of(others, metric)?;
    let pairs = own.iter().zip(others).filter_map(|(own, other)| {
        Some(own.metrics.get(&metric)? / other.metrics.get(&metric).filter(|it| **it > 0.0)?)
    });
    let ratios: Vec<f64> = pairs.filter(|ratio| ratio.is_finite()).collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = ratios.iter().copied().fold(0.0, f64::max);
    let ratio = median(ratios)?;
    // To be the same is to be as good within the spread: half of all repeats are a little worse than the other half.
    let judged = |bound: &Goal| {
        let same = (bound.required - bound.goal).abs() < 1e-9;
        let printed = |value: f64| (value * 100.0).round() / 100.0;
        let within =
            same && printed(least) <= bound.required && bound.required <= printed(greatest);
        Met::judge(
            if within { bound.required } else { ratio },
            metric,
            bound.required,
            bound.goal,
        )
    };
    Some(Comparison {
        other: Some(other),
        ratio: Some(ratio),
        spread: Some((least, greatest)),
        required: bound.map(|bound| bound.required),
        goal: bound.map(|bound| bound.goal),
        met: bound.map(judged),
        ..Comparison::bare(scenario, against, metric, mvp)
    })
}

/// The better of `HAProxy` and nginx; both must have been measured.
fn better(measured: &Measured, metric: Metric) -> Option<&[Sample]> {
    let (one, two) = (
        measured.other(Against::Haproxy)?,
        measured.other(Against::Nginx)?,
    );
    let (first, second) = (median_of(one, metric)?, median_of(two, metric)?);
    Some(if (first > second) == metric.more_is_better() {
        one
    } else {
        two
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn samples(metric: Metric, values: &[f64]) -> Vec<Sample> {
        let sample = |value: &f64| Sample {
            metrics: BTreeMap::from([(metric, *value)]),
            ..Sample::default()
        };
        values.iter().map(sample).collect()
    }

    fn measured(metric: Metric, of: &[(&str, &[f64])]) -> Measured {
        let samples = of
            .iter()
            .map(|(name, values)| ((*name).to_owned(), samples(metric, values)));
        Measured {
            scenario: "get-h2-cert".to_owned(),
            what: String::new(),
            samples: samples.collect(),
            rate: None,
            units: 1,
        }
    }

    fn scenario() -> Scenario {
        super::super::all()
            .into_iter()
            .find(|it| it.name == "get-h2-cert")
            .unwrap()
    }

    #[test]
    fn a_ratio_is_taken_repeat_by_repeat_and_its_spread_is_told() {
        let metric = Metric::CpuPerRequest;
        let measured = measured(
            metric,
            &[
                ("mvp", &[9.0, 20.0, 10.0]),
                ("haproxy", &[10.0, 20.0, 10.0]),
                ("nginx", &[40.0, 40.0, 40.0]),
            ],
        );
        let all = judge(&scenario(), &measured);
        let haproxy = all.iter().find(|it| it.against == "haproxy").unwrap();
        assert_eq!(
            (haproxy.ratio, haproxy.spread),
            (Some(1.0), Some((0.9, 1.0)))
        );
        assert_eq!(haproxy.met, None);
        let better = all.iter().find(|it| it.against == "better").unwrap();
        assert_eq!(
            (better.other, better.met),
            (Some(10.0), Some(Met::Required))
        );
    }

    #[test]
    fn more_requests_are_better_and_less_time_is() {
        assert_eq!(
            Met::judge(1.1, Metric::RequestsPerSecond, 1.0, 1.2),
            Met::Required
        );
        assert_eq!(
            Met::judge(1.2, Metric::RequestsPerSecond, 1.0, 1.2),
            Met::Goal
        );
        assert_eq!(
            Met::judge(0.9, Metric::RequestsPerSecond, 1.0, 1.2),
            Met::No
        );
        assert_eq!(Met::judge(0.8, Metric::P99, 1.0, 0.8), Met::Goal);
        assert_eq!(Met::judge(1.004, Metric::P99, 1.0, 0.8), Met::Required);
        let measured = measured(
            Metric::RequestsPerSecond,
            &[("mvp", &[10.0]), ("haproxy", &[5.0]), ("nginx", &[8.0])],
        );
        let all = judge(&scenario(), &measured);
        let better = all.iter().find(|it| it.against == "better").unwrap();
        assert_eq!(better.other, Some(8.0));
    }

    #[test]
    fn to_be_the_same_is_to_be_it_within_the_spread() {
        let scenario = super::super::all()
            .into_iter()
            .find(|it| it.name == "no-skew-auto")
            .unwrap();
        let met = |own: &[f64]| {
            let measured = measured(
                Metric::P50,
                &[("mvp", own), ("direct", &[100.0, 100.0, 100.0])],
            );
            judge(&scenario, &measured).first().unwrap().met
        };
        assert_eq!(met(&[98.0, 103.0, 104.0]), Some(Met::Goal));
        assert_eq!(met(&[102.0, 103.0, 104.0]), Some(Met::No));
    }

    #[test]
    fn what_was_not_measured_is_not_compared() {
        let all = judge(
            &scenario(),
            &measured(Metric::P99, &[("mvp", &[10.0]), ("nginx", &[8.0])]),
        );
        assert!(all.iter().all(|it| it.against == "nginx"));
    }
}
