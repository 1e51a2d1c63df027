//! What is asked: method and URI become verb, resource and names, exactly as kube-apiserver reads them.
//!
//! A port of `RequestInfo` (`k8s.io/apiserver/pkg/endpoints/request/requestinfo.go`): the *decoded* path is split, as
//! Go's `URL.Path` is. Nothing is copied while the path holds no escape: the URI's shared bytes are kept, and every
//! part is a range in them. Pure; the raw path and query go upstream untouched, whatever is read here.

use std::ops::Range;

use http::{Method, Uri, uri::PathAndQuery};

use crate::api::{GvRef, GvrRef, Verb};

mod query;

/// A path that Go's server answers with 400 before any handler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadPath {
    /// `%` without two hexadecimal digits behind it.
    #[error("invalid URL escape in the request path")]
    Escape,
}

impl BadPath {
    /// For [`crate::reply::Refusal::BadRequest`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Escape => "invalid URL escape in the request path",
        }
    }
}

/// What a path belongs to; each kind is routed by rules of its own (design 5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// A resource, with [`RequestInfo::resource`].
    Resource,
    /// Discovery documents.
    Discovery(DiscoveryPath),
    /// OpenAPI documents.
    OpenApi(OpenApiPath),
    /// Health, metrics, version, status, debug and logs: always about this node's server.
    LocalOnly,
    /// Any other path.
    Other,
}

/// Which discovery document; a trailing slash makes no difference here (see [`RequestInfo::path`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DiscoveryPath {
    /// `/api`.
    Api,
    /// `/apis`.
    Apis,
    /// `/apis/GROUP`, with [`RequestInfo::group`].
    Group,
    /// `/api/VERSION` or `/apis/GROUP/VERSION`, with [`RequestInfo::group_version`].
    GroupVersion,
}

/// Which OpenAPI document.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OpenApiPath {
    /// `/openapi/v2`.
    V2,
    /// `/openapi/v3`.
    V3Index,
    /// Anything below `/openapi/v3/`; with [`RequestInfo::group_version`] if it is of one.
    V3Document,
}

/// Where a part lies in the path. `http::Uri` is shorter than 64 KiB, and decoding never lengthens it.
type Span = Option<(u16, u16)>;

/// The path, with its escapes decoded.
#[derive(Clone, Debug)]
enum Path {
    /// Nothing to decode: the URI's own bytes.
    Raw(PathAndQuery),
    /// Decoded; bytes that are not UTF-8 became U+FFFD, which no resource has in its name.
    Decoded(Box<str>),
}

/// One request as kube-apiserver understands it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    path: Path,
    verb: Verb,
    class: Class,
    safe: bool,
    group: Span,
    version: Span,
    namespace: Span,
    resource: Span,
    name: Span,
    subresource: Span,
    /// Begin of `Parts`: resource, name, subresource and what follows.
    parts: Span,
    /// `metadata.name` of a field selector, which counts as the name.
    selected: Option<Box<str>>,
}

/// The subresources that run something or open a stream, whatever the method.
const CONNECTS: [&str; 4] = ["exec", "attach", "portforward", "proxy"];
/// Path prefixes that are about one server, not about the cluster (`statusz` and `flagz` since Kubernetes 1.32, KEP-4827).
const LOCAL_ONLY: [&str; 9] = [
    "healthz", "livez", "readyz", "metrics", "version", "debug", "logs", "statusz", "flagz",
];

impl RequestInfo {
    /// Reads method and URI.
    pub fn parse(method: &Method, uri: &Uri) -> Result<Self, BadPath> {
        let raw = uri
            .path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/"));
        let path = if raw.path().contains('%') {
            Path::Decoded(decode(raw.path())?)
        } else {
            Path::Raw(raw)
        };
        let mut info = Self {
            path,
            verb: Verb::Other,
            class: Class::Other,
            safe: *method == Method::GET || *method == Method::HEAD || *method == Method::OPTIONS,
            group: None,
            version: None,
            namespace: None,
            resource: None,
            name: None,
            subresource: None,
            parts: None,
            selected: None,
        };
        info.read(method, uri.query());
        Ok(info)
    }

    /// The request's verb; [`Verb::Other`] for non-resource requests, whose verb is the method.
    pub const fn verb(&self) -> Verb {
        self.verb
    }

    /// The resource, if this is a resource request.
    pub fn resource(&self) -> Option<GvrRef<'_>> {
        if self.class != Class::Resource {
            return None;
        }
        Some(GvrRef {
            group: self.at(self.group).unwrap_or_default(),
            version: self.at(self.version).unwrap_or_default(),
            resource: self.at(self.resource).unwrap_or_default(),
        })
    }

    /// The group-version of a resource, of a discovery document or of an OpenAPI v3 document.
    pub fn group_version(&self) -> Option<GvRef<'_>> {
        Some(GvRef {
            group: self.at(self.group).unwrap_or_default(),
            version: self.at(self.version)?,
        })
    }

    /// The group of a resource or of a document; empty for core.
    pub fn group(&self) -> Option<&str> {
        self.at(self.group)
    }

    /// The subresource, if any.
    pub fn subresource(&self) -> Option<&str> {
        self.at(self.subresource).filter(|part| !part.is_empty())
    }

    /// The namespace, if any; of a Namespace object, its own name.
    pub fn namespace(&self) -> Option<&str> {
        self.at(self.namespace).filter(|part| !part.is_empty())
    }

    /// The object's name, from the path or from a `metadata.name` field selector.
    pub fn name(&self) -> Option<&str> {
        self.selected
            .as_deref()
            .or_else(|| self.at(self.name).filter(|part| !part.is_empty()))
    }

    /// The decoded path, with its slashes.
    pub fn path(&self) -> &str {
        match &self.path {
            Path::Raw(raw) => raw.path(),
            Path::Decoded(path) => path,
        }
    }

    /// Resource, name, subresource and whatever follows, as the path has them.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.at(self.parts)
            .into_iter()
            .flat_map(|parts| parts.split('/'))
    }

    /// What the path belongs to.
    pub const fn class(&self) -> Class {
        self.class
    }

    /// Whether sending it a second time changes nothing: GET, HEAD and OPTIONS, but not those that connect (a GET of
    /// `pods/exec` runs a command).
    pub fn is_safe(&self) -> bool {
        self.safe && !self.connects()
    }

    /// Whether it reads one object, so that the answer is short as a rule: no list, no log, and nothing that lasts.
    pub fn reads_one(&self) -> bool {
        self.class == Class::Resource
            && self.verb == Verb::Get
            && self.is_safe()
            && self.subresource() != Some("log")
    }

    fn connects(&self) -> bool {
        self.verb == Verb::Proxy
            || self
                .subresource()
                .is_some_and(|name| CONNECTS.contains(&name))
    }

    fn at(&self, span: Span) -> Option<&str> {
        let (begin, end) = span?;
        self.path().get(usize::from(begin)..usize::from(end))
    }

    fn read(&mut self, method: &Method, query: Option<&str>) {
        let mut parts = Parts::of(self.path());
        let text = |range: &Range<usize>| self.path().get(range.clone()).unwrap_or_default();
        let Some(first) = parts.next(self.path()) else {
            return;
        };
        // The mux matches whole paths, so a second slash in front is no longer one of these.
        let doubled = self.path().starts_with("//");
        let prefix = text(&first);
        if prefix != "api" && prefix != "apis" {
            if !doubled {
                self.read_other(&first, parts);
            }
            return;
        }
        let grouped = prefix == "apis";
        let group = if grouped {
            parts.next(self.path())
        } else {
            None
        };
        let version = parts.next(self.path());
        let rest = parts.clone();
        let next = parts.next(self.path());
        let (Some(version), Some(mut current)) = (version.clone(), next) else {
            self.read_discovery(grouped, group, version, doubled);
            return;
        };
        let mut verb = verb_of(method);
        let mut begin = rest;
        if matches!(text(&current), "watch" | "proxy") {
            verb = if text(&current) == "watch" {
                Verb::Watch
            } else {
                Verb::Proxy
            };
            begin = parts.clone();
            // kube-apiserver fails on a verb without a resource: its own answer is relayed.
            let Some(resource) = parts.next(self.path()) else {
                return;
            };
            current = resource;
        }
        let mut namespace = None;
        if text(&current) == "namespaces" {
            let mut ahead = parts.clone();
            if let Some(name) = ahead.next(self.path()) {
                namespace = Some(name);
                let within = ahead.clone();
                if let Some(third) = ahead.next(self.path())
                    && !matches!(text(&third), "status" | "finalize")
                {
                    begin = within;
                    current = third;
                    parts = ahead;
                }
            }
        }
        let name = parts.next(self.path());
        let subresource = if verb == Verb::Proxy {
            None
        } else {
            parts.next(self.path())
        };
        let unnamed = name.as_ref().is_none_or(Range::is_empty);
        let mut selected = None;
        match verb {
            Verb::Get if unnamed => {
                let options = query.map(query::list_options).unwrap_or_default();
                verb = if options.watch {
                    Verb::Watch
                } else {
                    Verb::List
                };
                selected = options.name;
            }
            Verb::Delete if unnamed => verb = Verb::DeleteCollection,
            _ => {}
        }
        self.class = Class::Resource;
        self.verb = verb;
        self.selected = selected;
        self.parts = span(begin.next..begin.end);
        self.group = group.and_then(span);
        self.version = span(version);
        self.namespace = namespace.and_then(span);
        self.resource = span(current);
        self.name = name.and_then(span);
        self.subresource = subresource.and_then(span);
    }

    /// Fewer parts than a resource has: `/api`, `/api/V`, `/apis`, `/apis/G`, `/apis/G/V`, each with or without a slash.
    fn read_discovery(
        &mut self,
        grouped: bool,
        group: Option<Range<usize>>,
        version: Option<Range<usize>>,
        doubled: bool,
    ) {
        if doubled {
            return;
        }
        let path = match (grouped, &group, &version) {
            (_, _, Some(_)) => DiscoveryPath::GroupVersion,
            (true, Some(_), None) => DiscoveryPath::Group,
            // `/apis//` is not registered, unlike `/apis/`.
            (true, None, None) if !self.path().ends_with("//") => DiscoveryPath::Apis,
            (false, _, None) => DiscoveryPath::Api,
            (true, None, None) => return,
        };
        self.class = Class::Discovery(path);
        self.group = group.and_then(span);
        self.version = version.and_then(span);
    }

    fn read_other(&mut self, first: &Range<usize>, mut parts: Parts) {
        let path = self.path();
        let first = &path[first.clone()];
        if LOCAL_ONLY.contains(&first) {
            self.class = Class::LocalOnly;
            return;
        }
        if first != "openapi" {
            return;
        }
        match path {
            "/openapi/v2" => self.class = Class::OpenApi(OpenApiPath::V2),
            "/openapi/v3" => self.class = Class::OpenApi(OpenApiPath::V3Index),
            _ if path.starts_with("/openapi/v3/") => {
                parts.next(path);
                let (mut group, mut version) = (None, None);
                match parts.next(path).map(|kind| &path[kind]) {
                    Some("api") => version = parts.next(path),
                    Some("apis") => {
                        group = parts.next(path);
                        version = parts.next(path);
                    }
                    _ => {}
                }
                if parts.next(path).is_some() {
                    (group, version) = (None, None);
                }
                self.class = Class::OpenApi(OpenApiPath::V3Document);
                self.group = group.and_then(span);
                self.version = version.and_then(span);
            }
            _ => {}
        }
    }
}

/// Cuts a path at its slashes, after those at both ends were trimmed; yields ranges.
#[derive(Clone)]
struct Parts {
    next: usize,
    end: usize,
    done: bool,
}

impl Parts {
    fn of(path: &str) -> Self {
        let end = path.trim_end_matches('/').len();
        let next = path.len() - path.trim_start_matches('/').len();
        Self {
            next,
            end,
            done: next >= end,
        }
    }

    fn next(&mut self, path: &str) -> Option<Range<usize>> {
        if self.done {
            return None;
        }
        let begin = self.next;
        let rest = path.as_bytes().get(begin..self.end)?;
        if let Some(length) = rest.iter().position(|byte| *byte == b'/') {
            self.next = begin + length + 1;
            Some(begin..begin + length)
        } else {
            self.done = true;
            Some(begin..self.end)
        }
    }
}

fn span(range: Range<usize>) -> Span {
    Some((
        u16::try_from(range.start).ok()?,
        u16::try_from(range.end).ok()?,
    ))
}

fn verb_of(method: &Method) -> Verb {
    match *method {
        Method::POST => Verb::Create,
        Method::GET | Method::HEAD => Verb::Get,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE => Verb::Delete,
        _ => Verb::Other,
    }
}

/// Go's `url.unescape` for paths: `+` stays, an incomplete escape is an error.
fn decode(path: &str) -> Result<Box<str>, BadPath> {
    let mut rest = path.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        match rest.get(at + 1..at + 3) {
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => rest = &rest[at + 3..],
            _ => return Err(BadPath::Escape),
        }
    }
    Ok(percent_encoding::percent_decode_str(path)
        .decode_utf8_lossy()
        .into_owned()
        .into_boxed_str())
}

#[cfg(test)]
mod tests;
