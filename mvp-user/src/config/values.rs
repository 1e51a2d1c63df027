//! How single values are written: durations as Go writes them, addresses, networks, server URLs, SNI certificates.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _},
    path::PathBuf,
    time::Duration,
};

use http::HeaderName;

use super::{Cidr, SniCertificate};

/// Go's `time.ParseDuration`, without fractions and signs: `15s`, `1h30m`, `500ms`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration such as 500ms, 15s, 10m or 1h30m");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.len()
            - rest
                .trim_start_matches(|it: char| it.is_ascii_digit())
                .len();
        let (number, tail) = rest.split_at(digits);
        let number: u64 = number.parse().ok().ok_or_else(wrong)?;
        let letters = tail.len()
            - tail
                .trim_start_matches(|it: char| it.is_ascii_lowercase())
                .len();
        let (unit, tail) = tail.split_at(letters);
        let milliseconds = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(wrong()),
        };
        total = number
            .checked_mul(milliseconds)
            .map(Duration::from_millis)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(wrong)?;
        rest = tail;
    }
    if text.is_empty() {
        Err(wrong())
    } else {
        Ok(total)
    }
}

/// A duration that is not zero.
pub(super) fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than nothing".to_owned()),
        time => Ok(time),
    }
}

/// `https://HOST:PORT`; the port may be left out. A name is looked up once.
pub(super) fn server(text: &str, default_port: u16) -> Result<SocketAddr, String> {
    let wrong = || format!("{text:?} is not https://HOST:PORT");
    let host = text.strip_prefix("https://").unwrap_or(text);
    let host = host.strip_suffix('/').unwrap_or(host);
    if host.is_empty() || host.contains(['/', '@', '?', '#', ' ']) {
        return Err(wrong());
    }
    let address = if let Ok(address) = host.parse::<SocketAddr>() {
        address
    } else if let Ok(address) = host
        .strip_prefix('[')
        .and_then(|it| it.strip_suffix(']'))
        .unwrap_or(host)
        .parse::<IpAddr>()
    {
        SocketAddr::new(address, default_port)
    } else {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) => (name, port.parse().ok().ok_or_else(wrong)?),
            None => (host, default_port),
        };
        (name, port)
            .to_socket_addrs()
            .map_err(|error| format!("cannot look up {name}: {error}"))?
            .next()
            .ok_or_else(|| format!("{name} has no address"))?
    };
    if address.ip().is_unspecified() {
        return Err(format!("{text:?} names no particular host"));
    }
    if address.port() == 0 {
        return Err(format!("{text:?} has port 0"));
    }
    Ok(address)
}

/// `ADDR:PORT`.
pub(super) fn socket(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .ok()
        .ok_or_else(|| format!("{text:?} is not ADDR:PORT (an IPv6 address in brackets)"))
}

/// `ADDR:PORT` of a loopback address.
pub(super) fn on_this_node(text: &str) -> Result<SocketAddr, String> {
    let address = socket(text)?;
    if !address.ip().is_loopback() {
        return Err(format!("{text:?} is not on this node's loopback"));
    }
    port(&address.port().to_string())?;
    Ok(address)
}

/// An IP address.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    text.parse()
        .ok()
        .ok_or_else(|| format!("{text:?} is not an IP address"))
}

/// An address of 127.0.0.0/8, which is always there and never anybody else's.
pub(super) fn loopback(text: &str) -> Result<Ipv4Addr, String> {
    match text.parse::<Ipv4Addr>() {
        Ok(Ipv4Addr::LOCALHOST) => Err(
            "127.0.0.1 is the source of every program on the node; take another of 127.0.0.0/8"
                .to_owned(),
        ),
        Ok(address) if address.is_loopback() => Ok(address),
        _ => Err(format!("{text:?} is not an address of 127.0.0.0/8")),
    }
}

/// A port.
pub(super) fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("{text:?} is not a port from 1 to 65535")),
        Ok(port) => Ok(port),
    }
}

/// A number within bounds.
pub(super) fn number(text: &str, least: usize, most: usize) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("{text:?} is not a number from {least} to {most}"))
}

/// `ADDR/LENGTH`, or an address alone.
pub(super) fn cidr(text: &str) -> Result<Cidr, String> {
    let wrong = || format!("{text:?} is not a network such as 10.0.0.0/8 or fd00::/8");
    let (base, length) = match text.split_once('/') {
        Some((base, length)) => (base, Some(length)),
        None => (text, None),
    };
    let base: IpAddr = base.parse().ok().ok_or_else(wrong)?;
    let most = if base.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => most,
        Some(length) => length
            .parse()
            .ok()
            .filter(|length| *length <= most)
            .ok_or_else(wrong)?,
    };
    let masked = match base {
        IpAddr::V4(it) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::from((it.to_bits() & mask).to_be_bytes())
        }
        IpAddr::V6(it) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::from((it.to_bits() & mask).to_be_bytes())
        }
    };
    if masked != base {
        return Err(format!(
            "{text:?} has bits behind its length; the network is {masked}/{length}"
        ));
    }
    Ok(Cidr {
        address: base,
        length,
    })
}

/// `CERT,KEY` or `CERT,KEY:NAME,NAME` (`k8s.io/component-base/cli/flag/namedcertkey_flag.go`).
pub(super) fn sni(text: &str) -> Result<SniCertificate, String> {
    let (files, names) = match text.split_once(':') {
        Some((files, names)) => (files, names),
        None => (text, ""),
    };
    let (certificate, key) = files
        .split_once(',')
        .filter(|(certificate, key)| {
            !certificate.trim().is_empty() && !key.trim().is_empty() && !key.contains(',')
        })
        .ok_or_else(|| format!("{text:?} is not CERT,KEY or CERT,KEY:NAME,..."))?;
    Ok(SniCertificate {
        certificate: PathBuf::from(certificate.trim()),
        key: PathBuf::from(key.trim()),
        names: names
            .split(',')
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect(),
    })
}

/// The name of a header.
pub(super) fn header(text: &str) -> Result<HeaderName, String> {
    text.to_ascii_lowercase()
        .parse()
        .ok()
        .ok_or_else(|| format!("{text:?} is not the name of a header"))
}

/// A file's path.
#[expect(
    clippy::unnecessary_wraps,
    reason = "has the form of the other parsers"
)]
pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    Ok(PathBuf::from(text))
}

/// One of a few words.
pub(super) fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    words
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, value)| *value)
        .ok_or_else(|| {
            let all: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            format!("{text:?} is none of {}", all.join(", "))
        })
}
