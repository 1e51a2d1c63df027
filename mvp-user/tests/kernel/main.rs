//! Kernel tests.
fn main() {}
