//! Every recorded request is sent to the stand-in of its release, and the answer compared: status, headers, body byte for byte.

use std::collections::BTreeMap;

use serde::Deserialize;
use sha2::Digest as _;

use crate::{
    pki::ClusterPki,
    standin::{
        Release, Standin,
        client::{Answer, Client},
        clock, fixtures,
    },
};

#[derive(Deserialize)]
struct Index {
    requests: Vec<Recorded>,
}

#[derive(Deserialize)]
struct Recorded {
    name: String,
    method: String,
    path: String,
    request_headers: BTreeMap<String, String>,
    admin: bool,
    status: u16,
    response_headers: Vec<(String, String)>,
    body_sha256: Option<String>,
    body_bytes: usize,
}

/// Headers that are compared; the others are identifiers, dates, and lengths that follow from the body.
const COMPARED: [&str; 6] = [
    "content-type",
    "cache-control",
    "etag",
    "vary",
    "x-content-type-options",
    "retry-after",
];

/// Bodies that cannot be equal, and why.
fn body_differs(name: &str) -> Option<&'static str> {
    match name {
        "api_v1_namespaces_default__json" => Some("uid, times and key order are the server's own"),
        "apis_apiregistration.k8s.io_v1_apiservices__json" => {
            Some("uids and times are the server's own")
        }
        "apis_batch_v1_jobs__json"
        | "apis_admissionregistration.k8s.io_v1_mutatingadmissionpolicies__json" => {
            Some("the revision is the store's own")
        }
        "apis_batch_v1_jobs__table" => Some("the stand-in has only the default columns"),
        _ => None,
    }
}

/// What is not as recorded.
fn differences(
    recorded: &Recorded,
    answer: &Answer,
    archive: &fixtures::Archive,
    directory: &str,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut complain = |what: String| wrong.push(format!("{}: {what}", recorded.name));
    if recorded.name == "api_v1_namespaces_default__proto" {
        // The stand-in speaks protobuf for discovery and Status, not for objects (objects.rs), and says so.
        assert_eq!(answer.status, 406);
        return wrong;
    }
    if answer.status.as_u16() != recorded.status {
        complain(format!(
            "status {} instead of {}",
            answer.status, recorded.status
        ));
        return wrong;
    }
    for name in COMPARED {
        let wanted: Vec<&str> = recorded
            .response_headers
            .iter()
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect();
        let got: Vec<&str> = answer
            .headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect();
        if wanted != got {
            complain(format!("{name} {got:?} instead of {wanted:?}"));
        }
    }
    let got = clock::hex(&sha2::Sha256::digest(&answer.body));
    let wanted = recorded.body_sha256.as_deref().unwrap_or_default();
    if recorded.method != "HEAD"
        && body_differs(&recorded.name).is_none()
        && !wanted.is_empty()
        && got != wanted
    {
        let stored = archive
            .get(&format!("{directory}/{}.json", recorded.name))
            .cloned()
            .unwrap_or_default();
        let at = stored
            .iter()
            .zip(&answer.body)
            .position(|(left, right)| left != right)
            .unwrap_or_default();
        complain(format!(
            "body of {} bytes instead of {}, first difference at {at}: {:?} instead of {:?}",
            answer.body.len(),
            recorded.body_bytes,
            String::from_utf8_lossy(
                &answer.body[at.saturating_sub(30).min(answer.body.len())
                    ..(at + 60).min(answer.body.len())]
            ),
            String::from_utf8_lossy(
                &stored[at.saturating_sub(30).min(stored.len())..(at + 60).min(stored.len())]
            ),
        ));
    }
    wrong
}

async fn replay(release: Release, all_apis: bool) {
    let minor = release.minor();
    let directory = if all_apis {
        format!("{minor}/api-all")
    } else {
        minor.to_owned()
    };
    let archive = fixtures::recorded().unwrap();
    let index: Index =
        serde_json::from_slice(&archive[&format!("{directory}/index.json")]).unwrap();
    let pki = ClusterPki::new().unwrap();
    let mut builder = Standin::builder(&pki)
        .release(release)
        .advertise("10.77.0.11:6443".parse().unwrap());
    if all_apis {
        builder = builder.all_apis();
    }
    let server = builder.start().await.unwrap();
    let anonymous = Client::new(&pki.ca.certificate.der);
    let admin = anonymous
        .clone()
        .certificate(&pki.client("admin", &["system:masters"]).unwrap());
    let mut wrong = Vec::new();
    let mut compared = 0;
    for recorded in &index.requests {
        let client = if recorded.admin { &admin } else { &anonymous };
        let headers: Vec<(&str, &str)> = recorded
            .request_headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let answer = client
            .send(
                server.address(),
                &recorded.method,
                &recorded.path,
                &headers,
                b"",
            )
            .await
            .unwrap();
        wrong.extend(differences(recorded, &answer, archive, &directory));
        compared += 1;
    }
    assert!(
        wrong.is_empty(),
        "{} of {} answers differ:\n{}",
        wrong.len(),
        index.requests.len(),
        wrong.join("\n")
    );
    assert!(compared > 50, "only {compared} answers were compared");
}

#[tokio::test]
async fn v1_34_answers_as_recorded() {
    replay(Release::V1_34, false).await;
}

#[tokio::test]
async fn v1_35_answers_as_recorded() {
    replay(Release::V1_35, false).await;
}

#[tokio::test]
async fn v1_36_answers_as_recorded() {
    replay(Release::V1_36, false).await;
}

#[tokio::test]
async fn every_release_answers_as_recorded_with_all_apis_on() {
    for release in [Release::V1_34, Release::V1_35, Release::V1_36] {
        replay(release, true).await;
    }
}
