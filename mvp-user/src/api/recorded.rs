//! Recorded answers of real kube-apiservers, for tests only.

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

use crate::api::wire::decompress;

/// Versions, and the same with every API enabled.
pub(crate) const ALL: [&str; 6] = ["1.34", "1.35", "1.36", "1.34-all", "1.35-all", "1.36-all"];

/// One request and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) request: HeaderMap,
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    method: String,
    path: String,
    request: std::collections::BTreeMap<String, String>,
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// All of `tests/fixtures/recorded-{version}.json.gz`.
pub(crate) fn recorded(version: &str) -> Vec<Recorded> {
    let path = format!(
        "{}/tests/fixtures/recorded-{version}.json.gz",
        env!("CARGO_MANIFEST_DIR")
    );
    let packed = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let json = decompress(Some("gzip"), &packed, 16 << 20).unwrap();
    let entries: Vec<Entry> = serde_json::from_slice(&json).unwrap();
    let map = |pairs: &mut dyn Iterator<Item = (String, String)>| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(
                HeaderName::try_from(name).unwrap(),
                HeaderValue::try_from(value).unwrap(),
            );
        }
        headers
    };
    entries
        .into_iter()
        .map(|entry| Recorded {
            name: entry.name,
            method: entry.method,
            path: entry.path,
            request: map(&mut entry.request.into_iter()),
            status: entry.status,
            headers: map(&mut entry.headers.into_iter()),
            body: base64::engine::general_purpose::STANDARD
                .decode(entry.body)
                .unwrap()
                .into(),
        })
        .collect()
}

/// The answer of that name.
pub(crate) fn answer(version: &str, name: &str) -> Recorded {
    recorded(version)
        .into_iter()
        .find(|recorded| recorded.name == name)
        .unwrap_or_else(|| panic!("nothing recorded of {version} as {name}"))
}
