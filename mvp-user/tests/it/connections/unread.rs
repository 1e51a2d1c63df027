//! Clients that do not take what they asked for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bench::pki::ClusterPki;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{
    client::{Wire, get},
    fake::{Fake, Speaks, full},
    plane::{Plane, user},
    streaming::fed,
};

/// Between two looks.
const WHILE: Duration = Duration::from_millis(500);

#[tokio::test]
async fn where_memory_runs_out_who_takes_nothing_is_ended_and_who_reads_or_waits_is_not() {
    let pki = ClusterPki::new().unwrap();
    let (hand_over, mut watches) = mpsc::unbounded_channel();
    let local = Fake::start(&pki, Speaks::Both, move |request: Request<Incoming>| {
        let (feed, fed) = fed();
        let body = match request.uri().query() {
            Some("watch=1") => {
                hand_over.send(feed).unwrap();
                fed
            }
            Some("endless") => {
                let piece = Bytes::from(vec![0_u8; 64 * 1024]);
                tokio::spawn(async move { while feed.send(Ok(piece.clone())).await.is_ok() {} });
                fed
            }
            _ => full(vec![0_u8; 200 * 1024]),
        };
        async move { Ok(Response::new(body)) }
    })
    .await;
    let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
    let client = user(&pki, "jane", &[], true);

    // An idle watch.
    let mut watcher = Wire::open(&client, plane.address).await;
    let watch = watcher.send(get(&client, "/api/v1/pods?watch=1")).await;
    let mut watch = watch.unwrap().into_body();
    let feed = watches.recv().await.unwrap();
    // A reader that is slower than the server.
    let mut reader = Wire::open(&client, plane.address).await;
    let list = reader.send(get(&client, "/api/v1/pods?endless")).await;
    let mut list = list.unwrap().into_body();
    let read = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&read);
    let reading = tokio::spawn(async move {
        while let Some(Ok(frame)) = list.frame().await {
            count.fetch_add(frame.data_ref().map_or(0, Bytes::len), Ordering::SeqCst);
            sleep(Duration::from_millis(2)).await;
        }
    });
    // One that reads nothing over HTTP/1.1, and one that gives no window for any of fifty short answers.
    let mut deaf = user(&pki, "jane", &[], false)
        .tls(plane.address)
        .await
        .unwrap();
    let head = b"GET /api/v1/pods?endless HTTP/1.1\r\nHost: a\r\n\r\n";
    deaf.write_all(head).await.unwrap();
    let io = client.tls(plane.address).await.unwrap();
    let (mut send, connection) = h2::client::Builder::new()
        .initial_window_size(0)
        .handshake::<_, Bytes>(io)
        .await
        .unwrap();
    let stalled = tokio::spawn(connection);
    let mut unread = Vec::new();
    for _ in 0..50 {
        send = send.ready().await.unwrap();
        let request = Request::get("https://a/api/v1/pods").body(()).unwrap();
        let (answer, _) = send.send_request(request, true).unwrap();
        unread.push(answer.await.unwrap());
    }

    // As if nothing waited in sockets.
    let look = |wanted| plane.shared.backlogs.look(|_| 0, wanted);
    sleep(WHILE).await;
    assert_eq!(look(usize::MAX).connections, 0, "nobody was seen before");
    sleep(WHILE).await;
    assert_eq!(look(0).connections, 0, "nothing is wanted");
    sleep(WHILE).await;
    let ended = look(1);
    assert_eq!(ended.connections, 1);
    assert!(ended.bytes > 50 * 200 * 1024, "{ended:?}");
    let end = timeout(Duration::from_secs(5), stalled).await;
    end.expect("it goes on").unwrap().ok();
    sleep(WHILE).await;
    assert_eq!(look(usize::MAX).connections, 1);
    let mut buffer = vec![0; 64 * 1024];
    let end = async { while matches!(deaf.read(&mut buffer).await, Ok(1..)) {} };
    timeout(Duration::from_secs(30), end).await.unwrap();
    // The others are there.
    sleep(WHILE).await;
    assert_eq!(look(usize::MAX).connections, 0);
    feed.send(Ok("event".into())).await.unwrap();
    let event = timeout(Duration::from_secs(5), watch.frame()).await;
    let event = event.unwrap().unwrap().unwrap();
    assert_eq!(event.into_data().unwrap(), "event");
    assert!(!reading.is_finished());
    assert!(read.load(Ordering::SeqCst) > 1024 * 1024);
}
