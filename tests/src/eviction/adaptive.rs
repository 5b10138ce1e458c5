//! Two well-known ways that look at how often a block is used.

use std::collections::HashMap;

use super::order::Order;
use super::{Arena, Use};

/// S3-FIFO: a small queue that blocks leave after one round unless they were used, a large one with second chances, and
/// a memory of what left the small one.
#[derive(Debug)]
pub struct S3Fifo {
    room: usize,
    small: Order,
    main: Order,
    /// Uses since the last chance, 3 at most.
    uses: HashMap<u64, u8>,
    gone: Order,
}

impl S3Fifo {
    /// With room for so many blocks, a tenth of them in the small queue.
    pub fn new(room: usize) -> Self {
        let (small, main, gone) = Default::default();
        Self { room, small, main, uses: HashMap::new(), gone }
    }

    fn evict(&mut self) {
        if self.small.len() * 10 >= self.room || self.main.len() == 0 {
            while let Some(block) = self.small.pop_oldest() {
                if self.uses.remove(&block).is_none_or(|uses| uses == 0) {
                    self.gone.push(block);
                    self.gone.cut(self.room);
                    return;
                }
                self.main.push(block);
            }
        }
        while let Some(block) = self.main.pop_oldest() {
            let left = self.uses.get_mut(&block).filter(|uses| **uses > 0);
            let Some(left) = left else {
                self.uses.remove(&block);
                return;
            };
            *left -= 1;
            self.main.push(block);
        }
    }
}

impl Arena for S3Fifo {
    fn has(&self, block: u64) -> bool {
        self.small.has(block) || self.main.has(block)
    }
    fn touch(&mut self, use_of: Use) {
        let uses = self.uses.entry(use_of.block).or_default();
        *uses = (*uses + 1).min(3);
    }
    fn put(&mut self, use_of: Use) {
        while self.small.len() + self.main.len() >= self.room {
            self.evict();
        }
        if self.gone.remove(use_of.block) {
            self.main.push(use_of.block);
        } else {
            self.small.push(use_of.block);
        }
    }
}

/// W-TinyLFU: a window of a hundredth, behind it a segmented LRU that takes in what was used more often than its own
/// victim. Uses are counted exactly here, and halved from time to time, where a cache would use a sketch.
#[derive(Debug)]
pub struct TinyLfu {
    window_room: usize,
    main_room: usize,
    window: Order,
    probation: Order,
    protected: Order,
    uses: HashMap<u64, u32>,
    counted: usize,
}

impl TinyLfu {
    /// With room for so many blocks.
    pub fn new(room: usize) -> Self {
        let window_room = (room / 100).max(1);
        let (window, probation, protected) = Default::default();
        Self {
            window_room,
            main_room: room.saturating_sub(window_room),
            window,
            probation,
            protected,
            uses: HashMap::new(),
            counted: 0,
        }
    }

    fn count(&mut self, block: u64) {
        *self.uses.entry(block).or_default() += 1;
        self.counted += 1;
        if self.counted >= 10 * (self.window_room + self.main_room) {
            self.counted /= 2;
            self.uses.retain(|_, uses| {
                *uses /= 2;
                *uses > 0
            });
        }
    }

    /// From the window into the main part, or out.
    fn admit(&mut self, candidate: u64) {
        if self.probation.len() + self.protected.len() < self.main_room {
            self.probation.push(candidate);
            return;
        }
        let of_probation = self.probation.oldest();
        let Some(victim) = of_probation.or_else(|| self.protected.oldest()) else { return };
        let uses = |block| self.uses.get(&block).copied().unwrap_or_default();
        if uses(candidate) > uses(victim) {
            _ = self.probation.remove(victim) || self.protected.remove(victim);
            self.probation.push(candidate);
        }
    }
}

impl Arena for TinyLfu {
    fn has(&self, block: u64) -> bool {
        [&self.window, &self.probation, &self.protected].into_iter().any(|order| order.has(block))
    }
    fn touch(&mut self, use_of: Use) {
        let block = use_of.block;
        self.count(block);
        if self.window.has(block) {
            self.window.push(block);
            return;
        }
        self.probation.remove(block);
        self.protected.push(block);
        // Four fifths of the main part.
        while self.protected.len() * 5 > self.main_room * 4
            && let Some(demoted) = self.protected.pop_oldest()
        {
            self.probation.push(demoted);
        }
    }
    fn put(&mut self, use_of: Use) {
        self.count(use_of.block);
        self.window.push(use_of.block);
        while self.window.len() > self.window_room
            && let Some(candidate) = self.window.pop_oldest()
        {
            self.admit(candidate);
        }
    }
}
