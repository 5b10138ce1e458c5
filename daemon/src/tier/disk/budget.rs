//! Bytes that may be written each second: flash wears out, and reads come first.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Up to a second's bytes may be saved up. A record larger than that goes through too, and is paid for afterwards.
#[derive(Debug)]
pub(super) struct WriteBudget {
    bytes_per_second: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// From here on nothing is owed.
    paid_until: Instant,
}

impl WriteBudget {
    pub(super) fn new(bytes_per_second: u64, now: Instant) -> Self {
        let paid_until = now.checked_sub(Duration::from_secs(1)).unwrap_or(now);
        Self { bytes_per_second, state: Mutex::new(State { paid_until }) }
    }
    /// Takes bytes if nothing is owed.
    pub(super) fn take(&self, bytes: u64, now: Instant) -> bool {
        let mut state = self.state.lock();
        if state.paid_until > now {
            return false;
        }
        self.charge_to(&mut state, bytes, now);
        true
    }
    /// Takes bytes in any case: later ones wait for it.
    pub(super) fn charge(&self, bytes: u64, now: Instant) {
        self.charge_to(&mut self.state.lock(), bytes, now);
    }
    fn charge_to(&self, state: &mut State, bytes: u64, now: Instant) {
        let saved = now.checked_sub(Duration::from_secs(1)).unwrap_or(now);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX).min(3_600_000_000_000));
        state.paid_until = state.paid_until.max(saved) + takes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_rate_and_one_burst_is_taken() {
        let begin = Instant::now() + Duration::from_secs(100);
        let budget = WriteBudget::new(1000, begin);
        let mut taken = 0;
        for ms in 0..10_000 {
            let now = begin + Duration::from_millis(ms);
            while budget.take(100, now) {
                taken += 100;
            }
        }
        assert!((10_000..=11_200).contains(&taken), "{taken} bytes in ten seconds");
    }

    #[test]
    fn what_is_larger_than_the_burst_is_paid_for_afterwards() {
        let begin = Instant::now() + Duration::from_secs(100);
        let budget = WriteBudget::new(1000, begin);
        assert!(budget.take(5000, begin));
        assert!(!budget.take(1, begin + Duration::from_millis(3900)));
        assert!(budget.take(1, begin + Duration::from_millis(4100)));
    }
}
