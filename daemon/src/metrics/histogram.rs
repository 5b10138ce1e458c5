//! Values counted by size, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// 16 us to 1 s in steps of 2.
pub(crate) static CALL_SECONDS: &[f64] = &[
    16e-6, 32e-6, 64e-6, 128e-6, 256e-6, 512e-6, 1024e-6, 2048e-6, 4096e-6, 8192e-6, 0.016384, 0.032768,
    0.065536, 0.131072, 0.262144, 0.524288, 1.048576,
];
/// A fast disk's read to the longest fetch that anybody configures.
pub(crate) static FETCH_SECONDS: &[f64] = &[
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 5.0, 10.0, 30.0,
];
/// From thrashing to a chunk of last week.
pub(crate) static AGE_SECONDS: &[f64] =
    &[1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0];

/// Counts by bucket.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: the last is for what is above all of them.
    counts: Box<[AtomicU64]>,
    /// Bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    /// Empty; the bounds ascend and belong to the bucket below them.
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }
    /// Counts a value.
    pub(crate) fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |sum: u64| Some((f64::from_bits(sum) + value).to_bits());
        _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
    /// This moment's counts.
    pub(crate) fn spread(&self) -> Spread {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        Spread { bounds: self.bounds, counts, sum: f64::from_bits(self.sum.load(Ordering::Relaxed)) }
    }
}

/// What a histogram held at one moment.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Spread {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Spread {
    /// Values that were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
    /// All of them added up.
    pub fn sum(&self) -> f64 {
        self.sum
    }
    /// Upper bound and number of the values up to it, for each bucket; the last has no bound.
    pub(super) fn up_to(&self) -> impl Iterator<Item = (Option<f64>, u64)> {
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        let sums = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        bounds.zip(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_the_bucket_whose_bound_it_does_not_exceed_and_in_all_above() {
        static BOUNDS: &[f64] = &[1.0, 2.0];
        let histogram = Histogram::new(BOUNDS);
        [0.5, 1.0, 1.5, 2.0, 2.1, 100.0].into_iter().for_each(|value| histogram.observe(value));
        let spread = histogram.spread();
        assert_eq!(spread.up_to().collect::<Vec<_>>(), [(Some(1.0), 2), (Some(2.0), 4), (None, 6)]);
        assert_eq!((spread.count(), spread.sum()), (6, 107.1));
    }

    #[test]
    fn all_bounds_ascend() {
        for bounds in [CALL_SECONDS, FETCH_SECONDS, AGE_SECONDS] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }
}
