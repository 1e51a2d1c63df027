//! Builds the eBPF program.
fn main() {}
