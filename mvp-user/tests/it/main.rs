//! Integration tests over loopback.
mod learning;
