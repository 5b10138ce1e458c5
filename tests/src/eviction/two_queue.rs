//! As the daemon does it, see daemon/src/index/evict.rs.

use std::collections::HashSet;

use super::order::Order;
use super::{Arena, Use};

/// New blocks are on probation; what is used there, or comes back soon after it went, is protected.
#[derive(Debug)]
pub struct TwoQueue {
    room: usize,
    probation: Order,
    /// Those on probation that were used.
    used: HashSet<u64>,
    protected: Order,
    /// What went lately, as much as there is room for.
    gone: Order,
}

impl TwoQueue {
    /// With room for so many blocks.
    pub fn new(room: usize) -> Self {
        let (probation, protected, gone) = Default::default();
        Self { room, probation, used: HashSet::new(), protected, gone }
    }
    fn len(&self) -> usize {
        self.probation.len() + self.protected.len()
    }
    fn evict(&mut self) {
        let gone = loop {
            if self.probation.len() < self.len().div_ceil(2) {
                break self.protected.pop_oldest();
            }
            match self.probation.pop_oldest() {
                Some(spared) if self.used.remove(&spared) => self.protected.push(spared),
                gone => break gone,
            }
        };
        if let Some(gone) = gone {
            self.gone.push(gone);
            self.gone.cut(self.room);
        }
    }
}

impl Arena for TwoQueue {
    fn has(&self, block: u64) -> bool {
        self.probation.has(block) || self.protected.has(block)
    }
    fn touch(&mut self, use_of: Use) {
        if self.protected.has(use_of.block) {
            self.protected.push(use_of.block);
        } else {
            self.probation.push(use_of.block);
            self.used.insert(use_of.block);
        }
    }
    fn put(&mut self, use_of: Use) {
        while self.len() >= self.room {
            self.evict();
        }
        if self.gone.remove(use_of.block) {
            self.protected.push(use_of.block);
        } else {
            self.probation.push(use_of.block);
        }
    }
}
