//! Whom the status page answers: browsers and tools on this node that meant to ask it. Pure.
//!
//! A page of another site can make a browser send requests to loopback. It cannot read the answers (there is no CORS
//! here), unless its name is bound to 127.0.0.1 for the browser (DNS rebinding): then its own name stands in `Host`.

use std::net::SocketAddr;

use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header, uri::Authority};

/// What the page can be called.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    names: Vec<String>,
}

/// Why a request is not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// It was meant for somebody else.
    Host,
    /// Another site asks.
    Site,
    /// It is not `GET` or `HEAD`.
    Method,
    /// There is no such page.
    Path,
    /// As many as allowed watch already.
    Full,
}

/// What there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// `/`.
    Page,
    /// `/events`.
    Events,
}

impl Refused {
    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Site => StatusCode::FORBIDDEN,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Path => StatusCode::NOT_FOUND,
            Self::Full => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::Host => {
                "this is not the address of the status page; forward the same port: ssh -L PORT:127.0.0.1:PORT\n"
            }
            Self::Site => "only the status page itself may ask for this\n",
            Self::Method => "only GET and HEAD are answered: nothing can be changed here\n",
            Self::Path => "there is only the page at /\n",
            Self::Full => "too many watch already\n",
        }
    }
}

impl Guard {
    pub(super) fn new(listening: SocketAddr) -> Self {
        let port = listening.port();
        let mut names: Vec<String> = ["127.0.0.1", "localhost", "[::1]"]
            .map(|name| format!("{name}:{port}"))
            .into();
        names.push(listening.to_string());
        if port == 80 {
            // Browsers leave out the default port.
            let short = names.iter().filter_map(|it| it.strip_suffix(":80"));
            let short: Vec<String> = short.map(ToOwned::to_owned).collect();
            names.extend(short);
        }
        Self { names }
    }

    /// What the request asks for, if it may.
    pub(super) fn judge(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Wanted, Refused> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(Refused::Host);
        };
        if !self.is_mine(host) || !uri.authority().is_none_or(|it| self.names_me(it)) {
            return Err(Refused::Host);
        }
        if *method != Method::GET && *method != Method::HEAD {
            return Err(Refused::Method);
        }
        let own = |origin: &HeaderValue| {
            let origin = origin
                .to_str()
                .ok()
                .and_then(|it| it.strip_prefix("http://"));
            origin.is_some_and(|it| self.contains(it))
        };
        let says = |name: &str, words: &[&str]| {
            headers
                .get(name)
                .is_none_or(|value| words.iter().any(|word| value == word))
        };
        // Browsers tell who asks (Fetch Metadata). A link on another site may lead here, its scripts may not.
        let from_here = says("sec-fetch-site", &["same-origin", "none"]);
        let by_link =
            headers.contains_key("sec-fetch-mode") && says("sec-fetch-mode", &["navigate"]);
        if !headers.get(header::ORIGIN).is_none_or(own) || !from_here && !by_link {
            return Err(Refused::Site);
        }
        match uri.path() {
            "/" => Ok(Wanted::Page),
            "/events" => Ok(Wanted::Events),
            _ => Err(Refused::Path),
        }
    }

    fn is_mine(&self, host: &HeaderValue) -> bool {
        host.to_str().is_ok_and(|it| self.contains(it))
    }

    fn names_me(&self, authority: &Authority) -> bool {
        self.contains(authority.as_str())
    }

    fn contains(&self, name: &str) -> bool {
        self.names.iter().any(|it| it.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(method: &str, uri: &str, headers: &[(&str, &str)]) -> Result<Wanted, Refused> {
        let guard = Guard::new("127.0.0.1:9741".parse().unwrap());
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().unwrap();
            map.append(name, value.parse().unwrap());
        }
        guard.judge(&method.parse().unwrap(), &uri.parse().unwrap(), &map)
    }

    #[test]
    fn only_the_names_of_loopback_with_the_port_are_answered() {
        for host in [
            "127.0.0.1:9741",
            "localhost:9741",
            "LOCALHOST:9741",
            "[::1]:9741",
        ] {
            assert_eq!(
                judge("GET", "/", &[("host", host)]),
                Ok(Wanted::Page),
                "{host}"
            );
        }
        for host in [
            "evil.example:9741",
            "127.0.0.1",
            "localhost",
            "127.0.0.1:80",
            "localhost:9741.evil.example",
            "evil.example",
            "localhost:9741@evil.example",
            "127.0.0.2:9741",
            "",
        ] {
            assert_eq!(
                judge("GET", "/", &[("host", host)]),
                Err(Refused::Host),
                "{host}"
            );
        }
        assert_eq!(judge("GET", "/", &[]), Err(Refused::Host));
        let two = [("host", "localhost:9741"), ("host", "evil.example")];
        assert_eq!(judge("GET", "/", &two), Err(Refused::Host));
        let mine = [("host", "localhost:9741")];
        assert_eq!(
            judge("GET", "http://evil.example/", &mine),
            Err(Refused::Host)
        );
        assert_eq!(
            judge("GET", "http://localhost:9741/", &mine),
            Ok(Wanted::Page)
        );
    }

    #[test]
    fn nothing_but_reading_is_answered() {
        for method in [
            "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "QUERY",
        ] {
            let answer = judge(method, "/", &[("host", "localhost:9741")]);
            assert_eq!(answer, Err(Refused::Method), "{method}");
        }
        assert_eq!(
            judge("HEAD", "/", &[("host", "localhost:9741")]),
            Ok(Wanted::Page)
        );
        assert_eq!(
            judge("GET", "/v1/steer", &[("host", "localhost:9741")]),
            Err(Refused::Path)
        );
    }

    #[test]
    fn scripts_of_other_sites_are_refused_links_are_not() {
        let ask = |more: &[(&str, &str)]| {
            let mut headers = vec![("host", "localhost:9741")];
            headers.extend(more);
            judge("GET", "/events", &headers)
        };
        for good in [
            &[
                ("origin", "http://localhost:9741"),
                ("sec-fetch-site", "same-origin"),
            ][..],
            &[("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")],
            &[
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
            ],
        ] {
            assert_eq!(ask(good), Ok(Wanted::Events), "{good:?}");
        }
        for bad in [
            &[("origin", "http://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "https://localhost:9741")],
            &[("origin", "http://localhost:8080")],
            &[
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "no-cors"),
            ],
            &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")],
            &[("sec-fetch-site", "cross-site")],
        ] {
            assert_eq!(ask(bad), Err(Refused::Site), "{bad:?}");
        }
    }
}
