//! Non-resource paths that are not discovery: health, version, metrics, the index, and a body of any size.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{Method, StatusCode};

use super::{
    body::Body,
    call::Call,
    fixtures,
    reply::{Reply, indented, reply, text, with_body},
    server::Phase,
};

/// The answer, if the path is known.
pub(crate) fn answer(call: &Call) -> Option<Reply> {
    let path = call.info.path.as_str();
    let under = |root: &str| {
        path.strip_prefix(root)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if path == "/" || path.is_empty() {
        return index(call);
    }
    if path == "/version" || path == "/version/" {
        let body = call.server.documents.load().catalogue.version.clone();
        return (call.method == Method::GET || call.method == Method::HEAD)
            .then(|| reply(StatusCode::OK, "application/json", body));
    }
    if under("/livez") || under("/healthz") {
        return Some(text(StatusCode::OK, "ok"));
    }
    if under("/readyz") {
        return Some(match call.server.phase() {
            Phase::Ready if call.server.reaches_itself.load(Ordering::Relaxed) => {
                text(StatusCode::OK, "ok")
            }
            Phase::Starting | Phase::Incomplete | Phase::Ready => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "[+]ping ok\n[-]poststarthook/apiservice-discovery-controller failed: reason withheld\nreadyz check failed\n",
            ),
            Phase::Delaying | Phase::Refusing | Phase::Stopping => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "[+]ping ok\n[-]shutdown failed: reason withheld\nreadyz check failed\n",
            ),
        });
    }
    if path == "/metrics" {
        return Some(metrics(call));
    }
    if path == "/debug/bytes" {
        let length = call
            .parameter("n")
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        return Some(with_body(
            StatusCode::OK,
            "application/octet-stream",
            Body::pattern(length),
        ));
    }
    None
}

/// `/`: the recorded paths, without what this server does not serve and with what it serves beside.
fn index(call: &Call) -> Option<Reply> {
    let documents = call.server.documents.load();
    let catalogue = &documents.catalogue;
    let name = format!("{}/root__json.json", catalogue.release);
    let recorded = fixtures::recorded()
        .ok()
        .and_then(|archive| archive.get(&name))?;
    let index: serde_json::Value = serde_json::from_slice(recorded).ok()?;
    let mut paths: Vec<String> = index["paths"]
        .as_array()?
        .iter()
        .filter_map(|path| path.as_str())
        .map(str::to_owned)
        .collect();
    paths.retain(|path| {
        match path
            .trim_start_matches('/')
            .split('/')
            .collect::<Vec<_>>()
            .as_slice()
        {
            ["apis", group] if !group.is_empty() => catalogue.group(group).is_some(),
            ["apis", group, version] => catalogue.version(group, version).is_some(),
            _ => true,
        }
    });
    for (group, version) in catalogue
        .group_versions()
        .filter(|(group, _)| !group.is_empty())
    {
        for path in [format!("/apis/{group}"), format!("/apis/{group}/{version}")] {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let compact = serde_json::to_vec(&serde_json::json!({"paths": paths})).ok()?;
    Some(reply(
        StatusCode::OK,
        "application/json",
        indented(&compact),
    ))
}

fn metrics(call: &Call) -> Reply {
    let lines = format!(
        "# HELP apiserver_request_total [STABLE] Counter of apiserver requests.\n# TYPE apiserver_request_total counter\n\
         apiserver_request_total {}\n\
         # HELP standin_loopback_total How often the server reached itself.\n# TYPE standin_loopback_total counter\n\
         standin_loopback_total{{result=\"ok\"}} {}\nstandin_loopback_total{{result=\"failed\"}} {}\n",
        call.server.log.count(),
        call.server.loopback_answers.load(Ordering::Relaxed),
        call.server.loopback_failures.load(Ordering::Relaxed)
    );
    reply(
        StatusCode::OK,
        "text/plain; version=0.0.4; charset=utf-8",
        Bytes::from(lines),
    )
}
