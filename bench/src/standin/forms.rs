//! Discovery documents in their forms: aggregated v2 and legacy, as JSON, YAML and protobuf. Pure functions of a catalogue; which
//! form a caller gets is decided in `accept`.

mod proto;
mod yaml;

use bytes::Bytes;
pub(crate) use proto::status as status_proto;
use serde::Serialize;
use sha2::Digest as _;
pub(crate) use yaml::to_yaml;

use super::model::{Catalogue, Group, Groups, ListMeta, Version};

/// The three encodings that kube-apiserver always offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

impl Encoding {
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// JSON with the newline that Go's encoder ends it with.
fn json_line(value: &impl Serialize) -> Bytes {
    let mut body = serde_json::to_vec(value).unwrap_or_default();
    body.push(b'\n');
    Bytes::from(body)
}

fn yaml(value: &impl Serialize) -> Bytes {
    Bytes::from(to_yaml(&serde_json::to_value(value).unwrap_or_default()))
}

/// The aggregated document of groups, and its entity tag (quoted upper-hex SHA-512 of the JSON).
pub(crate) fn aggregated(groups: &[Group], encoding: Encoding) -> (Bytes, String) {
    let list = Groups {
        kind: "APIGroupDiscoveryList".to_owned(),
        api_version: "apidiscovery.k8s.io/v2".to_owned(),
        metadata: ListMeta {},
        items: groups.to_vec(),
    };
    let json = json_line(&list);
    let etag = format!("\"{}\"", upper_hex_sha512(&hashed(&json)));
    let body = match encoding {
        Encoding::Json => json,
        Encoding::Yaml => yaml(&list),
        Encoding::Protobuf => proto::aggregated(groups),
    };
    (body, etag)
}

/// The entity tag is made before kind and apiVersion are set, and without the final newline (`resourceManager.fetchFromCache`).
fn hashed(json: &[u8]) -> Vec<u8> {
    let head = br#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","#;
    let rest = json.strip_prefix(head.as_slice()).unwrap_or(json);
    [b"{", rest.strip_suffix(b"\n").unwrap_or(rest)].concat()
}

/// SHA-512 as kube-apiserver writes it into entity tags and OpenAPI hashes.
pub(crate) fn upper_hex_sha512(bytes: &[u8]) -> String {
    super::clock::hex(&sha2::Sha512::digest(bytes)).to_uppercase()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiVersions<'a> {
    kind: &'static str,
    versions: Vec<&'a str>,
    #[serde(rename = "serverAddressByClientCIDRs")]
    server_address_by_client_cidrs: [ServerAddress<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerAddress<'a> {
    #[serde(rename = "clientCIDR")]
    client_cidr: &'static str,
    server_address: &'a str,
}

/// Legacy `/api`.
pub(crate) fn api_versions(core: &Group, address: &str, encoding: Encoding) -> Bytes {
    let document = ApiVersions {
        kind: "APIVersions",
        versions: core
            .versions
            .iter()
            .map(|version| version.version.as_str())
            .collect(),
        server_address_by_client_cidrs: [ServerAddress {
            client_cidr: "0.0.0.0/0",
            server_address: address,
        }],
    };
    match encoding {
        Encoding::Json => json_line(&document),
        Encoding::Yaml => yaml(&document),
        Encoding::Protobuf => proto::api_versions(&document.versions, address),
    }
}

/// One group of legacy discovery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LegacyGroup {
    pub(crate) name: String,
    pub(crate) versions: Vec<GroupVersion>,
    #[serde(rename = "preferredVersion")]
    pub(crate) preferred: GroupVersion,
}

/// `GroupVersionForDiscovery`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct GroupVersion {
    #[serde(rename = "groupVersion")]
    pub(crate) group_version: String,
    pub(crate) version: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiGroupList<'a> {
    kind: &'static str,
    api_version: &'static str,
    groups: &'a [LegacyGroup],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiGroup<'a> {
    kind: &'static str,
    api_version: &'static str,
    #[serde(flatten)]
    group: &'a LegacyGroup,
}

/// Legacy `/apis`.
pub(crate) fn group_list(groups: &[LegacyGroup], encoding: Encoding) -> Bytes {
    let document = ApiGroupList {
        kind: "APIGroupList",
        api_version: "v1",
        groups,
    };
    match encoding {
        Encoding::Json => json_line(&document),
        Encoding::Yaml => yaml(&document),
        Encoding::Protobuf => proto::group_list(groups),
    }
}

/// Legacy `/apis/GROUP`.
pub(crate) fn group(group: &LegacyGroup, encoding: Encoding) -> Bytes {
    let document = ApiGroup {
        kind: "APIGroup",
        api_version: "v1",
        group,
    };
    match encoding {
        Encoding::Json => json_line(&document),
        Encoding::Yaml => yaml(&document),
        Encoding::Protobuf => proto::group(group),
    }
}

/// `APIResource`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LegacyResource {
    pub(crate) name: String,
    pub(crate) singular_name: String,
    pub(crate) namespaced: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) verbs: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) short_names: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) categories: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) storage_version_hash: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiResourceList<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    group_version: &'a str,
    resources: &'a [LegacyResource],
}

/// Legacy `/apis/GROUP/VERSION` and `/api/v1`.
pub(crate) fn resource_list(
    catalogue: &Catalogue,
    group: &str,
    version: &Version,
    encoding: Encoding,
) -> Bytes {
    let group_version = if group.is_empty() {
        version.version.clone()
    } else {
        format!("{group}/{}", version.version)
    };
    let resources = legacy_resources(catalogue, &group_version, version);
    // kube-apiserver leaves apiVersion out for the core group.
    let api_version = if group.is_empty() { "" } else { "v1" };
    let document = ApiResourceList {
        kind: "APIResourceList",
        api_version,
        group_version: &group_version,
        resources: &resources,
    };
    match encoding {
        Encoding::Json => json_line(&document),
        Encoding::Yaml => yaml(&document),
        Encoding::Protobuf => proto::resource_list(api_version, &group_version, &resources),
    }
}

fn legacy_resources(
    catalogue: &Catalogue,
    group_version: &str,
    version: &Version,
) -> Vec<LegacyResource> {
    let mut out = Vec::new();
    for resource in &version.resources {
        let gvk = resource.response_kind.as_ref();
        let part = |pick: fn(&super::model::Gvk) -> &String| {
            gvk.map(|gvk| pick(gvk).clone()).unwrap_or_default()
        };
        if !resource.verbs.is_empty() {
            out.push(LegacyResource {
                name: resource.resource.clone(),
                singular_name: resource.singular_resource.clone(),
                namespaced: resource.namespaced(),
                group: part(|gvk| &gvk.group),
                version: part(|gvk| &gvk.version),
                kind: part(|gvk| &gvk.kind),
                verbs: resource.verbs.clone(),
                short_names: resource.short_names.clone(),
                categories: resource.categories.clone(),
                storage_version_hash: catalogue
                    .storage_hashes
                    .get(&format!("{group_version}/{}", resource.resource))
                    .cloned()
                    .unwrap_or_default(),
            });
        }
        for subresource in &resource.subresources {
            let gvk = subresource.response_kind.as_ref();
            let part = |pick: fn(&super::model::Gvk) -> &String| {
                gvk.map(|gvk| pick(gvk).clone()).unwrap_or_default()
            };
            out.push(LegacyResource {
                name: format!("{}/{}", resource.resource, subresource.subresource),
                singular_name: String::new(),
                namespaced: resource.namespaced(),
                group: part(|gvk| &gvk.group),
                version: part(|gvk| &gvk.version),
                kind: part(|gvk| &gvk.kind),
                verbs: subresource.verbs.clone(),
                short_names: Vec::new(),
                categories: Vec::new(),
                storage_version_hash: String::new(),
            });
        }
    }
    out
}
