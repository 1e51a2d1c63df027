//! Which form of an answer the caller accepts: kube-apiserver's negotiation (apiserver `endpoints/handlers/negotiation`), with the
//! two wordings of 406 that its two routers have.

use http::{HeaderMap, header};

use super::forms::Encoding;

/// One clause of an Accept header.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Clause {
    kind: String,
    subtype: String,
    parameters: Vec<(String, String)>,
    /// Quality in thousandths.
    quality: u32,
}

impl Clause {
    fn parse(text: &str) -> Option<Self> {
        let mut pieces = text.split(';').map(str::trim);
        let (kind, subtype) = match pieces.next()? {
            "*" => ("*", "*"),
            range => range.split_once('/')?,
        };
        let mut clause = Self {
            kind: kind.trim().to_owned(),
            subtype: subtype.trim().to_owned(),
            parameters: Vec::new(),
            quality: 1000,
        };
        for piece in pieces {
            let Some((name, value)) = piece.split_once('=') else {
                continue;
            };
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            if name == "q" {
                let quality = value.parse::<f32>().unwrap_or(1.0).clamp(0.0, 1.0);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "between 0 and 1000"
                )]
                let thousandths = (quality * 1000.0) as u32;
                clause.quality = thousandths;
            } else {
                clause.parameters.push((name.to_owned(), value.to_owned()));
            }
        }
        Some(clause)
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }

    fn covers(&self, encoding: Encoding) -> bool {
        let Some((kind, subtype)) = encoding.media_type().split_once('/') else {
            return false;
        };
        (self.kind == "*" && self.subtype == "*")
            || (self.kind == kind && (self.subtype == "*" || self.subtype == subtype))
    }

    fn transforms(&self) -> bool {
        ["as", "g", "v"]
            .iter()
            .any(|name| self.parameter(name).is_some())
    }

    fn aggregated(&self) -> bool {
        self.parameter("g") == Some("apidiscovery.k8s.io")
            && self.parameter("v") == Some("v2")
            && self.parameter("as") == Some("APIGroupDiscoveryList")
    }

    fn charset_ok(&self) -> bool {
        self.parameter("charset")
            .is_none_or(|charset| charset.eq_ignore_ascii_case("utf-8"))
    }
}

const OFFERED: [Encoding; 3] = [Encoding::Json, Encoding::Yaml, Encoding::Protobuf];

/// What the Accept header says.
#[derive(Debug, Clone)]
pub(crate) struct Accept {
    clauses: Vec<Clause>,
    empty: bool,
}

impl Accept {
    /// Go reads the first Accept line only.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = headers
            .get(header::ACCEPT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let mut clauses: Vec<Clause> = text.split(',').filter_map(Clause::parse).collect();
        // goautoneg: by quality, then the more specific first; the sort is stable.
        clauses.sort_by_key(|clause| {
            let stars = u8::from(clause.kind == "*") + u8::from(clause.subtype == "*");
            (std::cmp::Reverse(clause.quality), stars)
        });
        Self {
            clauses,
            empty: text.is_empty(),
        }
    }

    /// The encoding of the aggregated document, if the caller lists it anywhere.
    pub(crate) fn aggregated(&self) -> Option<Encoding> {
        self.clauses
            .iter()
            .filter(|clause| clause.aggregated() && clause.charset_ok())
            .find_map(|clause| {
                OFFERED
                    .into_iter()
                    .find(|encoding| clause.covers(*encoding))
            })
    }

    /// The encoding of an ordinary answer.
    pub(crate) fn plain(&self) -> Option<Encoding> {
        if self.empty {
            return Some(Encoding::Json);
        }
        self.clauses
            .iter()
            .filter(|clause| !clause.transforms() && clause.charset_ok())
            .find_map(|clause| {
                OFFERED
                    .into_iter()
                    .find(|encoding| clause.covers(*encoding))
            })
    }

    /// The encoding of an object, which the stand-in cannot write as protobuf: the next one that the caller accepts.
    pub(crate) fn object(&self) -> Option<Encoding> {
        let others = [Encoding::Json, Encoding::Yaml];
        let next = || {
            self.clauses
                .iter()
                .filter(|clause| !clause.transforms() && clause.charset_ok())
                .find_map(|clause| others.into_iter().find(|encoding| clause.covers(*encoding)))
        };
        self.plain()
            .filter(|encoding| *encoding != Encoding::Protobuf)
            .or_else(next)
    }

    /// go-restful's first look at paths that it routes: parameters do not count, `application/*` is not known.
    pub(crate) fn rest_routes(&self) -> bool {
        self.empty
            || self.clauses.iter().any(|clause| {
                (clause.kind == "*" && clause.subtype == "*")
                    || OFFERED.iter().any(|encoding| {
                        format!("{}/{}", clause.kind, clause.subtype) == encoding.media_type()
                    })
            })
    }

    /// A `Table` or `PartialObjectMetadata` is asked for, and in which order relative to the plain form does not matter here.
    pub(crate) fn table(&self) -> bool {
        self.clauses
            .iter()
            .any(|clause| clause.parameter("as") == Some("Table") && clause.covers(Encoding::Json))
    }

    /// `as=PartialObjectMetadata` or `as=PartialObjectMetadataList` as JSON.
    pub(crate) fn partial_metadata(&self) -> bool {
        self.clauses.iter().any(|clause| {
            clause
                .parameter("as")
                .is_some_and(|kind| kind.starts_with("PartialObjectMetadata"))
                && clause.covers(Encoding::Json)
        })
    }
}

/// Programs for people get indented JSON (apiserver `negotiate.go`, `isPrettyPrint`).
pub(crate) fn pretty(headers: &HeaderMap, query: &[(String, String)]) -> bool {
    if let Some(value) = super::info::parameter(query, "pretty") {
        return value == "1" || value == "true";
    }
    let agent = headers
        .get(header::USER_AGENT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    ["curl", "Wget", "Mozilla/5.0"]
        .iter()
        .any(|name| agent.starts_with(name))
}
