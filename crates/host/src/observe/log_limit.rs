//! A limit on the log lines that unauthenticated peers can cause.
//!
//! Problem: an unauthenticated peer can cause log lines as fast as it connects or requests exports,
//! which would fill the disk and hide important lines. Model: one token bucket for all such lines
//! of the server: a burst of `BURST` lines, then `PER_SECOND` a second. The process has one bucket,
//! because it has one log. Lines without a token are counted. Once a second a line reports their
//! number, and `fairq_log_lines_suppressed_total` has their sum.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of lines that may be written at once after a quiet time. It suffices for a host that
/// reconnects all its disks.
const BURST: u32 = 256;
/// The number of lines a second in the long run.
const PER_SECOND: u32 = 10;

/// The limit of all lines that unauthenticated peers cause.
pub static STRANGERS: LogLimit = LogLimit::new();

/// A limit on lines of the log.
#[derive(Debug)]
pub struct LogLimit(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    tokens: u32,
    /// The time when tokens were last added; `None` until the first line.
    filled: Option<Instant>,
    /// Lines that were not written.
    suppressed: u64,
    /// The suppressed lines that have been reported.
    told: u64,
}

impl LogLimit {
    /// A full bucket.
    pub const fn new() -> LogLimit {
        LogLimit(Mutex::new(Bucket { tokens: BURST, filled: None, suppressed: 0, told: 0 }))
    }

    /// Whether a line may be written now; a suppressed line is counted.
    pub fn allows(&self) -> bool {
        self.allows_at(Instant::now())
    }

    fn allows_at(&self, now: Instant) -> bool {
        let mut bucket = self.lock();
        let filled = *bucket.filled.get_or_insert(now);
        let period = Duration::from_secs(1) / PER_SECOND;
        let come = now.saturating_duration_since(filled).as_nanos() / period.as_nanos();
        let come = u32::try_from(come).unwrap_or(u32::MAX);
        bucket.tokens = bucket.tokens.saturating_add(come).min(BURST);
        // The rest of a period counts towards the next token. For a full bucket a new period
        // starts.
        bucket.filled =
            if bucket.tokens == BURST { Some(now) } else { Some(filled + period * come) };
        let allowed = bucket.tokens > 0;
        if allowed {
            bucket.tokens -= 1;
        } else {
            bucket.suppressed += 1;
        }
        allowed
    }

    /// The number of suppressed lines so far.
    pub fn suppressed(&self) -> u64 {
        self.lock().suppressed
    }

    /// Logs the number of lines suppressed since the last call, if there were any.
    pub fn tell(&self) {
        let mut bucket = self.lock();
        let count = bucket.suppressed - bucket.told;
        bucket.told = bucket.suppressed;
        // The lock, for which other threads may wait, is not held while the line is written.
        drop(bucket);
        if count > 0 {
            tracing::warn!(
                count,
                "log lines about unauthenticated clients were suppressed: at most {PER_SECOND} a \
                 second are written"
            );
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Bucket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for LogLimit {
    fn default() -> LogLimit {
        LogLimit::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_written_and_then_so_many_a_second() {
        let (limit, start) = (LogLimit::new(), Instant::now());
        let written = |at_ms: u64, lines: u32| {
            let now = start + Duration::from_millis(at_ms);
            (0..lines).filter(|_| limit.allows_at(now)).count() as u32
        };
        assert_eq!(written(0, 1000), BURST);
        assert_eq!(written(99, 5), 0);
        assert_eq!(written(100, 5), 1);
        // 250 ms are two and a half tokens; the half is not lost.
        assert_eq!(written(350, 5), 2);
        assert_eq!(written(400, 5), 1);
        assert_eq!(limit.suppressed(), u64::from(1000 - BURST + 5 + 4 + 3 + 4));
        assert_eq!(written(1_000_000, 1000), BURST, "a quiet time gives a burst, and no more");
    }
}
