//! Stand-in kube-apiserver and load tests.
#![forbid(unsafe_code)]

pub mod client;
