//! Single questions to a node, and what came back in a few words. Every one is asked on a connection of its own.

use std::{collections::BTreeSet, fmt, io, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Error, Result, bail};
use bench::client::{Answer, Client};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::kinds;

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Outcome {
    /// An answer with this status.
    Status(u16),
    /// Nobody listened.
    Refused,
    /// The connection broke.
    Broken,
    /// Nothing came in time.
    Late,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Refused => f.write_str("refused"),
            Self::Broken => f.write_str("broken"),
            Self::Late => f.write_str("no answer"),
        }
    }
}

impl From<&Result<Answer>> for Outcome {
    fn from(result: &Result<Answer>) -> Self {
        match result {
            Ok(answer) => Self::Status(answer.status.as_u16()),
            Err(error) => Self::of(error),
        }
    }
}

impl Outcome {
    /// Why there was no answer.
    pub(crate) fn of(error: &Error) -> Self {
        let of_kind = |kind| {
            error.chain().any(|cause| {
                cause
                    .downcast_ref::<io::Error>()
                    .is_some_and(|error| error.kind() == kind)
            })
        };
        if of_kind(io::ErrorKind::ConnectionRefused) {
            Self::Refused
        } else if of_kind(io::ErrorKind::TimedOut)
            || error
                .chain()
                .any(<dyn std::error::Error>::is::<tokio::time::error::Elapsed>)
        {
            Self::Late
        } else {
            Self::Broken
        }
    }
}

/// GET, and how it ended within `patience`.
pub(crate) async fn get(
    client: &Client,
    to: SocketAddr,
    path: &str,
    patience: Duration,
) -> Outcome {
    match timeout(patience, client.once(to, "GET", path)).await {
        Ok(result) => Outcome::from(&result),
        Err(_) => Outcome::Late,
    }
}

/// Creates an object of the new kind.
pub(crate) async fn create(client: &Client, to: SocketAddr, name: &str) -> Result<Answer> {
    let body = kinds::new_object(name).to_string();
    let json = [("content-type", "application/json")];
    client
        .once_with(to, "POST", kinds::NEW_KIND, &json, body)
        .await
}

/// Who the server says that we are, or how it refused: status, and user or message.
pub(crate) async fn who_am_i(client: &Client, to: SocketAddr) -> Result<(u16, Value)> {
    const PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let json = [("content-type", "application/json")];
    let answer = client
        .once_with(to, "POST", PATH, &json, review.to_string())
        .await?;
    let said = answer.json()?;
    let what = if answer.status.is_success() {
        &said["status"]["userInfo"]
    } else {
        &said["message"]
    };
    Ok((answer.status.as_u16(), what.clone()))
}

/// Aggregated discovery as JSON.
pub(crate) const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Everything that a node's aggregated discovery lists: one entry a resource, subresource and verb.
pub(crate) async fn discovery(client: &Client, to: SocketAddr) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for path in ["/api", "/apis"] {
        let answer = client
            .once_with(to, "GET", path, &[("accept", V2)], Bytes::new())
            .await?;
        if answer.status != 200 {
            bail!("GET {path}: {}", answer.status);
        }
        let document = answer.json()?;
        if document["kind"] != "APIGroupDiscoveryList" {
            bail!("GET {path}: not aggregated: {}", answer.text());
        }
        for group in list(&document["items"]) {
            for version in list(&group["versions"]) {
                let of = format!(
                    "{}/{}",
                    text(&group["metadata"]["name"]),
                    text(&version["version"])
                );
                for resource in list(&version["resources"]) {
                    let name = text(&resource["resource"]);
                    verbs(&mut all, &format!("{of} {name}"), resource);
                    for subresource in list(&resource["subresources"]) {
                        let name = format!("{of} {name}/{}", text(&subresource["subresource"]));
                        verbs(&mut all, &name, subresource);
                    }
                }
            }
        }
    }
    Ok(all)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn verbs(all: &mut BTreeSet<String>, name: &str, of: &Value) {
    all.insert(name.to_owned());
    for verb in list(&of["verbs"]) {
        all.insert(format!("{name} {}", text(verb)));
    }
}

/// Waits until a watch of the new kind, begun through `to`, shows an object that is created through `at`.
pub(crate) async fn watch(
    client: &Client,
    to: SocketAddr,
    at: SocketAddr,
    name: &str,
) -> Result<u16> {
    let listed = client.once(to, "GET", kinds::NEW_KIND).await?;
    if listed.status != 200 {
        return Ok(listed.status.as_u16());
    }
    let from = listed.json()?;
    let from = text(&from["metadata"]["resourceVersion"]);
    let path = format!(
        "{}?watch=true&resourceVersion={from}&timeoutSeconds=60",
        kinds::NEW_KIND
    );
    let mut connection = client.connect(to).await?;
    let answer = connection
        .start(client.request("GET", &path, &[], Bytes::new())?)
        .await?;
    let status = answer.status().as_u16();
    if status != 200 {
        return Ok(status);
    }
    let created = create(client, at, name).await?;
    if created.status != 201 {
        bail!(
            "the object to be watched was not created: {}",
            created.status
        );
    }
    let mut body = answer.into_body();
    let seen = async {
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                read.extend_from_slice(&data);
            }
            let text = String::from_utf8_lossy(&read);
            let events = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            for event in events {
                if event["type"] == "ADDED" && event["object"]["metadata"]["name"] == name {
                    return Ok(());
                }
            }
        }
        bail!("the watch ended without the event")
    };
    timeout(Duration::from_secs(10), seen)
        .await
        .context("the event did not come")??;
    Ok(status)
}

/// exec over WebSocket (`v4.channel.k8s.io`): sends a message on standard input, wants it back. 101, or the refusal's
/// status.
pub(crate) async fn exec(client: &Client, to: SocketAddr) -> Result<u16> {
    let headers = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", "v4.channel.k8s.io"),
    ];
    let mut connection = client.connect(to).await?;
    let answer = connection
        .start(client.request("GET", kinds::EXEC, &headers, Bytes::new())?)
        .await?;
    let status = answer.status().as_u16();
    if status != 101 {
        return Ok(status);
    }
    let mut io = TokioIo::new(hyper::upgrade::on(answer).await?);
    let exchange = async {
        // Binary frame, masked with zeros (RFC 6455 section 5.3); its first byte is the channel.
        let message = b"\0hello through a tunnel";
        let length = u8::try_from(message.len())?;
        let mut frame = vec![0x82, 0x80 | length, 0, 0, 0, 0];
        frame.extend_from_slice(message);
        io.write_all(&frame).await?;
        io.flush().await?;
        let mut head = [0; 2];
        io.read_exact(&mut head).await?;
        let mut payload = vec![0; usize::from(head[1] & 0x7f)];
        io.read_exact(&mut payload).await?;
        if payload != message {
            bail!("the tunnel changed what was sent: {payload:?}");
        }
        Ok(status)
    };
    timeout(Duration::from_secs(10), exchange)
        .await
        .context("nothing came back through the tunnel")?
}
