//! Which chunks need not be stored again: those that a lookup found, and those handed out before.

use std::time::Duration;

use moka::sync::Cache;
use tender_proto::ChunkId;

/// Chunks remembered; about 100 bytes each.
const MAX_KNOWN: u64 = 1 << 18;
/// A store that failed at the worker, or a chunk evicted since, is tried again after this.
const KNOWN_FOR: Duration = Duration::from_secs(120);

/// A memory that may forget: forgetting costs one more store, which the daemon answers with "already there".
#[derive(Debug)]
pub(super) struct Known(Cache<ChunkId, ()>);

impl Known {
    pub(super) fn new() -> Self {
        Self(Cache::builder().max_capacity(MAX_KNOWN).time_to_live(KNOWN_FOR).build())
    }
    /// Whether it was known; it is from now on.
    pub(super) fn replace(&self, chunk: ChunkId) -> bool {
        let known = self.0.contains_key(&chunk);
        if !known {
            self.0.insert(chunk, ());
        }
        known
    }
    /// The daemon said that it has it.
    pub(super) fn remember(&self, chunk: ChunkId) {
        self.0.insert(chunk, ());
    }
    /// The daemon said that it has it not.
    pub(super) fn forget(&self, chunk: ChunkId) {
        self.0.invalidate(&chunk);
    }
    pub(super) fn clear(&self) {
        self.0.invalidate_all();
    }
}
