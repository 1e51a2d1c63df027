//! Log lines that clients can provoke, bounded: one [`Throttle`] stands before each such line.
//!
//! What is left out is counted and told by the next line that gets through; metrics count all of it in any case. One
//! number and one time per line of code, whoever provokes it. Not for what only this node or its servers can cause.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// A bucket of lines: so many at once, then so many a second.
#[derive(Debug)]
pub struct Throttle {
    burst: f64,
    per_second: f64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// Lines that may be written now, as of `at`.
    lines: f64,
    at: Option<Instant>,
    left_out: u64,
}

impl Throttle {
    /// At most `burst` lines at once and `per_second` in the long run.
    pub fn new(burst: u16, per_second: u16) -> Self {
        Self {
            burst: f64::from(burst),
            per_second: f64::from(per_second),
            bucket: Mutex::new(Bucket {
                lines: f64::from(burst),
                at: None,
                left_out: 0,
            }),
        }
    }

    /// Whether the line may be written: how many were left out since the last one that was. None: leave it out.
    pub fn admit(&self) -> Option<u64> {
        let now = Instant::now();
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = bucket.at.replace(now) {
            let earned = (now - at).as_secs_f64() * self.per_second;
            bucket.lines = (bucket.lines + earned).min(self.burst);
        }
        if bucket.lines < 1.0 {
            bucket.left_out += 1;
            return None;
        }
        bucket.lines -= 1.0;
        Some(std::mem::take(&mut bucket.left_out))
    }
}

/// The begin of a client's text, as much of it as belongs into a line.
pub fn short(text: &str) -> &str {
    const LONGEST: usize = 1024;
    &text[..text.floor_char_boundary(LONGEST)]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_cut_to_its_rate_and_what_is_left_out_is_told() {
        let throttle = Throttle::new(3, 2);
        let flood = |count: u64| {
            (0..count)
                .filter_map(|_| throttle.admit())
                .collect::<Vec<_>>()
        };
        assert_eq!(flood(100), [0, 0, 0]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(flood(10), [97, 0]);
        // However long it was quiet, no more than the burst comes at once.
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(flood(10), [8, 0, 0]);
    }
}
