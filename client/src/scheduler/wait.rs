//! Whether a request waits for chunks that lower tiers are bringing.
//!
//! It waits while all of this holds, and never again once it did not:
//! ```text
//! fetch   <  tokens that it adds now / prefill rate
//! waited + fetch  <  tokens that it adds since the wait began / prefill rate
//! waited + fetch  <= fetch_wait
//! ```
//! `fetch` is what the daemon expects the slowest chunk to take that comes within the bound. The second line ends a wait
//! for a fetch that is always about to be done: no wait costs more than what it was for.

use std::time::{Duration, Instant};

/// Between two questions whether chunks have come.
const ASK_AGAIN_MIN: Duration = Duration::from_millis(2);
const ASK_AGAIN_MAX: Duration = Duration::from_millis(25);

/// One request's wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    since: Instant,
    /// Tokens that could have been had when it began.
    first_hit: u64,
    /// When to ask the daemon next.
    again_at: Instant,
    until: Instant,
    begun: bool,
    over: bool,
    closed: bool,
}

/// What waiting would bring, by the last answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Prospect {
    /// Tokens that can be had now.
    pub(super) hit: u64,
    /// Tokens that can be had when what is in reach has come.
    pub(super) hit_then: u64,
    /// From now until then.
    pub(super) fetch: Duration,
}

impl Wait {
    /// A wait that may begin now. It has not yet: [`Wait::goes_on`] says whether it does.
    pub(super) fn new(now: Instant, hit: u64, longest: Duration) -> Self {
        Self {
            since: now,
            first_hit: hit,
            again_at: now,
            until: now + longest,
            begun: false,
            over: false,
            closed: false,
        }
    }

    /// Whether it goes on; if not, it is over.
    pub(super) fn goes_on(&mut self, now: Instant, prospect: Prospect, tokens_per_second: f64) -> bool {
        let Prospect { hit, hit_then, fetch } = prospect;
        let recompute = |tokens: u64| {
            let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
            Duration::try_from_secs_f64(f64::from(tokens) / tokens_per_second).unwrap_or(Duration::MAX)
        };
        let waited = now.saturating_duration_since(self.since);
        let pays = hit_then > hit
            && fetch < recompute(hit_then - hit)
            && waited + fetch < recompute(hit_then.saturating_sub(self.first_hit))
            && now + fetch <= self.until;
        self.over |= !pays;
        self.begun |= !self.over;
        !self.over
    }

    /// Whether it is time to ask the daemon again; if so, the next time is set.
    pub(super) fn asks_again(&mut self, now: Instant, fetch: Duration) -> bool {
        let due = now >= self.again_at;
        if due {
            self.again_at = now + fetch.clamp(ASK_AGAIN_MIN, ASK_AGAIN_MAX);
        }
        due
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }
    pub(super) fn end(&mut self) {
        self.over = true;
    }
    /// Ends it and says how long it was; only once, and only of one that had begun.
    pub(super) fn close(&mut self, now: Instant) -> Option<Duration> {
        self.over = true;
        let first = !std::mem::replace(&mut self.closed, true);
        (first && self.begun).then(|| now.saturating_duration_since(self.since))
    }
    /// The bound: whatever comes later is of no use.
    pub(super) fn until(&self) -> Instant {
        self.until
    }
    pub(super) fn again_at(&self) -> Instant {
        self.again_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = 10_000.0;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn begun(now: Instant) -> Wait {
        Wait::new(now, 0, ms(2000))
    }

    #[test]
    fn it_waits_exactly_while_the_fetch_is_faster_than_computing() {
        let now = Instant::now();
        // 1000 tokens take 100 ms.
        let of = |fetch| Prospect { hit: 0, hit_then: 1000, fetch: ms(fetch) };
        assert!(begun(now).goes_on(now, of(99), RATE));
        assert!(!begun(now).goes_on(now, of(100), RATE));
        let nothing = Prospect { hit: 1000, hit_then: 1000, fetch: ms(1) };
        assert!(!begun(now).goes_on(now, nothing, RATE));
    }

    #[test]
    fn it_never_waits_past_the_bound_whatever_it_would_save() {
        let now = Instant::now();
        let of = |fetch| Prospect { hit: 0, hit_then: 1 << 40, fetch: ms(fetch) };
        let mut wait = begun(now);
        assert!(wait.goes_on(now, of(2000), RATE));
        assert!(wait.goes_on(now + ms(1999), of(1), RATE));
        assert!(!wait.goes_on(now + ms(2000), of(1), RATE));
        assert!(!wait.goes_on(now, of(1), RATE), "over is over");
    }

    #[test]
    fn field_23_a_fetch_that_is_always_about_to_be_done_costs_no_more_than_it_would_save() {
        let now = Instant::now();
        let mut wait = begun(now);
        let soon = Prospect { hit: 0, hit_then: 1000, fetch: ms(1) };
        let longest = (0..2000).take_while(|&t| wait.goes_on(now + ms(t), soon, RATE)).count();
        assert_eq!(longest, 99);
    }

    #[test]
    fn chunks_that_come_one_by_one_are_waited_for_to_the_last() {
        let now = Instant::now();
        let mut wait = begun(now);
        // Ten chunks of 300 tokens, 20 ms each, 30 ms to compute.
        for came in 0..10 {
            let (hit, fetch) = (came * 300, ms(200 - came * 20));
            assert!(
                wait.goes_on(now + ms(came * 20), Prospect { hit, hit_then: 3000, fetch }, RATE),
                "{came}"
            );
        }
    }

    #[test]
    fn the_daemon_is_asked_again_when_something_may_have_come() {
        let now = Instant::now();
        for (fetch, again) in [(0, 2), (1, 2), (10, 10), (500, 25)] {
            let mut wait = begun(now);
            assert!(wait.asks_again(now, ms(fetch)));
            assert_eq!(wait.again_at(), now + ms(again));
            // However often it is looked at in between.
            assert!((0..again).all(|t| !wait.asks_again(now + ms(t), ms(fetch))));
            assert!(wait.asks_again(now + ms(again), ms(fetch)));
        }
    }

    #[test]
    fn a_wait_counts_once_and_one_that_never_began_not_at_all() {
        let now = Instant::now();
        let mut wait = begun(now);
        assert!(wait.goes_on(now, Prospect { hit: 0, hit_then: 1000, fetch: ms(1) }, RATE));
        assert_eq!((wait.close(now + ms(7)), wait.close(now + ms(8))), (Some(ms(7)), None));
        let mut never = begun(now);
        assert!(!never.goes_on(now, Prospect { hit: 0, hit_then: 0, fetch: ms(1) }, RATE));
        assert_eq!(never.close(now + ms(7)), None);
    }
}
