//! Leaves a store alone for a while that does not answer.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// So many failures in a row open it: one is an accident.
const FAILURES: u32 = 3;
/// The first pause; each one after it is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// No pause is longer: a store that is back is found within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Counts failures in a row. After some of them nobody asks until a pause is over, and then one call tries.
#[derive(Debug, Default)]
pub(super) struct Breaker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failures: u32,
    /// Nobody asks before.
    pause: Option<(Instant, Duration)>,
}

impl Breaker {
    /// Whether to ask now. Whoever is told yes says how it went.
    pub(super) fn allows(&self, now: Instant) -> bool {
        let mut state = self.0.lock();
        match &mut state.pause {
            None => true,
            Some((until, _)) if now < *until => false,
            Some((until, length)) => {
                // The others wait for what this one finds. If it never says, the next one tries after a pause.
                *until = now + *length;
                true
            }
        }
    }

    /// The store has answered.
    pub(super) fn answered(&self) {
        *self.0.lock() = State::default();
    }

    /// It has not. Says whether that was one too many, so that it is logged once.
    pub(super) fn failed(&self, now: Instant) -> bool {
        let mut state = self.0.lock();
        state.failures = state.failures.saturating_add(1);
        if state.failures < FAILURES {
            return false;
        }
        let first = state.pause.is_none();
        let length = state.pause.map_or(FIRST_PAUSE, |(_, last)| (last * 2).min(LONGEST_PAUSE));
        state.pause = Some((now + length, length));
        first
    }

    /// Whether nobody asks now.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.0.lock().pause.is_some_and(|(until, _)| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_in_a_row_open_it_and_one_call_tries_after_each_pause() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        assert!(!breaker.failed(start));
        breaker.answered();
        assert_eq!([start; 3].map(|now| breaker.failed(now)), [false, false, true]);
        assert!(!breaker.allows(start) && breaker.is_open(start));
        let later = start + FIRST_PAUSE;
        assert!(breaker.allows(later), "one tries");
        assert!(!breaker.allows(later), "the others wait for it");
        assert!(!breaker.failed(later), "logged once");
        assert!(!breaker.allows(later + FIRST_PAUSE), "the second pause is longer");
        assert!(breaker.allows(later + FIRST_PAUSE * 2));
        breaker.answered();
        assert!(breaker.allows(later) && breaker.allows(later));
    }

    #[test]
    fn a_store_that_is_back_is_asked_within_the_longest_pause() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        for _ in 0..100 {
            breaker.failed(start);
        }
        assert!(breaker.allows(start + LONGEST_PAUSE));
    }
}
