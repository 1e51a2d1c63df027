//! The identity in a subject, exactly as Go reads it (`crypto/x509/parser.go`, `crypto/x509/pkix`, and
//! `CommonNameUserConversion` of `k8s.io/apiserver/pkg/authentication/request/x509`).

use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use x509_parser::{
    asn1_rs::Class, certificate::X509Certificate, prelude::FromDer as _, x509::X509Name,
};

use super::{Reason, User};

/// Contents of the object identifiers 2.5.4.3, 2.5.4.10 and 1.3.6.1.4.1.57683.2.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATION: &[u8] = &[0x55, 4, 10];
const UID: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];

/// What a subject says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Leaf {
    /// The last CN; empty if there is none.
    pub(super) common_name: String,
    /// Every O, in order.
    pub(super) organizations: Vec<String>,
    /// Every UID attribute, in order.
    pub(super) uids: Vec<String>,
}

impl Leaf {
    /// Go parses the whole certificate or nothing: one attribute of a bad or unknown string type spoils it.
    pub(super) fn parse(der: &CertificateDer<'_>) -> Result<Self, Reason> {
        match X509Certificate::from_der(der) {
            Ok(([], parsed)) => {
                Self::read(parsed.issuer())?;
                Self::read(parsed.subject())
            }
            _ => Err(Reason::Malformed),
        }
    }

    pub(super) fn read(name: &X509Name<'_>) -> Result<Self, Reason> {
        let mut leaf = Self::default();
        for attribute in name.iter_attributes() {
            let value = attribute.attr_value();
            let header = &value.header;
            if header.class() != Class::Universal || header.is_constructed() {
                return Err(Reason::Malformed);
            }
            let text = go_string(header.tag().0, value.data).ok_or(Reason::Malformed)?;
            match attribute.attr_type().as_bytes() {
                COMMON_NAME => leaf.common_name = text,
                ORGANIZATION => leaf.organizations.push(text),
                UID => leaf.uids.push(text),
                _ => {}
            }
        }
        Ok(leaf)
    }

    /// The user; the CN must not be empty.
    pub(super) fn user(&self, der: &CertificateDer<'_>) -> Result<User, Reason> {
        let uid = match self.uids.as_slice() {
            [] => None,
            [uid] if !uid.is_empty() => Some(uid.clone()),
            _ => return Err(Reason::BadUid),
        };
        User::new(
            self.common_name.clone(),
            uid,
            self.organizations.clone(),
            credential_id(der),
        )
    }
}

fn credential_id(der: &CertificateDer<'_>) -> String {
    use std::fmt::Write as _;
    let mut id = String::from("X509SHA256=");
    for byte in Sha256::digest(der) {
        // Writing to a String cannot fail.
        write!(id, "{byte:02x}").unwrap_or_default();
    }
    id
}

/// `parseASN1String`: the value of a universal, primitive string type, by its tag number.
pub(super) fn go_string(tag: u32, bytes: &[u8]) -> Option<String> {
    const UTF8: u32 = 12;
    const NUMERIC: u32 = 18;
    const PRINTABLE: u32 = 19;
    const T61: u32 = 20;
    const IA5: u32 = 22;
    const BMP: u32 = 30;
    match tag {
        UTF8 => String::from_utf8(bytes.to_vec()).ok(),
        PRINTABLE => ascii(bytes, is_printable),
        NUMERIC => ascii(bytes, |byte| byte.is_ascii_digit() || byte == b' '),
        IA5 => ascii(bytes, |byte| byte.is_ascii()),
        // Go reads the code page as ISO 8859-1, as most others do.
        T61 => Some(bytes.iter().copied().map(char::from).collect()),
        BMP => bmp(bytes),
        _ => None,
    }
}

fn ascii(bytes: &[u8], allowed: impl Fn(u8) -> bool) -> Option<String> {
    bytes
        .iter()
        .all(|byte| allowed(*byte))
        .then(|| bytes.iter().copied().map(char::from).collect())
}

/// With `*` and `&`, which Go permits although they are not in the set.
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'\''..=b')' | b'+'..=b'/' | b' ' | b':' | b'=' | b'?' | b'*' | b'&')
}

/// UCS-2 without surrogates and reserved noncharacters; one terminating zero is dropped.
fn bmp(bytes: &[u8]) -> Option<String> {
    if !bytes.len().is_multiple_of(2) {
        return None;
    }
    let bytes = bytes.strip_suffix(&[0, 0]).unwrap_or(bytes);
    bytes
        .chunks_exact(2)
        .map(|pair| match *pair {
            [high, low] => match u16::from_be_bytes([high, low]) {
                0xfffe | 0xffff | 0xfdd0..=0xfdef => None,
                unit => char::from_u32(u32::from(unit)),
            },
            _ => None,
        })
        .collect()
}
