//! How far a lookup's answers reach (rule 4).

use tender_proto::{Coverage, Group};

use super::config::HitUnit;

/// What a lookup said about one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkView {
    /// It can be read; these blocks are in it.
    Ready(Coverage),
    /// Someone is storing it. Nobody waits for that: it counts as not there.
    Pending,
    /// It is not there.
    Miss,
}

/// Where a hit ends for a group of full attention, in tokens: at the first block beyond `computed` that is not
/// there, but at least one of the `num_tokens` is left to compute. Not above `computed` means no hit.
///
/// Blocks below `computed` are the engine's own and not asked for. An engine that stopped inside a block gets
/// nothing: loading that block would overwrite slots it already has.
pub(super) fn boundary(
    group: &Group,
    answers: &[ChunkView],
    num_tokens: u64,
    computed: u64,
    unit: HitUnit,
) -> u64 {
    let tokens_per_block = u64::from(group.tokens_per_block.get());
    if !computed.is_multiple_of(tokens_per_block) {
        return computed;
    }
    let there = |block: u64| {
        let (chunk, index) = locate(group, block);
        let answer = usize::try_from(chunk).ok().and_then(|chunk| answers.get(chunk));
        matches!(answer, Some(ChunkView::Ready(coverage))
            if coverage.blocks() == group.blocks_per_chunk && coverage.has(index))
    };
    let first = computed / tokens_per_block;
    let last = num_tokens.saturating_sub(1) / tokens_per_block;
    let end = (first..last).find(|&block| !there(block)).unwrap_or(last.max(first)) * tokens_per_block;
    match unit {
        HitUnit::Block => end,
        HitUnit::Chunk => end - end % group.tokens_per_chunk(),
    }
}

/// The chunk of a block of a request, and the block's index in it.
pub(super) fn locate(group: &Group, block: u64) -> (u64, u32) {
    let per_chunk = u64::from(group.blocks_per_chunk.get());
    let index = u32::try_from(block % per_chunk).unwrap_or(u32::MAX);
    (block / per_chunk, index)
}
