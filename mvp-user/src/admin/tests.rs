//! What is reported, without a socket in between; `cli/tests.rs` asks through one.

use std::{net::IpAddr, sync::atomic::Ordering};

use super::{fixtures::Stage, *};
use crate::{
    table::{Health, Membership, Proof},
    tls::fixtures::Ca,
};

fn asker() -> Asker {
    Asker {
        kind: AskerKind::User,
        marker: false,
        decided: false,
        client: IpAddr::from([10, 0, 0, 9]),
    }
}

fn steps(stage: &Stage, method: &Method, path: &str) -> Vec<String> {
    let uri: Uri = path.parse().unwrap();
    let explanation = stage.state.explain(method, &uri, &asker()).unwrap();
    explanation
        .steps
        .iter()
        .map(|step| format!("{} {}", step.to, step.because))
        .collect()
}

#[tokio::test]
async fn the_skew_names_what_not_all_servers_serve() {
    let stage = Stage::new();
    let rows: Vec<_> = stage
        .state
        .differences()
        .into_iter()
        .map(|it| {
            (
                it.resource,
                it.subresource,
                it.verbs.join(","),
                it.served_by,
                it.lacked_by,
            )
        })
        .collect();
    let others = vec!["10.0.0.3:6443".to_owned(), "local".to_owned()];
    let new = vec!["10.0.0.2:6443".to_owned()];
    assert_eq!(rows.len(), 2);
    assert_eq!(
        rows[0],
        (
            "pods".into(),
            Some("resize".into()),
            "get,patch".into(),
            new.clone(),
            others.clone()
        )
    );
    assert_eq!(
        (&*rows[1].0, &rows[1].3, &rows[1].4),
        ("things", &new, &others)
    );
}

#[tokio::test]
async fn routes_are_those_that_requests_take() {
    let stage = Stage::new();
    let all = stage.state.routes(None);
    let to = |resource: &str, subresource: Option<&str>| {
        let route = all
            .iter()
            .find(|it| it.resource == resource && it.subresource.as_deref() == subresource)
            .unwrap();
        (route.to.clone(), route.because.clone())
    };
    let peer = ("10.0.0.2:6443".to_owned(), "peer_serves".to_owned());
    let local = ("local".to_owned(), "authority_serves".to_owned());
    assert_eq!(to("pods", None), local);
    assert_eq!(to("pods", Some("status")), local);
    assert_eq!(to("pods", Some("resize")), peer);
    assert_eq!(to("things", None), peer);
    assert_eq!(stage.state.routes(Some("new.k8s.io")).len(), 1);
    assert_eq!(stage.state.routes(Some("nope")), []);
    // As the help of `mvp routes` has it.
    let of_pods = stage.state.routes(Some("pods/"));
    assert!(
        of_pods
            .iter()
            .any(|it| it.subresource.as_deref() == Some("resize"))
    );
    assert!(of_pods.iter().all(|it| it.subresource.is_some()));
    stage.peers[0].set_membership(Membership::Departed);
    assert_eq!(
        stage.state.routes(Some("things"))[0].to,
        "only_unavailable_serve"
    );
}

#[tokio::test]
async fn an_explanation_goes_on_until_nobody_is_left() {
    let stage = Stage::new();
    assert_eq!(
        steps(&stage, &Method::GET, "/apis/new.k8s.io/v1/things"),
        [
            "10.0.0.2:6443 peer_serves",
            "only_unavailable_serve only_unavailable"
        ]
    );
    assert_eq!(
        steps(&stage, &Method::GET, "/api/v1/pods"),
        [
            "local authority_serves",
            "10.0.0.2:6443 authority_serves",
            "unreachable failed"
        ]
    );
    assert_eq!(
        steps(&stage, &Method::GET, "/readyz"),
        ["local about_local", "local_down about_local"]
    );
}

#[tokio::test]
async fn readiness_says_what_is_missing() {
    let stage = Stage::new();
    let state = &stage.state;
    assert_eq!(state.not_ready(), [""; 0]);
    state.table.members().local.set_proof(Proof::Refused);
    assert!(
        state.not_ready()[0].contains("local refuses"),
        "{:?}",
        state.not_ready()
    );
    // Failover is on and a proven peer is up.
    state.table.members().local.set_health(Health::Down);
    assert_eq!(state.not_ready(), [""; 0]);
    stage.peers[0].set_health(Health::Down);
    assert_eq!(state.not_ready().len(), 1);
    stage.puppet.draining.store(true, Ordering::Relaxed);
    stage.puppet.stuck.store(true, Ordering::Relaxed);
    state.table.set_ready(false);
    assert_eq!(state.not_ready().len(), 3, "{:?}", state.not_ready());
    assert_eq!(state.dead(), [""; 0], "it drains");
    stage.puppet.draining.store(false, Ordering::Relaxed);
    assert_eq!(state.dead(), ["threads: 1 gave no sign of life for 11.0 s"]);
    stage.puppet.stuck.store(false, Ordering::Relaxed);
    stage.puppet.mute.store(true, Ordering::Relaxed);
    let told = "self-request: no answer for 12.0 s; the log says why";
    assert_eq!(state.not_ready()[0], told);
    assert_eq!(state.dead(), [""; 0], "no restart helps");
}

#[tokio::test(start_paused = true)]
async fn an_order_is_answered_when_it_is_carried_out_and_not_before() {
    let stage = Stage::new();
    let mode = |mode| SteerOrder {
        mode: Some(mode),
        percent: None,
    };
    let start = Instant::now();
    let answer = steer(&stage.state, mode(Mode::Off)).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(start.elapsed(), Duration::ZERO);

    // The loop is late.
    stage.puppet.idle.store(true, Ordering::Relaxed);
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.puppet.carried_out.send_modify(|number| *number += 1);
    };
    let (answer, ()) = tokio::join!(steer(&stage.state, mode(Mode::On)), late);
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(start.elapsed() >= Duration::from_secs(1));

    // It does not come.
    let start = Instant::now();
    let answer = steer(&stage.state, mode(Mode::Auto)).await;
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    assert!(start.elapsed() >= CARRIED_OUT_WITHIN);

    // Nothing is waited for where there is nothing to wait for.
    let start = Instant::now();
    let share = SteerOrder {
        mode: None,
        percent: Some(25),
    };
    let answer = steer(&stage.state, share).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn a_scrape_has_every_family_once_with_help() {
    let stage = Stage::new();
    let mut exposition = Exposition::default();
    exposition.collect(collect::Scrape(Arc::clone(&stage.state)));
    stage.state.tls.register(exposition.registry());
    crate::serve::Metrics::default().register(exposition.registry());
    let text = exposition.encode(Format::OpenMetrics).unwrap();
    let mut types: Vec<_> = text
        .lines()
        .filter(|it| it.starts_with("# TYPE "))
        .collect();
    let count = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), count, "a family is there twice: {text}");
    for wanted in [
        "mvp_steering 1",
        "mvp_steering_reason{reason=\"skew\",mode=\"auto\"} 1",
        "mvp_steering_unchanged_seconds 61",
        "mvp_steer_lookups_total{outcome=\"steered\"} 12",
        "mvp_older_connections 2",
        "mvp_catalogue_resources{server=\"10.0.0.2:6443\"} 3",
        "mvp_heartbeat_age_seconds{thread=\"0\"} 0.12",
        "mvp_self_request_age_seconds 0",
        "mvp_client_connections_limit 20000",
        "mvp_certificate_expiry_timestamp_seconds{flag=",
        "process_resident_memory_bytes ",
        "process_cpu_seconds_total ",
        "process_open_fds ",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing from {text}");
    }
}

/// As while a CA is replaced: both are trusted.
#[tokio::test]
async fn a_bundle_of_cas_is_one_sample() {
    let stage = Stage::new();
    let next = Ca::new("kubernetes");
    let bundle = [stage.pki.ca.pem.as_str(), &next.pem].concat();
    stage.pki.write("ca.crt", &bundle);
    assert!(stage.state.tls.reload());
    let mut exposition = Exposition::default();
    exposition.collect(collect::Scrape(Arc::clone(&stage.state)));
    let text = exposition.encode(Format::OpenMetrics).unwrap();
    let mut samples: Vec<_> = text
        .lines()
        .filter(|it| !it.starts_with('#'))
        .map(|it| it.rsplit_once(' ').unwrap().0)
        .collect();
    let count = samples.len();
    samples.sort_unstable();
    samples.dedup();
    assert_eq!(samples.len(), count, "a sample is there twice: {text}");
}

#[tokio::test]
async fn left_over_sockets_are_swept_and_those_in_use_stay() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    // A process that was killed leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(path("mvp-old.sock")).unwrap());
    let _other = std::os::unix::net::UnixListener::bind(path("mvp-other.sock")).unwrap();
    std::fs::write(path("state.json"), "{}").unwrap();
    let _control = Control::bind_in(directory.path()).unwrap();
    assert!(!path("mvp-old.sock").exists());
    assert!(path("mvp-other.sock").exists() && path("state.json").exists());
}
