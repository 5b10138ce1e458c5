//! The kinds of layer groups a drawn model has: what attention reads, what the engine keeps, what a block is made of.

use std::num::NonZeroU32;

use tender_proto::{BlocksPerChunk, Group, GroupKind};

/// One group of layers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupSpec {
    /// What its layers do with the past.
    pub kind: GroupKind,
    /// Slots of a block.
    pub tokens_per_block: usize,
    /// Blocks of a chunk.
    pub blocks_per_chunk: u32,
    /// Tokens a query sees, its own included; or the piece of a chunked-local group.
    pub window: usize,
    /// Tokens that the engine keeps beyond a sliding window.
    pub retained: usize,
    /// Tokens behind a slot that decide it.
    pub lookahead: usize,
    /// Layers.
    pub layers: u32,
    /// Heads on all ranks together; 0 for latents, which have none.
    pub heads: u32,
    /// Contiguous bytes of a slot of a head.
    pub cell_bytes: u32,
    /// A further, smaller tensor beside each layer's (as an indexer's keys).
    pub side: bool,
    /// Heads outside tokens in a page; else the other way round.
    pub heads_first: bool,
}

/// What one tensor holds of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorShape {
    /// Its name within the group.
    pub name: String,
    /// Heads; `None` where there is no such axis.
    pub heads: Option<u32>,
    /// Slots; `None` for a state, which is one for the block.
    pub slots: Option<u32>,
    /// Contiguous bytes at each head and slot.
    pub cell_bytes: u32,
}

impl TensorShape {
    /// Bytes that mean something.
    pub fn content_bytes(&self) -> u64 {
        u64::from(self.heads.unwrap_or(1)) * u64::from(self.slots.unwrap_or(1)) * u64::from(self.cell_bytes)
    }
}

impl GroupSpec {
    /// A block is a state.
    pub fn recurrent(&self) -> bool {
        self.kind == GroupKind::Recurrent
    }
    /// Older blocks are given back while a request runs.
    pub fn windowed(&self) -> bool {
        matches!(self.kind, GroupKind::SlidingWindow | GroupKind::ChunkedLocal)
    }
    /// The first slot that attention of a query at `position` reads.
    pub fn first_read(&self, position: usize) -> usize {
        match self.kind {
            GroupKind::SlidingWindow => (position + 1).saturating_sub(self.window),
            GroupKind::ChunkedLocal => position - position % self.window,
            _ => 0,
        }
    }
    /// The first slot that the engine keeps when `computed` tokens are computed.
    pub fn first_kept(&self, computed: usize) -> usize {
        match self.kind {
            GroupKind::SlidingWindow => (computed + 1).saturating_sub(self.window + self.retained),
            GroupKind::ChunkedLocal => computed - computed % self.window,
            // The running state, and nothing else.
            GroupKind::Recurrent => {
                computed.saturating_sub(1) / self.tokens_per_block * self.tokens_per_block
            }
            GroupKind::FullAttention | GroupKind::MlaLatent => 0,
        }
    }
    /// Its tensors on a rank that holds this many of its heads.
    pub fn tensors(&self, rank_heads: u32) -> Vec<TensorShape> {
        let slots = u32::try_from(self.tokens_per_block).ok();
        let heads = (self.heads > 0).then_some(rank_heads);
        (0..self.layers)
            .flat_map(|layer| {
                let shape =
                    |name: String, heads, slots, cell_bytes| TensorShape { name, heads, slots, cell_bytes };
                if self.recurrent() {
                    return vec![
                        shape(format!("layer.{layer}.0"), None, None, self.cell_bytes * 3),
                        shape(format!("layer.{layer}.1"), None, None, self.cell_bytes * 5),
                    ];
                }
                let mut tensors = vec![shape(format!("layer.{layer}"), heads, slots, self.cell_bytes)];
                if self.side {
                    tensors.push(shape(format!("layer.{layer}.side"), None, slots, 8));
                }
                tensors
            })
            .collect()
    }
    /// As the daemon is told of it.
    pub fn describe(&self, part_block_bytes: Vec<u64>) -> Group {
        let number = |n: usize| u32::try_from(n).ok().and_then(NonZeroU32::new);
        let window = if self.windowed() { number(self.window + self.retained) } else { None };
        let group = Group::new(
            self.kind,
            number(self.tokens_per_block).expect("a block has tokens"),
            BlocksPerChunk::new(self.blocks_per_chunk).expect("1 to 64 blocks"),
            window,
            part_block_bytes,
        )
        .expect("a possible group");
        group.with_lookahead(u32::try_from(self.lookahead).expect("small")).expect("a possible lookahead")
    }
}
