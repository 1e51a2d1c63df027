//! What a client's Accept header asks of aggregated discovery, read as kube-apiserver reads it.
//!
//! Only needed where the answering server does not say it: whether `profile=nopeer` was meant, and the representation
//! behind a 304. Every other negotiation is left to that server. Sources: `goautoneg` (first header line only, sorted by
//! quality), `k8s.io/apiserver/pkg/endpoints/handlers/negotiation`, `.../discovery/aggregated/wrapper.go`.

use http::{HeaderMap, HeaderValue, header};

use crate::api::{
    discovery::{Form, GROUP, KIND},
    wire::Encoding,
};

#[cfg(test)]
mod tests;

/// One acceptable form of aggregated discovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    pub(super) encoding: Encoding,
    pub(super) form: Form,
    /// The server's own document is wanted, not the cluster's.
    pub(super) nopeer: bool,
}

struct Clause<'a> {
    main: &'a str,
    sub: &'a str,
    quality: f64,
    params: Vec<(&'a str, &'a str)>,
}

/// The forms of aggregated discovery that the client accepts, the best first. A listed form wins over every plain media
/// type, whatever their qualities.
pub(super) fn aggregated(headers: &HeaderMap) -> Vec<Wanted> {
    let Some(accept) = accept(headers) else {
        return Vec::new();
    };
    let mut clauses: Vec<Clause<'_>> = accept.split(',').filter_map(Clause::parse).collect();
    // Go's sort is not stable in general; for the dozen clauses below its threshold it is.
    clauses.sort_by(|a, b| {
        b.quality
            .total_cmp(&a.quality)
            .then((a.main == "*").cmp(&(b.main == "*")))
            .then((a.sub == "*").cmp(&(b.sub == "*")))
    });
    clauses.iter().filter_map(Clause::wanted).collect()
}

/// The same header asking for the server's own documents: mvp merges by itself, whether or not the server merges too
/// (it would keep showing what peers that are gone served). A server without peers ignores the parameter.
pub(super) fn without_peers(headers: &HeaderMap) -> Option<HeaderValue> {
    let accept = accept(headers)?;
    let clauses: Vec<String> = accept
        .split(',')
        .map(|clause| {
            let aggregated = clause
                .split(';')
                .skip(1)
                .any(|param| param.trim() == "as=APIGroupDiscoveryList");
            if !aggregated {
                return clause.trim().to_owned();
            }
            let mut kept: Vec<&str> = clause
                .split(';')
                .map(str::trim)
                .filter(|param| !param.starts_with("profile="))
                .collect();
            kept.push("profile=nopeer");
            kept.join(";")
        })
        .collect();
    HeaderValue::from_str(&clauses.join(",")).ok()
}

/// Whether the server may answer with indented JSON (`isPrettyPrint` of kube-apiserver).
pub(super) fn is_pretty(headers: &HeaderMap, query: Option<&str>) -> bool {
    let asked = query.is_some_and(|query| {
        query
            .split('&')
            .any(|pair| pair == "pretty" || pair.starts_with("pretty="))
    });
    let agent = headers
        .get(header::USER_AGENT)
        .map_or(&b""[..], HeaderValue::as_bytes);
    asked
        || [&b"curl"[..], b"Wget", b"Mozilla/5.0"]
            .into_iter()
            .any(|browser| agent.starts_with(browser))
}

/// Whether the client takes gzip.
pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| {
            value.split(',').any(|coding| {
                let mut parts = coding.split(';').map(str::trim);
                parts.next() == Some("gzip")
                    && !parts.any(|param| matches!(param, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
            })
        })
}

fn accept(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::ACCEPT)?.to_str().ok()
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next()?;
        let (main, sub) = match media.split_once('/') {
            Some((main, sub)) if !sub.contains('/') => (main.trim(), sub.trim()),
            None if media == "*" => ("*", "*"),
            _ => return None,
        };
        let mut quality = 1.0;
        let mut params = Vec::new();
        for part in parts {
            let Some((key, value)) = part.split_once('=') else {
                continue;
            };
            if key == "q" {
                quality = value.parse().unwrap_or(1.0);
            } else {
                params.push((key, value));
            }
        }
        Some(Self {
            main,
            sub,
            quality,
            params,
        })
    }

    fn wanted(&self) -> Option<Wanted> {
        if self.quality <= 0.0 {
            return None;
        }
        let param = |name| {
            self.params
                .iter()
                .rev()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| *value)
        };
        let encoding = match (self.main, self.sub) {
            ("application" | "*", "*") | ("application", "json") => Encoding::Json,
            ("application", "yaml") => Encoding::Yaml,
            ("application", "vnd.kubernetes.protobuf") => Encoding::Protobuf,
            ("application", "cbor") => Encoding::Cbor,
            _ => return None,
        };
        let form = match (param("as"), param("g"), param("v")) {
            (Some(KIND), Some(GROUP), Some("v2")) => Form::V2,
            (Some(KIND), Some(GROUP), Some("v2beta1")) => Form::V2Beta1,
            _ => return None,
        };
        if param("sv").is_some_and(|version| !version.is_empty())
            || param("stream").is_some_and(|of| of != "watch")
        {
            return None;
        }
        Some(Wanted {
            encoding,
            form,
            nopeer: param("profile") == Some("nopeer"),
        })
    }
}
