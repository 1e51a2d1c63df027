//! Kernel tests: the program is loaded, attached and asked, each test in a network namespace of
//! its own. Not run by a plain `cargo test` (`test = false`); `cargo xtask test kernel` runs them
//! as root with `MVP_KERNEL_TESTS=require`, which turns a missing privilege into a failure.
#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::tests_outside_test_module,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stderr,
    reason = "test binary"
)]

mod support;

mod bind_forms;
mod choice;
mod existing;
mod failure;
mod life;
mod measure;
mod neighbours;
