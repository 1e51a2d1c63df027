//! Door 1: gives every client the same cluster in every form of discovery, by completing one server's answer.
//!
//! [`Discovery::prepare`] looks at a request before it is sent to a server and [`Discovery::complete`] at the answer, which
//! it takes by value: without a server's own 200 or 304 to this caller there is no way to a completed document. Anything
//! else a server answers is relayed. Not for deciding which server is asked (`route`) nor for learning (`peers`).

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, header};

use crate::{
    api::{GroupVersion, ServerId, discovery::Form, wire::Encoding},
    body::Body,
    config::LocalDown,
    request_info::{Class, DiscoveryPath, OpenApiPath, RequestInfo},
    route::{Asker, AskerKind, authority},
    table::{Server, Table},
};

mod aggregated;
mod answer;
pub mod courier;
mod legacy;
pub mod merge;
mod metrics;
mod negotiate;
mod openapi;
#[cfg(test)]
mod tests;
mod unpack;

use aggregated::{Aggregated, Base, Key, Own};
use answer::{Authorised, Client};
use legacy::LegacyCache;
pub use metrics::Counters;
use negotiate::Wanted;
pub use openapi::{Done, Fetch, FetchRequest, Fetched};
use openapi::{OpenApi, OpenPlan};

/// All that is kept between requests. One per process; every thread uses it.
#[derive(Debug)]
pub struct Discovery {
    table: Arc<Table>,
    local_down: LocalDown,
    aggregated: Aggregated,
    legacy: LegacyCache,
    openapi: OpenApi,
    /// What was done so far.
    pub counters: Counters,
}

/// How an answer is to be completed; made from the request before it is sent.
#[derive(Debug)]
pub struct Plan {
    document: Document,
    /// Whose word counts where servers differ.
    authority: ServerId,
    client: Client,
    /// Forms of aggregated discovery that the client accepts, the best first.
    wanted: Vec<Wanted>,
    /// The answer may be indented.
    pretty: bool,
    /// The server's own document that its 304 would be about.
    base: Option<Arc<Base>>,
    openapi: Option<OpenPlan>,
}

/// One answer to complete, with all that it takes.
#[derive(Clone, Copy)]
struct Case<'a> {
    plan: &'a Plan,
    /// Who answered.
    from: ServerId,
    table: &'a Arc<Table>,
    counters: &'a Counters,
}

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Document {
    Api,
    Apis,
    Group(Box<str>),
    Version(GroupVersion),
    OpenApi,
}

impl Discovery {
    /// Knows nothing yet but the table.
    pub fn new(table: Arc<Table>, local_down: LocalDown) -> Self {
        Self {
            table,
            local_down,
            aggregated: Aggregated::default(),
            legacy: LegacyCache::default(),
            openapi: OpenApi::default(),
            counters: Counters::default(),
        }
    }

    /// Completes OpenAPI too, with other servers' documents fetched by `fetch`; without it OpenAPI is relayed as it is.
    #[must_use]
    pub fn with_fetch(self, fetch: Arc<dyn Fetch>) -> Self {
        self.openapi.set_fetch(fetch);
        self
    }

    /// Looks at a request before it goes to `server`; `None` if the answer is to be relayed untouched: another kind of
    /// request, a front proxy or another mvp asking, or `profile=nopeer`. May change Accept and the conditional headers:
    /// they are about the server's own document from here on.
    pub fn prepare<B>(
        &self,
        info: &RequestInfo,
        asker: &Asker,
        server: &Server,
        request: &mut Request<B>,
    ) -> Option<Plan> {
        let document = Document::of(info)?;
        let head = *request.method() == Method::HEAD;
        if !head && *request.method() != Method::GET {
            return None;
        }
        if asker.kind == AskerKind::FrontProxy || asker.marker || asker.decided {
            return None;
        }
        if let Class::OpenApi(kind) = info.class() {
            return self.prepare_openapi(info, kind, server, request);
        }
        let pretty = negotiate::is_pretty(request.headers(), request.uri().query());
        let headers = request.headers_mut();
        let wanted = match document {
            Document::Api | Document::Apis => negotiate::aggregated(headers),
            Document::Group(_) | Document::Version(_) | Document::OpenApi => Vec::new(),
        };
        // The best form is given; CBOR only by a server where it was turned on.
        let given = wanted
            .iter()
            .find(|wanted| wanted.encoding != Encoding::Cbor)
            .or_else(|| wanted.first());
        if given.is_some_and(|given| given.nopeer) {
            return None;
        }
        let gzip = negotiate::takes_gzip(headers);
        // A coding that mvp cannot undo would keep it from reading the answer.
        if gzip {
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        } else {
            headers.remove(header::ACCEPT_ENCODING);
        }
        let if_none_match = headers.remove(header::IF_NONE_MATCH);
        let mut base = None;
        if let Some(first) = wanted.first() {
            if let Some(accept) = negotiate::without_peers(headers) {
                headers.insert(header::ACCEPT, accept);
            }
            let key = Key {
                server: server.id,
                core: document == Document::Api,
                form: Form::V2,
                own: Own::Answer,
            };
            // Only if a 304 leaves no doubt about the representation: a server that is older than v2 takes the next form.
            if first.form == Form::V2
                && first.encoding != Encoding::Cbor
                && !pretty
                && let Some((known, etag)) = self.aggregated.known(key, if_none_match.as_ref())
            {
                headers.insert(header::IF_NONE_MATCH, etag);
                base = Some(known);
            }
        }
        let client = Client {
            if_none_match,
            gzip,
            head,
        };
        Some(Plan {
            document,
            authority: authority(&self.table, self.local_down).id,
            client,
            wanted,
            pretty,
            base,
            openapi: None,
        })
    }

    fn prepare_openapi<B>(
        &self,
        info: &RequestInfo,
        kind: OpenApiPath,
        server: &Server,
        request: &mut Request<B>,
    ) -> Option<Plan> {
        let head = *request.method() == Method::HEAD;
        let gzip = negotiate::takes_gzip(request.headers());
        let if_none_match = request.headers().get(header::IF_NONE_MATCH).cloned();
        let openapi = self
            .openapi
            .prepare(info, kind, &self.table, server, request)?;
        Some(Plan {
            document: Document::OpenApi,
            authority: server.id,
            client: Client {
                if_none_match,
                gzip,
                head,
            },
            wanted: Vec::new(),
            pretty: false,
            base: None,
            openapi: Some(openapi),
        })
    }

    /// What the client sees: the answer of `from`, completed.
    pub async fn complete(
        &self,
        plan: Plan,
        from: &Server,
        answer: Response<Body>,
    ) -> Response<Body> {
        let answer = match Authorised::check(from.id.into(), answer) {
            Ok(answer) => answer,
            Err(other) => return other,
        };
        let case = Case {
            plan: &plan,
            from: from.id,
            table: &self.table,
            counters: &self.counters,
        };
        if let Some(openapi) = &plan.openapi {
            return self.openapi.complete(case, openapi, answer).await;
        }
        let aggregated = match &plan.document {
            Document::Api | Document::Apis => form_of(&plan, &answer),
            Document::Group(_) | Document::Version(_) | Document::OpenApi => None,
        };
        if let Some(form) = aggregated {
            return self.aggregated.complete(case, form, answer).await;
        }
        self.legacy.complete(case, &self.aggregated, answer).await
    }
}

/// The form of aggregated discovery that came, if it is one, and not one that was asked for without peers.
fn form_of(plan: &Plan, answer: &Authorised) -> Option<Form> {
    if answer.is_unchanged() {
        return plan.base.is_some().then_some(Form::V2);
    }
    let content_type = answer.text(&header::CONTENT_TYPE)?;
    let version = content_type
        .split(';')
        .find_map(|param| param.trim().strip_prefix("v="));
    let form = match version {
        Some("v2") => Form::V2,
        Some("v2beta1") => Form::V2Beta1,
        _ => return None,
    };
    content_type
        .contains("as=APIGroupDiscoveryList")
        .then_some(form)
}

impl Document {
    fn of(info: &RequestInfo) -> Option<Self> {
        match info.class() {
            Class::Discovery(DiscoveryPath::Api) => Some(Self::Api),
            Class::Discovery(DiscoveryPath::Apis) => Some(Self::Apis),
            Class::Discovery(DiscoveryPath::Group) => Some(Self::Group(info.group()?.into())),
            Class::Discovery(DiscoveryPath::GroupVersion) => {
                let group_version = info.group_version()?;
                Some(Self::Version(GroupVersion::new(
                    group_version.group,
                    group_version.version,
                )))
            }
            Class::OpenApi(_) => Some(Self::OpenApi),
            Class::Resource | Class::LocalOnly | Class::Other => None,
        }
    }
}
