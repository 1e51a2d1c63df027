//! Rates and percentiles of the last minute, from counts that only grow. Pure: it is told what time it is.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::admin::wire::{Overview, RouteTraffic};

/// What is looked back at.
const WINDOW: Duration = Duration::from_mins(1);
/// Looks that are kept: a few more than the window has.
const LOOKS: usize = 40;

/// The last looks at one process.
#[derive(Debug, Default)]
pub(super) struct History {
    pid: u32,
    looks: VecDeque<(Instant, Vec<RouteTraffic>)>,
}

/// How one route does.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pace {
    /// `local`, an address, or `former`.
    pub(super) server: String,
    /// Requests since the process started.
    pub(super) total: u64,
    /// Requests per second over the span.
    pub(super) rate: f64,
    /// Of them, by the first digit of the status.
    pub(super) answers: [u64; 5],
    /// Seconds within which 50, 90 and 99 % were answered; none: there were no requests. Infinite: beyond the last bound.
    pub(super) percentiles: Option<[f64; 3]>,
    /// Requests per second between the looks, oldest first.
    pub(super) rates: Vec<f64>,
}

/// How all routes do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Paces {
    /// Over which time; none: since the process started.
    pub(super) span: Option<Duration>,
    pub(super) routes: Vec<Pace>,
}

impl History {
    /// Takes in a look; one of another process begins anew.
    pub(super) fn look(&mut self, now: Instant, overview: &Overview) {
        let routes = &overview.traffic.routes;
        let total =
            |routes: &[RouteTraffic]| -> u64 { routes.iter().map(|it| sum(&it.buckets)).sum() };
        let backwards = self
            .looks
            .back()
            .is_some_and(|(_, last)| total(last) > total(routes));
        if self.pid != overview.status.pid || backwards {
            self.looks.clear();
            self.pid = overview.status.pid;
        }
        self.looks.push_back((now, routes.clone()));
        while self.looks.len() > LOOKS
            || self.looks.len() > 2 && self.looks.get(1).is_some_and(|it| now - it.0 >= WINDOW)
        {
            self.looks.pop_front();
        }
    }

    /// How things are as of the last look; `uptime` of the process is the span while there is only one.
    pub(super) fn paces(&self, bounds: &[f64], uptime: u64) -> Paces {
        let Some((last, routes)) = self.looks.back() else {
            return Paces {
                span: None,
                routes: Vec::new(),
            };
        };
        let first = self.looks.front().filter(|(at, _)| at < last);
        let span = first.map(|(at, _)| *last - *at);
        let seconds = span.map_or_else(
            || Duration::from_secs(uptime.max(1)).as_secs_f64(),
            |it| it.as_secs_f64(),
        );
        let routes = routes
            .iter()
            .map(|now| {
                let before = first.and_then(|(_, before)| of(before, &now.server));
                let buckets = less(&now.buckets, before.map(|it| &*it.buckets));
                let answers = less(&now.answers, before.map(|it| &*it.answers));
                Pace {
                    server: now.server.clone(),
                    total: sum(&now.buckets),
                    rate: real(sum(&buckets)) / seconds,
                    answers: std::array::from_fn(|at| answers.get(at).copied().unwrap_or(0)),
                    percentiles: percentiles(bounds, &buckets),
                    rates: self.rates(&now.server),
                }
            })
            .collect();
        Paces { span, routes }
    }

    fn rates(&self, server: &str) -> Vec<f64> {
        let totals: Vec<(Instant, u64)> = self
            .looks
            .iter()
            .map(|(at, routes)| (*at, of(routes, server).map_or(0, |it| sum(&it.buckets))))
            .collect();
        totals
            .windows(2)
            .filter_map(|pair| match pair {
                [(from, before), (to, after)] if to > from => {
                    Some(real(after.saturating_sub(*before)) / (*to - *from).as_secs_f64())
                }
                _ => None,
            })
            .collect()
    }
}

fn of<'a>(routes: &'a [RouteTraffic], server: &str) -> Option<&'a RouteTraffic> {
    routes.iter().find(|it| it.server == server)
}

fn less(now: &[u64], before: Option<&[u64]>) -> Vec<u64> {
    let before = before.unwrap_or(&[]);
    now.iter()
        .enumerate()
        .map(|(at, count)| count.saturating_sub(before.get(at).copied().unwrap_or(0)))
        .collect()
}

fn sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, it| sum.saturating_add(*it))
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
const fn real(count: u64) -> f64 {
    count as f64
}

fn percentiles(bounds: &[f64], buckets: &[u64]) -> Option<[f64; 3]> {
    (sum(buckets) > 0).then(|| [0.5, 0.9, 0.99].map(|share| percentile(bounds, buckets, share)))
}

/// As Prometheus' `histogram_quantile`: evenly spread within a bucket.
fn percentile(bounds: &[f64], buckets: &[u64], share: f64) -> f64 {
    let wanted = share * real(sum(buckets));
    let mut below = 0.0;
    let mut from = 0.0;
    for (count, to) in buckets.iter().zip(bounds) {
        let within = real(*count);
        if within > 0.0 && below + within >= wanted {
            return from + (to - from) * ((wanted - below) / within);
        }
        below += within;
        from = *to;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::wire::Status;

    fn overview(pid: u32, buckets: &[u64]) -> Overview {
        let status: Status = serde_json::from_value(serde_json::json!({
            "version": "", "pid": pid, "uptime": 10, "ready": true, "not_ready": [], "skew": 0, "servers": [],
            "steering": { "mode": "", "state": "", "why": "", "since": 0, "percent": 100, "lookups": {}, "older_connections": null },
            "connections": { "open": 0, "bound": 0 }, "beats_ms": [],
        }))
        .unwrap();
        let mut traffic = crate::admin::wire::Traffic::default();
        traffic.routes.push(RouteTraffic {
            server: "local".to_owned(),
            answers: vec![0, sum(buckets), 0, 0, 0],
            buckets: buckets.to_vec(),
        });
        Overview {
            status,
            differences: Vec::new(),
            traffic,
        }
    }

    const BOUNDS: [f64; 2] = [0.001, 0.01];

    #[tokio::test(start_paused = true)]
    async fn rates_and_percentiles_are_those_of_the_last_minute() {
        let mut history = History::default();
        let mut count = 1000;
        for _ in 0..200 {
            history.look(Instant::now(), &overview(1, &[count, 0, 0]));
            count += 20;
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        let paces = history.paces(&BOUNDS, 400);
        let span = paces.span.unwrap();
        assert!(
            span >= WINDOW && span < WINDOW + Duration::from_secs(4),
            "{span:?}"
        );
        let local = &paces.routes[0];
        assert!((local.rate - 10.0).abs() < 1e-9, "{local:?}");
        assert_eq!(local.total, count - 20);
        assert!(history.looks.len() <= LOOKS);
        assert!(local.rates.iter().all(|it| (it - 10.0).abs() < 1e-9));
        let [half, most, nearly] = local.percentiles.unwrap();
        assert!((half - 0.0005).abs() < 1e-9 && most < nearly && nearly < 0.001);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_look_is_about_all_that_ever_was_and_a_new_process_begins_anew() {
        let mut history = History::default();
        history.look(Instant::now(), &overview(1, &[10, 0, 0]));
        let paces = history.paces(&BOUNDS, 10);
        assert_eq!((paces.span, paces.routes[0].rate), (None, 1.0));
        tokio::time::advance(Duration::from_secs(2)).await;
        history.look(Instant::now(), &overview(2, &[50, 0, 0]));
        assert_eq!(history.paces(&BOUNDS, 10).span, None);
        // Counts that shrink are another process's, whatever its number.
        tokio::time::advance(Duration::from_secs(2)).await;
        history.look(Instant::now(), &overview(2, &[1, 0, 0]));
        assert_eq!(history.paces(&BOUNDS, 10).span, None);
    }

    #[test]
    fn a_percentile_beyond_the_last_bound_is_infinite_and_of_nothing_there_is_none() {
        assert_eq!(percentiles(&BOUNDS, &[0, 0, 0]), None);
        let [half, _, nearly] = percentiles(&BOUNDS, &[1, 0, 1]).unwrap();
        assert!((half - 0.001).abs() < 1e-9);
        assert!(nearly.is_infinite());
        // Answers of another version, with other bounds, do not confuse it.
        assert!(percentiles(&[], &[3]).unwrap()[0].is_infinite());
    }
}
