//! Discovery as a stand-in kube-apiserver gives it, asked once at the start and kept.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::{
    client::{Client, Who},
    pki::ClusterPki,
    standin::Standin,
};

/// What is kept.
const PATHS: [&str; 3] = ["/api", "/apis", "/version"];
/// In these forms.
const FORMS: [&str; 3] = [
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer",
    AGGREGATED,
    "application/json",
];

/// What kubectl and client-go accept first.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Recorded answers.
#[derive(Debug)]
pub struct Documents(Vec<Document>);

#[derive(Debug)]
struct Document {
    path: &'static str,
    form: &'static str,
    headers: HeaderMap,
    body: Bytes,
}

impl Documents {
    /// Of a v1.36 server without the group-versions of `off`.
    pub async fn record(off: &[String]) -> Result<Self> {
        let pki = ClusterPki::new()?;
        let mut builder = Standin::builder(&pki);
        for what in off {
            builder = builder.off(what);
        }
        let server = builder.start().await?;
        let admin = pki.client("recorder", &["system:masters"])?;
        let who = Who::Certificate(vec![admin.der.clone()], admin.private_key());
        let client = Client::new(&pki.ca.certificate.der, who, false)?;
        let mut documents = Vec::new();
        for path in PATHS {
            for form in FORMS {
                let accept = [("accept", form)];
                let answer = client
                    .once_with(server.address(), "GET", path, &accept, Bytes::new())
                    .await?;
                if answer.status != StatusCode::OK {
                    continue;
                }
                let mut headers = HeaderMap::new();
                for name in [
                    header::CONTENT_TYPE,
                    header::ETAG,
                    header::VARY,
                    header::CACHE_CONTROL,
                ] {
                    if let Some(value) = answer.headers.get(&name) {
                        headers.insert(name, value.clone());
                    }
                }
                documents.push(Document {
                    path,
                    form,
                    headers,
                    body: answer.body,
                });
            }
        }
        server.kill().await;
        documents
            .first()
            .context("the stand-in gives no discovery")?;
        Ok(Self(documents))
    }

    /// The answer to `path` in the first accepted form that is there.
    pub(super) fn find(
        &self,
        path: &str,
        asked: &HeaderMap,
    ) -> Option<(StatusCode, HeaderMap, Bytes)> {
        if !PATHS.contains(&path) {
            return None;
        }
        let accept = asked
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .unwrap_or("*/*");
        let mut forms = accept.split(',').map(str::trim);
        let form = forms.find_map(|wanted| FORMS.into_iter().find(|form| *form == wanted));
        let form = form.unwrap_or("application/json");
        let found = self
            .0
            .iter()
            .find(|document| document.path == path && document.form == form)?;
        let etag: Option<&HeaderValue> = found.headers.get(header::ETAG);
        if etag.is_some() && asked.get(header::IF_NONE_MATCH) == etag {
            return Some((
                StatusCode::NOT_MODIFIED,
                found.headers.clone(),
                Bytes::new(),
            ));
        }
        Some((StatusCode::OK, found.headers.clone(), found.body.clone()))
    }
}
