//! Load tests.
fn main() {}
