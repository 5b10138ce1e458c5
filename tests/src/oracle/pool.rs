//! The engine's block pool: one for all groups, with the engine's own prefix cache over it.

use std::collections::{HashMap, VecDeque};

/// A group and the fingerprint of everything that decides a block of it.
pub type CacheKey = (usize, u64);

/// Blocks 1 to `blocks - 1`; 0 is the null block. Free blocks keep what they hold until they are handed out again,
/// longest free first.
#[derive(Debug)]
pub struct Pool {
    holders: Vec<u32>,
    free: VecDeque<u32>,
    cached: HashMap<CacheKey, u32>,
    key_of: HashMap<u32, CacheKey>,
    /// Handed out since the last [`Pool::take_fresh`].
    fresh: Vec<u32>,
}

impl Pool {
    /// All free.
    pub fn new(blocks: u32) -> Self {
        Self {
            holders: vec![0; blocks as usize],
            free: (1..blocks).collect(),
            cached: HashMap::new(),
            key_of: HashMap::new(),
            fresh: Vec::new(),
        }
    }
    /// Blocks that could be handed out.
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }
    /// A block to write into. What was cached in it is gone.
    pub fn take(&mut self) -> Option<u32> {
        let block = self.free.pop_front()?;
        self.uncache(block);
        self.holders[block as usize] = 1;
        self.fresh.push(block);
        Some(block)
    }
    fn uncache(&mut self, block: u32) {
        if let Some(key) = self.key_of.remove(&block) {
            self.cached.remove(&key);
        }
    }
    /// One more request reads this cached block.
    pub fn share(&mut self, block: u32) {
        if self.holders[block as usize] == 0 {
            self.free.retain(|&free| free != block);
        }
        self.holders[block as usize] += 1;
    }
    /// A request is done with a block.
    pub fn give_back(&mut self, block: u32) {
        if block == 0 {
            return;
        }
        let holders = &mut self.holders[block as usize];
        *holders = holders.checked_sub(1).expect("somebody holds it");
        if *holders == 0 {
            self.free.push_back(block);
        }
    }
    /// Names what a block holds, unless another block holds the same.
    pub fn cache(&mut self, key: CacheKey, block: u32) {
        if block != 0 && !self.key_of.contains_key(&block) && !self.cached.contains_key(&key) {
            self.cached.insert(key, block);
            self.key_of.insert(block, key);
        }
    }
    /// The block that holds this.
    pub fn find(&self, key: CacheKey) -> Option<u32> {
        self.cached.get(&key).copied()
    }
    /// Empties the prefix cache.
    pub fn forget(&mut self) {
        self.cached.clear();
        self.key_of.clear();
    }
    /// Blocks handed out since the last call, that are not free again and cached.
    pub fn take_fresh(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.fresh)
    }
    /// Free blocks that the prefix cache does not name: nobody may expect anything of them.
    pub fn dead(&self) -> Vec<u32> {
        self.free.iter().copied().filter(|block| !self.key_of.contains_key(block)).collect()
    }
    /// Blocks that somebody holds.
    pub fn held_blocks(&self) -> usize {
        self.holders.iter().filter(|&&holders| holders > 0).count()
    }
}
