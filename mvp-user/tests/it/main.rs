//! Integration tests over loopback: the whole data path in this process, real TLS, servers that are fakes or stand-ins.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::tests_outside_test_module,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unused_result_ok,
    clippy::unused_async,
    clippy::mem_forget,
    clippy::used_underscore_binding,
    clippy::explicit_counter_loop,
    clippy::explicit_write,
    reason = "test binary"
)]

mod checks;
mod client;
mod connections;
mod discovery;
mod equality;
mod failover;
mod fake;
mod forwarding;
mod lanes;
mod learning;
mod memory;
mod node;
mod page;
mod plane;
mod private;
mod process;
mod road;
mod spans;
mod streaming;
mod together;
mod upgrades;
