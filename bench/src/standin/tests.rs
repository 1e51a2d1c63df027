//! Whole servers over loopback: the recorded answers, and what the stand-in promises beside them.

mod connections;
mod faults;
mod identity;
mod life;
mod mix;
mod objects;
mod recorded;
mod upgrades;

use serde_json::Value;

use super::{
    Builder, Handle, Standin,
    client::{Answer, Client},
};
use crate::pki::ClusterPki;

/// A cluster of one, and who may ask it.
struct Cluster {
    pki: ClusterPki,
    server: Handle,
    admin: Client,
    anonymous: Client,
}

impl Cluster {
    async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    async fn with(change: impl FnOnce(Builder) -> Builder) -> Self {
        let pki = ClusterPki::new().unwrap();
        let server = change(Standin::builder(&pki)).start().await.unwrap();
        let anonymous = Client::new(&pki.ca.certificate.der);
        let admin = anonymous
            .clone()
            .certificate(&pki.client("admin", &["system:masters"]).unwrap());
        Self {
            pki,
            server,
            admin,
            anonymous,
        }
    }

    async fn get(&self, target: &str) -> Answer {
        self.admin.get(self.server.address(), target).await.unwrap()
    }

    async fn send(&self, method: &str, target: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.admin
            .send(
                self.server.address(),
                method,
                target,
                &headers,
                body.to_string().as_bytes(),
            )
            .await
            .unwrap()
    }
}
