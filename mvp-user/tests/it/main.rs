//! Integration tests over loopback.
