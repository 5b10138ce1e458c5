//! Numbers for leases and reservations: never used twice, by whatever daemon of the same arena, and not to be guessed from
//! an earlier one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Low bits that count: ten thousand ids a second last three years. Above them is the start of the daemon.
const COUNTER_BITS: u32 = 40;

/// Makes ids of one start of the daemon. They guard against mistakes; rights come from the session id.
#[derive(Debug)]
pub(crate) struct IdSource {
    start: u64,
    counter: AtomicU64,
}

impl IdSource {
    /// `boot` is the arena's number of this start; numbers that are the same in their lower 24 bits give the same ids.
    pub(crate) fn new(boot: u32) -> Self {
        Self { start: u64::from(boot) << COUNTER_BITS, counter: AtomicU64::new(0) }
    }
    /// The next one, never 0.
    pub(crate) fn next(&self) -> u64 {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed) + 1;
        scatter(self.start | counter & ((1 << COUNTER_BITS) - 1))
    }
}

/// Another number for each number, 0 for 0. Steps that can be undone one by one never make two numbers one; a client that
/// counts on from an id of its own hits no other.
fn scatter(number: u64) -> u64 {
    // Odd, so that there is a factor that undoes it.
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let fold = |number: u64| (number ^ number >> 32).wrapping_mul(FACTOR);
    let folded = fold(fold(number));
    folded ^ folded >> 29
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_unique_over_all_starts_and_do_not_follow_each_other() {
        let mut seen = HashSet::new();
        for boot in [0, 1, 2, 3, 0xFF_FFFF] {
            let source = IdSource::new(boot);
            let ids: Vec<u64> = (0..1000).map(|_| source.next()).collect();
            assert!(ids.windows(2).all(|pair| (pair[0] ^ pair[1]).count_ones() > 8), "near each other");
            seen.extend(ids);
        }
        assert_eq!(seen.len(), 5000);
        assert!(!seen.contains(&0));
    }
}
