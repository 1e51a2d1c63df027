//! What real kube-apiservers answered: for benchmarks.

use std::io::Read as _;

use base64::Engine as _;
use bytes::Bytes;
use mvp_user::api::discovery::GroupList;

/// The body of an answer.
pub(crate) fn recorded(version: &str, name: &str) -> Bytes {
    let path = format!(
        "{}/tests/fixtures/recorded-{version}.json.gz",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut json = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_end(&mut json)
        .unwrap();
    let answers: Vec<serde_json::Value> = serde_json::from_slice(&json).unwrap();
    let answer = answers
        .iter()
        .find(|answer| answer["name"] == name)
        .unwrap();
    base64::engine::general_purpose::STANDARD
        .decode(answer["body"].as_str().unwrap())
        .unwrap()
        .into()
}

/// A document of aggregated discovery.
pub(crate) fn list(version: &str, name: &str) -> GroupList {
    GroupList::parse("application/json", &recorded(version, name))
        .unwrap()
        .1
}
