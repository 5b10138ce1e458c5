//! Whether the disk works. One that fails again and again, or hangs, is left alone for a while: it must not slow
//! anybody.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Failures in a row until the disk is left alone.
const MOST_FAILURES: u32 = 5;
/// For how long.
const REST: Duration = Duration::from_secs(30);
/// A read or write that takes longer than this is not under way, it hangs.
const STUCK: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Health(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failures: u32,
    rests_until: Option<Instant>,
    /// When each operation under way began.
    under_way: Vec<Option<Instant>>,
}

/// An operation under way, until this is dropped.
#[derive(Debug)]
pub(super) struct Operation<'a> {
    health: &'a Health,
    slot: usize,
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.health.0.lock().under_way[self.slot] = None;
    }
}

impl Health {
    /// Whether nobody should ask the disk now.
    pub(super) fn is_sick(&self) -> bool {
        self.is_sick_at(Instant::now())
    }
    fn is_sick_at(&self, now: Instant) -> bool {
        let state = self.0.lock();
        let hangs = |begun: &Instant| now.saturating_duration_since(*begun) > STUCK;
        state.rests_until.is_some_and(|until| now < until) || state.under_way.iter().flatten().any(hangs)
    }
    /// An operation begins.
    pub(super) fn begin(&self) -> Operation<'_> {
        self.begin_at(Instant::now())
    }
    fn begin_at(&self, now: Instant) -> Operation<'_> {
        let mut state = self.0.lock();
        let slot = match state.under_way.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                state.under_way.push(None);
                state.under_way.len() - 1
            }
        };
        state.under_way[slot] = Some(now);
        Operation { health: self, slot }
    }
    /// One worked.
    pub(super) fn good(&self) {
        let mut state = self.0.lock();
        if state.rests_until.take().is_some() {
            tracing::info!("the disk tier works again");
        }
        state.failures = 0;
    }
    /// One failed.
    pub(super) fn bad(&self, error: &std::io::Error) {
        self.bad_at(error, Instant::now());
    }
    fn bad_at(&self, error: &std::io::Error, now: Instant) {
        let mut state = self.0.lock();
        state.failures = state.failures.saturating_add(1);
        if state.failures < MOST_FAILURES {
            return;
        }
        if state.rests_until.is_none() {
            tracing::error!(
                %error,
                "the disk tier failed {} times in a row and is left alone, with a try each {} s: look at the disk",
                state.failures,
                REST.as_secs()
            );
        }
        state.rests_until = Some(now + REST);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_disk_that_fails_rests_and_one_that_works_again_is_asked() {
        let (health, begin) = (Health::default(), Instant::now());
        let error = io::Error::from_raw_os_error(5);
        (1..MOST_FAILURES).for_each(|_| health.bad_at(&error, begin));
        assert!(!health.is_sick_at(begin));
        health.bad_at(&error, begin);
        assert!(health.is_sick_at(begin));
        let later = begin + REST;
        assert!(!health.is_sick_at(later), "somebody tries");
        health.bad_at(&error, later);
        assert!(health.is_sick_at(later + REST / 2), "at once");
        health.good();
        assert!(!health.is_sick_at(later + REST / 2));
    }

    #[test]
    fn a_disk_that_hangs_is_sick_until_it_answers() {
        let (health, begin) = (Health::default(), Instant::now());
        let hangs = health.begin_at(begin);
        drop(health.begin_at(begin));
        assert!(!health.is_sick_at(begin + STUCK));
        assert!(health.is_sick_at(begin + 2 * STUCK));
        drop(hangs);
        assert!(!health.is_sick_at(begin + 2 * STUCK));
    }
}
