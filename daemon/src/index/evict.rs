//! Which chunk goes when room is needed: the one whose last use is longest ago, among those that are READY
//! and that nobody holds.
//!
//! Each shard lists exactly its evictable entries, oldest last: a pinned entry leaves the list and comes back
//! with its last pin, so finding a victim never skips over anything. Uses are numbered across all shards.

use std::time::Duration;

use super::slab::Slab;
use super::times::Times;
use super::{SHARDS, ShardIndex};
use crate::sync::atomic::{AtomicU64, Ordering};

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// What the shards share about recency. Read without any shard's lock; written under the shard's own.
#[derive(Debug)]
pub(super) struct Recency {
    clock: AtomicU64,
    evictable_bytes: AtomicU64,
    /// When uses were, by their numbers.
    times: Times,
    oldest: [AtomicU64; SHARDS],
}

impl Recency {
    pub(super) fn new() -> Self {
        Self {
            clock: AtomicU64::new(0),
            evictable_bytes: AtomicU64::new(0),
            times: Times::default(),
            oldest: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
        }
    }
    /// So long has it been since the start.
    pub(super) fn tell_time(&self, since_start: Duration) {
        // No model asks for an age: one operation less for them to follow.
        if !cfg!(feature = "loom") {
            self.times.mark(self.clock.load(Ordering::Relaxed), since_start);
        }
    }
    /// How long ago the use of this number was.
    pub(super) fn age_seconds(&self, used_at: u64) -> f64 {
        self.times.age_of(used_at).as_secs_f64()
    }
    /// Arena bytes that evicting everything evictable would free.
    pub(super) fn evictable_bytes(&self) -> u64 {
        self.evictable_bytes.load(Ordering::Acquire)
    }
    /// The shard with the oldest evictable entry; `None` when nothing can be evicted.
    pub(super) fn oldest_shard(&self) -> Option<ShardIndex> {
        let ages = self.oldest.iter().map(|age| age.load(Ordering::Acquire));
        let oldest = (0..).map(ShardIndex).zip(ages).min_by_key(|&(_, age)| age)?;
        (oldest.1 != u64::MAX).then_some(oldest.0)
    }
    /// Last use of a shard's oldest evictable entry, `u64::MAX` without one.
    pub(super) fn oldest_of(&self, shard: ShardIndex) -> u64 {
        self.oldest[shard.get()].load(Ordering::Acquire)
    }
}

/// The ends of one shard's list; the links are in the entries.
#[derive(Debug)]
pub(super) struct Lru {
    newest: u32,
    oldest: u32,
}

impl Lru {
    pub(super) fn new() -> Self {
        Self { newest: NONE, oldest: NONE }
    }
    /// The next victim.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }
    pub(super) fn newest(&self) -> Option<u32> {
        (self.newest != NONE).then_some(self.newest)
    }

    /// Puts an entry in front: it was used just now.
    pub(super) fn push(&mut self, slab: &mut Slab, slot: u32, recency: &Recency, shard: ShardIndex) {
        let newest = self.newest;
        let Some(entry) = slab.get_mut(slot) else { return };
        entry.used_at = recency.clock.fetch_add(1, Ordering::Relaxed);
        (entry.newer, entry.older) = (NONE, newest);
        let bytes = entry.ready.as_ref().map_or(0, |version| version.footprint_bytes());
        recency.evictable_bytes.fetch_add(bytes, Ordering::AcqRel);
        match slab.get_mut(newest) {
            Some(next) => next.newer = slot,
            None => self.oldest = slot,
        }
        self.newest = slot;
        self.publish_oldest(slab, recency, shard);
    }

    /// Takes an entry out. It must be in, and still have the version that it was put in with.
    pub(super) fn remove(&mut self, slab: &mut Slab, slot: u32, recency: &Recency, shard: ShardIndex) {
        let Some(entry) = slab.get_mut(slot) else { return };
        let (newer, older) = (entry.newer, entry.older);
        (entry.newer, entry.older) = (NONE, NONE);
        let bytes = entry.ready.as_ref().map_or(0, |version| version.footprint_bytes());
        recency.evictable_bytes.fetch_sub(bytes, Ordering::AcqRel);
        match slab.get_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match slab.get_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        self.publish_oldest(slab, recency, shard);
    }

    fn publish_oldest(&self, slab: &Slab, recency: &Recency, shard: ShardIndex) {
        let age = slab.get(self.oldest).map_or(u64::MAX, |entry| entry.used_at);
        recency.oldest[shard.get()].store(age, Ordering::Release);
    }
}
