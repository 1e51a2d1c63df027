//! One request from its head to its answer: faults, the server's phase, who asks, may they, what is it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use hyper::body::Incoming;

use super::{
    accept::Accept,
    authn::User,
    authz,
    body::{Body, Guard},
    call::Call,
    clock, discovery,
    faults::Action,
    info::{self, Info},
    log::{Entry, Head},
    misbehave::{StreamReset, misbehave, spoil},
    objects, openapi, plain,
    reply::{Reply, not_found, shutting_down},
    server::{Phase, Server},
    status::{About, Status},
    upgrade,
    wire::Peer,
};

/// hyper's entry.
pub(crate) async fn serve(
    server: Arc<Server>,
    peer: Peer,
    request: Request<Incoming>,
) -> Result<Reply, StreamReset> {
    peer.wire.request_began();
    let entry = server.log.request(&Head {
        method: request.method().as_str(),
        target: request
            .uri()
            .path_and_query()
            .map_or("/", |target| target.as_str()),
        version: request.version(),
        headers: request.headers(),
        connection: peer.wire.id,
        client: peer.wire.client,
        client_certificate: !peer.presented.chain.is_empty(),
    });
    let guard = Guard {
        wire: Arc::clone(&peer.wire),
        entry: entry.clone(),
    };
    let actions = server.faults.take(
        request.method().as_str(),
        request.uri().path(),
        request.headers(),
    );
    let head = request.method() == Method::HEAD;
    let http2 = peer.wire.is_http2();
    let wire = Arc::clone(&peer.wire);
    let mut reply = Box::pin(answer(server, peer, request, entry.clone(), &actions)).await?;
    if let Some(entry) = &entry {
        entry.answered(reply.status().as_u16());
    }
    reply = spoil(reply, &actions);
    if http2 {
        let closes = reply
            .headers_mut()
            .remove(header::CONNECTION)
            .is_some_and(|value| value == "close");
        if closes || actions.contains(&Action::GoAway) {
            wire.go_away();
        }
    } else if actions.contains(&Action::GoAway) {
        reply
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if head {
        let length = http_body::Body::size_hint(reply.body())
            .exact()
            .unwrap_or_default();
        // Go does not know the length of what it did not buffer (2048 bytes).
        if length <= 2048 {
            reply
                .headers_mut()
                .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        *reply.body_mut() = Body::bytes(Bytes::new());
    }
    Ok(reply.map(|body| body.guarded(guard)))
}

async fn answer(
    server: Arc<Server>,
    peer: Peer,
    mut request: Request<Incoming>,
    entry: Option<Arc<Entry>>,
    actions: &[Action],
) -> Result<Reply, StreamReset> {
    let upgrade = request
        .headers()
        .contains_key(header::UPGRADE)
        .then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let query = info::query(parts.uri.query().unwrap_or_default());
    let mut call = Call {
        info: Info::parse(parts.method.as_str(), parts.uri.path(), &query),
        accept: Accept::of(&parts.headers),
        method: parts.method,
        query,
        headers: parts.headers,
        user: User::default(),
        entry,
        peer,
        body: Some(body),
        upgrade,
        server,
    };
    for action in actions {
        if let Some(reply) = misbehave(&mut call, action).await? {
            return Ok(reply);
        }
    }
    let mut reply = match in_phase(&call) {
        Some(reply) => reply,
        None => identified(&mut call).await,
    };
    decorate(&call, &mut reply);
    Ok(reply)
}

/// What a server says that is starting or stopping, whoever asks.
fn in_phase(call: &Call) -> Option<Reply> {
    let agent = call
        .headers
        .get(header::USER_AGENT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let health = ["/readyz", "/livez", "/healthz", "/metrics"];
    let exempt = agent.starts_with("kube-apiserver/")
        || health.iter().any(|path| call.info.path.starts_with(path));
    match call.server.phase() {
        Phase::Starting if !health.iter().any(|path| call.info.path.starts_with(path)) => {
            Some(call.status(&Status::starting()))
        }
        Phase::Refusing if !exempt => Some(shutting_down()),
        Phase::Stopping if !exempt => Some(call.status(&Status::shutting_down())),
        _ => None,
    }
}

async fn identified(call: &mut Call) -> Reply {
    let authentication = call.server.authentication.load_full();
    let websocket = upgrade::is_websocket(&call.headers);
    let own = call
        .headers
        .get(header::AUTHORIZATION)
        .is_some_and(|value| {
            value.as_bytes().strip_prefix(b"Bearer ") == Some(call.server.loopback_token.as_bytes())
        });
    if own {
        call.user = User::new(
            "system:apiserver",
            &["system:authenticated", "system:masters"],
        );
        return route(call).await;
    }
    let Some(user) =
        authentication.authenticate(&call.peer.presented, &mut call.headers, websocket)
    else {
        let mut reply = call.status(&Status::unauthorized());
        close_http2(call, &mut reply);
        return reply;
    };
    if let Some(entry) = &call.entry {
        entry.authenticated(&user);
    }
    let anonymous = user.is_anonymous();
    call.user = user;
    let mut reply = match impersonate(call) {
        Err(refused) => call.status(&refused),
        Ok(()) => {
            if call.info.malformed {
                call.status(&Status::internal(
                    "unable to determine kind and namespace from url",
                ))
            } else {
                match authz::authorize(&call.server.rules.load(), &call.user, &call.info) {
                    Err(refused) => call.status(&refused),
                    Ok(()) => route(call).await,
                }
            }
        }
    };
    if anonymous {
        close_http2(call, &mut reply);
    }
    reply
}

/// `UnauthenticatedHTTP2DOSMitigation`: over HTTP/2 this becomes a GOAWAY.
fn close_http2(call: &Call, reply: &mut Reply) {
    if call.peer.wire.is_http2() {
        reply
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Impersonate-* headers: only those who may do everything may impersonate.
fn impersonate(call: &mut Call) -> Result<(), Status> {
    let values = |name: &str| -> Vec<String> {
        call.headers
            .get_all(name)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    };
    let name = values("impersonate-user")
        .into_iter()
        .next()
        .unwrap_or_default();
    let groups = values("impersonate-group");
    let extra: Vec<(String, String)> = call
        .headers
        .iter()
        .filter_map(|(name, value)| {
            let key = name.as_str().strip_prefix("impersonate-extra-")?;
            let key = percent_encoding::percent_decode_str(key)
                .decode_utf8_lossy()
                .to_lowercase();
            Some((key, String::from_utf8_lossy(value.as_bytes()).into_owned()))
        })
        .collect();
    if name.is_empty() {
        return if groups.is_empty() && extra.is_empty() {
            Ok(())
        } else {
            Err(Status::internal(
                "requested impersonation without impersonating a user",
            ))
        };
    }
    let may = call
        .user
        .groups
        .iter()
        .any(|group| group == "system:masters");
    if !may {
        let about = About {
            group: "",
            resource: "users",
            name: &name,
        };
        let why = format!(
            "User {:?} cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
            call.user.name
        );
        return Err(Status::forbidden(about, &why));
    }
    let mut user = User {
        uid: values("impersonate-uid")
            .into_iter()
            .next()
            .unwrap_or_default(),
        groups,
        name,
        ..User::default()
    };
    for (key, value) in extra {
        user.extra.entry(key).or_default().push(value);
    }
    if user.is_anonymous() && user.groups.is_empty() {
        user.groups.push("system:unauthenticated".to_owned());
    }
    call.user = user.authenticated();
    if let Some(entry) = &call.entry {
        entry.impersonated(&call.user);
    }
    call.headers.remove("impersonate-user");
    Ok(())
}

async fn route(call: &mut Call) -> Reply {
    if !call.info.resource_request {
        if let Some(reply) = discovery::answer(call).await {
            return reply;
        }
        if let Some(reply) = openapi::answer(call) {
            return reply;
        }
        return plain::answer(call).unwrap_or_else(not_found);
    }
    match objects::answer(call).await {
        Ok(reply) => reply,
        Err(status) => call.status(&status),
    }
}

/// The headers that every answer of kube-apiserver has.
fn decorate(call: &Call, reply: &mut Reply) {
    let headers = reply.headers_mut();
    let audit = HeaderName::from_static("audit-id");
    let id = call
        .headers
        .get(&audit)
        .cloned()
        .or_else(|| HeaderValue::try_from(clock::request_id()).ok());
    if let Some(id) = id {
        headers.insert(audit, id);
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-cache, private"));
    for (name, value) in [
        ("x-kubernetes-pf-flowschema-uid", &call.server.flow_schema),
        (
            "x-kubernetes-pf-prioritylevel-uid",
            &call.server.priority_level,
        ),
    ] {
        if call.user.name.is_empty() {
            // Refused before flow control looked at it.
            break;
        }
        if let Ok(value) = HeaderValue::try_from(value.as_str()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}
