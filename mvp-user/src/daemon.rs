//! Builds the rooms in order, wires them, runs them, and drains them in reverse order: the only file that knows everyone.

pub mod steering;
