//! Copies between an engine's pages and packed bytes of a chunk's part.
//!
//! Everything that a copy is told is checked before its first byte moves: block ids against the pool, coverage
//! against the block list, lengths against the layout. Raw pointers stop in this module's backends.

pub(crate) mod carrier;
pub(crate) mod cuda;
mod host;
mod moves;

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]
mod tests;

use std::fmt;

use tender_proto::{Coverage, GroupIndex, PartIndex};

pub use carrier::EngineStream;
pub use host::HostCopy;

/// Why nothing was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CopyRefusal {
    /// The layout has no such part of such a group.
    #[error("the layout has no part {part} of group {group}")]
    NoPart {
        /// The group.
        group: GroupIndex,
        /// The part.
        part: PartIndex,
    },
    /// The block list and the coverage are of different chunks.
    #[error("a list of {listed} block ids for a chunk of {blocks} blocks")]
    WrongBlockCount {
        /// Ids given.
        listed: usize,
        /// Blocks of the chunk.
        blocks: u32,
    },
    /// A block that must not be touched: the null block, or one that the pool does not have.
    #[error("block id {block} at position {position}; ids of data are 1 to {last}")]
    BadBlock {
        /// The id.
        block: u32,
        /// Its position in the list.
        position: u32,
        /// The pool's last id.
        last: u32,
    },
    /// The packed side has another size than the coverage says.
    #[error("{given} packed bytes where the covered blocks have {expected}")]
    WrongLength {
        /// Bytes given.
        given: usize,
        /// Bytes expected.
        expected: u64,
    },
    /// A piece that does not lie in the part.
    #[error("{given} bytes at {offset_bytes} of a part of {expected}")]
    Outside {
        /// Where the piece begins.
        offset_bytes: u64,
        /// Its bytes.
        given: usize,
        /// Bytes of the part.
        expected: u64,
    },
    /// A block is needed that was not stored.
    #[error("{needed:?} is needed of a chunk that holds {stored:?}")]
    NotStored {
        /// Blocks needed.
        needed: Coverage,
        /// Blocks stored.
        stored: Coverage,
    },
    /// A block is written twice by one copy.
    #[error("block id {block} appears twice among the needed blocks")]
    Twice {
        /// The id.
        block: u32,
    },
    /// A device did not do it.
    #[error("the device refused {what}")]
    Device {
        /// What it was asked for.
        what: &'static str,
    },
}

/// Where the bytes of a part go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target<'a> {
    /// The chunk's group.
    pub group: GroupIndex,
    /// Which part of the chunk.
    pub part: PartIndex,
    /// One id for each block of the chunk, ignored where not needed.
    pub blocks: &'a [u32],
    /// The blocks that the part holds.
    pub stored: Coverage,
    /// The blocks to be written.
    pub needed: Coverage,
}

/// Copies between pages and packed bytes. A call returns when its copies are done.
pub trait CopyBackend: Send + Sync + fmt::Debug {
    /// Packs what the part has of the covered blocks into `packed`, in order; it has exactly their size. `blocks` has
    /// one id per block of the chunk, ignored where not covered.
    fn gather(
        &self,
        group: GroupIndex,
        part: PartIndex,
        blocks: &[u32],
        coverage: Coverage,
        packed: &mut [u8],
    ) -> Result<(), CopyRefusal>;

    /// Writes what `piece` has of the needed blocks: the bytes of a part from `offset_bytes` on, cut anywhere. Pieces
    /// that make up the part, in any order, write all of them. Nothing but the content of those blocks' pages changes.
    fn scatter(&self, to: &Target<'_>, offset_bytes: u64, piece: &[u8]) -> Result<(), CopyRefusal>;
}
