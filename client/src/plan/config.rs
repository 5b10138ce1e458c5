//! What a user may set about plans, and what planning counts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where a hit may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HitUnit {
    /// At any block: the last chunk may be loaded in part.
    #[default]
    Block,
    /// At chunks only.
    Chunk,
}

/// Settings of a planner. They only ever lower what is stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanConfig {
    /// Tokens of each request that are stored at most; `None` stores all.
    pub max_store_tokens: Option<u64>,
    /// Stores prompts only, not what was generated.
    pub prompt_only: bool,
    /// Where a hit may end.
    pub hit_unit: HitUnit,
    /// Leaves out chunks of which a block was not written or is gone, as the blocks before a window are.
    pub complete_chunks_only: bool,
    /// Stores a chunk when so many requests have asked for it within `reuse_for`, its own request included: 1 stores
    /// at once, 2 what was asked for again.
    pub store_after_requests: u32,
    /// How long an asking counts, at most.
    #[serde(with = "humantime_serde")]
    pub reuse_for: Duration,
    /// Chunks that are remembered as stored, so that they are not offered again. 64 bytes and some each.
    pub remembered_chunks: u64,
    /// How long each is remembered: a chunk the daemon lost meanwhile is not offered again before that.
    #[serde(with = "humantime_serde")]
    pub remember_for: Duration,
}

impl Default for PlanConfig {
    fn default() -> Self {
        Self {
            max_store_tokens: None,
            prompt_only: false,
            hit_unit: HitUnit::Block,
            complete_chunks_only: false,
            store_after_requests: 1,
            reuse_for: Duration::from_secs(600),
            remembered_chunks: 262_144,
            remember_for: Duration::from_secs(60),
        }
    }
}

/// What a planner did and what it declined, since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PlanCounters {
    /// Store jobs handed out.
    pub stores: u64,
    /// Stores left out because the chunk is known to be stored.
    pub stores_known: u64,
    /// Stores left out because too few requests asked for the chunk.
    pub stores_unasked: u64,
    /// Stores left out because not every block of the chunk is there.
    pub stores_incomplete: u64,
    /// Recurrent states left out: not at a block's end, beyond what is written, or in no block.
    pub states_left_out: u64,
    /// Load jobs handed out.
    pub loads: u64,
    /// Tokens those load.
    pub load_tokens: u64,
    /// Loads the engine allocated for and that do not fit what was promised or its block table.
    pub loads_refused: u64,
    /// Loads dropped before they were handed out, because their request was aborted or replaced.
    pub loads_dropped: u64,
    /// Loads after which the engine computed from an earlier token than they end at.
    pub loads_failed: u64,
    /// Requests that were named without having been added, or after they finished.
    pub unknown_requests: u64,
    /// Requests added under an id that was still in use.
    pub replaced_requests: u64,
    /// Steps or ends whose block table is shorter than what they say was computed.
    pub short_block_tables: u64,
}
