//! A certificate written byte by byte, so that tests can have what no careful library issues: repeated organisations, any
//! string type, X.509 v1, unknown critical extensions. Key pairs and signatures are rcgen's; nothing is parsed here.

use rcgen::{KeyPair, SigningKey as _};

/// OIDs as DER content bytes.
pub(super) mod oid {
    pub(crate) const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
    pub(crate) const ORGANIZATION: &[u64] = &[2, 5, 4, 10];
    /// The subject attribute that kube-apiserver reads a user's UID from (KEP-4193 follow-up, beta since 1.33).
    pub(crate) const KUBERNETES_UID: &[u64] = &[1, 3, 6, 1, 4, 1, 57683, 2];
    pub(crate) const ECDSA_SHA256: &[u64] = &[1, 2, 840, 10045, 4, 3, 2];
    pub(crate) const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
    pub(crate) const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
    pub(crate) const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];
    pub(crate) const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];
    pub(crate) const CLIENT_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 2];
    pub(crate) const SERVER_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 1];
}

/// Tag, length, content (X.690 definite form).
pub(super) fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len();
    if length < 0x80 {
        out.push(u8::try_from(length).unwrap_or_default());
    } else {
        let bytes = length.to_be_bytes();
        let significant: Vec<u8> = bytes
            .iter()
            .copied()
            .skip_while(|byte| *byte == 0)
            .collect();
        out.push(0x80 | u8::try_from(significant.len()).unwrap_or_default());
        out.extend(significant);
    }
    out.extend_from_slice(content);
    out
}

pub(super) fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(0x30, &parts.concat())
}

pub(super) fn object_identifier(arcs: &[u64]) -> Vec<u8> {
    let mut content = Vec::new();
    let (first, rest) = arcs.split_at(2.min(arcs.len()));
    let head =
        first.first().copied().unwrap_or_default() * 40 + first.get(1).copied().unwrap_or_default();
    for arc in std::iter::once(head).chain(rest.iter().copied()) {
        let mut groups = vec![(arc & 0x7f) as u8];
        let mut left = arc >> 7;
        while left > 0 {
            groups.push((left & 0x7f) as u8 | 0x80);
            left >>= 7;
        }
        groups.reverse();
        content.extend(groups);
    }
    tlv(0x06, &content)
}

pub(super) fn bit_string(bytes: &[u8]) -> Vec<u8> {
    tlv(0x03, &[&[0], bytes].concat())
}

/// An extension: identifier, criticality, content.
pub(super) fn extension(arcs: &[u64], critical: bool, content: &[u8]) -> Vec<u8> {
    let mut parts = vec![object_identifier(arcs)];
    if critical {
        parts.push(tlv(0x01, &[0xff]));
    }
    parts.push(tlv(0x04, content));
    sequence(&parts)
}

/// `UTCTime` before 2050, `GeneralizedTime` from then on (RFC 5280 section 4.1.2.5).
pub(super) fn time(at: jiff::Timestamp) -> Vec<u8> {
    let zoned = at.to_zoned(jiff::tz::TimeZone::UTC);
    if (1950..2050).contains(&zoned.year()) {
        tlv(0x17, zoned.strftime("%y%m%d%H%M%SZ").to_string().as_bytes())
    } else {
        tlv(0x18, zoned.strftime("%Y%m%d%H%M%SZ").to_string().as_bytes())
    }
}

/// What stands between serial number and signature.
pub(super) struct ToBeSigned<'a> {
    pub(super) version1: bool,
    pub(super) serial: &'a [u8],
    pub(super) issuer: &'a [u8],
    pub(super) subject: &'a [u8],
    pub(super) public_key: &'a [u8],
    pub(super) not_before: jiff::Timestamp,
    pub(super) not_after: jiff::Timestamp,
    pub(super) extensions: &'a [Vec<u8>],
}

/// The certificate, signed by `key` with ECDSA P-256 and SHA-256.
pub(super) fn sign(tbs: &ToBeSigned<'_>, key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let algorithm = sequence(&[object_identifier(oid::ECDSA_SHA256)]);
    let mut parts = Vec::new();
    if !tbs.version1 {
        parts.push(tlv(0xa0, &tlv(0x02, &[2])));
    }
    parts.push(tlv(0x02, tbs.serial));
    parts.push(algorithm.clone());
    parts.push(tbs.issuer.to_vec());
    parts.push(sequence(&[time(tbs.not_before), time(tbs.not_after)]));
    parts.push(tbs.subject.to_vec());
    parts.push(tbs.public_key.to_vec());
    if !tbs.version1 && !tbs.extensions.is_empty() {
        parts.push(tlv(0xa3, &sequence(tbs.extensions)));
    }
    let body = sequence(&parts);
    let signature = key.sign(&body)?;
    Ok(sequence(&[body, algorithm, bit_string(&signature)]))
}
