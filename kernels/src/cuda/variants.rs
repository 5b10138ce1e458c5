//! Which way of copying suits which page map, and how large a launch is. docs/gpu.md has the arithmetic.

use super::abi::{BLAKE3_GROUPS, BLAKE3_ROOTS, GATHER, GATHER_SMALL, GROUP_LEAVES, SCATTER, SCATTER_SMALL};
use super::batch::Direction;
use crate::page_map::{Move, PageMap};

/// Threads of a block of the copy kernels.
const COPY_THREADS: u32 = 256;
/// Threads of a block of the hash kernels: one for each leaf of a group.
const HASH_THREADS: u32 = 128;
const _: () = assert!(HASH_THREADS as u64 == GROUP_LEAVES);
/// Blocks of threads for each multiprocessor: enough loads in flight to cover the memory's latency.
const BLOCKS_PER_SM: u32 = 8;
/// Tiles below this mean size leave most of a warp idle: 32 threads x 16 bytes.
const SMALL_TILE_BYTES: u64 = 512;
/// From this size on, one copy by the copy engine reaches nine tenths of the link's rate: a copy costs about as much
/// as the link moves in 2 us, 110 KB at 55 GB/s.
const BATCHED_RUN_BYTES: u64 = 1 << 20;

/// What a launch may use of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Multiprocessors that the launch may fill. Fewer than there are leave the rest to the forward pass; 16 saturate
    /// a PCIe link if the packed side is mapped host memory.
    pub sms: u32,
}

impl Default for Limits {
    /// As many as an A100 has.
    fn default() -> Self {
        Self { sms: 108 }
    }
}

/// A kernel's name and the numbers of its launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    /// One of [`KERNELS`](super::abi::KERNELS).
    pub kernel: &'static str,
    /// Blocks of threads, along x; at least 1.
    pub grid: u32,
    /// Threads of each, along x.
    pub block: u32,
    /// Dynamic shared memory.
    pub shared_bytes: u32,
}

/// How to copy the blocks of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// A kernel, as part of a [`Batch`](super::Batch).
    Kernel,
    /// Plain copies of the [`stretches()`]: a block is one run, so large that the copy engine needs no help.
    Batched,
}

/// How to copy blocks of this map over a link between host and device. Between two places of the device's own
/// memory a [`Batch`](super::Batch) is never worse.
pub fn method(map: &PageMap) -> Method {
    match map.segments() {
        [only] if only.dims().is_empty() && only.run_bytes() >= BATCHED_RUN_BYTES => Method::Batched,
        _ => Method::Kernel,
    }
}

/// Bytes that lie one behind the other on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Address on the engine's side.
    pub page: u64,
    /// Distance from the part's first byte on the packed side.
    pub packed_offset: u64,
    /// How many.
    pub bytes: u64,
}

/// The copies of whole blocks of a map whose blocks are one run each; neighbours on both sides are one copy. `None`
/// for any other map.
pub fn stretches(map: &PageMap, moves: &[Move]) -> Option<Vec<Stretch>> {
    let [only] = map.segments() else { return None };
    if !only.dims().is_empty() {
        return None;
    }
    let mut all = Vec::<Stretch>::new();
    for &Move { block, slot } in moves {
        let page = only.base().wrapping_add(only.block_stride_bytes().wrapping_mul(u64::from(block)));
        let packed_offset = u64::from(slot).checked_mul(map.block_bytes())?;
        match all.last_mut() {
            Some(last)
                if last.page.wrapping_add(last.bytes) == page
                    && last.packed_offset + last.bytes == packed_offset =>
            {
                last.bytes += map.block_bytes();
            }
            _ => all.push(Stretch { page, packed_offset, bytes: map.block_bytes() }),
        }
    }
    Some(all)
}

pub(super) fn copy_launch(direction: Direction, tiles: u64, mean_tile_bytes: u64, limits: Limits) -> Launch {
    let small = mean_tile_bytes < SMALL_TILE_BYTES;
    let kernel = match (direction, small) {
        (Direction::Gather, false) => GATHER,
        (Direction::Gather, true) => GATHER_SMALL,
        (Direction::Scatter, false) => SCATTER,
        (Direction::Scatter, true) => SCATTER_SMALL,
    };
    let teams = u64::from(COPY_THREADS) / if small { 8 } else { 32 };
    Launch { kernel, grid: grid(tiles.div_ceil(teams), limits), block: COPY_THREADS, shared_bytes: 0 }
}

pub(super) fn hash_launch(kernel: &'static str, blocks: u64, limits: Limits) -> Launch {
    debug_assert!([BLAKE3_GROUPS, BLAKE3_ROOTS].contains(&kernel));
    Launch { kernel, grid: grid(blocks, limits), block: HASH_THREADS, shared_bytes: 0 }
}

/// Kernels stride over what there is more.
fn grid(blocks: u64, limits: Limits) -> u32 {
    let most = limits.sms.max(1).saturating_mul(BLOCKS_PER_SM);
    u32::try_from(blocks).unwrap_or(most).clamp(1, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_map::{Dim, Segment};

    fn one_run(stride: u64, run: u64) -> PageMap {
        PageMap::new(vec![Segment::new(1 << 30, stride, &[], run).unwrap()]).unwrap()
    }

    #[test]
    fn only_large_whole_blocks_are_copied_without_a_kernel() {
        assert_eq!(method(&one_run(2 << 20, 1 << 20)), Method::Batched);
        assert_eq!(method(&one_run(2 << 20, 64 << 10)), Method::Kernel);
        let halves = Segment::new(0, 4 << 20, &[Dim { count: 2, stride_bytes: 1 << 30 }], 2 << 20).unwrap();
        let halves = PageMap::new(vec![halves]).unwrap();
        assert_eq!(method(&halves), Method::Kernel);
        assert_eq!(stretches(&halves, &[]), None);
    }

    #[test]
    fn neighbours_on_both_sides_are_one_copy() {
        let at = |block, slot| Move { block, slot };
        let moves = [at(4, 0), at(5, 1), at(7, 2), at(8, 4)];
        let stretch = |block: u64, slot: u64, blocks: u64, stride: u64| Stretch {
            page: (1 << 30) + block * stride,
            packed_offset: slot * 100,
            bytes: blocks * 100,
        };
        let dense = [stretch(4, 0, 2, 100), stretch(7, 2, 1, 100), stretch(8, 4, 1, 100)];
        assert_eq!(stretches(&one_run(100, 100), &moves).unwrap(), dense);
        // With padding between blocks each stays alone.
        assert_eq!(stretches(&one_run(128, 100), &moves).unwrap().len(), 4);
    }

    #[test]
    fn launches_grow_with_the_work_up_to_the_device() {
        let limits = Limits { sms: 10 };
        let launch = |tiles, mean| copy_launch(Direction::Gather, tiles, mean, limits);
        assert_eq!((launch(0, 4096).grid, launch(9, 4096).grid, launch(u64::MAX, 4096).grid), (1, 2, 80));
        assert_eq!((launch(9, 511).kernel, launch(9, 512).kernel), (GATHER_SMALL, GATHER));
        assert_eq!(launch(33, 100).grid, 2);
        assert_eq!(copy_launch(Direction::Scatter, 1, 1, Limits { sms: 0 }).grid, 1);
        assert_eq!(hash_launch(BLAKE3_GROUPS, 500, limits).grid, 80);
    }
}
