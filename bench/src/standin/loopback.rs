//! A kube-apiserver's own client: it dials its own port and trusts only the certificate that it made in memory for
//! `apiserver-loopback-client`. If something in between answers instead, the server is not ready: a real one would not work at all.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{client::Client, server::Server, tls::LOOPBACK_NAME};

/// How often it asks once it works, and while it does not.
const EVERY: Duration = Duration::from_millis(500);
/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where a server finds itself (`LoopbackHostPort`).
fn itself(bound: SocketAddr) -> SocketAddr {
    let address = match bound.ip() {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        address => address,
    };
    SocketAddr::new(address, bound.port())
}

async fn ask(server: &Server) -> anyhow::Result<()> {
    let authority = &server.loopback.cert[1];
    let client = Client::new(authority)
        .server_name(LOOPBACK_NAME)
        .token(&server.loopback_token);
    let answer =
        tokio::time::timeout(PATIENCE, client.get(itself(server.bind), "/livez")).await??;
    anyhow::ensure!(answer.status == 200, "the answer is {}", answer.status);
    Ok(())
}

async fn once(server: &Server) -> bool {
    let asked = ask(server).await;
    let works = asked.is_ok();
    match asked {
        Ok(()) => server.loopback_answers.fetch_add(1, Ordering::Relaxed),
        Err(error) => {
            tracing::warn!(%error, "The server cannot reach itself");
            server.loopback_failures.fetch_add(1, Ordering::Relaxed)
        }
    };
    server.reaches_itself.store(works, Ordering::Relaxed);
    works
}

/// Returns once the server has reached itself.
pub(crate) async fn established(server: &Server) {
    while !once(server).await {
        tokio::time::sleep(EVERY).await;
    }
}

/// Asks for ever.
#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
pub(crate) async fn keep(server: Arc<Server>) {
    loop {
        tokio::time::sleep(EVERY).await;
        once(&server).await;
    }
}
