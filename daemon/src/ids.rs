//! Numbers for leases and reservations: never used twice, and not to be guessed from an earlier one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Low bits that count: ten thousand ids a second last three years. Above them 24 bits are left.
const COUNTER_BITS: u32 = 40;

/// Makes ids. The low bits count, so no id comes twice; the high bits are random, so a client that makes up
/// an id of somebody else's will not hit one. They guard against mistakes; rights come from the session id.
#[derive(Debug, Default)]
pub(crate) struct IdSource(AtomicU64);

impl IdSource {
    /// The next one, never 0.
    pub(crate) fn next(&self) -> u64 {
        let counter = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        u64::from(rand::random::<u32>() >> 8) << COUNTER_BITS | counter & ((1 << COUNTER_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_do_not_follow_each_other() {
        let source = IdSource::default();
        let ids: Vec<u64> = (0..1000).map(|_| source.next()).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 1000);
        assert!(ids.windows(2).any(|pair| pair[0].wrapping_add(1) != pair[1]));
        assert!(!ids.contains(&0));
    }
}
