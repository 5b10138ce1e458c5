//! Which chunk goes when room is needed, among those that are READY and that nobody holds.
//!
//! Chunks that were stored and not used since are on **probation**. When the oldest of them comes up as a victim and was
//! used meanwhile, it becomes **protected** instead; so does at once what comes back soon after it was evicted. Victims
//! are taken from probation while it holds half of what can be evicted, else from the protected ones: a flood of chunks
//! that nobody asks for again goes through one half of the arena only. With [`Eviction::Lru`] everything is protected.
//! In both queues the oldest is the one whose last use, or pin, ended first. docs/benchmarks.md says why it is this way.

use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;

use super::times::Times;
use super::{SHARDS, ShardIndex};
use crate::sync::atomic::{AtomicU64, Ordering};

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// Which chunk goes when room is needed.
#[derive(ValueEnum, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// First what was not used again since it was stored, then what was used longest ago.
    TwoQueue,
    /// What was used longest ago.
    Lru,
}

impl Eviction {
    /// Where a chunk begins.
    pub(super) fn queue_of_new(self, is_back_soon: bool) -> Queue {
        match self {
            Self::TwoQueue if !is_back_soon => Queue::Probation,
            Self::TwoQueue | Self::Lru => Queue::Protected,
        }
    }
}

/// What an entry waits in until it is used or evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queue {
    Probation,
    Protected,
}

impl Queue {
    pub(super) const ALL: [Self; 2] = [Self::Probation, Self::Protected];

    pub(super) fn get(self) -> usize {
        match self {
            Self::Probation => 0,
            Self::Protected => 1,
        }
    }
}

/// What the shards share about recency. Read without any shard's lock; written under the shard's own.
#[derive(Debug)]
pub(super) struct Recency {
    eviction: Eviction,
    clock: AtomicU64,
    evictable_bytes: AtomicU64,
    /// Those of them that are on probation.
    probation_bytes: AtomicU64,
    /// When uses were, by their numbers.
    times: Times,
    /// When the oldest entry of each shard and queue came into it; `u64::MAX` without one.
    oldest: [[AtomicU64; Queue::ALL.len()]; SHARDS],
}

impl Recency {
    pub(super) fn new(eviction: Eviction) -> Self {
        Self {
            eviction,
            clock: AtomicU64::new(0),
            evictable_bytes: AtomicU64::new(0),
            probation_bytes: AtomicU64::new(0),
            times: Times::default(),
            oldest: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(u64::MAX))),
        }
    }
    pub(super) fn eviction(&self) -> Eviction {
        self.eviction
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
    /// Of a use, or of an entry that comes into a queue: later ones have higher numbers, in all shards.
    pub(super) fn next_number(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }
    /// Arena bytes that evicting everything evictable would free.
    pub(super) fn evictable_bytes(&self) -> u64 {
        self.evictable_bytes.load(Ordering::Acquire)
    }
    pub(super) fn probation_bytes(&self) -> u64 {
        self.probation_bytes.load(Ordering::Acquire)
    }
    pub(super) fn add(&self, queue: Queue, bytes: u64) {
        self.evictable_bytes.fetch_add(bytes, Ordering::AcqRel);
        if queue == Queue::Probation {
            self.probation_bytes.fetch_add(bytes, Ordering::AcqRel);
        }
    }
    pub(super) fn subtract(&self, queue: Queue, bytes: u64) {
        self.evictable_bytes.fetch_sub(bytes, Ordering::AcqRel);
        if queue == Queue::Probation {
            self.probation_bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
    }
    /// The oldest entry of a shard's queue came into it then; `u64::MAX`: it has none.
    pub(super) fn announce(&self, shard: ShardIndex, queue: Queue, listed_at: u64) {
        self.oldest[shard.get()][queue.get()].store(listed_at, Ordering::Release);
    }
    pub(super) fn announced(&self, shard: ShardIndex, queue: Queue) -> u64 {
        self.oldest[shard.get()][queue.get()].load(Ordering::Acquire)
    }
    /// Where the next victim is; `None` when nothing can be evicted.
    pub(super) fn next_victim(&self) -> Option<(Queue, ShardIndex)> {
        choose(self.evictable_bytes(), self.probation_bytes(), |queue| {
            oldest(|shard| self.announced(shard, queue))
        })
    }
}

/// The queue that has to give, and in it the shard with the oldest entry.
pub(super) fn choose(
    evictable_bytes: u64,
    probation_bytes: u64,
    oldest_shard: impl Fn(Queue) -> Option<ShardIndex>,
) -> Option<(Queue, ShardIndex)> {
    let order = if probation_bytes >= evictable_bytes.div_ceil(2) {
        [Queue::Probation, Queue::Protected]
    } else {
        [Queue::Protected, Queue::Probation]
    };
    order.into_iter().find_map(|queue| Some((queue, oldest_shard(queue)?)))
}

/// The shard whose oldest entry came first; `None` when all say `u64::MAX`.
pub(super) fn oldest(listed_at: impl Fn(ShardIndex) -> u64) -> Option<ShardIndex> {
    let shards = (0..).map(ShardIndex).take(SHARDS).map(|shard| (listed_at(shard), shard));
    let (first, shard) = shards.min()?;
    (first != u64::MAX).then_some(shard)
}
