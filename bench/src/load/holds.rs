//! Work that is about connections: handshakes, idle ones, slow readers, tunnels.

use std::{rc::Rc, time::Duration};

use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, StatusCode, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    io::AsyncReadExt as _,
    task::{JoinSet, spawn_local},
    time::{Instant, sleep},
};

use super::{
    channel::Channels,
    drive::Tally,
    gate::Gate,
    plan::{Outcome, Plan, Shot},
};

/// A small object.
fn small() -> Shot {
    Shot::get("/api/v1/namespaces/bench/configmaps/one?bytes=1024")
}

/// Connections with one request each, as many at a time as the plan has connections.
pub(super) async fn storm(
    plan: &Plan,
    channels: &Rc<Channels>,
    run: Duration,
    gate: &mut dyn Gate,
) -> Result<Outcome> {
    let template = Rc::new(channels.template(&small())?);
    // Whatever is opened lazily is open from now on.
    channels.open().await?.exchange(&template).await?;
    gate.ready().await?;
    let tally = Tally::start()?;
    let end = Instant::now() + run;
    let mut tasks = JoinSet::new();
    for _ in 0..plan.connections {
        let (channels, template, tally) =
            (Rc::clone(channels), Rc::clone(&template), Rc::clone(&tally));
        tasks.spawn_local(async move {
            while Instant::now() < end {
                let began = Instant::now();
                let once = async {
                    let reply = channels.open().await?.exchange(&template).await?;
                    if !template.is_wanted(reply.status) {
                        bail!("answered {}", reply.status);
                    }
                    Ok(reply.bytes)
                };
                match once.await {
                    Ok(bytes) => tally.done(began.elapsed(), bytes),
                    Err(error) => tally.failed(&error),
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task?;
    }
    Ok(tally.outcome())
}

/// Connections that have been used once and stay.
pub(super) async fn idle(
    plan: &Plan,
    channels: &Rc<Channels>,
    gate: &mut dyn Gate,
) -> Result<Outcome> {
    let template = channels.template(&small())?;
    let tally = Tally::start()?;
    let mut open = Vec::new();
    for _ in 0..plan.connections {
        let began = Instant::now();
        let mut channel = channels.open().await?;
        let reply = channel.exchange(&template).await?;
        if !template.is_wanted(reply.status) {
            bail!("answered {}", reply.status);
        }
        tally.done(began.elapsed(), reply.bytes);
        open.push(channel);
    }
    gate.ready().await?;
    drop(open);
    Ok(tally.outcome())
}

/// Bodies that arrive faster than they are read.
pub(super) async fn slow(
    plan: &Plan,
    channels: &Rc<Channels>,
    (bytes, rate, hold): (u64, u64, Duration),
    gate: &mut dyn Gate,
) -> Result<Outcome> {
    const TICK: Duration = Duration::from_millis(50);
    let template = channels.template(&Shot::get(format!(
        "/api/v1/namespaces/bench/configmaps?bytes={bytes}"
    )))?;
    let tally = Tally::start()?;
    let mut readers = JoinSet::new();
    for _ in 0..plan.connections {
        let mut channel = channels.open().await?;
        for _ in 0..plan.streams.max(1) {
            let answer = channel.start(&template).await?;
            if !template.is_wanted(answer.status()) {
                bail!("answered {}", answer.status());
            }
            let (mut body, tally) = (answer.into_body(), Rc::clone(&tally));
            readers.spawn_local(async move {
                let portion = rate / 20;
                let mut owed = 0;
                while let Some(chunk) = body.data().await {
                    let length = chunk?.len();
                    body.flow_control().release_capacity(length)?;
                    tally.bytes(length as u64);
                    owed += length as u64;
                    while owed >= portion.max(1) {
                        owed -= portion.max(1);
                        sleep(TICK).await;
                    }
                }
                anyhow::Ok(())
            });
        }
        // The channel may go: its streams keep the connection.
    }
    tokio::select! {
        ended = readers.join_next() => {
            ended.context("nobody reads")???;
            bail!("a body of {bytes} bytes ended before memory was measured");
        }
        () = sleep(hold) => {}
    }
    gate.ready().await?;
    Ok(tally.outcome())
}

/// Upgraded connections, read to their end; `raw`: as kube-apiserver's own client.
pub(super) async fn tunnels(
    plan: &Plan,
    channels: &Rc<Channels>,
    (bytes, raw): (u64, bool),
    gate: &mut dyn Gate,
) -> Result<Outcome> {
    let inward = raw.then(|| channels.inward());
    let channels: &Channels = inward.as_ref().unwrap_or(channels);
    let mut open = Vec::new();
    for _ in 0..plan.connections {
        let (mut send, connection) = http1::handshake(TokioIo::new(channels.tls().await?)).await?;
        spawn_local(async move { drop(connection.with_upgrades().await) });
        open.push(send.ready().await.map(|()| send)?);
    }
    gate.ready().await?;
    let tally = Tally::start()?;
    let mut tasks = JoinSet::new();
    for send in open {
        let request = upgrade(channels, bytes)?;
        let tally = Rc::clone(&tally);
        tasks.spawn_local(async move {
            if let Err(error) = tunnel(send, request, bytes, &tally).await {
                tally.failed(&error);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task?;
    }
    Ok(tally.outcome())
}

fn upgrade(channels: &Channels, bytes: u64) -> Result<http::Request<Full<Bytes>>> {
    let path =
        format!("/api/v1/namespaces/bench/pods/one/exec?command=cat&stdout=true&bytes={bytes}");
    let mut request = channels.template(&Shot::post(path, 0))?.request();
    let headers = request.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.insert(
        "x-stream-protocol-version",
        HeaderValue::from_static("v4.channel.k8s.io"),
    );
    Ok(request)
}

async fn tunnel(
    mut send: http1::SendRequest<Full<Bytes>>,
    request: http::Request<Full<Bytes>>,
    bytes: u64,
    tally: &Tally,
) -> Result<()> {
    let began = Instant::now();
    let mut answer = send.send_request(request).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        bail!("the upgrade was answered {}", answer.status());
    }
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut answer).await?);
    let mut buffer = BytesMut::with_capacity(256 * 1024);
    let mut seen = 0_u64;
    loop {
        buffer.clear();
        let length = stream.read_buf(&mut buffer).await?;
        if length == 0 {
            bail!("the tunnel ended after {seen} of {bytes} bytes");
        }
        seen += length as u64;
        if seen >= bytes {
            tally.done(began.elapsed(), seen);
            return Ok(());
        }
    }
}
