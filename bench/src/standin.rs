//! A stand-in kube-apiserver, honest enough to stand for one in tests, in the demo and under load: its TLS, its authentication order, its
//! recorded discovery in every form, its words for every refusal, its start and stop, its watches and upgrades. It is not a
//! kube-apiserver: no validation, no admission, no RBAC (a few [`Rule`]s), objects only as JSON or YAML, strategic merge patch treated as
//! merge patch.
//!
//! Servers of one cluster share a [`Store`] as they would share an etcd, and one [`ClusterPki`](crate::pki::ClusterPki):
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use bench::pki::ClusterPki;
//! use bench::standin::{Action, Fault, On, Release, Standin, Store, User};
//!
//! let pki = ClusterPki::new()?;
//! let store = Store::memory();
//! let old = Standin::builder(&pki).release(Release::V1_34).store(&store).token("secret", User::service_account("default", "app"))
//!     .start().await?;                                        // waits until /readyz is 200
//! let new = Standin::builder(&pki).release(Release::V1_36).store(&store).off("batch/v1").start().await?;
//!
//! old.fault(Fault { on: On::path("/apis"), action: Action::Hang, times: Some(1) });
//! // … requests to https://{old.address()} …
//! let seen = old.requests();                                  // method, target, header lines, user, connection, status
//! assert!(seen.iter().all(|request| request.header("x-remote-user").is_empty()));
//! new.kill().await;                                           // kill -9: the endpoint stays until its lease ends
//! let new = new.restart().await?;                             // same address, certificate and store
//! new.stop_gracefully().await;
//! # Ok(()) }
//! ```
//!
//! * What is served: [`Builder::release`], [`Builder::all_apis`], [`Builder::off`] (group-version, resource, subresource or verb),
//!   [`Builder::on`]; a `CustomResourceDefinition` created through any server is served by all.
//! * Who is known: [`Builder::authentication`] for everything, [`Builder::token`], [`Builder::allow`] for rules. `system:masters` may do
//!   all, authenticated users discovery and self reviews, anonymous only health and version.
//! * What went wrong: [`Handle::fault`] for requests; [`Handle::silence`], [`Handle::refuse`], [`Handle::reset_connections`],
//!   [`Handle::go_away`], [`Handle::refuse_next_stream`], [`Handle::cut_after`] for connections; [`Handle::set_limits`],
//!   [`Handle::set_protocols`] for what new connections are offered.
//! * What was seen: [`Handle::requests`], [`Handle::connections`], [`Store::writes`] (a create that arrived twice shows as
//!   `repeated_creates`).
//! * `GET /debug/bytes?n=N` is a body of N bytes of known content ([`pattern`]) (for users who may everything).
//!
//! Each server runs on a runtime and threads of its own, so a test may block or pause its clock. Dropping the [`Handle`] kills the server.
//! The binary `standin-apiserver` is the same behind flags, with a control socket ([`control::Command`], JSON lines).

mod accept;
mod authn;
mod authz;
mod body;
mod builder;
mod call;
pub mod client;
mod clock;
mod conn;
pub mod control;
mod discovery;
mod documents;
mod faults;
mod fixtures;
mod forms;
mod frames;
mod handle;
mod info;
mod keeper;
mod life;
mod log;
mod loopback;
mod misbehave;
mod model;
mod objects;
mod openapi;
mod plain;
mod reply;
mod schemas;
mod serve;
mod server;
mod status;
mod store;
#[cfg(test)]
mod tests;
mod tls;
mod upgrade;
mod wire;

/// One of the recorded OpenAPI files, by its name in the archive: `1.36/v3__apis_apps_v1.json`.
pub fn recorded_openapi(name: &str) -> anyhow::Result<bytes::Bytes> {
    fixtures::file(fixtures::openapi()?, name)
}

pub use authn::{Authentication, RequestHeader, User};
pub use authz::Rule;
pub use body::pattern;
pub use builder::{Builder, Standin};
pub use faults::{Action, Fault, On};
pub use handle::Handle;
pub use life::Timing;
pub use log::{Connection, Seen};
pub use model::{Gvk, Release, Resource, Serving, Subresource};
pub use server::{Limits, Phase};
pub use store::{Event, Store, StoreError, Stored, Writes, key};
pub use tls::Protocols;
