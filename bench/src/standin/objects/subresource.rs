//! Subresources: status, scale, log, eviction, binding, token, and the ones that are upgraded.

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{
    super::{
        authn::User,
        call::Call,
        clock,
        model::Subresource,
        reply::{Reply, text},
        status::Status,
        upgrade,
    },
    Target, delete, existing, object,
    write::{self, Part},
};

pub(super) async fn answer(
    call: &mut Call,
    target: &Target,
    subresource: &Subresource,
) -> Result<Reply, Status> {
    let pods = target.group.is_empty() && target.resource.resource == "pods";
    match subresource.subresource.as_str() {
        "exec" | "attach" | "portforward" if pods => {
            existing(call, target).await?;
            upgrade::echo(call)
        }
        "proxy" => {
            existing(call, target).await?;
            if upgrade::is_upgrade(&call.headers) {
                return upgrade::echo(call);
            }
            Ok(text(
                StatusCode::OK,
                format!("proxied {} /{}\n", call.method, call.info.rest.join("/")),
            ))
        }
        "log" if pods => {
            existing(call, target).await?;
            let mut reply = text(StatusCode::OK, format!("log of {}\n", target.name));
            reply.headers_mut().insert(
                http::header::CONTENT_TYPE,
                http::HeaderValue::from_static("text/plain"),
            );
            Ok(reply)
        }
        "eviction" if pods => {
            drop(write::body(call).await?);
            let stored = existing(call, target).await?;
            drop(delete::remove(call, target, &stored).await?);
            success(call, &Status::created())
        }
        "binding" if pods => {
            let binding = write::body(call).await?;
            let mut value = target.shown_value(&*existing(call, target).await?);
            value["spec"]["nodeName"] = binding["target"]["name"].clone();
            write::replace(call, target, value, Part::All).await?;
            success(call, &Status::created())
        }
        "token" => token(call, target).await,
        "scale" => scale(call, target).await,
        "status" => change(call, target, Part::Status).await,
        _ => change(call, target, Part::All).await,
    }
}

fn success(call: &Call, status: &Status) -> Result<Reply, Status> {
    object(
        call,
        StatusCode::CREATED,
        Bytes::from(serde_json::to_vec(status).unwrap_or_default()),
    )
}

/// Get, update or patch the object itself, as far as the subresource goes.
async fn change(call: &mut Call, target: &Target, part: Part) -> Result<Reply, Status> {
    let stored = match call.info.verb.as_str() {
        "get" => existing(call, target).await?,
        "patch" => write::patch_part(call, target, part).await?.1,
        "update" => {
            let new = write::body(call).await?;
            write::replace(call, target, new, part).await?
        }
        _ => return Err(Status::method_not_allowed()),
    };
    object(call, StatusCode::OK, target.shown(&stored))
}

async fn scale(call: &mut Call, target: &Target) -> Result<Reply, Status> {
    let mut stored = existing(call, target).await?;
    if call.method != Method::GET && call.method != Method::HEAD {
        let wanted = write::body(call).await?;
        let replicas = wanted["spec"]["replicas"].as_i64();
        let replicas =
            replicas.ok_or_else(|| Status::bad_request("the scale has no spec.replicas"))?;
        let mut value = target.shown_value(&stored);
        value["spec"]["replicas"] = Value::from(replicas);
        stored = write::replace(call, target, value, Part::Main).await?;
    }
    let metadata = &stored.value["metadata"];
    let scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {"replicas": stored.value["spec"]["replicas"].as_i64().unwrap_or(1)},
        "status": {"replicas": stored.value["status"]["replicas"].as_i64().unwrap_or_default()},
    });
    object(call, StatusCode::OK, Bytes::from(scale.to_string()))
}

/// `kubectl create token`: a token that this server (not the others) then knows.
async fn token(call: &mut Call, target: &Target) -> Result<Reply, Status> {
    let mut request = write::body(call).await?;
    existing(call, target).await?;
    let token = clock::hex(&clock::random::<24>());
    let user = User::service_account(&target.namespace, &target.name);
    let mut authentication = (**call.server.authentication.load()).clone();
    authentication.tokens.insert(token.clone(), user);
    call.server.authentication.store(authentication.into());
    request["kind"] = Value::from("TokenRequest");
    request["apiVersion"] = Value::from("authentication.k8s.io/v1");
    request["status"] = json!({"token": token, "expirationTimestamp": "2099-01-01T00:00:00Z"});
    object(call, StatusCode::CREATED, Bytes::from(request.to_string()))
}
