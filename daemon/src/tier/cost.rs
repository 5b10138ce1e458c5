//! How long a fetch will take, learned from those that ended.
//!
//! ```text
//! expected = latency + (bytes queued ahead + own bytes) / rate
//! ```
//! Both numbers are moving averages in which a new sample has the weight [`WEIGHT`].
//! * The rate is what the tier brings in all, however many fetches share it: a fetch that was not alone shows the bytes
//!   that came since the end of the one before it. One that was alone shows a rate only if it is above the known one:
//!   how much of its time was latency cannot be told.
//! * The latency is what a fetch took beyond that, from when it was asked for.

use std::time::{Duration, Instant};

use super::TierKind;

/// Eight fetches after a change, nine tenths of it are known.
const WEIGHT: f64 = 0.25;

/// No tier brings more than a terabyte in a second, whatever a clock says.
const LEAST_SECONDS_PER_BYTE: f64 = 1e-12;

/// One tier's numbers.
#[derive(Debug)]
pub(super) struct Cost {
    latency_s: f64,
    seconds_per_byte: f64,
    last_end: Option<Instant>,
}

/// A fetch that brought its chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// It was asked for.
    pub(super) asked: Instant,
    /// Its turn came.
    pub(super) begun: Instant,
    /// It ended.
    pub(super) ended: Instant,
    pub(super) bytes: u64,
    /// Queued or under way at this tier when it was asked for.
    pub(super) ahead_bytes: u64,
    /// No other fetch of this tier was under way when it began or when it ended.
    pub(super) alone: bool,
}

impl Cost {
    /// Before anything is known: what such a tier has on ordinary machines.
    pub(super) fn assumed(kind: TierKind) -> Self {
        let (latency_s, bytes_per_second) = match kind {
            TierKind::Disk => (0.001, 1e9),
            TierKind::Peers => (0.002, 500e6),
            TierKind::Shared => (0.030, 100e6),
        };
        Self { latency_s, seconds_per_byte: 1.0 / bytes_per_second, last_end: None }
    }

    /// Takes a fetch into account.
    pub(super) fn learn(&mut self, sample: Sample) {
        let bytes = as_f64(sample.bytes.max(1));
        let from = self.last_end.map_or(sample.begun, |last| last.max(sample.begun));
        let per_byte = sample.ended.saturating_duration_since(from).as_secs_f64() / bytes;
        if !sample.alone || per_byte < self.seconds_per_byte {
            let average = self.seconds_per_byte + WEIGHT * (per_byte - self.seconds_per_byte);
            self.seconds_per_byte = average.max(LEAST_SECONDS_PER_BYTE);
        }
        self.last_end = Some(self.last_end.map_or(sample.ended, |last| last.max(sample.ended)));
        let took = sample.ended.saturating_duration_since(sample.asked).as_secs_f64();
        let share = self.seconds_per_byte * as_f64(sample.bytes.saturating_add(sample.ahead_bytes));
        self.latency_s += WEIGHT * ((took - share).max(0.0) - self.latency_s);
    }

    /// How long a fetch takes that is asked for now.
    pub(super) fn expected(&self, ahead_bytes: u64, bytes: u64) -> Duration {
        let bytes = as_f64(ahead_bytes.saturating_add(bytes));
        Duration::try_from_secs_f64(self.latency_s + self.seconds_per_byte * bytes).unwrap_or(Duration::MAX)
    }

    /// For metrics.
    pub(super) fn latency(&self) -> Duration {
        Duration::try_from_secs_f64(self.latency_s).unwrap_or(Duration::MAX)
    }
    /// For metrics.
    pub(super) fn bytes_per_second(&self) -> u64 {
        let rate = Duration::from_secs(1).as_secs_f64() / self.seconds_per_byte;
        Duration::try_from_secs_f64(rate).map_or(u64::MAX, |whole| whole.as_secs())
    }
}

fn as_f64(bytes: u64) -> f64 {
    // Halves of 32 bits each are exact; a chunk's size has no more than 52 bits that matter.
    let (high, low) = (u32::try_from(bytes >> 32).unwrap_or(u32::MAX), bytes & u64::from(u32::MAX));
    f64::from(high) * 4_294_967_296.0 + f64::from(u32::try_from(low).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Fetches of a link that has a latency and a rate, `at_once` under way at a time, `rounds` of them one after the other.
    fn learned(latency_ms: u64, bytes_per_ms: u64, bytes: u64, at_once: u64, rounds: u32) -> Cost {
        let mut cost = Cost::assumed(TierKind::Shared);
        let mut now = Instant::now();
        for _ in 0..rounds {
            let asked = now;
            for ahead in 0..at_once {
                let ended = asked + Duration::from_millis(latency_ms + (ahead + 1) * bytes / bytes_per_ms);
                let alone = at_once == 1;
                let ahead_bytes = ahead * bytes;
                cost.learn(Sample { asked, begun: asked, ended, bytes, ahead_bytes, alone });
                now = ended;
            }
            now += Duration::from_secs(1);
        }
        cost
    }

    fn about(actual: Duration, expected_ms: u64) {
        let (low, high) = (expected_ms * 7 / 10, expected_ms * 14 / 10 + 1);
        let ms = u64::try_from(actual.as_millis()).unwrap();
        assert!((low..=high).contains(&ms), "{actual:?}, should be {expected_ms} ms");
    }

    #[test]
    fn fetches_that_come_alone_teach_what_one_takes() {
        for (latency_ms, bytes_per_ms) in [(5, 1 << 20), (50, 100 << 10), (200, 10 << 10)] {
            let cost = learned(latency_ms, bytes_per_ms, MIB, 1, 40);
            about(cost.expected(0, MIB), latency_ms + MIB / bytes_per_ms);
        }
    }

    #[test]
    fn a_queue_teaches_the_rate_and_what_waits_ahead_counts() {
        let cost = learned(40, 100 << 10, MIB, 16, 10);
        about(cost.expected(0, MIB), 40 + 10);
        about(cost.expected(15 * MIB, MIB), 40 + 160);
        about(cost.expected(99 * MIB, MIB), 40 + 1000);
    }

    #[test]
    fn a_tier_that_gets_slow_is_known_to_be_slow_after_a_few_fetches() {
        let mut cost = learned(5, 1 << 20, MIB, 4, 10);
        let mut now = Instant::now();
        for _ in 0..8 {
            let ended = now + Duration::from_secs(1);
            let sample = Sample { asked: now, begun: now, ended, bytes: MIB, ahead_bytes: 0, alone: true };
            cost.learn(sample);
            now = ended;
        }
        assert!(cost.expected(0, MIB) > Duration::from_millis(800), "{cost:?}");
    }

    #[test]
    fn no_sample_makes_nonsense_of_the_numbers() {
        let mut cost = Cost::assumed(TierKind::Disk);
        let now = Instant::now();
        let instant =
            Sample { asked: now, begun: now, ended: now, bytes: 0, ahead_bytes: u64::MAX, alone: false };
        (0..1000).for_each(|_| cost.learn(instant));
        assert!(cost.expected(0, 1) < Duration::from_secs(1));
        assert!(cost.bytes_per_second() > 0);
        assert!(cost.expected(u64::MAX, u64::MAX) > Duration::ZERO);
    }
}
