//! Why a layout is not believed.

use std::fmt;

/// Bytes `start..end` of an address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

/// Bytes of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockBytes {
    /// The block's id.
    pub block: u32,
    /// Where they lie.
    pub bytes: ByteRange,
}

impl fmt::Display for BlockBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of block {}", self.bytes, self.block)
    }
}

/// A layer's description that was not proved.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the layout of layer '{layer}' was refused: {fault}")]
pub struct LayoutRefusal {
    /// The layer's name.
    pub layer: String,
    /// What is wrong with it.
    pub fault: LayoutFault,
}

impl LayoutRefusal {
    pub(super) fn new(layer: &str, fault: LayoutFault) -> Self {
        Self { layer: layer.to_owned(), fault }
    }
}

/// What is wrong with a layer's description.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutFault {
    /// There is no layer at all, or the pool has no block besides the null block.
    #[error("there is nothing to copy: describe at least one layer and a pool of at least two blocks")]
    Nothing,
    /// Groups are numbered from 0 without gaps.
    #[error("its group {group} follows a group without layers")]
    GroupGap {
        /// The group.
        group: u16,
    },
    /// Two layers of a group have one name.
    #[error("another layer of its group has the same name")]
    SameName,
    /// A name, a count or a size that cannot be.
    #[error("{what}")]
    Malformed {
        /// What cannot be.
        what: &'static str,
    },
    /// The tensor has fewer blocks than the pool.
    #[error("it has {blocks} blocks, but the pool's block ids go up to {pool_blocks}")]
    TooFewBlocks {
        /// Blocks of the tensor.
        blocks: u32,
        /// Blocks of the pool.
        pool_blocks: u32,
    },
    /// Sizes or addresses that do not fit 64 bits.
    #[error("its strides and sizes exceed 64 bits")]
    Overflow,
    /// Pages outside the buffer.
    #[error("its pages lie in {pages}, which is not inside its buffer {buffer}")]
    OutsideBuffer {
        /// From the first byte of block 0 to the last byte of the last block.
        pages: ByteRange,
        /// The buffer.
        buffer: ByteRange,
    },
    /// Two positions of one axis (or two blocks) that are not apart.
    #[error(
        "step 0 of axis {axis} lies in {first} and step 1 in {second}, so it cannot be proved that they share no \
         byte"
    )]
    AxisOverlap {
        /// The axis' letter; `B` for blocks.
        axis: char,
        /// Span of everything inside its first step.
        first: ByteRange,
        /// Span of everything inside its second step.
        second: ByteRange,
    },
    /// Two layers of one group share bytes.
    #[error("its bytes {first} overlap bytes {second} of layer '{other}' of the same group")]
    LayerOverlap {
        /// The other layer.
        other: String,
        /// Bytes of this layer.
        first: ByteRange,
        /// Bytes of the other.
        second: ByteRange,
    },
    /// Layers of two groups share bytes between blocks of different ids, which may both be in use.
    #[error("its bytes {first} overlap bytes {second} of layer '{other}' of another group")]
    BlockOverlap {
        /// The other layer.
        other: String,
        /// Bytes of this layer.
        first: BlockBytes,
        /// Bytes of the other, of another block.
        second: BlockBytes,
    },
    /// The content and the padding are less than the page.
    #[error("its content and padding are {named}, less than its page {page} of block 0")]
    PageGap {
        /// As many bytes as are described, counted from the first.
        named: ByteRange,
        /// As many as the engine says there are.
        page: ByteRange,
    },
    /// The content and the padding are more than the page.
    #[error("its content and padding are {named}, more than its page {page} of block 0")]
    PageOverrun {
        /// As many bytes as are described, counted from the first.
        named: ByteRange,
        /// As many as the engine says there are.
        page: ByteRange,
    },
    /// A scale outside the cell that it belongs to.
    #[error("its scale at step {step} of axis {axis} lies in {scale}, outside its own cell {cell}")]
    ScaleAstray {
        /// The axis' letter; `B` for blocks.
        axis: char,
        /// Step along it; all other axes are at 0.
        step: u32,
        /// Where the engine looks for the scale.
        scale: ByteRange,
        /// The cell it belongs to.
        cell: ByteRange,
    },
    /// A scale inside a cell of another layer, or of another position.
    #[error(
        "its scale at step {step} of axis {axis} lies in {scale}, which is in the cell {cell} of layer '{other}'"
    )]
    ScaleCollision {
        /// The axis' letter; `B` for blocks.
        axis: char,
        /// Step along it; all other axes are at 0.
        step: u32,
        /// Where the engine looks for the scale.
        scale: ByteRange,
        /// The layer whose cell is hit.
        other: String,
        /// That cell.
        cell: ByteRange,
    },
    /// Shards are given for each group once.
    #[error("there are shards for {shards} groups, but the layout has {groups}")]
    NotOneShardPerGroup {
        /// Shards given.
        shards: usize,
        /// Groups there are.
        groups: usize,
    },
    /// A rank that holds no part, or parts that a chunk has not.
    #[error("its group has {parts} parts, of which {count} from part {first} on cannot be this rank's")]
    NoSuchParts {
        /// Parts of a chunk.
        parts: u16,
        /// The first of this rank.
        first: u16,
        /// How many this rank has.
        count: u16,
    },
    /// A replica past the last.
    #[error("replica {replica} of {replicas} is none")]
    NoSuchReplica {
        /// This rank's number.
        replica: u32,
        /// Ranks with equal bytes.
        replicas: u32,
    },
    /// Heads that cannot be split evenly.
    #[error("its page has {}, which {parts} parts cannot share evenly along axis H", heads_text(.heads))]
    UnevenHeads {
        /// Heads of the layer on this rank; `None` without an axis `H`.
        heads: Option<u32>,
        /// Parts that share them.
        parts: u16,
    },
    /// Two layers lie interleaved in a way that is too much work to look through.
    #[error(
        "its pages ({first}) lie among those of layer '{other}' ({second}), and it cannot be proved that they keep \
         apart"
    )]
    NotProved {
        /// The other layer.
        other: String,
        /// Span of this layer.
        first: ByteRange,
        /// Span of the other.
        second: ByteRange,
    },
}

fn heads_text(heads: &Option<u32>) -> String {
    heads.map_or_else(|| "no heads".to_owned(), |heads| format!("{heads} heads"))
}
