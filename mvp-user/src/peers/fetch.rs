//! One complete read of one server: `/readyz`, `/api`, `/apis`, `/version`, `/readyz`, all over one verified connection.
//!
//! A starting server answers discovery incompletely with 200 (`kubernetes.md` 4), so what it says counts only if it was
//! ready before and after. Legacy `/apis` is built from APIService objects that all servers share through etcd, so it is
//! never believed: a server without aggregated discovery is asked for each group-version that is seen anywhere.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;

use crate::{
    api::{
        GroupVersion, GvRef,
        discovery::{Group, GroupList, GroupMeta, STALE, Version},
        legacy::{Legacy, LegacyDocument},
        wire::{Encoding, WireError},
    },
    health::link::{Answer, Link, LinkError},
    table::{Documents, Table},
};

/// What is accepted, best first: a server's own view (KEP-4020), aggregated v2, v2beta1 (Kubernetes 1.26 to 1.29), legacy.
/// The order of the parameters matters (`kubernetes.md` 19).
const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
    application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
    application/json";
/// How long one answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How many group-versions a legacy server is asked for at most; clusters have a few hundred.
const MAX_CANDIDATES: usize = 2048;
/// The longest version that is shown.
const MAX_VERSION: usize = 64;

/// Why a server was not read, or not completely.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// No connection, or it broke.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// `/readyz` was not 200 before or after.
    #[error("/readyz answers {0}")]
    NotReady(StatusCode),
    /// Another answer than the protocol has.
    #[error("{path} answers {status}")]
    Status {
        /// What was asked.
        path: &'static str,
        /// What came back.
        status: StatusCode,
    },
    /// The right status, but not the right document.
    #[error("the answer of {path} is bad: {source}")]
    Document {
        /// What was asked.
        path: &'static str,
        /// What is wrong.
        source: WireError,
    },
}

impl ReadError {
    /// The label of `apiserver_peer_discovery_sync_errors_total`-like counters.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Link(_) => "connection",
            Self::NotReady(_) => "not_ready",
            Self::Status { .. } => "status",
            Self::Document { .. } => "document",
        }
    }
}

/// The last good answers of one server, per path.
#[derive(Debug, Default)]
pub(super) struct Memory {
    documents: Option<Arc<Documents>>,
    core_etag: Option<HeaderValue>,
    groups_etag: Option<HeaderValue>,
    version: Arc<str>,
}

/// What a read brought: last good documents with everything that was answered now.
#[derive(Debug)]
pub(super) struct Reading {
    /// The documents; the same `Arc` as before if nothing changed.
    pub(super) documents: Arc<Documents>,
    /// `gitVersion`, for display.
    pub(super) version: Arc<str>,
    /// Why a path is still as it was before; none: complete.
    pub(super) gap: Option<ReadError>,
}

/// The answer of one path.
enum Page {
    /// 304: as before.
    Same,
    New(GroupList, Option<HeaderValue>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionInfo {
    git_version: String,
}

impl Memory {
    /// Begins with documents that were learnt earlier (their `ETag`s are not known any more).
    pub(super) fn new(documents: Option<Arc<Documents>>, version: Arc<str>) -> Self {
        Self {
            documents,
            version,
            ..Self::default()
        }
    }

    /// Reads the server once. An error leaves the memory as it was.
    pub(super) async fn read(
        &mut self,
        link: &mut Link,
        table: &Table,
    ) -> Result<Reading, ReadError> {
        ready(link).await?;
        let kept = self.documents.clone();
        let core = page(
            link,
            "/api",
            kept.as_deref(),
            self.core_etag.as_ref(),
            table,
        )
        .await;
        let groups = page(
            link,
            "/apis",
            kept.as_deref(),
            self.groups_etag.as_ref(),
            table,
        )
        .await;
        let version = git_version(link).await?;
        ready(link).await?;
        self.take(core, groups, version)
    }

    fn take(
        &mut self,
        core: Result<Page, ReadError>,
        groups: Result<Page, ReadError>,
        version: Option<Arc<str>>,
    ) -> Result<Reading, ReadError> {
        let mut gap = None;
        let mut changed = None;
        for (page, is_core) in [(core, true), (groups, false)] {
            match (page, self.documents.is_some()) {
                (Ok(Page::Same), true) => {}
                (Ok(Page::Same), false) => {
                    return Err(ReadError::Status {
                        path: if is_core { "/api" } else { "/apis" },
                        status: StatusCode::NOT_MODIFIED,
                    });
                }
                (Ok(Page::New(list, etag)), _) => {
                    let next: &mut Documents = changed.get_or_insert_with(|| {
                        let kept = self.documents.as_deref();
                        Documents {
                            core: kept.map(|kept| kept.core.clone()).unwrap_or_default(),
                            groups: kept.map(|kept| kept.groups.clone()).unwrap_or_default(),
                        }
                    });
                    let (place, tag) = if is_core {
                        (&mut next.core, &mut self.core_etag)
                    } else {
                        (&mut next.groups, &mut self.groups_etag)
                    };
                    *place = list;
                    *tag = etag;
                }
                (Err(error), true) => gap = gap.or(Some(error)),
                // Half a server is no knowledge at all.
                (Err(error), false) => {
                    self.core_etag = None;
                    self.groups_etag = None;
                    return Err(error);
                }
            }
        }
        if let Some(version) = version {
            self.version = version;
        }
        let documents = match (changed, &self.documents) {
            (Some(new), Some(kept)) if new.core == kept.core && new.groups == kept.groups => {
                Arc::clone(kept)
            }
            (Some(new), _) => Arc::new(new),
            (None, Some(kept)) => Arc::clone(kept),
            (None, None) => Arc::default(),
        };
        self.documents = Some(Arc::clone(&documents));
        Ok(Reading {
            documents,
            version: Arc::clone(&self.version),
            gap,
        })
    }
}

async fn ready(link: &mut Link) -> Result<(), ReadError> {
    link.extend(ANSWER_WITHIN);
    let status = link.get("/readyz", "*/*", None).await?.status;
    if status == StatusCode::OK {
        Ok(())
    } else {
        Err(ReadError::NotReady(status))
    }
}

/// For display only: a server that hides it is shown without.
async fn git_version(link: &mut Link) -> Result<Option<Arc<str>>, ReadError> {
    link.extend(ANSWER_WITHIN);
    let answer = link.get("/version", "application/json", None).await?;
    let info: Option<VersionInfo> = (answer.status == StatusCode::OK)
        .then(|| serde_json::from_slice(&answer.body).ok())
        .flatten();
    Ok(info.map(|info| {
        let plain = |c: &char| c.is_ascii_graphic();
        let shown: String = info
            .git_version
            .chars()
            .filter(plain)
            .take(MAX_VERSION)
            .collect();
        shown.into()
    }))
}

async fn page(
    link: &mut Link,
    path: &'static str,
    kept: Option<&Documents>,
    etag: Option<&HeaderValue>,
    table: &Table,
) -> Result<Page, ReadError> {
    link.extend(ANSWER_WITHIN);
    let answer = link.get(path, ACCEPT, etag).await?;
    match answer.status {
        StatusCode::OK if is_aggregated(&answer) => {
            let (_form, list) = GroupList::parse(content_type(&answer), &answer.body)
                .map_err(|source| ReadError::Document { path, source })?;
            Ok(Page::New(list, answer.headers.get(header::ETAG).cloned()))
        }
        StatusCode::NOT_MODIFIED if etag.is_some() => Ok(Page::Same),
        // It does not know aggregated discovery (before 1.26 it answers the last entry, some answer 406).
        StatusCode::OK if Encoding::of(content_type(&answer)) == Some(Encoding::Json) => {
            let own = candidates(path, &answer)?;
            probe_each(link, path, own, kept, table).await
        }
        StatusCode::NOT_ACCEPTABLE => {
            link.extend(ANSWER_WITHIN);
            let list = link.get(path, "application/json", None).await?;
            let own = if list.status == StatusCode::OK {
                candidates(path, &list).unwrap_or_default()
            } else {
                Vec::new()
            };
            probe_each(link, path, own, kept, table).await
        }
        status => {
            let content = content_type(&answer);
            if status == StatusCode::OK {
                let source = WireError::ContentType(content.chars().take(80).collect());
                Err(ReadError::Document { path, source })
            } else {
                Err(ReadError::Status { path, status })
            }
        }
    }
}

fn content_type(answer: &Answer) -> &str {
    answer
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Whether the answer says that it is aggregated discovery, in JSON as it was asked for.
fn is_aggregated(answer: &Answer) -> bool {
    let content_type = content_type(answer);
    Encoding::of(content_type) == Some(Encoding::Json)
        && content_type
            .split(';')
            .any(|parameter| parameter.trim() == "as=APIGroupDiscoveryList")
}

/// The group-versions of a server's own legacy list: not believed, but worth asking for.
fn candidates(path: &'static str, answer: &Answer) -> Result<Vec<GroupVersion>, ReadError> {
    let document = LegacyDocument::parse(Encoding::Json, &answer.body)
        .map_err(|source| ReadError::Document { path, source })?;
    Ok(match document.legacy {
        Legacy::Versions(core) if path == "/api" => core
            .versions
            .iter()
            .map(|version| GroupVersion::new("", version))
            .collect(),
        Legacy::Groups(list) if path == "/apis" => list
            .groups
            .iter()
            .flat_map(|group| {
                group
                    .versions
                    .iter()
                    .map(|version| GroupVersion::new(&group.name, &version.version))
            })
            .collect(),
        _ => Vec::new(),
    })
}

/// Asks for `/apis/G/V` (or `/api/V`) of every group-version that is seen anywhere.
async fn probe_each(
    link: &mut Link,
    path: &'static str,
    own: Vec<GroupVersion>,
    kept: Option<&Documents>,
    table: &Table,
) -> Result<Page, ReadError> {
    let is_core = path == "/api";
    let mut seen: BTreeSet<GroupVersion> = BTreeSet::new();
    if is_core {
        seen.insert(GroupVersion::new("", "v1"));
    }
    let members = table.members();
    let ids: Vec<_> = std::iter::once(members.local.id)
        .chain(members.peers.iter().map(|peer| peer.id))
        .collect();
    drop(members);
    for id in ids {
        if let Some(catalogue) = table.catalogue(id) {
            seen.extend(catalogue.group_versions.iter().cloned());
        }
    }
    // Its own order of preference first, then the others in a fixed order.
    let mut asked = BTreeSet::new();
    let order = own
        .into_iter()
        .chain(seen)
        .filter(|wanted| wanted.group.is_empty() == is_core && is_plain(wanted))
        .filter(|wanted| asked.insert(wanted.clone()))
        .take(MAX_CANDIDATES)
        .collect::<Vec<_>>();
    let mut groups: Vec<Group> = Vec::new();
    for wanted in order {
        let Some(version) = probe(link, wanted.as_ref(), is_core, kept).await? else {
            continue;
        };
        match groups
            .iter_mut()
            .find(|group| group.name() == &*wanted.group)
        {
            Some(group) => group.versions.push(version),
            None => groups.push(Group {
                metadata: GroupMeta {
                    name: wanted.group.into(),
                    ..GroupMeta::default()
                },
                versions: vec![version],
            }),
        }
    }
    Ok(Page::New(GroupList::new(groups), None))
}

/// One group-version of a legacy server; none if it does not serve it.
async fn probe(
    link: &mut Link,
    wanted: GvRef<'_>,
    is_core: bool,
    kept: Option<&Documents>,
) -> Result<Option<Version>, ReadError> {
    let path = if is_core {
        format!("/api/{}", wanted.version)
    } else {
        format!("/apis/{}/{}", wanted.group, wanted.version)
    };
    link.extend(ANSWER_WITHIN);
    let answer = link.get(&path, "application/json", None).await?;
    match answer.status {
        StatusCode::OK => {
            let document = LegacyDocument::parse(Encoding::Json, &answer.body);
            if let Ok(LegacyDocument {
                legacy: Legacy::Resources(list),
                ..
            }) = document
                && let Some(version) = list.into_version(wanted)
            {
                return Ok(Some(version));
            }
        }
        StatusCode::NOT_FOUND => return Ok(None),
        // It says nothing about this group-version: without it the read would be complete in name only.
        status @ StatusCode::TOO_MANY_REQUESTS => {
            let path = if is_core { "/api" } else { "/apis" };
            return Err(ReadError::Status { path, status });
        }
        _ => {}
    }
    // Its backend is away, or the answer is bad: as it was before, and marked.
    let known = kept.and_then(|kept| {
        let list = if is_core { &kept.core } else { &kept.groups };
        let group = list
            .items
            .iter()
            .find(|group| group.name() == wanted.group)?;
        let mut versions = group.versions.iter();
        versions.find(|v| v.version == wanted.version).cloned()
    });
    // One that was away from the first is there all the same: kube-apiserver lists it so, too.
    let unknown = (answer.status == StatusCode::SERVICE_UNAVAILABLE).then(|| Version {
        version: wanted.version.to_owned(),
        ..Version::default()
    });
    Ok(known.or(unknown).map(|version| Version {
        freshness: STALE.to_owned(),
        ..version
    }))
}

/// Whether both names can stand in a path as they are (DNS labels and subdomains).
fn is_plain(group_version: &GroupVersion) -> bool {
    let plain = |name: &str| {
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-')
    };
    plain(&group_version.group)
        && plain(&group_version.version)
        && !group_version.version.is_empty()
        && !group_version.version.starts_with('.')
        && !group_version.group.starts_with('.')
}

#[cfg(test)]
mod tests;
