//! Connections to API servers: how they are opened (`dial`), kept, shared or paired with a client's connection.
//!
//! Not for what a request looks like (`forward`) nor for where it goes (`route`).

pub use self::dial::{
    CONNECT_TIMEOUT, DialError, Dialer, Exempt, HANDSHAKE_TIMEOUT, Stream, USER_TIMEOUT, tune,
};

mod dial;
