//! mvp.
fn main() {}
