//! What reading and routing one request costs, with seven peers (design 10: a decision takes less than 200 ns).

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use http::Method;
use mvp_user::{
    config::LocalDown,
    request_info::RequestInfo,
    route::{Evidence, decide},
};

mod world;

fn route(criterion: &mut Criterion) {
    let table = world::table();
    let asker = world::asker();
    for (name, uri) in world::QUESTIONS {
        let uri = world::uri(uri);
        criterion.bench_function(&format!("parse/{name}"), |bencher| {
            bencher.iter(|| RequestInfo::parse(&Method::GET, black_box(&uri)));
        });
        let info = RequestInfo::parse(&Method::GET, &uri).expect("a path");
        criterion.bench_function(&format!("decide/{name}"), |bencher| {
            bencher.iter(|| {
                decide(
                    black_box(&info),
                    &asker,
                    &Evidence::default(),
                    &table,
                    LocalDown::Failover,
                )
            });
        });
    }
}

criterion_group!(benches, route);
criterion_main!(benches);
