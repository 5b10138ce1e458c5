//! What a step plan says.

use tender_proto::{ChunkId, Coverage};

/// What a worker does in one engine step.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct StepPlan {
    /// Gathered before the forward pass: what became final by finishing. The blocks may already belong to somebody
    /// else, who writes to them in this pass at the earliest.
    pub stores_before: Vec<StoreJob>,
    /// Begun after those gathers.
    pub loads: Vec<LoadJob>,
    /// Gathered after the forward pass: what it made final.
    pub stores_after: Vec<StoreJob>,
}

impl StepPlan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.stores_before.is_empty() && self.loads.is_empty() && self.stores_after.is_empty()
    }
}

/// One chunk to store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreJob {
    /// Its key.
    pub chunk: ChunkId,
    /// Which of its blocks are written.
    pub coverage: Coverage,
    /// The engine's block ids, one for each block of the chunk; not looked at where the coverage is clear.
    pub blocks: Vec<u32>,
}

/// One request to load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadJob {
    /// The engine's name of the request.
    pub request: String,
    /// What to load for it: all of it, or the load has failed.
    pub items: Vec<LoadItem>,
}

/// What to load of one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadItem {
    /// Its key.
    pub chunk: ChunkId,
    /// Which of its blocks to load.
    pub needed: Coverage,
    /// The engine's block ids, one for each block of the chunk; not looked at where a block is not needed.
    pub blocks: Vec<u32>,
}
