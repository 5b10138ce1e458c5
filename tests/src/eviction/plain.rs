//! Ways with one list.

use std::collections::{BTreeSet, HashMap};

use super::order::Order;
use super::{Arena, Use};

/// What was used longest ago goes.
#[derive(Debug)]
pub struct Lru {
    room: usize,
    order: Order,
}

impl Lru {
    /// With room for so many blocks.
    pub fn new(room: usize) -> Self {
        Self { room, order: Order::default() }
    }
}

impl Arena for Lru {
    fn has(&self, block: u64) -> bool {
        self.order.has(block)
    }
    fn touch(&mut self, use_of: Use) {
        self.order.push(use_of.block);
    }
    fn put(&mut self, use_of: Use) {
        self.order.push(use_of.block);
        self.order.cut(self.room);
    }
}

/// What was used longest ago goes, but nothing that another block there continues.
#[derive(Debug)]
pub struct PrefixLru {
    room: usize,
    kept: HashMap<u64, Kept>,
    /// Blocks that none there continues, by their last use.
    ends: BTreeSet<(u64, u64)>,
    clock: u64,
}

#[derive(Debug)]
struct Kept {
    used_at: u64,
    parent: Option<u64>,
    children: u32,
}

impl PrefixLru {
    /// With room for so many blocks.
    pub fn new(room: usize) -> Self {
        Self { room, kept: HashMap::new(), ends: BTreeSet::new(), clock: 0 }
    }

    fn evict(&mut self) {
        let Some((_, victim)) = self.ends.pop_first() else { return };
        let parent = self.kept.remove(&victim).and_then(|kept| kept.parent);
        if let Some((parent, kept)) = parent.and_then(|block| Some((block, self.kept.get_mut(&block)?))) {
            kept.children -= 1;
            if kept.children == 0 {
                self.ends.insert((kept.used_at, parent));
            }
        }
    }
}

impl Arena for PrefixLru {
    fn has(&self, block: u64) -> bool {
        self.kept.contains_key(&block)
    }
    fn touch(&mut self, use_of: Use) {
        self.clock += 1;
        let Some(kept) = self.kept.get_mut(&use_of.block) else { return };
        if self.ends.remove(&(kept.used_at, use_of.block)) {
            self.ends.insert((self.clock, use_of.block));
        }
        kept.used_at = self.clock;
    }
    fn put(&mut self, use_of: Use) {
        while self.kept.len() >= self.room {
            self.evict();
        }
        self.clock += 1;
        let parent = use_of.parent.filter(|parent| self.kept.contains_key(parent));
        if let Some((parent, kept)) = parent.and_then(|block| Some((block, self.kept.get_mut(&block)?))) {
            kept.children += 1;
            self.ends.remove(&(kept.used_at, parent));
        }
        self.ends.insert((self.clock, use_of.block));
        self.kept.insert(use_of.block, Kept { used_at: self.clock, parent, children: 0 });
    }
}

/// What is used latest of all goes (Belady): nobody can know that, so nobody finds much more.
#[derive(Debug)]
pub struct Farthest {
    room: usize,
    /// When each block of the load is used again.
    next_use: Vec<usize>,
    kept: HashMap<u64, usize>,
    order: BTreeSet<(usize, u64)>,
}

impl Farthest {
    /// With room for so many blocks, and this load to come.
    pub fn new(room: usize, requests: &[Vec<u64>]) -> Self {
        let uses: Vec<u64> = requests.iter().flatten().copied().collect();
        let (mut next_use, mut seen) = (vec![usize::MAX; uses.len()], HashMap::new());
        for (at, &block) in uses.iter().enumerate().rev() {
            next_use[at] = seen.insert(block, at).unwrap_or(usize::MAX);
        }
        Self { room, next_use, kept: HashMap::new(), order: BTreeSet::new() }
    }
}

impl Arena for Farthest {
    fn has(&self, block: u64) -> bool {
        self.kept.contains_key(&block)
    }
    fn touch(&mut self, use_of: Use) {
        let next_use = self.next_use[use_of.at];
        if let Some(before) = self.kept.insert(use_of.block, next_use) {
            self.order.remove(&(before, use_of.block));
        }
        self.order.insert((next_use, use_of.block));
    }
    fn put(&mut self, use_of: Use) {
        self.touch(use_of);
        while self.kept.len() > self.room
            && let Some((_, victim)) = self.order.pop_last()
        {
            self.kept.remove(&victim);
        }
    }
}
