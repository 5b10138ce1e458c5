//! Which blocks of a chunk hold written data (rule 3).

use std::fmt;

use crate::limits::MAX_BLOCKS_PER_CHUNK;
use crate::reason::{Reason, Refusal};

/// Blocks of one chunk of a group: 1 to 64. Neither tokens per block nor tokens per chunk converts to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BlocksPerChunk(u8);

impl BlocksPerChunk {
    /// Refuses 0 and more than 64.
    pub fn new(raw: u32) -> Result<Self, Refusal> {
        match u8::try_from(raw) {
            Ok(n) if n >= 1 && u32::from(n) <= MAX_BLOCKS_PER_CHUNK => Ok(Self(n)),
            _ => Err(Refusal::new(
                Reason::Malformed,
                format!("{raw} blocks per chunk"),
                "choose 1 to 64 blocks per chunk",
            )),
        }
    }
    /// The number.
    pub fn get(self) -> u32 {
        u32::from(self.0)
    }
}

/// One bit per block of a chunk: set when every slot of that block was written. It knows how many blocks the
/// chunk has, so a bit outside cannot be set.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coverage {
    bits: u64,
    blocks: BlocksPerChunk,
}

impl Coverage {
    /// Refuses bits of blocks that the chunk does not have.
    pub fn new(bits: u64, blocks: BlocksPerChunk) -> Result<Self, Refusal> {
        if bits & !Self::full(blocks).bits != 0 {
            return Err(Refusal::new(
                Reason::BadCoverage,
                format!("coverage {bits:#x} of a chunk of {} blocks", blocks.get()),
                "set only bits of blocks that the group's chunk has",
            ));
        }
        Ok(Self { bits, blocks })
    }
    /// Every block.
    pub fn full(blocks: BlocksPerChunk) -> Self {
        Self { bits: u64::MAX >> (64 - blocks.get()), blocks }
    }
    /// No block.
    pub fn empty(blocks: BlocksPerChunk) -> Self {
        Self { bits: 0, blocks }
    }
    /// The word as it goes into a message.
    pub fn bits(self) -> u64 {
        self.bits
    }
    /// Blocks the chunk has, covered or not.
    pub fn blocks(self) -> BlocksPerChunk {
        self.blocks
    }
    /// Covered blocks.
    pub fn count(self) -> u32 {
        self.bits.count_ones()
    }
    /// Whether no block is covered.
    pub fn is_empty(self) -> bool {
        self.bits == 0
    }
    /// Whether every block is covered.
    pub fn is_full(self) -> bool {
        self == Self::full(self.blocks)
    }
    /// Whether block `index` is covered; false outside the chunk.
    pub fn has(self, index: u32) -> bool {
        index < self.blocks.get() && self.bits >> index & 1 == 1
    }
    /// The same with block `index` covered; unchanged outside the chunk.
    #[must_use]
    pub fn with(self, index: u32) -> Self {
        if index < self.blocks.get() { Self { bits: self.bits | 1 << index, ..self } } else { self }
    }
    /// Whether every block that `needed` covers is covered here too. Chunks of different sizes never do.
    pub fn contains(self, needed: Self) -> bool {
        self.blocks == needed.blocks && needed.bits & !self.bits == 0
    }
    /// Where block `index` lies among the covered ones, that is, which of the stored blocks it is.
    /// `None` when it is not covered.
    pub fn rank(self, index: u32) -> Option<u32> {
        self.has(index).then(|| (self.bits & ((1u64 << index) - 1)).count_ones())
    }
    /// Indexes of the covered blocks, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..self.blocks.get()).filter(move |&i| self.has(i))
    }
}

impl fmt::Debug for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coverage(")?;
        for i in 0..self.blocks.get() {
            f.write_str(if self.has(i) { "1" } else { "0" })?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(n: u32) -> BlocksPerChunk {
        BlocksPerChunk::new(n).unwrap()
    }

    #[test]
    fn a_chunk_has_1_to_64_blocks() {
        assert!(BlocksPerChunk::new(0).is_err());
        assert!(BlocksPerChunk::new(65).is_err());
        assert_eq!(Coverage::full(blocks(64)).count(), 64);
        assert_eq!(Coverage::full(blocks(1)).bits(), 1);
    }

    #[test]
    fn a_bit_outside_the_chunk_is_refused() {
        let refusal = Coverage::new(0b1_0000, blocks(4)).unwrap_err();
        assert_eq!(refusal.reason, Reason::BadCoverage);
        assert_eq!(Coverage::empty(blocks(4)).with(4), Coverage::empty(blocks(4)));
    }

    #[test]
    fn the_last_block_alone_is_not_the_whole_chunk() {
        let only_last = Coverage::empty(blocks(8)).with(7);
        assert!(only_last.has(7) && !only_last.is_full());
        assert!(!only_last.contains(Coverage::full(blocks(8))));
        assert_eq!(only_last.rank(7), Some(0));
        assert_eq!(only_last.rank(6), None);
    }

    proptest::proptest! {
        #[test]
        fn ranks_count_the_covered_blocks_in_order(bits: u64, n in 1u32..=64) {
            let c = Coverage::new(bits & Coverage::full(blocks(n)).bits(), blocks(n)).unwrap();
            let ranks: Vec<_> = c.iter().map(|i| c.rank(i).unwrap()).collect();
            proptest::prop_assert_eq!(ranks, (0..c.count()).collect::<Vec<_>>());
        }
    }
}
