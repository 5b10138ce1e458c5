//! One arena: the chunks used last.

use std::collections::{BTreeMap, HashMap};

#[derive(Debug, Default)]
pub(super) struct Lru {
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
}

impl Lru {
    pub(super) fn len(&self) -> usize {
        self.used.len()
    }
    pub(super) fn has(&self, chunk: u64) -> bool {
        self.used.contains_key(&chunk)
    }
    pub(super) fn chunks(&self) -> impl Iterator<Item = u64> {
        self.used.keys().copied()
    }
    /// Makes it the last used, if it is there.
    pub(super) fn touch(&mut self, chunk: u64) -> bool {
        let Some(used) = self.used.get_mut(&chunk) else { return false };
        self.order.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.order.insert(self.clock, chunk);
        true
    }
    /// Takes it in and returns what went for it.
    pub(super) fn insert(&mut self, chunk: u64, most: usize) -> Option<u64> {
        if self.touch(chunk) {
            return None;
        }
        self.clock += 1;
        self.used.insert(chunk, self.clock);
        self.order.insert(self.clock, chunk);
        if self.used.len() <= most {
            return None;
        }
        let (_, oldest) = self.order.pop_first()?;
        self.used.remove(&oldest);
        Some(oldest)
    }
}
