//! Which chunks are stored already, as far as this planner knows. Being wrong costs a needless store (the daemon
//! declines it) or, until the memory expires, a missing one.

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tender_proto::{ChunkId, Coverage};

use super::config::PlanConfig;

/// Keys with the coverage they were stored with.
#[derive(Debug)]
pub(super) struct Stored {
    chunks: Cache<ChunkId, Coverage>,
}

impl Stored {
    pub(super) fn new(config: &PlanConfig) -> Self {
        let chunks = Cache::builder()
            .max_capacity(config.remembered_chunks)
            .time_to_live(config.remember_for)
            // The default policy would keep old keys and not admit the one just stored.
            .eviction_policy(EvictionPolicy::lru())
            .build();
        Self { chunks }
    }
    pub(super) fn covers(&self, chunk: ChunkId, coverage: Coverage) -> bool {
        self.chunks.get(&chunk).is_some_and(|stored| stored.contains(coverage))
    }
    pub(super) fn remember(&self, chunk: ChunkId, coverage: Coverage) {
        if !self.covers(chunk, coverage) {
            self.chunks.insert(chunk, coverage);
        }
    }
    pub(super) fn forget(&self, chunk: ChunkId) {
        self.chunks.invalidate(&chunk);
    }
}
