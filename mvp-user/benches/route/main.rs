//! What reading, routing and rewriting one request costs, with seven peers (design 10: a decision takes less than 200 ns).
//!
//! CPU time of the thread, not wall time: the figures hold on a busy machine too.

use std::{hint::black_box, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use http::Method;
use mvp_user::request_info::RequestInfo;

mod request;
mod world;

fn route(criterion: &mut Criterion) {
    let table = world::table();
    let asker = world::asker();
    for (name, uri) in world::QUESTIONS {
        let uri = world::uri(uri);
        criterion.bench_function(&format!("parse/{name}"), |bencher| {
            bencher.iter_custom(|count| {
                spent(count, || {
                    black_box(RequestInfo::parse(&Method::GET, black_box(&uri))).is_ok()
                })
            });
        });
        let info = RequestInfo::parse(&Method::GET, &uri).expect("a path");
        criterion.bench_function(&format!("decide/{name}"), |bencher| {
            bencher.iter_custom(|count| {
                spent(count, || {
                    let decision = world::decision(&info, &table, &asker);
                    black_box(decision).server().is_some()
                })
            });
        });
    }
}

/// What cleaning the headers of a request costs, and how much of it is the copy that is cleaned.
fn rewrite(criterion: &mut Criterion) {
    let asked = request::Asked::new();
    criterion.bench_function("rewrite/clone of a head", |bencher| {
        bencher.iter_custom(|count| {
            spent(count, || !black_box(asked.head.clone()).headers.is_empty())
        });
    });
    criterion.bench_function("rewrite/clone and rewriting", |bencher| {
        bencher.iter_custom(|count| {
            spent(count, || {
                !black_box(asked.rewritten(asked.head.clone())).is_upgrade()
            })
        });
    });
}

/// What a decision costs as group-versions and peers grow: what local serves, and what only one peer does.
fn growth(criterion: &mut Criterion) {
    let asker = world::asker();
    let sizes = [50, 500, 5000].map(|groups| (format!("groups/{groups}"), groups, 7));
    let peers = [1, 3, 5, 7].map(|peers| (format!("peers/{peers}"), 50, peers));
    for (name, groups, peers) in sizes.into_iter().chain(peers) {
        let table = world::table_of(groups, peers);
        for (what, uri) in world::QUESTIONS.iter().take(2) {
            let uri = world::uri(uri);
            let info = RequestInfo::parse(&Method::GET, &uri).expect("a path");
            criterion.bench_function(&format!("{name}/{what}"), |bencher| {
                bencher.iter_custom(|count| {
                    spent(count, || {
                        let decision = world::decision(&info, &table, &asker);
                        black_box(decision).server().is_some()
                    })
                });
            });
        }
    }
}

/// CPU time that this thread spends on `count` rounds.
fn spent(count: u64, mut round: impl FnMut() -> bool) -> Duration {
    let begin = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    for _ in 0..count {
        assert!(round());
    }
    let end = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let nanoseconds = (end.tv_sec - begin.tv_sec) * 1_000_000_000 + end.tv_nsec - begin.tv_nsec;
    Duration::from_nanos(nanoseconds.unsigned_abs())
}

criterion_group!(benches, route, rewrite, growth);
criterion_main!(benches);
