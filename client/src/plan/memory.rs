//! What this planner remembers about chunks: which are stored, and how often each was asked for. Being wrong costs a
//! needless store (the daemon declines it) or, until the memory expires, a missing one.

use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tender_proto::{ChunkId, Coverage};

use super::config::PlanConfig;

/// Keeps so many chunks for so long, those that were touched last.
fn remembered<V: Clone + Send + Sync + 'static>(chunks: u64, time: Duration) -> Cache<ChunkId, V> {
    Cache::builder()
        .max_capacity(chunks)
        .time_to_live(time)
        // The default policy would keep old keys and not admit the one just stored.
        .eviction_policy(EvictionPolicy::lru())
        .build()
}

/// Keys with the coverage they were stored with.
#[derive(Debug)]
pub(super) struct Stored {
    chunks: Cache<ChunkId, Coverage>,
}

impl Stored {
    pub(super) fn new(config: &PlanConfig) -> Self {
        Self { chunks: remembered(config.remembered_chunks, config.remember_for) }
    }
    /// Whether there is no use in storing the chunk with this coverage: a store replaces another only if it has all of
    /// its blocks and more. The daemon has the same rule.
    pub(super) fn makes_needless(&self, chunk: ChunkId, coverage: Coverage) -> bool {
        self.chunks.get(&chunk).is_some_and(|stored| stored == coverage || !coverage.contains(stored))
    }
    pub(super) fn remember(&self, chunk: ChunkId, coverage: Coverage) {
        if !self.makes_needless(chunk, coverage) {
            self.chunks.insert(chunk, coverage);
        }
    }
    pub(super) fn forget(&self, chunk: ChunkId) {
        self.chunks.invalidate(&chunk);
    }
}

/// How many requests asked for a chunk of late. Nothing is kept where one request is enough.
#[derive(Debug)]
pub(super) struct Asked {
    enough: u32,
    requests: Cache<ChunkId, u32>,
}

impl Asked {
    pub(super) fn new(config: &PlanConfig) -> Self {
        let requests = remembered(config.remembered_chunks, config.reuse_for);
        Self { enough: config.store_after_requests, requests }
    }
    pub(super) fn count(&self, chunk: ChunkId) {
        if self.enough > 1 {
            let asked = self.requests.get(&chunk).unwrap_or(0);
            self.requests.insert(chunk, asked.saturating_add(1));
        }
    }
    pub(super) fn enough(&self, chunk: ChunkId) -> bool {
        self.enough <= 1 || self.requests.get(&chunk).unwrap_or(0) >= self.enough
    }
}
