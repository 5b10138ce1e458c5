//! What this daemon has learned about objects. Losing any of it costs a request.

use std::time::Duration;

use moka::sync::Cache;

use super::object::Name;

/// Objects that are there seldom go: a reset names others, and a fetch that finds nothing forgets.
const PRESENT_TIME: Duration = Duration::from_secs(60);
/// Another daemon may store it at any time.
const ABSENT_TIME: Duration = Duration::from_secs(5);
/// It does not mend by itself; whoever stores it anew writes over it.
const BROKEN_TIME: Duration = Duration::from_secs(600);
/// About 200 bytes each.
const NAMES: u64 = 100_000;
const BROKEN_NAMES: u64 = 10_000;

/// What an object is known to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// There, with this size.
    Bytes(u64),
    /// Not there.
    Absent,
    /// Not to be used.
    Broken,
}

#[derive(Debug)]
pub(super) struct KnownObjects {
    present: Cache<Name, u64>,
    absent: Cache<Name, ()>,
    broken: Cache<Name, ()>,
}

impl Default for KnownObjects {
    fn default() -> Self {
        Self {
            present: Cache::builder().max_capacity(NAMES).time_to_live(PRESENT_TIME).build(),
            absent: Cache::builder().max_capacity(NAMES).time_to_live(ABSENT_TIME).build(),
            broken: Cache::builder().max_capacity(BROKEN_NAMES).time_to_live(BROKEN_TIME).build(),
        }
    }
}

impl KnownObjects {
    pub(super) fn get(&self, name: &Name) -> Option<Known> {
        if self.broken.contains_key(name) {
            return Some(Known::Broken);
        }
        let present = self.present.get(name).map(Known::Bytes);
        present.or_else(|| self.absent.contains_key(name).then_some(Known::Absent))
    }

    pub(super) fn note(&self, name: Name, known: Known) {
        match known {
            Known::Bytes(bytes) => {
                self.absent.invalidate(&name);
                self.present.insert(name, bytes);
            }
            Known::Absent => {
                self.present.invalidate(&name);
                self.absent.insert(name, ());
            }
            Known::Broken => {
                self.present.invalidate(&name);
                self.broken.insert(name, ());
            }
        }
    }

    /// It has been stored anew.
    pub(super) fn mend(&self, name: Name, bytes: u64) {
        self.broken.invalidate(&name);
        self.note(name, Known::Bytes(bytes));
    }
}
