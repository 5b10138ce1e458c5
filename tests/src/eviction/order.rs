//! Blocks in the order in which they came.

use std::collections::{BTreeMap, HashMap};

#[derive(Debug, Default)]
pub(super) struct Order {
    numbers: HashMap<u64, u64>,
    blocks: BTreeMap<u64, u64>,
    next: u64,
}

impl Order {
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
    pub(super) fn has(&self, block: u64) -> bool {
        self.numbers.contains_key(&block)
    }
    /// Makes it the newest, whether it was in or not.
    pub(super) fn push(&mut self, block: u64) {
        self.next += 1;
        if let Some(number) = self.numbers.insert(block, self.next) {
            self.blocks.remove(&number);
        }
        self.blocks.insert(self.next, block);
    }
    /// Takes it out; false: it was not in.
    pub(super) fn remove(&mut self, block: u64) -> bool {
        let number = self.numbers.remove(&block);
        number.is_some_and(|number| self.blocks.remove(&number).is_some())
    }
    pub(super) fn oldest(&self) -> Option<u64> {
        self.blocks.first_key_value().map(|(_, block)| *block)
    }
    pub(super) fn pop_oldest(&mut self) -> Option<u64> {
        let (_, block) = self.blocks.pop_first()?;
        self.numbers.remove(&block);
        Some(block)
    }
    /// Lets the oldest go until so many are left.
    pub(super) fn cut(&mut self, most: usize) {
        while self.len() > most {
            self.pop_oldest();
        }
    }
}
