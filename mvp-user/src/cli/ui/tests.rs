//! What the page says, and that it stays text whatever servers and clients say.

use std::collections::BTreeMap;

use super::{
    history::Paces,
    page::{self, Look, sections},
    *,
};
use crate::admin::wire::{
    Connections, Difference, Event, RouteTraffic, Server, Status, Steering, Traffic,
};

const HOSTILE: &str = "<script>alert(1)</script>\"'>&\r\ndata: x\u{202e}";

fn server(id: &str, name: Option<&str>) -> Server {
    Server {
        id: id.to_owned(),
        address: id.to_owned(),
        name: name.map(ToOwned::to_owned),
        version: Some("v1.36.0".to_owned()),
        health: "up".to_owned(),
        proof: "proven".to_owned(),
        membership: "listed".to_owned(),
        catalogue: Some("fresh".to_owned()),
        age: Some(3),
        resources: 120,
        latency_us: Some(4200),
        trouble: None,
        forgotten_in: None,
    }
}

pub(super) fn overview(servers: Vec<Server>) -> Overview {
    Overview {
        status: Status {
            version: "0.1.0".to_owned(),
            pid: 7,
            node: "cp-1".to_owned(),
            uptime: 100,
            ready: true,
            not_ready: Vec::new(),
            steering: Steering {
                mode: "auto".to_owned(),
                state: "on".to_owned(),
                why: "skew".to_owned(),
                percent: 100,
                lookups: BTreeMap::from([("steered".to_owned(), 12)]),
                ..Steering::default()
            },
            connections: Connections {
                open: 7,
                bound: 20_000,
            },
            beats_ms: vec![],
            servers,
            skew: 0,
        },
        differences: Vec::new(),
        traffic: Traffic::default(),
    }
}

fn html(overview: &Overview) -> String {
    let mut history = History::default();
    history.look(Instant::now(), overview);
    let paces = history.paces(&overview.traffic.bounds, overview.status.uptime);
    let parts = sections(&Look {
        overview,
        paces: &paces,
        time: "00:00:00 UTC",
        trouble: None,
    });
    page::document(&overview.status.node, &parts)
}

/// Everything that comes from elsewhere is hostile.
fn hostile() -> Overview {
    let text = || HOSTILE.to_owned();
    let mut servers = vec![server("local", None), server("10.0.0.2:6443", None)];
    for it in &mut servers {
        it.name = Some(text());
        it.version = Some(text());
        it.trouble = Some(text());
        it.health = text();
        it.proof = text();
        it.catalogue = Some(text());
    }
    servers[1].id = text();
    let mut overview = overview(servers);
    let status = &mut overview.status;
    (status.node, status.version, status.ready) = (text(), text(), false);
    status.not_ready = vec![text()];
    status.steering.why = text();
    status.steering.detail = text();
    status.steering.lookups.insert(text(), 1);
    overview.differences = vec![Difference {
        group: text(),
        version: text(),
        resource: text(),
        subresource: Some(text()),
        verbs: vec![text()],
        served_by: vec![text()],
        lacked_by: vec![text()],
        shared: true,
    }];
    let event = Event {
        method: text(),
        what: text(),
        server: Some(text()),
        why: text(),
        status: 503,
        count: 2,
        ago: 1,
    };
    overview.traffic = Traffic {
        bounds: vec![1.0],
        routes: vec![RouteTraffic {
            server: text(),
            answers: vec![0, 1, 0, 0, 0],
            buckets: vec![1, 0],
        }],
        rerouted: vec![event.clone()],
        refused: vec![event],
    };
    overview
}

#[tokio::test]
async fn hostile_names_stay_text_everywhere() {
    let text = html(&hostile());
    // The page's own script, and no other.
    assert_eq!(text.matches("<script").count(), 1, "{text}");
    assert!(!text.contains("alert(1)</script>\""), "{text}");
    assert!(
        text.matches("&lt;script&gt;alert(1)").count() > 15,
        "{text}"
    );
    // An attribute cannot be left either.
    assert!(!text.contains("\"'>&\r"), "{text}");
}

#[tokio::test]
async fn an_event_is_one_line_of_data_whatever_is_in_it() {
    let overview = hostile();
    let paces = Paces {
        span: None,
        routes: Vec::new(),
    };
    let look = Look {
        overview: &overview,
        paces: &paces,
        time: "",
        trouble: None,
    };
    let parts = sections(&look);
    let view = View {
        node: String::new(),
        sections: parts
            .into_iter()
            .map(|it| (it.id, it.html.into()))
            .collect(),
    };
    let text = events(None, &view);
    for line in text.lines().filter(|it| !it.is_empty()) {
        assert!(
            line == "event: section" || line.starts_with("data: {"),
            "{line}"
        );
    }
    assert!(!text.contains('\r'));
    assert_eq!(text.matches("event: section").count(), view.sections.len());
    assert_eq!(events(Some(&view), &view), "");
}

#[tokio::test]
async fn seven_servers_and_four_hundred_differences_are_folded() {
    let servers: Vec<Server> = (1..=7)
        .map(|it| server(&format!("10.0.0.{it}:6443"), Some(&format!("cp-{it}"))))
        .collect();
    let mut overview = overview(servers);
    for group in 0..40 {
        for resource in 0..10 {
            overview.differences.push(Difference {
                group: format!("group-{group}.example.org"),
                version: "v1".to_owned(),
                resource: format!("resource{resource}s"),
                subresource: None,
                verbs: vec!["get".to_owned()],
                served_by: vec!["10.0.0.3:6443".to_owned()],
                lacked_by: vec!["10.0.0.1:6443".to_owned()],
                shared: false,
            });
        }
    }
    let text = html(&overview);
    assert_eq!(text.matches("<details id=\"gv-").count(), 40);
    assert!(!text.contains(" open>"), "large ones are folded");
    assert!(text.contains("400"));
    assert_eq!(text.matches("class=\"has\"").count(), 400);
    // Few stand open.
    overview.differences.truncate(3);
    assert!(html(&overview).contains("<details id=\"gv-group-0.example.org/v1\" open>"));
}

#[tokio::test]
async fn nothing_to_show_is_said_in_words() {
    let text = html(&overview(vec![server("local", None)]));
    for wanted in [
        "All servers that were read serve the same",
        "No request came through mvp yet",
        "No other kube-apiserver is known",
        "None. Every request reached a kube-apiserver.",
        "New connections come through mvp",
    ] {
        assert!(text.contains(wanted), "{wanted}");
    }
}

#[test]
fn the_policy_names_what_the_page_has_and_nothing_else() {
    let policy = page::policy();
    assert!(!policy.contains("unsafe"), "{policy}");
    for wanted in [
        "default-src 'none'",
        "script-src 'sha256-",
        "frame-ancestors 'none'",
        "form-action 'none'",
    ] {
        assert!(policy.contains(wanted), "{policy}");
    }
    // Inside their elements, markup would end them; and hashes would not fit any more.
    assert!(!page::STYLE.contains('<') && !page::SCRIPT.contains("</"));
}

#[test]
fn no_name_turns_the_text_around_it() {
    let mut value =
        serde_json::json!({ "a\u{202e}": ["b\u{2066}c\r\n", 1], "d": { "e": "jürgen" } });
    clean(&mut value);
    let wanted = serde_json::json!({ "a\u{fffd}": ["b\u{fffd}c\u{fffd}\u{fffd}", 1], "d": { "e": "jürgen" } });
    assert_eq!(value, wanted);
}

#[test]
fn only_loopback_can_be_listened_at() {
    for (text, wanted) in [
        ("0", "127.0.0.1:0"),
        ("9741", "127.0.0.1:9741"),
        ("[::1]:9741", "[::1]:9741"),
        ("localhost:80", "127.0.0.1:80"),
        ("127.0.0.2:1", "127.0.0.2:1"),
    ] {
        assert_eq!(
            loopback(text).map(|it| it.to_string()),
            Ok(wanted.to_owned())
        );
    }
    for text in [
        "0.0.0.0:80",
        "[::]:80",
        "10.0.0.1:80",
        "[::ffff:10.0.0.1]:80",
        "host:80",
        "",
        "99999",
        "127.0.0.1",
    ] {
        assert!(loopback(text).is_err(), "{text}");
    }
    assert!(
        loopback("0.0.0.0:80")
            .unwrap_err()
            .contains("not a loopback address")
    );
}
