//! Whole servers over loopback: the recorded answers, and what the stand-in promises beside them.

mod recorded;
