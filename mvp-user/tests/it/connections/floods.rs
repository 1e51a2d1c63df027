//! Clients that take their requests back (rapid reset, CVE-2023-44487), and one that holds all connections.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bench::{client::Client, pki::ClusterPki};
use http::Request;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::{sleep, timeout};

use crate::{
    fake::{Fake, Speaks, text},
    plane::{Plane, user},
    streaming::eventually,
};

/// What a [`Flood`] asks for and takes back.
const LATE: &str = "/api/v1/pods?late";

/// A client's connection whose requests can be taken back, and an upstream that keeps those with a query waiting.
struct Flood {
    client: Client,
    plane: Plane,
    local: Fake,
    send: h2::client::SendRequest<bytes::Bytes>,
    closed: Arc<AtomicBool>,
    reached: Arc<AtomicUsize>,
}

impl Flood {
    async fn open() -> Self {
        let pki = ClusterPki::new().unwrap();
        let reached = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&reached);
        let local = Fake::start(&pki, Speaks::Both, move |request: Request<Incoming>| {
            let late = request.uri().query().is_some();
            count.fetch_add(usize::from(late), Ordering::SeqCst);
            async move {
                if late {
                    sleep(Duration::from_mins(1)).await;
                }
                Ok(text(200, "ok"))
            }
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        let client = user(&pki, "jane", &[], true);
        let io = client.tls(plane.address).await.unwrap();
        let (send, connection) = h2::client::handshake(io).await.unwrap();
        let closed = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&closed);
        tokio::spawn(async move {
            connection.await.ok();
            flag.store(true, Ordering::SeqCst);
        });
        Self {
            client,
            plane,
            local,
            send,
            closed,
            reached,
        }
    }

    /// One more request; `None`: the connection takes no more.
    async fn get(&mut self, path: &str) -> Option<h2::client::ResponseFuture> {
        self.send = self.send.clone().ready().await.ok()?;
        let request = Request::get(format!("https://a{path}")).body(()).unwrap();
        let (answer, _) = self.send.send_request(request, true).ok()?;
        Some(answer)
    }

    /// Whether mvp has closed the connection.
    fn is_over(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Requests for [`LATE`] that were passed on so far.
    fn reached(&self) -> usize {
        self.reached.load(Ordering::SeqCst)
    }

    async fn leaves_others_alone(&self) {
        let answer = self.client.once(self.plane.address, "GET", "/api/v1/pods");
        assert_eq!(answer.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_burst_of_cancelled_requests_is_survived_and_a_flood_is_cut_off() {
    let mut flood = Flood::open().await;
    let mut burst = Vec::new();
    for _ in 0..90 {
        burst.push(flood.get(LATE).await.unwrap());
    }
    sleep(Duration::from_millis(100)).await;
    drop(burst);
    sleep(Duration::from_millis(100)).await;
    let answer = flood.get("/api/v1/pods").await.unwrap();
    assert_eq!(answer.await.unwrap().status(), 200);
    let before = flood.reached();
    for round in 0..5_000 {
        if flood.is_over() {
            break;
        }
        let Some(answer) = flood.get(LATE).await else {
            break;
        };
        drop(answer);
        if round % 50 == 0 {
            tokio::task::yield_now().await;
        }
    }
    eventually("the flood is cut off", || flood.is_over()).await;
    let reached = flood.reached() - before;
    assert!(
        reached < 1000,
        "{reached} requests of the flood reached the upstream"
    );
    flood.leaves_others_alone().await;
}

#[tokio::test]
async fn requests_that_reach_the_upstream_before_they_are_cancelled_are_a_flood_as_well() {
    let mut flood = Flood::open().await;
    for round in 1..=50 {
        let mut cancelled = Vec::new();
        for _ in 0..50 {
            let Some(answer) = flood.get(LATE).await else {
                break;
            };
            cancelled.push(answer);
        }
        eventually("all are there", || {
            flood.is_over() || flood.reached() >= 50 * round
        })
        .await;
        if flood.is_over() {
            break;
        }
    }
    eventually("the flood is cut off", || flood.is_over()).await;
    let reached = flood.reached();
    assert!(reached < 1000, "{reached} requests reached the upstream");
    flood.leaves_others_alone().await;
}

#[tokio::test]
async fn who_holds_every_shared_connection_leaves_others_some() {
    let pki = ClusterPki::new().unwrap();
    let reached = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&reached);
    // One stream on each, so that few requests hold all of them.
    let local = Fake::raw(&pki, Speaks::Both, Arc::default(), move |io, _| {
        let count = Arc::clone(&count);
        async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let late = request.uri().query().is_some();
                count.fetch_add(usize::from(late), Ordering::SeqCst);
                async move {
                    if late {
                        sleep(Duration::from_mins(10)).await;
                    }
                    Ok::<_, std::io::Error>(text(200, "ok"))
                }
            });
            let mut server = http2::Builder::new(TokioExecutor::new());
            server.max_concurrent_streams(1);
            drop(server.serve_connection(TokioIo::new(io), service).await);
        }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let eve = user(&pki, "eve", &[], true);
    let mut held = Vec::new();
    for _ in 0..3 {
        let io = eve.tls(plane.address).await.unwrap();
        let (mut send, connection) = h2::client::handshake(io).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..90 {
            send = send.ready().await.unwrap();
            let request = Request::get(format!("https://a{LATE}")).body(()).unwrap();
            held.push(send.send_request(request, true).unwrap());
        }
    }
    // As many connections as a thread shares.
    let all = async {
        while reached.load(Ordering::SeqCst) < 256 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_mins(1), all).await.unwrap();
    let jane = user(&pki, "jane", &[], true);
    let answer = jane.once(plane.address, "GET", "/api/v1/pods");
    assert_eq!(answer.await.unwrap().status, 200);
}

#[tokio::test]
async fn what_one_client_takes_back_does_not_pile_up_on_the_connection_of_all() {
    let mut flood = Flood::open().await;
    for round in 1..=2 {
        let mut asked = Vec::new();
        for _ in 0..80 {
            asked.push(flood.get(LATE).await.unwrap());
        }
        eventually("all are there", || flood.reached() == 80 * round).await;
        drop(asked);
        // Until mvp has heard of it; a server may be at it for longer.
        sleep(Duration::from_millis(30)).await;
    }
    let late = flood.local.seen().into_iter();
    let late = late.filter(|it| it.uri.query().is_some());
    let used: HashSet<usize> = late.map(|it| it.connection).collect();
    assert!(used.len() > 1, "160 requests on connection {used:?}");
    flood.leaves_others_alone().await;
}
