//! The recorded answers, unpacked once per process (format: `bench/fixtures/README.md`).

use std::{
    collections::HashMap,
    io::Read as _,
    sync::{Arc, OnceLock},
};

use anyhow::Context as _;
use bytes::Bytes;

const RECORDED: &[u8] = include_bytes!("../../fixtures/recorded.tar.zst");
const OPENAPI: &[u8] = include_bytes!("../../fixtures/openapi.tar.zst");

/// File name -> content.
pub(crate) type Archive = HashMap<String, Bytes>;

/// Discovery, 404s and everything else that was asked: `1.36/index.json`, `1.36/apis__v2.json`.
pub(crate) fn recorded() -> anyhow::Result<&'static Archive> {
    static UNPACKED: OnceLock<Result<Archive, Arc<anyhow::Error>>> = OnceLock::new();
    once(&UNPACKED, RECORDED, "recorded")
}

/// OpenAPI documents: `1.36/v3-index.json`, `1.36/v2.pb`.
pub(crate) fn openapi() -> anyhow::Result<&'static Archive> {
    static UNPACKED: OnceLock<Result<Archive, Arc<anyhow::Error>>> = OnceLock::new();
    once(&UNPACKED, OPENAPI, "openapi")
}

fn once(
    cell: &'static OnceLock<Result<Archive, Arc<anyhow::Error>>>,
    packed: &[u8],
    name: &str,
) -> anyhow::Result<&'static Archive> {
    match cell.get_or_init(|| unpack(packed).map_err(Arc::new)) {
        Ok(archive) => Ok(archive),
        Err(error) => Err(anyhow::anyhow!(
            "the archive {name} in this program cannot be unpacked: {error:#}"
        )),
    }
}

fn unpack(packed: &[u8]) -> anyhow::Result<Archive> {
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(packed)
        .map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let mut plain = Vec::new();
    decoder.read_to_end(&mut plain).context("zstd")?;
    let plain = Bytes::from(plain);
    let mut archive = Archive::new();
    for entry in tar::Archive::new(&plain[..]).entries().context("tar")? {
        let entry = entry.context("tar entry")?;
        if entry.header().entry_type().is_file() {
            let name = entry
                .path()
                .context("tar name")?
                .to_string_lossy()
                .into_owned();
            let start = usize::try_from(entry.raw_file_position()).context("tar position")?;
            let length = usize::try_from(entry.size()).context("tar size")?;
            archive.insert(name, plain.slice(start..start + length));
        }
    }
    Ok(archive)
}

/// One file, with an error that names it.
pub(crate) fn file(archive: &'static Archive, name: &str) -> anyhow::Result<Bytes> {
    archive
        .get(name)
        .cloned()
        .with_context(|| format!("{name} is not among the recorded answers"))
}
