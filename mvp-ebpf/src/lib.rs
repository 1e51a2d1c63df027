//! What the eBPF program and user space share.
#![no_std]
