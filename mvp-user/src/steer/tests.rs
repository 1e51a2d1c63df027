//! What can be told about the embedded object without privileges.
