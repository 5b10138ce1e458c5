//! When uses were. An entry has no room for a time; it has its use's number, and numbers grow with time.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

/// Two marks are not nearer than this.
const NEAREST: Duration = Duration::from_millis(100);
/// Seven minutes of marks; then most go, and what is older is known to a part of its age.
const MOST: usize = 4096;
/// That part.
const EXACTNESS: u32 = 8;

/// The number that was next at some times. Not one of the locks that models follow: it decides nothing.
#[derive(Debug, Default)]
pub(super) struct Times(Mutex<Marks>);

#[derive(Debug, Default)]
struct Marks {
    now: Duration,
    /// Numbers and times, both ascending.
    list: VecDeque<(u64, Duration)>,
}

impl Marks {
    /// Takes out each mark without which the gap around it is a small part of its age. What stays grows with the
    /// logarithm of the time.
    fn thin(&mut self) {
        let all = std::mem::take(&mut self.list);
        let mut nexts = all.iter().skip(1);
        for mark in &all {
            let needed = match (self.list.back(), nexts.next()) {
                (Some((_, before)), Some((_, after))) => {
                    after.saturating_sub(*before) > self.now.saturating_sub(*after) / EXACTNESS
                }
                _ => true,
            };
            if needed {
                self.list.push_back(*mark);
            }
        }
    }
}

impl Times {
    /// At this time since the start the next use has this number.
    pub(super) fn mark(&self, next: u64, now: Duration) {
        let mut marks = self.0.lock();
        marks.now = marks.now.max(now);
        let (now, last) = (marks.now, marks.list.back().copied());
        if last.is_some_and(|(number, time)| number >= next || now.saturating_sub(time) < NEAREST) {
            return;
        }
        if marks.list.len() >= MOST {
            marks.thin();
        }
        marks.list.push_back((next, now));
    }

    /// How long ago a use was, at most: it was not before the last mark whose number it reaches.
    pub(super) fn age_of(&self, number: u64) -> Duration {
        let marks = self.0.lock();
        let later = marks.list.partition_point(|(next, _)| *next <= number);
        let mark = later.checked_sub(1).and_then(|at| marks.list.get(at));
        marks.now.saturating_sub(mark.map_or(Duration::ZERO, |(_, time)| *time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_use_is_as_old_as_the_last_mark_before_it() {
        let times = Times::default();
        assert_eq!(times.age_of(7), s(0), "nobody has told the time");
        for (next, now) in [(0, s(0)), (10, s(5)), (10, s(6)), (20, s(8)), (20, s(10))] {
            times.mark(next, now);
        }
        let ages = [0, 9, 10, 19, 20, 100].map(|number| times.age_of(number));
        assert_eq!(ages, [s(10), s(10), s(5), s(5), s(2), s(2)]);
        times.mark(21, s(3));
        assert_eq!(times.age_of(20), s(2), "time does not go back");
    }

    #[test]
    fn a_month_of_marks_stays_small_and_old_uses_are_known_to_a_part_of_their_age() {
        let times = Times::default();
        let month = 30 * 86_400;
        for second in 0..month {
            times.mark(second, s(second));
        }
        assert!(times.0.lock().list.len() <= MOST);
        for age in [1, 60, 3600, 86_400, 20 * 86_400] {
            let told = times.age_of(month - 1 - age).as_secs();
            assert!((age..=age + age / 2 + 1).contains(&told), "{age} s is told as {told} s");
        }
    }
}
