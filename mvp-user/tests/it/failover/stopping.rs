//! A server that shuts down or starts: it says so, and has not worked on the request.

use std::sync::Mutex;

use bench::pki::ClusterPki;
use http::Response;
use http_body_util::BodyExt as _;
use mvp_user::table::Health;

use crate::{
    client::{Wire, get},
    fake::{Fake, Speaks, text},
    plane::{Plane, user},
    streaming::fed,
};

#[tokio::test]
async fn a_server_that_says_it_is_shutting_down_or_starting_has_not_worked_on_the_request() {
    let pki = ClusterPki::new().unwrap();
    let cases: [(u16, &'static str, Health); 3] = [
        (
            429,
            "The apiserver is shutting down, please try again later.\n",
            Health::Draining,
        ),
        (
            503,
            r#"{"kind":"Status","message":"apiserver is shutting down","code":503}"#,
            Health::Draining,
        ),
        (
            503,
            r#"{"kind":"Status","message":"the request has been made before all known HTTP paths have been installed, please try again","code":503}"#,
            Health::Starting,
        ),
    ];
    let serves: &[&str] = &["v1/pods", "v1/services"];
    for (status, body, health) in cases {
        let local = Fake::start(&pki, Speaks::Both, move |_| async move {
            let mut answer = text(status, body);
            answer
                .headers_mut()
                .insert("retry-after", "5".parse().unwrap());
            Ok(answer)
        })
        .await;
        let peer = Fake::echo(&pki, Speaks::Both, 201).await;
        let plane =
            Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
        let client = user(&pki, "jane", &[], true);
        let answer = client
            .once_with(plane.address, "POST", "/api/v1/pods", &[], "pod")
            .await
            .unwrap();
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "pod".into()));
        assert_eq!(plane.local.health(), health);
        // Alone, it speaks for itself.
        let alone = Plane::start(&pki, (local.address(), serves), &[]).await;
        let answer = client
            .once(alone.address, "GET", "/api/v1/pods")
            .await
            .unwrap();
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!(answer.text(), body);
        assert_eq!(answer.headers["retry-after"], "5");
        // So it does where only local may answer, whoever else could.
        let marked =
            Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
        let proxy = crate::plane::with_certificate(&pki, &pki.front_proxy_client().unwrap(), true);
        let marker = [
            ("x-remote-user", "jane"),
            ("x-kubernetes-peer-proxied", "true"),
        ];
        for (client, path, headers) in [
            (&client, "/version", &[][..]),
            (&proxy, "/api/v1/pods", &marker[..]),
        ] {
            let answer = client
                .once_with(marked.address, "GET", path, headers, "")
                .await
                .unwrap();
            assert_eq!(answer.status.as_u16(), status, "{path}");
            assert_eq!(answer.text(), body);
            assert_eq!(answer.headers["retry-after"], "5");
        }
        // A backend that says so is no kube-apiserver.
        let other =
            Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
        let answer = client
            .once(
                other.address,
                "GET",
                "/api/v1/namespaces/d/services/s/proxy/",
            )
            .await
            .unwrap();
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!(other.local.health(), Health::Up);
        // Nor is a kubelet, whose words kube-apiserver passes on.
        for subresource in ["log", "exec"] {
            let path = format!("/api/v1/namespaces/d/pods/p/{subresource}");
            let answer = client.once(other.address, "GET", &path).await.unwrap();
            assert_eq!(answer.status.as_u16(), 201, "{path}");
            assert_eq!(other.local.health(), Health::Up, "{path}");
        }
    }
}

#[tokio::test]
async fn a_watch_at_a_server_that_shuts_down_goes_on_beside_requests_that_go_elsewhere() {
    let pki = ClusterPki::new().unwrap();
    let serves: &[&str] = &["v1/pods"];
    for speaks in [Speaks::Both, Speaks::Http1] {
        let (feed, body) = fed();
        let watch = Mutex::new(Some(body));
        let local = Fake::start(&pki, speaks, move |_| {
            let watch = watch.lock().unwrap().take();
            async move {
                if let Some(watch) = watch {
                    return Ok(Response::new(watch));
                }
                let mut answer = text(
                    429,
                    "The apiserver is shutting down, please try again later.\n",
                );
                if speaks == Speaks::Http1 {
                    let headers = answer.headers_mut();
                    headers.insert("connection", "close".parse().unwrap());
                }
                Ok(answer)
            }
        })
        .await;
        let peer = Fake::named(&pki, speaks, "peer").await;
        let plane =
            Plane::start(&pki, (local.address(), serves), &[(peer.address(), serves)]).await;
        let client = user(&pki, "jane", &[], true);
        let mut wire = Wire::open(&client, plane.address).await;
        let asked = wire.send(get(&client, "/api/v1/pods?watch=1")).await;
        let mut watch = asked.unwrap().into_body();
        for _ in 0..3 {
            let answer = wire.send(get(&client, "/api/v1/pods")).await.unwrap();
            let answer = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(answer, "peer");
            feed.send(Ok("event".into())).await.unwrap();
            let event = watch.frame().await.unwrap().unwrap();
            assert_eq!(event.into_data().unwrap(), "event");
        }
        assert_eq!(plane.local.health(), Health::Draining);
        // Asked once, it is not asked again.
        assert_eq!(local.seen().len(), 2);
        drop(feed);
        let rest = watch.collect().await.unwrap().to_bytes();
        assert!(rest.is_empty(), "{rest:?}");
        assert!(!wire.is_closed());
    }
}
