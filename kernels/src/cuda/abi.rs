//! The words of the kernels' tables, as kernels/cuda/abi.cuh reads them, and the names and orders of their arguments.
//!
//! All tables are flat lists of 64-bit words, uploaded as they are; two 32-bit fields share a word, the first in its
//! low half. All arguments of all kernels are 64-bit numbers, addresses among them.

/// Words of a segment: base, block stride, packed offset, run and content bytes, first tile, dimensions and vector
/// bytes, and 8 x (stride, count), innermost first.
pub const SEGMENT_WORDS: usize = 22;
/// Words of a job: first tile, tiles per block, first segment, segments and tiles per segment, first move, packed
/// address, block bytes, start, end, vector bytes.
pub const JOB_WORDS: usize = 10;
/// Words of a move: block and slot.
pub const MOVE_WORDS: usize = 1;
/// Words of a message: address, bytes, first group.
pub const MESSAGE_WORDS: usize = 3;

/// Packed bytes that one team of threads moves at a time.
pub const TILE_BYTES: u64 = 4096;
/// Most bytes of a segment of one block; the encoder cuts larger boxes. Far enough below 2^32 that a kernel's 32-bit
/// numbers do not wrap.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 30;
/// Most tiles of a job, so that a kernel divides 32-bit numbers; the encoder makes several jobs of more.
pub const MAX_JOB_TILES: u64 = u32::MAX as u64;
/// Widths of memory accesses, widest first.
pub const VECTOR_BYTES: [u64; 4] = [16, 8, 4, 1];
/// Bytes of one leaf of BLAKE3's tree.
pub const LEAF_BYTES: u64 = 1024;
/// Leaves that one block of threads folds to one value.
pub const GROUP_LEAVES: u64 = 128;

/// Gather, a warp for each tile. Arguments: segments, batch, jobs, tiles.
pub const GATHER: &str = "tender_gather";
/// Scatter, a warp for each tile. Arguments as for [`GATHER`].
pub const SCATTER: &str = "tender_scatter";
/// Gather, a quarter of a warp for each tile. Arguments as for [`GATHER`].
pub const GATHER_SMALL: &str = "tender_gather_small";
/// Scatter, a quarter of a warp for each tile. Arguments as for [`GATHER`].
pub const SCATTER_SMALL: &str = "tender_scatter_small";
/// BLAKE3's leaves. Arguments: messages, their number, groups, values, digests.
pub const BLAKE3_GROUPS: &str = "tender_blake3_groups";
/// BLAKE3's roots. Arguments: messages, their number, values, digests.
pub const BLAKE3_ROOTS: &str = "tender_blake3_roots";
/// All kernels.
pub const KERNELS: [&str; 6] = [GATHER, SCATTER, GATHER_SMALL, SCATTER_SMALL, BLAKE3_GROUPS, BLAKE3_ROOTS];

/// Two 32-bit fields in one word.
pub(super) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The widest access whose size divides all of these.
pub(super) fn vector_bytes(numbers: impl IntoIterator<Item = u64>) -> u64 {
    let all = numbers.into_iter().fold(0, |all, number| all | number);
    VECTOR_BYTES.into_iter().find(|width| all.is_multiple_of(*width)).unwrap_or(1)
}
