//! The node proxy, in the order a connection meets it.
//!
//! The kernel steers a connection here (`steer`), it is accepted and its TLS terminated (`accept`), and each of its
//! requests is read twice (`identity`: who asks; `request_info`: what is asked), judged once (`route`) and leaves by
//! one of three doors (`discovery`, `forward`, `tunnel`). `serve` walks a request from room to room; `daemon` wires
//! the rooms. `docs/life-of-a-request.md` tells the same story in prose.
//!
//! A room may import what is above its line, never what is below (`cargo xtask lint` checks it).
#![forbid(unsafe_code)]

// Ground floor: words and tools that every room may use.
pub mod api;
pub mod body;
pub mod config;
pub mod metrics;
pub mod reply;
pub mod seldom;
pub mod spans;
pub mod throttle;
pub mod tls;
pub mod wire;

// Side rooms: what is known about the servers, and the connections to them.
pub mod table;

pub mod upstream;

pub mod health;

pub mod state;

pub mod peers;

// The corridor: a connection, then a request, passes these in order.
pub mod steer;

pub mod accept;

pub mod identity;

pub mod request_info;

pub mod route;

pub mod discovery;

pub mod forward;

pub mod splice;

pub mod tunnel;

pub mod serve;

// The office: builds, wires, drains; and looks at everything.
pub mod admin;
pub mod daemon;

pub mod cli;
