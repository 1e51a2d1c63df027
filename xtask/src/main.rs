//! Conducts.
fn main() {}
