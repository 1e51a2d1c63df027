//! Misbehaviour of single requests.

use std::time::{Duration, SystemTime};

use super::Cluster;
use crate::standin::{Action, Fault, On};

fn fault(path: &str, action: Action) -> Fault {
    Fault {
        on: On::path(path),
        action,
        times: Some(1),
    }
}

#[tokio::test]
async fn answers_can_be_replaced_delayed_or_withheld_and_only_so_often() {
    let cluster = Cluster::new().await;
    let answer = Action::Answer {
        code: 500,
        headers: vec![("x-a".into(), "1".into())],
        body: "broken".into(),
    };
    cluster.server.fault(fault("/apis", answer));
    let broken = cluster.get("/apis").await;
    assert_eq!(
        (
            broken.status.as_u16(),
            broken.header("x-a"),
            &broken.body[..]
        ),
        (500, Some("1"), &b"broken"[..])
    );
    assert_eq!(cluster.get("/apis").await.status, 200);
    cluster.server.fault(fault("/apis", Action::Delay(300)));
    let before = SystemTime::now();
    assert_eq!(cluster.get("/apis").await.status, 200);
    assert!(before.elapsed().unwrap() >= Duration::from_millis(300));
    cluster.server.fault(Fault {
        times: None,
        ..fault("/ap*", Action::Hang)
    });
    let hanging = cluster.admin.get(cluster.server.address(), "/apis/apps");
    assert!(
        tokio::time::timeout(Duration::from_millis(300), hanging)
            .await
            .is_err()
    );
    assert_eq!(cluster.get("/version").await.status, 200);
    cluster.server.clear_faults();
    assert_eq!(cluster.get("/apis/apps").await.status, 200);
}

#[tokio::test]
async fn discovery_can_be_garbage_html_cut_gzip_or_huge() {
    let cluster = Cluster::new().await;
    cluster.server.fault(fault("/apis", Action::Garbage));
    assert!(cluster.get("/apis").await.json().is_err());
    cluster.server.fault(fault("/apis", Action::Html));
    assert!(
        cluster
            .get("/apis")
            .await
            .header("content-type")
            .unwrap()
            .starts_with("text/html")
    );
    cluster.server.fault(fault("/apis", Action::TruncatedGzip));
    let cut = cluster.get("/apis").await;
    assert_eq!(cut.header("content-encoding"), Some("gzip"));
    let mut plain = Vec::new();
    let read =
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&cut.body[..]), &mut plain);
    assert!(read.is_err());
    cluster
        .server
        .fault(fault("/apis", Action::Huge(5_000_000)));
    let huge = cluster.get("/apis").await;
    assert!(
        huge.body.len() >= 5_000_000
            && huge.json().unwrap()["items"].as_array().unwrap().len() > 1000
    );
}

#[tokio::test]
async fn bodies_can_break_off_hang_drip_and_carry_trailers() {
    let cluster = Cluster::new().await;
    let http2 = cluster.admin.clone().http2();
    let target = "/debug/bytes?n=100000";
    for client in [&cluster.admin, &http2] {
        for action in [Action::Truncate(1000), Action::Reset(1000)] {
            cluster.server.fault(fault("/debug/bytes", action.clone()));
            let ended = client.get(cluster.server.address(), target).await;
            assert!(ended.is_err(), "{action:?} looks complete");
        }
        cluster
            .server
            .fault(fault("/debug/bytes", Action::HangBody(10)));
        let hanging = client.get(cluster.server.address(), target);
        assert!(
            tokio::time::timeout(Duration::from_millis(300), hanging)
                .await
                .is_err()
        );
        cluster.server.fault(fault(
            "/debug/bytes",
            Action::Drip {
                bytes: 4,
                every_ms: 20,
            },
        ));
        let before = SystemTime::now();
        let slow = client
            .get(cluster.server.address(), "/debug/bytes?n=40")
            .await
            .unwrap();
        assert_eq!(
            &slow.body[..],
            b"000000000000000\n000000000000010\n00000000"
        );
        assert!(before.elapsed().unwrap() >= Duration::from_millis(200));
        cluster.server.fault(fault(
            "/version",
            Action::Headers(vec![
                ("x-many".into(), "a".into()),
                ("x-many".into(), "b".into()),
            ]),
        ));
        let answer = client
            .get(cluster.server.address(), "/version")
            .await
            .unwrap();
        assert_eq!(answer.headers.get_all("x-many").iter().count(), 2);
    }
    cluster.server.fault(fault(
        "/version",
        Action::Trailers(vec![("x-sum".into(), "1".into())]),
    ));
    let mut connection = http2.connect(cluster.server.address()).await.unwrap();
    let response = connection
        .send(http2.request("GET", "/version", &[], b"").unwrap())
        .await
        .unwrap();
    let whole = http_body_util::BodyExt::collect(response.into_body())
        .await
        .unwrap();
    assert_eq!(whole.trailers().unwrap()["x-sum"], "1");
}

#[tokio::test]
async fn a_stream_can_be_refused() {
    let cluster = Cluster::new().await;
    let http2 = cluster.admin.clone().http2();
    cluster
        .server
        .fault(fault("/version", Action::ResetStream(7)));
    let error = http2
        .get(cluster.server.address(), "/version")
        .await
        .unwrap_err();
    assert!(format!("{error:?}").contains("refused stream"), "{error:?}");
    cluster
        .server
        .fault(fault("/version", Action::ShuttingDown));
    assert_eq!(
        http2
            .get(cluster.server.address(), "/version")
            .await
            .unwrap()
            .status,
        429
    );
}

#[tokio::test]
async fn an_early_final_answer_comes_before_the_body() {
    let cluster = Cluster::new().await;
    let answer = Action::Answer {
        code: 403,
        headers: vec![],
        body: String::new(),
    };
    cluster.server.fault(fault("/api/v1/namespaces", answer));
    let refused = cluster
        .admin
        .send(
            cluster.server.address(),
            "POST",
            "/api/v1/namespaces",
            &[],
            &vec![b'x'; 100_000],
        )
        .await;
    // HTTP/1.1: the answer, or a reset if the client was still writing.
    if let Ok(refused) = refused {
        assert_eq!(refused.status, 403);
    }
    assert_eq!(cluster.server.requests()[0].body_bytes, 0);
}
