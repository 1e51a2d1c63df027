//! The same, with a running mvp that is asked.

use std::{
    process::{Child, Stdio},
    time::Duration,
};

use bench::pki::{Leaf, Subject};
use mvp_user::admin::wire::Grade;

use super::Site;
use crate::plane::with_certificate;

/// A process that does not outlive its test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test]
async fn a_running_mvp_tells_what_only_it_knows() {
    let site = Site::new().await;
    let socket = format!("--control-socket={}", site.path("mvp.sock").display());
    let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listen.local_addr().unwrap();
    drop(listen);
    let child = site
        .command(
            "run",
            &[
                &socket,
                &format!("--listen={address}"),
                "--metrics-listen=127.0.0.1:0",
            ],
        )
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _daemon = Daemon(child);
    let odd = Leaf::client(Subject::new().cn("alice").o(" spaced"));
    let odd = site.pki.ca.issue(&odd).unwrap();
    let client = with_certificate(&site.pki, &odd, false);
    let start = tokio::time::Instant::now();
    loop {
        let answer = client.once(address, "GET", "/api/v1/pods").await;
        if answer.is_ok_and(|answer| answer.status == 401) {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "mvp does not answer"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let report = loop {
        let report = site.check(&[&socket]).await;
        if report.get("mvp").result == Grade::Ok {
            break report;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{report:#?}");
    };
    report.names("mvp", Grade::Ok, "pid", "");
    report.names(
        "user certificates",
        Grade::Warn,
        "no header can carry",
        "reissue",
    );
    report.get("discovery of local");
    report.get(&format!("discovery of {}", site.peer.address()));
    report.get("steering");
    report.names("peer", Grade::Ok, "up", "");
    // Files that broke since they were read are seen although the last good ones are in use.
    site.put("ca.crt", "nothing");
    let report = site.check(&[&socket]).await;
    report.names(
        "--client-ca-file",
        Grade::Fail,
        "holds no certificate",
        "PEM",
    );
    site.put("ca.crt", &site.pki.ca.pem());
    site.peer.kill().await;
    let report = site.check(&[&socket]).await;
    report.names("peer", Grade::Fail, "refused", "running?");
}
