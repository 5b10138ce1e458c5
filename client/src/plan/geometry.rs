//! How many blocks a chunk has, when the user does not say. It depends on nothing but the group's geometry, so that any
//! two engines of one model agree.

use std::num::NonZeroU32;

use tender_proto::limits::MAX_BLOCKS_PER_CHUNK;
use tender_proto::{BlocksPerChunk, GroupKind, Reason, Refusal};

/// Tokens of a chunk at most, unless a block has more: large enough for a copy of some megabytes, small enough that a
/// shared prompt of a page is found.
const AUTO_TOKENS_PER_CHUNK: u32 = 256;

/// What the user chose for all groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChunkSize {
    /// Nothing: as many blocks as fit 256 tokens, 1 to 64. In a model with recurrent groups each block is a chunk: a hit
    /// ends where a state is, engines keep few of those, and at the last block of a prompt a larger chunk is rarely whole.
    #[default]
    Auto,
    /// Tokens of a chunk.
    Tokens(NonZeroU32),
    /// Blocks of a chunk, whatever tokens they have.
    Blocks(NonZeroU32),
}

impl ChunkSize {
    /// The blocks of a chunk of each group of a model. A block of a recurrent group is a state that serves its own
    /// boundary only, so it is a chunk by itself, whatever was chosen. Refused are tokens that are not a multiple of a
    /// group's block, and more than 64 blocks.
    pub fn blocks_per_chunk(
        self,
        groups: &[(GroupKind, NonZeroU32)],
    ) -> Result<Vec<BlocksPerChunk>, Refusal> {
        let has_states = groups.iter().any(|(kind, _)| *kind == GroupKind::Recurrent);
        groups.iter().map(|&(kind, tokens)| self.of_group(kind, tokens, has_states)).collect()
    }

    fn of_group(
        self,
        kind: GroupKind,
        tokens_per_block: NonZeroU32,
        has_states: bool,
    ) -> Result<BlocksPerChunk, Refusal> {
        if kind == GroupKind::Recurrent {
            return BlocksPerChunk::new(1);
        }
        match self {
            Self::Auto if has_states => BlocksPerChunk::new(1),
            Self::Auto => {
                let fit = AUTO_TOKENS_PER_CHUNK / tokens_per_block;
                BlocksPerChunk::new(fit.clamp(1, MAX_BLOCKS_PER_CHUNK))
            }
            Self::Tokens(tokens) if tokens.get() % tokens_per_block != 0 => Err(Refusal::new(
                Reason::Malformed,
                format!("chunks of {tokens} tokens"),
                format!("choose a multiple of {tokens_per_block}, the tokens of a block of a {kind:?} group"),
            )),
            Self::Tokens(tokens) => BlocksPerChunk::new(tokens.get() / tokens_per_block),
            Self::Blocks(blocks) => BlocksPerChunk::new(blocks.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(raw: u32) -> NonZeroU32 {
        NonZeroU32::new(raw).unwrap()
    }

    fn blocks(size: ChunkSize, kind: GroupKind, tokens_per_block: u32) -> Option<u32> {
        size.blocks_per_chunk(&[(kind, n(tokens_per_block))]).ok().map(|blocks| blocks[0].get())
    }

    #[test]
    fn a_chunk_has_as_many_blocks_as_fit_256_tokens() {
        let auto = |tokens| blocks(ChunkSize::Auto, GroupKind::FullAttention, tokens);
        assert_eq!([1, 16, 32, 48, 256, 1056].map(auto), [64, 16, 8, 5, 1, 1].map(Some));
    }

    #[test]
    fn a_state_is_a_chunk_whatever_was_chosen() {
        for size in [ChunkSize::Auto, ChunkSize::Tokens(n(256)), ChunkSize::Blocks(n(8))] {
            assert_eq!(blocks(size, GroupKind::Recurrent, 528), Some(1), "{size:?}");
        }
    }

    #[test]
    fn beside_states_every_block_is_a_chunk_unless_the_user_says_otherwise() {
        let groups = [(GroupKind::FullAttention, n(32)), (GroupKind::Recurrent, n(32))];
        let blocks = |size: ChunkSize| {
            size.blocks_per_chunk(&groups).unwrap().into_iter().map(BlocksPerChunk::get).collect::<Vec<_>>()
        };
        assert_eq!(blocks(ChunkSize::Auto), [1, 1]);
        assert_eq!(blocks(ChunkSize::Tokens(n(128))), [4, 1]);
    }

    #[test]
    fn each_group_is_counted_in_its_own_blocks() {
        let tokens = ChunkSize::Tokens(n(512));
        assert_eq!(blocks(tokens, GroupKind::FullAttention, 64), Some(8));
        assert_eq!(blocks(tokens, GroupKind::SlidingWindow, 16), Some(32));
        assert_eq!(blocks(tokens, GroupKind::SlidingWindow, 48), None);
        assert_eq!(blocks(tokens, GroupKind::SlidingWindow, 4), None, "128 blocks");
        assert_eq!(blocks(ChunkSize::Blocks(n(8)), GroupKind::SlidingWindow, 48), Some(8));
        assert_eq!(blocks(ChunkSize::Blocks(n(65)), GroupKind::MlaLatent, 16), None);
    }
}
