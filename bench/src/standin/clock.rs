//! Times and identifiers as Kubernetes writes them.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use jiff::Timestamp;
use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// Now, to the second: `2026-11-30T22:37:54Z`.
pub(crate) fn rfc3339() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Now, to the microsecond, as `MicroTime` has it.
pub(crate) fn rfc3339_micros() -> String {
    Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        .to_string()
}

/// Milliseconds since 1970.
pub(crate) fn unix_millis() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Random bytes; zeroes if the system has none, which a test would notice at once.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    static PROVIDER: OnceLock<CryptoProvider> = OnceLock::new();
    let mut bytes = [0; N];
    if PROVIDER
        .get_or_init(aws_lc_rs::default_provider)
        .secure_random
        .fill(&mut bytes)
        .is_err()
    {
        tracing::error!("No random bytes");
    }
    bytes
}

/// A random identifier in the form of a UUID (version 4).
pub(crate) fn uid() -> String {
    let mut bytes: [u8; 16] = random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = hex(&bytes);
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// An identifier for one request, in the form of a UUID but cheaper: random for the process, counted within it.
pub(crate) fn request_id() -> String {
    static PROCESS: OnceLock<String> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let process = PROCESS.get_or_init(uid);
    format!(
        "{}-{:012x}",
        &process[..23],
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
        .collect()
}
