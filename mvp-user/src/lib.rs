//! The node proxy.
#![forbid(unsafe_code)]
