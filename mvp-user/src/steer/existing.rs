//! Closing direct connections that are older than steering.
