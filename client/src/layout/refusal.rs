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
    /// Two layers of one group lie interleaved in a way that is too much work to look through.
    #[error(
        "its pages ({first}) lie among those of layer '{other}' ({second}) of the same group, and it cannot be \
         proved that they share no byte"
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
