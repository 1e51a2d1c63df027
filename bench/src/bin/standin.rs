//! The stand-in as a process.
#![forbid(unsafe_code)]
fn main() {}
