//! Lines that a flood must not repeat: one for each kind now and then, with the number of those that were left out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// One line for each kind in this time: a client that asks a thousand times a second must not hide what else happens.
pub(crate) const LOG_EVERY: Duration = Duration::from_secs(10);

/// What was said when, and how often it was not said since. The kinds are few.
#[derive(Debug)]
pub(crate) struct Seldom<K>(Mutex<BTreeMap<K, (Instant, u64)>>);

impl<K> Default for Seldom<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord> Seldom<K> {
    /// How many of this kind were left out since the last line, if it is time for one.
    pub(crate) fn due(&self, kind: K, now: Instant) -> Option<u64> {
        let mut said = self.0.lock();
        match said.get_mut(&kind) {
            Some((last, left_out)) if now.saturating_duration_since(*last) < LOG_EVERY => {
                *left_out += 1;
                None
            }
            _ => Some(said.insert(kind, (now, 0)).map_or(0, |(_, left_out)| left_out)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_kind_is_one_line_and_its_number() {
        let (log, start) = (Seldom::default(), Instant::now());
        assert_eq!(log.due("full", start), Some(0));
        for _ in 0..1000 {
            assert_eq!(log.due("full", start), None);
        }
        assert_eq!(log.due("malformed", start), Some(0), "other kinds are not held back");
        assert_eq!(log.due("full", start + LOG_EVERY), Some(1000));
        assert_eq!(log.due("full", start + LOG_EVERY), None);
    }
}
