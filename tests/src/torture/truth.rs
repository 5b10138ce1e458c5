//! What must be there and what may be there, from what clients were told.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::journal::{Event, Span, now_us};
use super::space::{Key, Space};

/// What is known of one namespace.
#[derive(Debug, Default)]
struct Known {
    /// The current epoch, as the daemon last told it.
    epoch: u64,
    /// Epochs that were.
    past: HashSet<u64>,
    /// Resets since then that were answered.
    resets: u64,
    /// A reset was asked for, and the daemon died before it answered.
    unanswered: bool,
}

/// How strictly what is missing is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judge<'a> {
    /// There was room for everything: everything must be there.
    All,
    /// At most so many of each namespace may be missing: that many were evicted.
    Evicted(&'a [u64]),
    /// Whatever was used most recently must be there, as far as it fits into so many bytes.
    Recent(u64),
}

/// What a comparison found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Verdict {
    /// Chunks that must be there and are.
    pub kept: u64,
    /// Chunks that were evicted, as far as can be known.
    pub evicted: u64,
    /// Chunks that are there though nobody was told so.
    pub unannounced: u64,
}

/// What clients were told since the beginning of a leg.
#[derive(Debug)]
pub struct Truth {
    known: Vec<Known>,
    tried: HashMap<(Key, u64), BTreeSet<u64>>,
    /// By key and epoch: each coverage that was told, and when last. One that was evicted may come back with less.
    ready: HashMap<(Key, u64), BTreeMap<u64, Span>>,
    /// When each chunk was last used: not before the first, and not after the second.
    used: HashMap<Key, Span>,
}

impl Truth {
    /// Nothing is known yet.
    pub fn new(namespaces: usize) -> Self {
        Self {
            known: (0..namespaces).map(|_| Known::default()).collect(),
            tried: HashMap::new(),
            ready: HashMap::new(),
            used: HashMap::new(),
        }
    }

    /// Takes in what a client said.
    pub fn hear(&mut self, event: &Event) {
        match *event {
            Event::Try(key, coverage, epoch) => {
                self.tried.entry((key, epoch)).or_default().insert(coverage);
            }
            Event::Ready(key, coverage, epoch, span) => {
                later(self.ready.entry((key, epoch)).or_default().entry(coverage).or_default(), span);
                later(self.used.entry(key).or_default(), span);
            }
            _ => {}
        }
    }

    /// A reset was asked for and answered, or not.
    pub fn reset(&mut self, namespace: usize, answered: bool) {
        let known = &mut self.known[namespace];
        if answered {
            known.resets += 1;
        } else {
            known.unanswered = true;
        }
    }

    /// Compares the epochs that the daemon tells with what is known. `Err` says what is wrong.
    pub fn epochs(&mut self, told: &[u64]) -> Result<(), String> {
        for (index, (known, &now)) in self.known.iter_mut().zip(told).enumerate() {
            let expected = known.epoch + known.resets;
            let more = known.unanswered && now == expected + 1;
            // A kill in the middle of writing an epoch down takes the namespace with it.
            let anew = known.unanswered && !known.past.contains(&now) && now != known.epoch;
            if known.epoch != 0 && now != expected && !more && !anew {
                return Err(format!("namespace {index} is in epoch {now}, not {expected}: {known:?}"));
            }
            if known.epoch != now {
                known.past.extend([known.epoch]);
                known.past.extend(known.epoch..expected.max(known.epoch));
                if known.past.contains(&now) {
                    return Err(format!("namespace {index} has been in epoch {now} before: {known:?}"));
                }
            }
            (known.epoch, known.resets, known.unanswered) = (now, 0, false);
        }
        Ok(())
    }

    /// Compares what the daemon serves (coverage by key) with what was said. Epochs must have been compared before.
    /// What was found is what is known afterwards.
    pub fn compare(
        &mut self,
        space: &Space,
        found: &BTreeMap<Key, u64>,
        judge: Judge<'_>,
    ) -> Result<Verdict, String> {
        let mut verdict = Verdict::default();
        for (&key, &coverage) in found {
            let epoch = self.known[key.namespace].epoch;
            if !self.tried.get(&(key, epoch)).is_some_and(|tried| tried.contains(&coverage)) {
                return Err(format!("{key:?} is served with coverage {coverage:#x}, which nobody stored"));
            }
            verdict.unannounced += u64::from(!self.ready.contains_key(&(key, epoch)));
        }
        let mut missing = BTreeMap::new();
        for ((key, epoch), told) in &self.ready {
            if *epoch != self.known[key.namespace].epoch {
                continue;
            }
            let there = found.get(key).copied().unwrap_or_default();
            let lacks = told.iter().filter(|&(coverage, _)| there & coverage != *coverage);
            match lacks.map(|(_, &span)| span).max() {
                None => verdict.kept += 1,
                Some(last) => _ = missing.insert(*key, last),
            }
        }
        self.judge(space, &missing, judge)?;
        verdict.evicted = missing.len() as u64;
        self.take_over(found);
        Ok(verdict)
    }

    /// `missing` are chunks, with the last time at which what is missing of them was told.
    fn judge(&self, space: &Space, missing: &BTreeMap<Key, Span>, judge: Judge<'_>) -> Result<(), String> {
        match judge {
            Judge::All if missing.is_empty() => Ok(()),
            Judge::All => Err(format!("{} chunks were READY and are gone: {missing:?}", missing.len())),
            Judge::Evicted(evictions) => {
                for (index, &evicted) in evictions.iter().enumerate() {
                    let gone: Vec<_> = missing.keys().filter(|key| key.namespace == index).collect();
                    if gone.len() as u64 > evicted {
                        let count = gone.len();
                        return Err(format!("{count} chunks are gone, {evicted} were evicted: {gone:?}"));
                    }
                }
                Ok(())
            }
            Judge::Recent(bytes) => {
                for (key, &(from, _)) in missing {
                    let later = self.used.iter().filter(|&(_, &(_, to))| to >= from);
                    let sum: u64 = later.clone().map(|(&key, _)| space.footprint_bytes(key)).sum();
                    if sum <= bytes {
                        let count = later.count();
                        return Err(format!(
                            "{key:?} is gone, with only {count} chunks used later ({sum} bytes)"
                        ));
                    }
                }
                Ok(())
            }
        }
    }

    /// From now on, what was found is what must be there; it was used just now.
    fn take_over(&mut self, found: &BTreeMap<Key, u64>) {
        let now = now_us();
        let told = |coverage: u64| BTreeMap::from([(coverage, (now, now))]);
        self.ready = found
            .iter()
            .map(|(&key, &coverage)| ((key, self.known[key.namespace].epoch), told(coverage)))
            .collect();
        self.used = found.keys().map(|&key| (key, (now, now))).collect();
        let epochs: Vec<_> = self.known.iter().map(|known| known.epoch).collect();
        self.tried.retain(|(key, epoch), _| *epoch == epochs[key.namespace]);
    }
}

/// The later one of two uses.
fn later(last: &mut Span, span: Span) {
    *last = (last.0.max(span.0), last.1.max(span.1));
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { namespace: 0, group: 0, n: 3 };

    fn told() -> (Space, Truth) {
        let (space, mut truth) = (Space::new("truth", 8), Truth::new(1));
        truth.epochs(&[10]).unwrap();
        truth.hear(&Event::Try(KEY, 3, 10));
        truth.hear(&Event::Ready(KEY, 3, 10, (5, 6)));
        (space, truth)
    }

    #[test]
    fn what_was_ready_must_be_there_unless_it_was_evicted() {
        let (space, mut truth) = told();
        assert!(truth.compare(&space, &BTreeMap::new(), Judge::All).is_err());
        assert!(truth.compare(&space, &BTreeMap::new(), Judge::Evicted(&[0])).is_err());
        assert!(truth.compare(&space, &BTreeMap::new(), Judge::Recent(1 << 20)).is_err());
        let verdict = truth.compare(&space, &BTreeMap::from([(KEY, 3)]), Judge::All).unwrap();
        assert_eq!(verdict, Verdict { kept: 1, ..Verdict::default() });
        let verdict = truth.compare(&space, &BTreeMap::new(), Judge::Evicted(&[1])).unwrap();
        assert_eq!(verdict.evicted, 1);
    }

    #[test]
    fn what_was_used_long_ago_may_be_gone() {
        let (space, mut truth) = told();
        let footprint = space.footprint_bytes(KEY);
        for n in 4..8 {
            truth.hear(&Event::Ready(Key { n, ..KEY }, 3, 9, (7, 8)));
        }
        // It came back with less, and that is used.
        truth.hear(&Event::Try(KEY, 1, 10));
        truth.hear(&Event::Ready(KEY, 1, 10, (20, 21)));
        let less = BTreeMap::from([(KEY, 1)]);
        assert!(truth.compare(&space, &less, Judge::Recent(5 * footprint)).is_err());
        truth.compare(&space, &less, Judge::Recent(4 * footprint)).unwrap();
        assert!(truth.compare(&space, &BTreeMap::new(), Judge::Recent(5 * footprint)).is_err());
    }

    #[test]
    fn less_coverage_and_what_nobody_stored_are_noticed() {
        let (space, mut truth) = told();
        truth.hear(&Event::Try(KEY, 1, 10));
        assert!(truth.compare(&space, &BTreeMap::from([(KEY, 1)]), Judge::All).is_err());
        assert!(truth.compare(&space, &BTreeMap::from([(KEY, 7)]), Judge::All).is_err());
        let other = Key { n: 4, ..KEY };
        assert!(truth.compare(&space, &BTreeMap::from([(KEY, 3), (other, 1)]), Judge::All).is_err());
    }

    #[test]
    fn a_reset_ends_what_was_and_its_epoch_never_comes_back() {
        let (space, mut truth) = told();
        assert!(truth.epochs(&[11]).is_err(), "nobody asked for a reset");
        let (_, mut truth) = told();
        truth.reset(0, true);
        assert!(truth.epochs(&[10]).is_err(), "a reset that was answered counts");
        let (_, mut truth2) = told();
        truth2.reset(0, true);
        truth2.epochs(&[11]).unwrap();
        assert!(truth2.compare(&space, &BTreeMap::from([(KEY, 3)]), Judge::All).is_err(), "old bytes");
        assert_eq!(truth2.compare(&space, &BTreeMap::new(), Judge::All).unwrap(), Verdict::default());
        truth2.reset(0, false);
        assert!(truth2.epochs(&[10]).is_err(), "an epoch that was");
    }
}
