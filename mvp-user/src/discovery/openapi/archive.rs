//! Recorded OpenAPI documents of real kube-apiservers (`bench/fixtures/README.md`), for tests only.

use std::{collections::HashMap, io::Read as _, sync::OnceLock};

use bytes::Bytes;

/// One file, e.g. `1.36/v3__apis_batch_v1.json`.
pub(super) fn file(name: &str) -> Bytes {
    static FILES: OnceLock<HashMap<String, Bytes>> = OnceLock::new();
    let files = FILES.get_or_init(|| {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../bench/fixtures/openapi.tar.zst"
        );
        let packed = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut plain = Vec::new();
        ruzstd::decoding::StreamingDecoder::new(packed.as_slice())
            .unwrap()
            .read_to_end(&mut plain)
            .unwrap();
        let mut archive = tar::Archive::new(plain.as_slice());
        let mut files = HashMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(name, Bytes::from(content));
        }
        files
    });
    files
        .get(name)
        .unwrap_or_else(|| panic!("{name} is not recorded"))
        .clone()
}
