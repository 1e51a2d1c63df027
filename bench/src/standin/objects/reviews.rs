//! Reviews: questions in the form of objects that are never stored.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    super::{authn::User, authz, call::Call, clock, info::Info, reply::Reply, status::Status},
    Target, object, write,
};

pub(super) fn is_review(target: &Target) -> bool {
    matches!(
        target.group.as_str(),
        "authentication.k8s.io" | "authorization.k8s.io"
    )
}

pub(super) async fn answer(call: &mut Call, target: &Target) -> Result<Reply, Status> {
    let mut review = write::body(call).await?;
    if !review.is_object() {
        return Err(Status::bad_request("the review is no JSON object"));
    }
    review["kind"] = Value::from(target.resource.kind());
    review["apiVersion"] = Value::from(target.api_version());
    review["metadata"] = match target.resource.resource.as_str() {
        "selfsubjectreviews" => json!({"creationTimestamp": clock::rfc3339()}),
        _ => json!({"creationTimestamp": null}),
    };
    let status = match target.resource.resource.as_str() {
        "selfsubjectreviews" => json!({"userInfo": user_info(&call.user)}),
        "tokenreviews" => {
            let token = review["spec"]["token"].as_str().unwrap_or_default();
            match call.server.authentication.load().tokens.get(token) {
                Some(user) => {
                    json!({"authenticated": true, "user": user_info(&user.clone().authenticated())})
                }
                None => json!({"user": {}, "error": "invalid bearer token"}),
            }
        }
        "selfsubjectaccessreviews" => access(call, &call.user, &review["spec"]),
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            let spec = &review["spec"];
            let groups = spec["groups"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            let user = User {
                name: spec["user"].as_str().unwrap_or_default().to_owned(),
                groups: groups
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
                ..User::default()
            };
            access(call, &user, spec)
        }
        _ => json!({"resourceRules": [], "nonResourceRules": [], "incomplete": true}),
    };
    review["status"] = status;
    object(call, StatusCode::CREATED, Bytes::from(review.to_string()))
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = Value::from(user.uid.as_str());
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

fn access(call: &Call, user: &User, spec: &Value) -> Value {
    let attributes = &spec["resourceAttributes"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let info = if attributes.is_object() {
        Info {
            resource_request: true,
            verb: text(&attributes["verb"]),
            group: text(&attributes["group"]),
            version: text(&attributes["version"]),
            namespace: text(&attributes["namespace"]),
            resource: text(&attributes["resource"]),
            subresource: text(&attributes["subresource"]),
            name: text(&attributes["name"]),
            ..Info::default()
        }
    } else {
        let attributes = &spec["nonResourceAttributes"];
        Info {
            verb: text(&attributes["verb"]),
            path: text(&attributes["path"]),
            ..Info::default()
        }
    };
    let allowed = authz::authorize(&call.server.rules.load(), user, &info).is_ok();
    json!({"allowed": allowed})
}
