//! Namespaces and chunks that many tests use.

use std::num::NonZeroU32;

use tender_proto::limits::KEY_CHAIN_VERSION;
use tender_proto::{
    BlocksPerChunk, ChainHash, ChunkId, Coverage, Descriptor, Group, GroupIndex, GroupKind, PartIndex,
    RankGeometry,
};

/// The part of a namespace with one rank.
pub const PART: PartIndex = PartIndex(0);

/// A full-attention group; `part_block_bytes` has one entry for each part.
pub fn group(tokens_per_block: u32, blocks_per_chunk: u32, part_block_bytes: &[u64]) -> Group {
    Group::new(
        GroupKind::FullAttention,
        NonZeroU32::new(tokens_per_block).expect("a block has tokens"),
        BlocksPerChunk::new(blocks_per_chunk).expect("1 to 64 blocks"),
        None,
        part_block_bytes.to_vec(),
    )
    .expect("a possible group")
}

/// A namespace of this name and these groups.
pub fn descriptor(model: &str, groups: Vec<Group>) -> Descriptor {
    Descriptor {
        model: model.into(),
        weights: "rev-a".into(),
        kv_dtype: "bfloat16".into(),
        quantisation: "none".into(),
        groups,
        page_format: "HNC".into(),
        layout_fingerprint: [7; 32],
        ranks: RankGeometry::SINGLE,
        key_chain_version: KEY_CHAIN_VERSION,
        domain: String::new(),
    }
}

/// One group, one part, 4 blocks of 16 tokens a chunk.
pub fn small(model: &str, block_bytes: u64) -> Descriptor {
    descriptor(model, vec![group(16, 4, &[block_bytes])])
}

/// Chunk number `n` of group 0.
pub fn chunk(n: u64) -> ChunkId {
    chunk_of(0, n)
}

/// Chunk number `n` of a group.
pub fn chunk_of(group: u16, n: u64) -> ChunkId {
    let hash = ChainHash::from_bytes(blake3::derive_key("tender tests chunk", &n.to_le_bytes()));
    ChunkId { group: GroupIndex(group), hash }
}

/// Every block of a chunk of group 0.
pub fn full(descriptor: &Descriptor) -> Coverage {
    Coverage::full(descriptor.groups[0].blocks_per_chunk)
}
