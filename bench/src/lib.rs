//! What tests, demo and load tests share: a cluster's certificates, a stand-in kube-apiserver, plain clients.
#![forbid(unsafe_code)]

pub mod client;
pub mod compare;
pub mod load;
pub mod pki;
pub mod standin;
