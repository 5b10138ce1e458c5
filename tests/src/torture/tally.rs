//! What happened, counted by kind.

use std::collections::BTreeMap;
use std::fmt;

/// Counts by name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Tally(BTreeMap<String, u64>);

impl Tally {
    /// Counts more of a kind.
    pub fn add(&mut self, what: &str, more: u64) {
        match self.0.get_mut(what) {
            Some(count) => *count += more,
            None => _ = self.0.insert(what.into(), more),
        }
    }
    /// How many of a kind.
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
    /// How many of all kinds whose names begin so.
    pub fn all(&self, begin: &str) -> u64 {
        self.0.iter().filter(|(name, _)| name.starts_with(begin)).map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, count)| writeln!(f, "{count:>12} {name}"))
    }
}
