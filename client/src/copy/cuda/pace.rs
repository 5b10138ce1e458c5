//! The bandwidth cap: transfers take no more of the link than a user grants them.

use std::time::{Duration, Instant};

/// What may go at once after a pause, as time at the full rate. Longer bursts would be felt by a forward pass.
const BURST: Duration = Duration::from_millis(2);
/// A cap below one piece would otherwise never let it go.
const LEAST_BURST_BYTES: f64 = 4.0 * 1024.0 * 1024.0;

/// A bucket that fills with time and is emptied by bytes. It may be overdrawn by one piece, which the next one waits
/// for.
#[derive(Debug)]
pub(super) struct Pace {
    /// `None`: no cap.
    bytes_per_second: Option<f64>,
    left: f64,
    filled: Instant,
}

impl Pace {
    /// A cap in bytes per second; 0 for none.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub(super) fn new(bytes_per_second: u64, now: Instant) -> Self {
        let rate = (bytes_per_second > 0).then_some(bytes_per_second as f64);
        Self { bytes_per_second: rate, left: rate.map_or(0.0, burst), filled: now }
    }

    /// Takes `bytes` if they may go now; else says how long to wait for them.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub(super) fn take(&mut self, bytes: u64, now: Instant) -> Result<(), Duration> {
        let Some(rate) = self.bytes_per_second else { return Ok(()) };
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.left = (self.left + passed * rate).min(burst(rate));
        self.filled = self.filled.max(now);
        if self.left > 0.0 {
            self.left -= bytes as f64;
            return Ok(());
        }
        let wait = Duration::try_from_secs_f64(-self.left / rate).unwrap_or(Duration::MAX);
        Err(wait.max(Duration::from_micros(10)))
    }
}

fn burst(rate: f64) -> f64 {
    (rate * BURST.as_secs_f64()).max(LEAST_BURST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_time_no_more_goes_than_the_cap() {
        let start = Instant::now();
        let (mut pace, mut now, mut gone) = (Pace::new(1 << 30, start), start, 0);
        while now < start + Duration::from_secs(2) {
            match pace.take(8 << 20, now) {
                Ok(()) => gone += 8 << 20,
                Err(wait) => now += wait,
            }
        }
        let allowed = (2u64 << 30) + (4 << 20) + (16 << 20);
        assert!((2u64 << 30..=allowed).contains(&gone), "{gone}");
    }

    #[test]
    fn without_a_cap_everything_goes() {
        let now = Instant::now();
        let mut pace = Pace::new(0, now);
        assert!((0..100).all(|_| pace.take(1 << 40, now).is_ok()));
    }
}
