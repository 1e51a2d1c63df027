//! The programs that take part in a comparison.

use std::path::PathBuf;

/// The programs that take part.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `mvp`.
    pub mvp: PathBuf,
    /// `bench`: both load processes.
    pub bench: PathBuf,
    /// `HAProxy`.
    pub haproxy: Option<PathBuf>,
    /// nginx.
    pub nginx: Option<PathBuf>,
    /// `pingora-peer` (bench/peers/pingora).
    pub pingora: Option<PathBuf>,
    /// kube-apiserver.
    pub native: Option<Native>,
    /// Another build of mvp.
    pub build: Option<PathBuf>,
}

/// kube-apiserver with its own peer proxy.
#[derive(Clone, Debug)]
pub struct Native {
    /// E.g. v1.36.
    pub version: String,
    /// Its program.
    pub program: PathBuf,
    /// etcd.
    pub etcd: PathBuf,
}
