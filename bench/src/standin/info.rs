//! What a request asks for, parsed as kube-apiserver's `RequestInfo` does (apiserver `endpoints/request/requestinfo.go`). Written
//! apart from the proxy's own parser on purpose: the two are compared by every test.

use percent_encoding::percent_decode_str;

/// A parsed request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) resource_request: bool,
    /// The decoded path.
    pub(crate) path: String,
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) name: String,
    /// What follows the subresource (`proxy/...`).
    pub(crate) rest: Vec<String>,
    /// The path cannot be parsed (`/watch` without anything behind it).
    pub(crate) malformed: bool,
}

/// The query's pairs, decoded.
pub(crate) fn query(raw: &str) -> Vec<(String, String)> {
    let decode = |text: &str| {
        percent_decode_str(&text.replace('+', " "))
            .decode_utf8_lossy()
            .into_owned()
    };
    raw.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        })
        .collect()
}

/// The first value of a parameter.
pub(crate) fn parameter<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    query
        .iter()
        .find(|(found, _)| found == name)
        .map(|(_, value)| value.as_str())
}

/// A boolean parameter: absent, `false` and `0` are false, anything else is true (apimachinery `runtime/conversion.go`).
pub(crate) fn flag(query: &[(String, String)], name: &str) -> bool {
    parameter(query, name).is_some_and(|value| value != "0" && value != "false")
}

impl Info {
    pub(crate) fn parse(method: &str, raw_path: &str, query: &[(String, String)]) -> Self {
        let path = percent_decode_str(raw_path)
            .decode_utf8_lossy()
            .into_owned();
        let mut info = Self {
            verb: method.to_lowercase(),
            ..Self::default()
        };
        info.read(method, path.trim_matches('/'), query);
        info.path = path;
        info
    }

    fn read(&mut self, method: &str, path: &str, query: &[(String, String)]) {
        let parts: Vec<&str> = path.split('/').collect();
        let mut rest = match parts.as_slice() {
            ["api", rest @ ..] if rest.len() >= 2 => rest,
            ["apis", group, rest @ ..] if rest.len() >= 2 => {
                (*group).clone_into(&mut self.group);
                rest
            }
            _ => return,
        };
        self.resource_request = true;
        rest[0].clone_into(&mut self.version);
        rest = &rest[1..];
        let special = matches!(rest[0], "proxy" | "watch");
        if special {
            if rest.len() < 2 {
                self.malformed = true;
                return;
            }
            rest[0].clone_into(&mut self.verb);
            rest = &rest[1..];
        } else {
            let verb = match method {
                "POST" => "create",
                "GET" | "HEAD" => "get",
                "PUT" => "update",
                "PATCH" => "patch",
                "DELETE" => "delete",
                _ => "",
            };
            verb.clone_into(&mut self.verb);
        }
        if rest[0] == "namespaces" && rest.len() > 1 {
            rest[1].clone_into(&mut self.namespace);
            if rest.len() > 2 && !matches!(rest[2], "status" | "finalize") {
                rest = &rest[2..];
            }
        }
        rest[0].clone_into(&mut self.resource);
        if let Some(name) = rest.get(1) {
            (*name).clone_into(&mut self.name);
        }
        if let Some(subresource) = rest.get(2)
            && !special
        {
            (*subresource).clone_into(&mut self.subresource);
            self.rest = rest[3..].iter().map(|part| (*part).to_owned()).collect();
        }
        if self.name.is_empty() && self.verb == "get" {
            let verb = if flag(query, "watch") {
                "watch"
            } else {
                "list"
            };
            verb.clone_into(&mut self.verb);
        }
        if self.name.is_empty()
            && matches!(
                self.verb.as_str(),
                "list" | "watch" | "deletecollection" | "delete"
            )
            && let Some(name) = parameter(query, "fieldSelector").and_then(selected_name)
        {
            name.clone_into(&mut self.name);
        }
        if self.verb == "delete" && rest.get(1).is_none_or(|name| name.is_empty()) {
            "deletecollection".clone_into(&mut self.verb);
        }
    }
}

/// The name in `metadata.name=NAME`.
fn selected_name(selector: &str) -> Option<&str> {
    selector.split(',').find_map(|term| {
        term.strip_prefix("metadata.name=")
            .map(|name| name.trim_start_matches('='))
    })
}
