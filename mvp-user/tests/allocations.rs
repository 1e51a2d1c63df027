//! Reading and routing a request allocates nothing, and rewriting it little. A binary of its own, because it counts with a global allocator.
#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use http::Method;
use mvp_user::request_info::RequestInfo;

#[path = "../benches/route/request.rs"]
mod request;
#[path = "../benches/route/world.rs"]
mod world;

#[test]
fn a_decision_allocates_nothing() {
    let table = world::table();
    let asker = world::asker();
    for (name, uri) in world::QUESTIONS {
        let uri = world::uri(uri);
        let count = allocation_counter::measure(|| {
            let info = RequestInfo::parse(&Method::GET, &uri).unwrap();
            let decision = world::decision(&info, &table, &asker);
            assert!(decision.server().is_some());
        });
        assert_eq!(count.count_total, 0, "{name}");
    }
}

#[test]
fn only_an_escape_costs_a_copy_of_the_path() {
    let uri = world::uri("/api/v1/namespaces/d/pods/p%31");
    let count = allocation_counter::measure(|| {
        RequestInfo::parse(&Method::GET, &uri).unwrap();
    });
    assert!((1..=3).contains(&count.count_total), "{count:?}");
}

#[test]
fn rewriting_a_request_allocates_only_where_its_headers_grow() {
    let asked = request::Asked::new();
    // The first copy of a value allocates the counter that copies share.
    drop(asked.rewritten(asked.head.clone()));
    let head = asked.head.clone();
    let count = allocation_counter::measure(|| drop(asked.rewritten(head)));
    assert!(count.count_total <= 6, "{count:?}");
}
