//! Integration tests over loopback: the whole data path in this process, real TLS, servers that are fakes or stand-ins.

mod client;
mod connections;
mod failover;
mod fake;
mod forwarding;
mod lanes;
mod learning;
mod plane;
mod streaming;
mod together;
mod upgrades;
