//! Bytes per second, with a second's worth saved up while nothing came.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A token bucket that may go into debt: what is larger than a second's worth passes too, and is waited for after.
#[derive(Debug)]
pub(crate) struct Rate(Mutex<Level>);

#[derive(Debug)]
struct Level {
    /// Below 0: debt.
    bytes: f64,
    at: Instant,
}

impl Rate {
    /// Full at first.
    pub(crate) fn new(now: Instant) -> Self {
        Self(Mutex::new(Level { bytes: f64::INFINITY, at: now }))
    }

    /// Takes bytes unless there is debt.
    pub(crate) fn take(&self, rate_bytes: u64, bytes: u64, now: Instant) -> bool {
        let mut level = self.0.lock();
        level.refill(rate_bytes, now);
        let good = level.bytes >= 0.0;
        if good {
            level.spend(bytes);
        }
        good
    }
    /// Takes bytes in any case.
    pub(crate) fn spend(&self, rate_bytes: u64, bytes: u64, now: Instant) {
        let mut level = self.0.lock();
        level.refill(rate_bytes, now);
        level.spend(bytes);
    }
    /// How long until there is no debt.
    pub(crate) fn debt(&self, rate_bytes: u64, now: Instant) -> Option<Duration> {
        let mut level = self.0.lock();
        level.refill(rate_bytes, now);
        if level.bytes >= 0.0 {
            return None;
        }
        // An hour at most, whatever the numbers: the caller looks again long before.
        let seconds = (-level.bytes / float(rate_bytes.max(1))).min(3600.0);
        Some(Duration::from_secs_f64(seconds))
    }
}

impl Level {
    fn refill(&mut self, rate_bytes: u64, now: Instant) {
        let most = float(rate_bytes);
        let grown = self.bytes + most * now.saturating_duration_since(self.at).as_secs_f64();
        self.bytes = grown.min(most);
        self.at = self.at.max(now);
    }
    fn spend(&mut self, bytes: u64) {
        self.bytes -= float(bytes);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_saved_up_and_a_large_bite_is_paid_for_after() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let rate = Rate::new(start);
        assert!(rate.take(1000, 1000, start), "what was saved up");
        assert!(rate.take(1000, 500, start), "exactly nothing is left, and no debt yet");
        assert!(!rate.take(1000, 1, start));
        assert_eq!(rate.debt(1000, start), Some(Duration::from_millis(500)));
        assert!(!rate.take(1000, 1, after(499)));
        assert!(rate.take(1000, 5000, after(500)));
        assert!(!rate.take(1000, 1, after(5499)));
        assert!(rate.take(1000, 1, after(5500)));
        assert!(rate.take(1000, 1000, after(100_000)), "no more than a second is saved");
        assert!(rate.take(1000, 1, after(100_000)));
        assert!(!rate.take(1000, 1, after(100_000)));
    }
}
