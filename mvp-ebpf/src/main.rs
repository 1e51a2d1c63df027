//! The steering program.
fn main() {}
