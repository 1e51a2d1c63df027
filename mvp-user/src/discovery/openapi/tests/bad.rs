//! Other servers that answer with anything but their OpenAPI: the last good document is kept, and the rest is not spoilt.

use super::*;
use crate::discovery::answer::compress;

/// What the peer answers, once there is something; else what it should.
#[derive(Debug)]
struct Liar {
    honest: Arc<Peer>,
    lie: Mutex<Option<(StatusCode, &'static str, Bytes, bool)>>,
    /// The only server that lies; none: every one.
    who: Option<ServerId>,
}

impl Fetch for Liar {
    fn fetch(&self, server: Arc<Server>, request: FetchRequest, done: Done) {
        let lie = self.lie.lock().unwrap().clone();
        match lie {
            Some((status, content_type, body, gzip))
                if self.who.is_none_or(|who| who == server.id) =>
            {
                let mut headers = http::HeaderMap::new();
                headers.insert("content-type", HeaderValue::from_static(content_type));
                headers.insert("etag", HeaderValue::from_static("\"new\""));
                if gzip {
                    headers.insert("content-encoding", HeaderValue::from_static("gzip"));
                }
                done(Ok(Fetched {
                    status,
                    headers,
                    body,
                }));
            }
            _ => self.honest.fetch(server, request, done),
        }
    }
}

fn peer() -> Arc<Peer> {
    Arc::new(Peer {
        version: "1.36",
        mode: Mutex::new(Mode::Good),
        fetched: AtomicUsize::new(0),
        held: Mutex::default(),
    })
}

fn liars(versions: &[&str], who: Option<usize>) -> (World, Arc<Liar>) {
    let (discovery, nodes) = cluster(versions);
    let liar = Arc::new(Liar {
        honest: peer(),
        lie: Mutex::default(),
        who: who.map(|who| nodes[who].server.id),
    });
    let world = World {
        discovery: discovery.with_fetch(Arc::clone(&liar) as Arc<dyn Fetch>),
        local: Arc::clone(&nodes[0].server),
        other: Arc::clone(&nodes[1].server),
        peer: Arc::clone(&liar.honest),
    };
    (world, liar)
}

fn lies() -> Vec<(StatusCode, &'static str, Bytes, bool)> {
    let document = file("1.36/v3__apis_admissionregistration.k8s.io_v1.json");
    let mut packed = compress(&document).unwrap().to_vec();
    packed.truncate(packed.len() / 2);
    let mut half = document.to_vec();
    half.truncate(half.len() / 2);
    let json = "application/json";
    vec![
        (
            StatusCode::OK,
            json,
            Bytes::from_static(b"<html>no</html>"),
            false,
        ),
        (StatusCode::OK, "text/html", document.clone(), false),
        (StatusCode::OK, PROTO, document, false),
        (StatusCode::OK, json, packed.into(), true),
        (StatusCode::OK, json, half.into(), false),
        (StatusCode::OK, json, Bytes::new(), false),
        (
            StatusCode::OK,
            json,
            Bytes::from_static(br#"{"kind":"Status","apiVersion":"v1"}"#),
            false,
        ),
        (StatusCode::OK, json, Bytes::from_static(b"[]"), false),
        (StatusCode::MOVED_PERMANENTLY, json, Bytes::new(), false),
        (StatusCode::NOT_ACCEPTABLE, json, Bytes::new(), false),
        (StatusCode::TOO_MANY_REQUESTS, json, Bytes::new(), false),
        (StatusCode::FORBIDDEN, json, Bytes::new(), false),
    ]
}

#[tokio::test(start_paused = true)]
async fn the_last_good_document_is_kept_through_every_bad_answer() {
    for lie in lies() {
        let what = format!("{:?} {} {}", lie.0, lie.1, lie.2.len());
        let (world, liar) = liars(&["1.34", "1.36"], None);
        let (index, (_, good, _)) = (world.index().await, world.get(GV, &[]).await.unwrap());
        liar.lie.lock().unwrap().replace(lie);
        world.changed(2);
        for _ in 0..3 {
            assert!(world.get(GV, &[]).await.unwrap().1 == good, "{what}");
            assert_eq!(world.index().await, index, "{what}");
        }
        assert_eq!(world.discovery.counters.builds(), 1, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_good_document_the_servers_own_goes_out_and_is_counted() {
    for lie in lies() {
        let what = format!("{:?} {} {}", lie.0, lie.1, lie.2.len());
        let (world, liar) = liars(&["1.34", "1.36"], None);
        liar.lie.lock().unwrap().replace(lie);
        let (parts, body, _) = world.get(GV, &[]).await.unwrap();
        assert_eq!(parts.status, StatusCode::OK);
        assert!(
            body == file("1.34/v3__apis_admissionregistration.k8s.io_v1.json"),
            "{what}"
        );
        assert_eq!(world.index().await, own_index("1.34"), "{what}");
        assert_eq!(world.discovery.counters.openapi_fallbacks(), 2, "{what}");
        assert_eq!(world.discovery.counters.builds(), 0, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_bad_server_does_not_spoil_what_the_others_add() {
    let (world, _) = liars(&["1.34", "1.36"], None);
    let alone = world.index().await;
    for lie in lies() {
        let what = format!("{:?} {} {}", lie.0, lie.1, lie.2.len());
        let (world, liar) = liars(&["1.34", "1.36", "1.34-all"], Some(2));
        liar.lie.lock().unwrap().replace(lie);
        assert_eq!(world.index().await, alone, "{what}");
        assert_eq!(world.discovery.counters.openapi_fallbacks(), 1, "{what}");
    }
}
