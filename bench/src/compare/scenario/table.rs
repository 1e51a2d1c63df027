//! The scenarios of a normal run.

use std::time::Duration;

use super::{Against, CONFIGMAPS, Kind, Metric, Mode, PATH, Rival, Scenario, goal};
use crate::load::{Shot, origin::AGGREGATED};

const DIRECT: &[Against] = &[Against::Direct];
/// nginx' workers may not write into root's directory, and pingora takes minutes to end.
const COUNTED: &[Against] = &[Against::Haproxy];
/// Who takes processor time that can be bounded: no proxy takes none.
const RIVALS: &[Against] = &[Against::Haproxy, Against::Nginx, Against::Pingora];
/// `HAProxy` completes nothing and passes local's own answer on: what any proxy costs beside a server that answers in 40 us.
const HOP: &[Against] = &[Against::Direct, Against::Haproxy];
const REROUTED: &[Against] = &[Against::Direct, Against::Native];

pub(super) const SMALL: &str = "/api/v1/namespaces/bench/configmaps/one?bytes=1024";
/// Only the peer serves it.
const ELSEWHERE: &str = "/apis/batch/v1/namespaces/bench/jobs/one?bytes=1024";

/// All of them, in the order of reports.
#[expect(clippy::too_many_lines, reason = "a table")]
pub fn all() -> Vec<Scenario> {
    use Against::{Direct, Haproxy, Native};
    use Metric::{
        AddedP50, CpuPerRequest, MemoryPerUnit, MibPerSecond, P50, P99, RequestsPerSecond,
    };
    use Rival::{Better, Nobody, One};
    let small = || Kind::Requests(vec![Shot::get(SMALL)]);
    let body = |bytes: u64| {
        Kind::Requests(vec![Shot::get(format!(
            "/api/v1/namespaces/bench/pods?bytes={bytes}"
        ))])
    };
    let create = |bytes| {
        Kind::Requests(vec![Shot::post(
            "/api/v1/namespaces/bench/configmaps",
            bytes,
        )])
    };
    let shared = [
        goal(CpuPerRequest, Better, 1.0, 0.8),
        goal(RequestsPerSecond, Better, 1.0, 1.2),
        goal(P99, Better, 1.0, 0.8),
    ];
    let watches = Kind::Watches {
        events: 20,
        every: Duration::from_millis(50),
    };
    let many = Kind::Watches {
        events: 4,
        every: Duration::from_secs(1),
    };
    let watch_memory = goal(MemoryPerUnit, Nobody, 24.0 * 1024.0, 12.0 * 1024.0);
    let connection_memory = goal(MemoryPerUnit, Nobody, 64.0 * 1024.0, 32.0 * 1024.0);
    let same = [
        goal(RequestsPerSecond, One(Direct), 1.0, 1.0),
        goal(P50, One(Direct), 1.0, 1.0),
    ];
    let discovery = || Shot::get("/apis").accepting(AGGREGATED);
    vec![
        Scenario::new(
            "get-h2-cert",
            "1 KiB GET, HTTP/2, client certificate, 10 streams a connection",
            small(),
        )
        .wants(&shared),
        Scenario::new(
            "get-h2-cert-single",
            "the same, one stream a connection",
            small(),
        )
        .shape(20, 1)
        .wants(&shared),
        Scenario::new(
            "get-h1-cert",
            "1 KiB GET, HTTP/1.1, client certificate",
            small(),
        )
        .http1()
        .wants(&shared),
        Scenario::new(
            "get-h2-token",
            "1 KiB GET, HTTP/2, bearer token: upstream connections paired with the client's",
            small(),
        )
        .token()
        .wants(&[goal(CpuPerRequest, One(Haproxy), 1.0, 0.8)]),
        Scenario::new("get-h1-token", "the same over HTTP/1.1", small())
            .token()
            .http1()
            .wants(&[goal(CpuPerRequest, One(Haproxy), 1.0, 0.8)]),
        Scenario::new(
            "rerouted",
            "1 KiB GET of what only the peer serves",
            Kind::Requests(vec![Shot::get(ELSEWHERE)]),
        )
        .against(DIRECT),
        Scenario::new(
            "rerouted-native",
            "list of what only the peer serves, real kube-apiservers",
            Kind::Requests(vec![Shot::get(PATH)]),
        )
        .mode(Mode::BeforeNative)
        .shape(4, 2)
        .against(REROUTED)
        .wants(&[
            goal(AddedP50, One(Native), 0.5, 0.25),
            goal(CpuPerRequest, One(Native), 0.5, 0.25),
        ]),
        Scenario::new(
            "discovery-native",
            "completed discovery, unchanged, 200, real kube-apiservers",
            Kind::Requests(vec![discovery()]),
        )
        .mode(Mode::BeforeNative)
        .shape(4, 1)
        .against(DIRECT)
        .wants(&[goal(P50, One(Direct), 1.5, 1.3)]),
        Scenario::new(
            "discovery-304-native",
            "completed discovery, unchanged, 304, real kube-apiservers",
            Kind::Requests(vec![discovery().conditional()]),
        )
        .mode(Mode::BeforeNative)
        .shape(4, 1)
        .against(DIRECT)
        .wants(&[goal(P50, One(Direct), 1.5, 1.3)]),
        Scenario::new(
            "list-100m-native",
            "list of 100 MB of ConfigMaps, real kube-apiservers",
            Kind::Requests(vec![Shot::get(CONFIGMAPS)]),
        )
        .mode(Mode::BeforeNative)
        .shape(2, 1)
        .against(DIRECT)
        .wants(&[goal(MibPerSecond, One(Direct), 0.75, 0.85)]),
        Scenario::new("create-1k", "POST of 1 KiB", create(1 << 10)),
        Scenario::new("create-64k", "POST of 64 KiB", create(64 << 10)),
        Scenario::new("create-1m", "POST of 1 MiB", create(1 << 20)).shape(10, 2),
        Scenario::new("list-100k", "list of 100 KB", body(100_000)).shape(10, 4),
        Scenario::new("list-10m", "list of 10 MB", body(10_000_000)).shape(4, 1),
        Scenario::new("list-100m", "list of 100 MB", body(100_000_000))
            .shape(2, 1)
            .wants(&[
                goal(MibPerSecond, Better, 1.5, 2.0),
                goal(MibPerSecond, One(Direct), 0.75, 0.85),
            ]),
        Scenario::new(
            "list-100m-half",
            "the same, a proxy with half of one processor's time: how much it moves with it",
            body(100_000_000),
        )
        .shape(2, 1)
        .shares(None, 50)
        .against(RIVALS)
        .wants(&[goal(MibPerSecond, Better, 1.5, 2.0)]),
        Scenario::new(
            "list-100m-apart",
            "the same, nobody in need of another's time: asker and answerer with 40 % of a processor each, a proxy with 80 %",
            body(100_000_000),
        )
        .shape(2, 1)
        .shares(Some(40), 80)
        .wants(&[goal(MibPerSecond, One(Direct), 0.75, 0.85)]),
        Scenario::new("watch-10", "10 watches, 20 events to each", watches.clone()).shape(1, 10),
        Scenario::new("watch-1000", "1,000 watches, 20 events to each", watches).shape(10, 100),
        Scenario::new("watch-10000", "10,000 watches, 4 events to each", many)
            .shape(100, 100)
            .wants(&[watch_memory]),
        Scenario::new(
            "storm",
            "TLS handshakes with client certificates, one GET each",
            Kind::Storm,
        )
        .shape(32, 1),
        Scenario::new(
            "exec",
            "exec tunnels: the server sends as fast as it can",
            Kind::Tunnels {
                bytes: 256 << 20,
                raw: false,
            },
        )
        .http1()
        .shape(2, 1),
        Scenario::new(
            "raw",
            "the same as kube-apiserver's own client: passed as it is, by splice(2)",
            Kind::Tunnels {
                bytes: 256 << 20,
                raw: true,
            },
        )
        .http1()
        .shape(2, 1)
        .against(DIRECT),
        Scenario::new(
            "discovery-cold",
            "completed discovery, the first caller after a start",
            Kind::First(discovery()),
        )
        .shape(1, 1)
        .against(DIRECT),
        Scenario::new(
            "discovery-warm",
            "completed discovery, unchanged, 200",
            Kind::Requests(vec![discovery()]),
        )
        .shape(4, 1)
        .against(HOP)
        .wants(&[goal(P50, One(Direct), 1.5, 1.3)]),
        Scenario::new(
            "discovery-304",
            "completed discovery, unchanged, 304",
            Kind::Requests(vec![discovery().conditional()]),
        )
        .shape(4, 1)
        .against(HOP)
        .wants(&[goal(P50, One(Direct), 1.5, 1.3)]),
        Scenario::new(
            "mixed",
            "what controllers do: gets, lists of 100 KB, updates, leases",
            Kind::Requests(vec![
                Shot::get(SMALL).weighing(60),
                Shot::get("/api/v1/namespaces/bench/pods?limit=500&bytes=100000").weighing(5),
                Shot::post("/api/v1/namespaces/bench/events", 1024).weighing(15),
                Shot {
                    method: "PUT".to_owned(),
                    ..Shot::post(
                        "/apis/apps/v1/namespaces/bench/deployments/one/status",
                        4096,
                    )
                }
                .weighing(10),
                Shot {
                    method: "PUT".to_owned(),
                    ..Shot::post(
                        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/one",
                        512,
                    )
                }
                .weighing(10),
            ]),
        )
        .shape(20, 4)
        .wants(&shared),
        Scenario::new(
            "no-skew-auto",
            "1 KiB GET, steering on auto and nothing to steer for",
            small(),
        )
        .mode(Mode::Auto)
        .against(DIRECT)
        .wants(&same),
        Scenario::new("steered", "1 KiB GET through the steer", small())
            .mode(Mode::Steered)
            .against(DIRECT),
        Scenario::new("idle-100", "100 idle connections", Kind::Idle).shape(100, 1),
        Scenario::new("idle-1000", "1,000 idle connections", Kind::Idle)
            .shape(1000, 1)
            .wants(&[connection_memory]),
        Scenario::new("idle-5000", "5,000 idle connections", Kind::Idle)
            .shape(5000, 1)
            .wants(&[connection_memory]),
        Scenario::new(
            "slow-list",
            "lists of 1 GiB to slow clients",
            Kind::Slow {
                bytes: 1 << 30,
                rate: 1 << 20,
            },
        )
        .shape(4, 2)
        .wants(&[goal(
            MemoryPerUnit,
            Nobody,
            2.0 * 1024.0 * 1024.0,
            1024.0 * 1024.0,
        )]),
        Scenario::new(
            "copies-10m",
            "what a proxy copies in memory for a list of 10 MB, counted by valgrind",
            Kind::Copies(Shot::get("/api/v1/namespaces/bench/pods?bytes=10000000")),
        )
        .shape(2, 1)
        .against(COUNTED),
    ]
}
