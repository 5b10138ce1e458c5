//! Stops asking whoever does not answer. While it is open nobody waits; then one question at a time finds out whether
//! it may close.

use std::time::{Duration, Instant};

/// When it opens and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BreakerTerms {
    /// Failures in a row that open it.
    pub(crate) failures: u32,
    /// The first time that it is open; each time after a failed probe it is twice as long.
    pub(crate) wait_min: Duration,
    /// And no longer than this.
    pub(crate) wait_max: Duration,
}

/// One of them. Times are given by the caller.
#[derive(Debug)]
pub(crate) struct Breaker {
    terms: BreakerTerms,
    failures: u32,
    wait: Duration,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Closed,
    /// Nobody asks until then.
    Open(Instant),
    /// Somebody is asking. If nothing is heard of that until then, somebody else may.
    Probing(Instant),
}

impl Breaker {
    pub(crate) fn new(terms: BreakerTerms) -> Self {
        Self { terms, failures: 0, wait: terms.wait_min, state: State::Closed }
    }

    /// Whether a question has a chance; it takes no turn.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        match self.state {
            State::Closed => true,
            State::Open(until) | State::Probing(until) => now >= until,
        }
    }

    /// Whether the caller may ask now. It must tell how that ended; one that does not is taken for lost after a while.
    pub(crate) fn take_turn(&mut self, now: Instant) -> bool {
        if !self.allows(now) {
            return false;
        }
        if self.state != State::Closed {
            self.state = State::Probing(now + self.wait);
        }
        true
    }

    /// An answer came.
    pub(crate) fn succeeded(&mut self) {
        (self.failures, self.wait, self.state) = (0, self.terms.wait_min, State::Closed);
    }

    /// None came, or it came too late.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.terms.failures || self.state != State::Closed {
            self.open(now);
        }
    }

    /// The answer was wrong: that needs no second time.
    pub(crate) fn lied(&mut self, now: Instant) {
        self.failures = self.failures.max(self.terms.failures);
        self.open(now);
    }

    fn open(&mut self, now: Instant) {
        // Late failures of questions from before it opened say nothing new.
        if matches!(self.state, State::Open(until) if now < until) {
            return;
        }
        if matches!(self.state, State::Probing(_) | State::Open(_)) {
            self.wait = (self.wait * 2).min(self.terms.wait_max);
        }
        self.state = State::Open(now + self.wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: BreakerTerms = BreakerTerms {
        failures: 2,
        wait_min: Duration::from_millis(100),
        wait_max: Duration::from_millis(300),
    };

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_probe_through() {
        let (mut breaker, start) = (Breaker::new(TERMS), Instant::now());
        breaker.failed(start);
        breaker.succeeded();
        breaker.failed(start);
        assert!(breaker.take_turn(start), "one failure after a success is not two");
        breaker.failed(start);
        assert!(!breaker.take_turn(start) && !breaker.allows(start));
        let due = start + TERMS.wait_min;
        assert!(breaker.allows(due) && breaker.take_turn(due));
        assert!(!breaker.take_turn(due), "one at a time");
        breaker.succeeded();
        assert!(breaker.take_turn(due) && breaker.take_turn(due));
    }

    #[test]
    fn each_failed_probe_doubles_the_wait_up_to_the_longest() {
        let (mut breaker, mut now) = (Breaker::new(TERMS), Instant::now());
        breaker.lied(now);
        for wait in [100, 200, 300, 300] {
            let wait = Duration::from_millis(wait);
            assert!(!breaker.allows(now + wait - Duration::from_millis(1)), "{wait:?}");
            now += wait;
            assert!(breaker.take_turn(now), "{wait:?}");
            breaker.failed(now);
        }
    }

    #[test]
    fn a_probe_that_is_never_heard_of_again_is_followed_by_another() {
        let (mut breaker, start) = (Breaker::new(TERMS), Instant::now());
        breaker.lied(start);
        let due = start + TERMS.wait_min;
        assert!(breaker.take_turn(due));
        assert!(!breaker.take_turn(due));
        assert!(breaker.take_turn(due + TERMS.wait_min));
    }

    #[test]
    fn late_failures_do_not_prolong_it() {
        let (mut breaker, start) = (Breaker::new(TERMS), Instant::now());
        breaker.lied(start);
        (0..50).for_each(|_| breaker.failed(start + Duration::from_millis(50)));
        assert!(breaker.allows(start + TERMS.wait_min));
    }
}
