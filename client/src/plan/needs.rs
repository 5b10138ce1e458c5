//! Which blocks of a group are read at a boundary (rule 4). The same arithmetic says which blocks an engine has let go.
//!
//! Where it comes from: vLLM's managers free whole blocks before `skipped` tokens and allocate only the others for a
//! load; `skipped` is `computed - window + 1` for a sliding window and the start of the local piece for chunked-local
//! attention.

use std::ops::Range;

use tender_proto::{Group, GroupKind};

/// The first block that a query at token `end` can still read. Every block before it may belong to somebody else once
/// `end` tokens are computed.
pub(super) fn first_live_block(group: &Group, end: u64) -> u64 {
    let window = group.window_tokens.map_or(u64::MAX, |tokens| u64::from(tokens.get()));
    let first_token = match group.kind {
        GroupKind::FullAttention | GroupKind::MlaLatent => 0,
        // The window counts the query's own token.
        GroupKind::SlidingWindow => (end + 1).saturating_sub(window),
        GroupKind::ChunkedLocal => end - end % window,
        GroupKind::Recurrent => end.saturating_sub(1),
    };
    first_token / tokens_per_block(group)
}

/// The blocks that a hit from `computed` to `end` must bring, both on block boundaries. What is before `computed` is
/// the engine's own.
pub(super) fn blocks(group: &Group, computed: u64, end: u64) -> Range<u64> {
    let first = first_live_block(group, end).max(computed / tokens_per_block(group));
    first..(end / tokens_per_block(group)).max(first)
}

/// The largest boundary below `end` that may not need `missing`, one of the blocks that `end` needs.
pub(super) fn next_boundary(group: &Group, missing: u64, end: u64) -> u64 {
    let before_missing = missing * tokens_per_block(group);
    match group.kind {
        // Nothing of the piece before is read from the first token of a piece on, so a block that both share is not
        // needed there.
        GroupKind::ChunkedLocal => {
            let piece = group.window_tokens.map_or(u64::MAX, |tokens| u64::from(tokens.get()));
            let start = end - end % piece;
            if start < end { before_missing.max(start) } else { before_missing }
        }
        _ => before_missing,
    }
}

/// The chunk of a block of a request, and the block's index in it.
pub(super) fn locate(group: &Group, block: u64) -> (u64, u32) {
    let per_chunk = u64::from(group.blocks_per_chunk.get());
    let index = u32::try_from(block % per_chunk).unwrap_or(u32::MAX);
    (block / per_chunk, index)
}

/// As a number of tokens of a request.
pub(super) fn tokens_per_block(group: &Group) -> u64 {
    u64::from(group.tokens_per_block.get())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tender_proto::BlocksPerChunk;

    use super::*;

    fn group(kind: GroupKind, tokens_per_block: u32, window: u32) -> Group {
        let tokens = NonZeroU32::new(tokens_per_block).unwrap();
        Group::new(kind, tokens, BlocksPerChunk::new(1).unwrap(), NonZeroU32::new(window), vec![8]).unwrap()
    }

    #[test]
    fn a_window_needs_the_tokens_that_the_next_query_sees() {
        let window = group(GroupKind::SlidingWindow, 4, 6);
        // Token 16 sees 11 to 16, and 11 lies in block 2.
        assert_eq!(blocks(&window, 0, 16), 2..4);
        // Token 12 sees 7 to 12, and 7 is the last token of block 1.
        assert_eq!(blocks(&window, 0, 12), 1..3);
        assert_eq!(blocks(&window, 12, 16), 3..4);
        assert_eq!(blocks(&window, 0, 4), 0..1);
        // A window of one token is the query's own.
        assert!(blocks(&group(GroupKind::SlidingWindow, 4, 1), 0, 16).is_empty());
    }

    #[test]
    fn a_local_piece_needs_nothing_of_the_piece_before() {
        let local = group(GroupKind::ChunkedLocal, 4, 8);
        assert!(blocks(&local, 0, 16).is_empty());
        assert_eq!(blocks(&local, 0, 12), 2..3);
        // Pieces of 6 tokens cut blocks: token 16 sees 12 to 16; token 12 sees nothing before itself.
        let uneven = group(GroupKind::ChunkedLocal, 4, 6);
        assert_eq!(blocks(&uneven, 0, 16), 3..4);
        assert_eq!(blocks(&uneven, 0, 8), 1..2);
        assert_eq!(next_boundary(&uneven, 1, 8), 6);
        assert_eq!(next_boundary(&uneven, 3, 16), 12);
    }

    #[test]
    fn a_state_serves_its_own_boundary() {
        let state = group(GroupKind::Recurrent, 16, 0);
        assert_eq!(blocks(&state, 0, 48), 2..3);
        assert_eq!(blocks(&state, 32, 48), 2..3);
    }
}
