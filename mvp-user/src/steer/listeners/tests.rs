//! Rules of the keys.
