//! Stops asking a daemon that does not answer (rule 10).
//!
//! ```text
//! Closed --(failures in a row)--> Open --(pause over)--> HalfOpen --(trial good)--> Closed
//!                                  ^                        |
//!                                  +----(trial bad, pause doubled)
//! ```
//! Whether a *typed* refusal came back does not matter here: a daemon that says no answers.

use std::time::{Duration, Instant};

use crate::config::BreakerConfig;
use crate::sync::{Mutex, Planted, planted};

/// Where a breaker stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BreakerState {
    Closed,
    Open,
    HalfOpen,
}

impl BreakerState {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// One breaker for one daemon. It keeps no clock: whoever calls says what time it is.
#[derive(Debug)]
pub(crate) struct Breaker {
    config: BreakerConfig,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
enum Inner {
    Closed { failures: u32 },
    Open { until: Instant, pause: Duration },
    HalfOpen { since: Instant, pause: Duration },
}

impl Breaker {
    pub(crate) fn new(config: BreakerConfig) -> Self {
        Self { config, inner: Mutex::new(Inner::Closed { failures: 0 }) }
    }

    /// Whether a call may go out. In `HalfOpen` one may; if its result never comes (its thread died), another
    /// may after the same pause.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let mut inner = self.inner.lock();
        match *inner {
            Inner::Closed { .. } => true,
            Inner::Open { until, .. } if now >= until && planted(Planted::TrialNotNoted) => true,
            Inner::Open { until, pause } if now >= until => {
                *inner = Inner::HalfOpen { since: now, pause };
                true
            }
            Inner::HalfOpen { since, pause } if now >= since + pause => {
                *inner = Inner::HalfOpen { since: now, pause };
                true
            }
            Inner::Open { .. } | Inner::HalfOpen { .. } => false,
        }
    }

    /// Whether nothing may go out now. Unlike [`Breaker::admits`] it takes no trial.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        matches!(*self.inner.lock(), Inner::Open { until, .. } if now < until)
    }

    /// A call came back after `took`, with an answer or without. Returns whether this opened the breaker.
    pub(crate) fn record(&self, now: Instant, answered: bool, took: Duration) -> bool {
        let good = answered && took <= self.config.slow_call;
        let mut inner = self.inner.lock();
        match *inner {
            // A late success of a call from before the opening says nothing about now, but costs nothing to
            // believe: the daemon is alive.
            _ if good => {
                *inner = Inner::Closed { failures: 0 };
                false
            }
            Inner::Closed { failures } if failures + 1 < self.config.failures => {
                *inner = Inner::Closed { failures: failures + 1 };
                false
            }
            Inner::Closed { .. } => {
                let pause = self.config.open_min;
                *inner = Inner::Open { until: now + pause, pause };
                true
            }
            Inner::HalfOpen { pause, .. } => {
                let pause = (pause * 2).min(self.config.open_max);
                *inner = Inner::Open { until: now + pause, pause };
                true
            }
            // Calls that went out before the opening fail now: no news.
            Inner::Open { .. } => false,
        }
    }

    /// A new session is a fresh start.
    pub(crate) fn reset(&self) {
        *self.inner.lock() = Inner::Closed { failures: 0 };
    }

    pub(crate) fn state(&self) -> BreakerState {
        match *self.inner.lock() {
            Inner::Closed { .. } => BreakerState::Closed,
            Inner::Open { .. } => BreakerState::Open,
            Inner::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(1);

    fn breaker() -> (Breaker, Instant) {
        let config = BreakerConfig {
            failures: 3,
            slow_call: Duration::from_millis(100),
            open_min: Duration::from_secs(1),
            open_max: Duration::from_secs(3),
        };
        (Breaker::new(config), Instant::now())
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let (breaker, now) = breaker();
        for _ in 0..10 {
            assert!(!breaker.record(now, false, QUICK));
            assert!(!breaker.record(now, false, QUICK));
            assert!(!breaker.record(now, true, QUICK));
        }
        assert!(!breaker.record(now, false, QUICK));
        assert!(!breaker.record(now, false, QUICK));
        assert!(breaker.admits(now));
        assert!(breaker.record(now, false, QUICK));
        assert!(!breaker.admits(now));
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn slow_answers_open_it_too() {
        let (breaker, now) = breaker();
        for opened in [false, false, true] {
            assert_eq!(breaker.record(now, true, Duration::from_millis(101)), opened);
        }
        assert!(!breaker.admits(now));
    }

    #[test]
    fn one_trial_goes_out_and_decides() {
        let (breaker, start) = breaker();
        (0..3).for_each(|_| _ = breaker.record(start, false, QUICK));
        let after = start + Duration::from_secs(1);
        assert!(!breaker.admits(after - QUICK));
        assert!(breaker.admits(after));
        assert!(!breaker.admits(after), "one trial at a time");
        assert!(!breaker.record(after, true, QUICK));
        assert!(breaker.admits(after));
    }

    #[test]
    fn a_bad_trial_doubles_the_pause_up_to_its_limit() {
        let (breaker, start) = breaker();
        (0..3).for_each(|_| _ = breaker.record(start, false, QUICK));
        let mut now = start;
        for pause in [1, 2, 3, 3] {
            now += Duration::from_secs(pause);
            assert!(!breaker.admits(now - QUICK));
            assert!(breaker.admits(now));
            assert!(breaker.record(now, false, QUICK));
        }
    }

    #[test]
    fn a_trial_that_never_returns_does_not_close_the_door_for_good() {
        let (breaker, start) = breaker();
        (0..3).for_each(|_| _ = breaker.record(start, false, QUICK));
        let trial = start + Duration::from_secs(1);
        assert!(breaker.admits(trial));
        assert!(!breaker.admits(trial + QUICK));
        assert!(breaker.admits(trial + Duration::from_secs(1)));
    }
}
