//! Bodies of every size are what was sent, byte for byte, over every pair of protocols, in small pieces and to slow readers.
//! The normal run goes up to some megabytes; `cargo xtask test soak` goes to a gibibyte.

use std::time::Duration;

use bench::pki::ClusterPki;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;

use crate::{
    client::{Wire, get, request},
    fake::{AnyBody, BoxError, Fake, Speaks, full, text},
    plane::{Plane, user},
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// The byte at a place: no lost, doubled or swapped piece goes unseen.
fn piece(at: usize, length: usize) -> Bytes {
    (at..at + length)
        .map(|at| u8::try_from((at ^ (at >> 8) ^ (at >> 16)) & 0xff).unwrap())
        .collect()
}

/// So many bytes in pieces.
fn body(length: usize, pieces: usize) -> AnyBody {
    let starts = (0..length).step_by(pieces);
    let frames = starts.map(move |at| {
        let piece = piece(at, pieces.min(length - at));
        Ok::<_, BoxError>(Frame::data(piece))
    });
    StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
}

/// Reads to the end and compares; how many bytes came.
async fn compare(mut body: Incoming, pause: Duration) -> usize {
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        assert!(data == piece(length, data.len()), "other bytes at {length}");
        length += data.len();
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    length
}

/// A server that sends what is asked for, and counts what it is sent.
async fn local(pki: &ClusterPki, speaks: Speaks) -> Fake {
    Fake::start(pki, speaks, |request: Request<Incoming>| async {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let numbers: Vec<usize> = query.split('-').flat_map(str::parse).collect();
        if let [length, pieces] = *numbers {
            return Ok(Response::new(body(length, pieces)));
        }
        let length = compare(request.into_body(), Duration::ZERO).await;
        Ok(text(200, length.to_string()))
    })
    .await
}

/// Down and up again.
async fn both_ways(wire: &mut Wire, client: &bench::client::Client, length: usize, pieces: usize) {
    let path = format!("/api/v1/pods?{length}-{pieces}");
    let answer = wire.send(get(client, &path)).await.unwrap();
    assert_eq!(compare(answer.into_body(), Duration::ZERO).await, length);
    let upload = request(client, "POST", "/api/v1/pods", body(length, pieces));
    let answer = wire.send(upload).await.unwrap();
    let counted = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(counted, length.to_string());
}

async fn every_size(sizes: &[usize]) {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = local(&pki, speaks).await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            let client = user(&pki, "jane", &[], http2);
            let mut wire = Wire::open(&client, plane.address).await;
            for length in sizes {
                both_ways(&mut wire, &client, *length, 64 * KIB).await;
            }
        }
    }
}

async fn ten_at_once(length: usize) {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = local(&pki, speaks).await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            let client = user(&pki, "jane", &[], http2);
            let transfers = (0..10).map(|number| {
                let client = client.clone();
                async move {
                    let mut wire = Wire::open(&client, plane.address).await;
                    both_ways(&mut wire, &client, length + number, 16 * KIB + number).await;
                }
            });
            futures_util::future::join_all(transfers).await;
        }
    }
}

#[tokio::test]
async fn bodies_of_every_size_are_what_was_sent() {
    let sizes = [
        0,
        1,
        32 * KIB,
        64 * KIB - 1,
        64 * KIB,
        64 * KIB + 1,
        MIB,
        4 * MIB + 1,
    ];
    every_size(&sizes).await;
}

#[tokio::test]
async fn ten_bodies_at_once_keep_their_bytes_apart() {
    ten_at_once(MIB).await;
}

#[tokio::test]
async fn small_pieces_to_a_slow_reader_all_arrive() {
    let pki = ClusterPki::new().unwrap();
    for speaks in [Speaks::Both, Speaks::Http1] {
        let local = local(&pki, speaks).await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            let client = user(&pki, "jane", &[], http2);
            let mut wire = Wire::open(&client, plane.address).await;
            let path = format!("/api/v1/pods?{}-1460", 300 * 1460 + 7);
            let answer = wire.send(get(&client, &path)).await.unwrap();
            let length = compare(answer.into_body(), Duration::from_millis(3)).await;
            assert_eq!(length, 300 * 1460 + 7);
        }
    }
}

#[tokio::test]
async fn what_an_answer_says_of_its_body_is_untouched() {
    let pki = ClusterPki::new().unwrap();
    // As kube-apiserver's lists above 128 KiB; mvp has no business to look inside.
    let zipped = piece(5, 300 * KIB);
    for speaks in [Speaks::Both, Speaks::Http1] {
        let content = zipped.clone();
        let local = Fake::start(&pki, speaks, move |request: Request<Incoming>| {
            let content = content.clone();
            async move {
                let answer = Response::builder().header("etag", "\"1\"");
                let answer = answer.header("vary", "Accept-Encoding, Accept");
                let query = request.uri().query().unwrap_or_default();
                Ok(match query.parse::<u16>() {
                    Ok(status) => answer.status(status).body(full("")).unwrap(),
                    Err(_) => answer
                        .header("content-encoding", "gzip")
                        .header("content-length", content.len())
                        .body(full(if request.method() == "HEAD" {
                            Bytes::new()
                        } else {
                            content
                        }))
                        .unwrap(),
                })
            }
        })
        .await;
        let plane = Plane::start(&pki, (local.address(), &["v1/pods"]), &[]).await;
        for http2 in [true, false] {
            let client = user(&pki, "jane", &[], http2);
            let mut wire = Wire::open(&client, plane.address).await;
            for method in ["GET", "HEAD"] {
                let asked = request(&client, method, "/api/v1/pods", full(""));
                let answer = wire.send(asked).await.unwrap();
                let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
                assert_eq!(header("content-encoding"), "gzip");
                assert_eq!(header("content-length"), zipped.len().to_string());
                assert_eq!(header("etag"), "\"1\"");
                assert_eq!(header("vary"), "Accept-Encoding, Accept");
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                assert!(body == if method == "GET" { &zipped[..] } else { b"" });
            }
            for status in [204, 304] {
                let path = format!("/api/v1/pods?{status}");
                let answer = wire.send(get(&client, &path)).await.unwrap();
                assert_eq!(answer.status(), status);
                assert_eq!(answer.headers()["etag"], "\"1\"");
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                assert!(body.is_empty());
            }
        }
    }
}

#[tokio::test]
#[ignore = "long: cargo xtask test soak"]
async fn a_gibibyte_is_what_was_sent() {
    every_size(&[100 * MIB, 1024 * MIB]).await;
    ten_at_once(100 * MIB).await;
}
