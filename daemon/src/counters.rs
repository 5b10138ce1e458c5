//! How often each reason was given.

use std::sync::atomic::{AtomicU64, Ordering};

use tender_proto::Reason;

/// One counter for each reason.
#[derive(Debug)]
pub(crate) struct ReasonCounts([AtomicU64; Reason::ALL.len()]);

impl ReasonCounts {
    /// Counts one.
    pub(crate) fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }
    /// Those that were ever given, in the order of [`Reason::ALL`].
    pub(crate) fn list(&self) -> Vec<(Reason, u64)> {
        let counts =
            Reason::ALL.iter().map(|&reason| (reason, self.0[reason as usize].load(Ordering::Relaxed)));
        counts.filter(|&(_, count)| count > 0).collect()
    }
}

impl Default for ReasonCounts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_counter() {
        let counts = ReasonCounts::default();
        for (times, &reason) in Reason::ALL.iter().enumerate() {
            for _ in 0..times {
                counts.count(reason);
            }
        }
        let expected: Vec<_> = Reason::ALL.iter().copied().zip(0..).filter(|&(_, n)| n > 0).collect();
        assert_eq!(counts.list(), expected);
    }
}
