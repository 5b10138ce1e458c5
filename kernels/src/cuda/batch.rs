//! The copies of one launch.

use super::abi::{JOB_WORDS, MAX_JOB_TILES, MOVE_WORDS, TILE_BYTES, pair, vector_bytes};
use super::segments::{MapIndex, SegmentTable};
use super::variants::{Launch, Limits, copy_launch};
use crate::page_map::{MapError, Move};

/// Which way the bytes of a launch go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From pages to packed bytes.
    Gather,
    /// From packed bytes to pages.
    Scatter,
}

/// The packed bytes of a job that are at hand: all of a part, or a piece of it, cut anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packed {
    /// Device address of the first byte at hand. For the widest accesses, let it be as far from a multiple of 16 as
    /// `offset_bytes` is.
    pub address: u64,
    /// How far that byte lies from the part's first one.
    pub offset_bytes: u64,
    /// Bytes at hand.
    pub bytes: u64,
}

/// The copies of one launch: jobs of any maps of a table, with any number of blocks each.
///
/// Jobs may not depend on each other: their copies happen in no order. The packed bytes of a job must be no page.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    table: &'a SegmentTable,
    direction: Direction,
    jobs: Vec<u64>,
    moves: Vec<u64>,
    tiles: u64,
    bytes: u64,
}

impl<'a> Batch<'a> {
    /// No copies yet.
    pub fn new(table: &'a SegmentTable, direction: Direction) -> Self {
        Self { table, direction, jobs: Vec::new(), moves: Vec::new(), tiles: 0, bytes: 0 }
    }

    /// Adds copies of some blocks of one map. A gather needs room for every slot; a scatter takes what is at hand.
    ///
    /// The batch stays as it was if this fails.
    ///
    /// # Panics
    /// If the table has no such map.
    pub fn push(&mut self, map: MapIndex, moves: &[Move], packed: Packed) -> Result<(), MapError> {
        let Some(&entry) = self.table.entry(map) else {
            panic!("map {} of a table of {}", map.0, self.table.maps());
        };
        let Packed { address, offset_bytes, bytes } = packed;
        let end = offset_bytes.checked_add(bytes).ok_or(MapError::Overflow)?;
        let block_bytes = entry.block_bytes;
        let (first_move, mut moved, mut bytes_moved) = (self.moves.len(), Vec::with_capacity(moves.len()), 0);
        for &Move { block, slot } in moves {
            let from = u64::from(slot).checked_mul(block_bytes).ok_or(MapError::Overflow)?;
            let to = from.checked_add(block_bytes).ok_or(MapError::Overflow)?;
            if self.direction == Direction::Gather && (from < offset_bytes || to > end) {
                let packed_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                return Err(MapError::SlotOutside { slot, block_bytes, packed_bytes });
            }
            let here = to.min(end).saturating_sub(from.max(offset_bytes));
            if here > 0 {
                moved.push(pair(block, slot));
                bytes_moved += here;
            }
        }
        if moved.is_empty() {
            return Ok(());
        }
        let tiles = entry.tiles_per_block.checked_mul(moved.len() as u64).ok_or(MapError::Overflow)?;
        self.tiles.checked_add(tiles).ok_or(MapError::Overflow)?;
        // The part's first byte, which may lie before all memory: only its sum with an offset at hand is used.
        let base = address.wrapping_sub(offset_bytes);
        let most = usize::try_from(MAX_JOB_TILES / entry.tiles_per_block).unwrap_or(usize::MAX);
        for (nth, some) in moved.chunks(most).enumerate() {
            self.jobs.extend([
                self.tiles,
                entry.tiles_per_block,
                entry.first_segment,
                pair(entry.segments, entry.tiles_per_segment),
                (first_move + nth * most) as u64,
                base,
                block_bytes,
                offset_bytes,
                end,
                vector_bytes([base, block_bytes]),
            ]);
            self.tiles += entry.tiles_per_block * some.len() as u64;
        }
        self.moves.append(&mut moved);
        self.bytes += bytes_moved;
        Ok(())
    }

    /// Whether there is nothing to launch.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
    /// Bytes that the launch moves.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// How many jobs there are.
    pub fn jobs(&self) -> u64 {
        (self.jobs.len() / JOB_WORDS) as u64
    }
    /// Tiles of at most [`TILE_BYTES`] bytes.
    pub fn tiles(&self) -> u64 {
        self.tiles
    }
    /// What to upload for this launch, in one piece: the jobs and behind them the moves.
    pub fn words(&self) -> Vec<u64> {
        [&self.jobs[..], &self.moves].concat()
    }
    /// Bytes of [`Batch::words`].
    pub fn upload_bytes(&self) -> u64 {
        ((self.jobs.len() + self.moves.len() * MOVE_WORDS) * size_of::<u64>()) as u64
    }
    /// The kernel and the numbers of its launch.
    pub fn launch(&self, limits: Limits) -> Launch {
        // Tiles are at most TILE_BYTES, so this is never less than the segments' bytes make it.
        let mean_tile_bytes = self.bytes.checked_div(self.tiles).unwrap_or(TILE_BYTES);
        copy_launch(self.direction, self.tiles, mean_tile_bytes, limits)
    }
    /// The kernel's arguments, given where the table and this batch's words were uploaded to.
    pub fn arguments(&self, segments_address: u64, batch_address: u64) -> [u64; 4] {
        [segments_address, batch_address, self.jobs(), self.tiles]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_map::{PageMap, Segment};

    fn table() -> SegmentTable {
        let map = |bytes| PageMap::new(vec![Segment::new(0, 1 << 20, &[], bytes).unwrap()]).unwrap();
        SegmentTable::new([&map(8192), &map(100)]).unwrap()
    }

    fn at(address: u64, offset_bytes: u64, bytes: u64) -> Packed {
        Packed { address, offset_bytes, bytes }
    }

    #[test]
    fn jobs_of_several_maps_share_a_launch() {
        let table = table();
        let mut batch = Batch::new(&table, Direction::Gather);
        assert!(batch.is_empty());
        let moves = [Move { block: 3, slot: 0 }, Move { block: 9, slot: 1 }];
        batch.push(MapIndex(0), &moves, at(4096, 0, 16384)).unwrap();
        batch.push(MapIndex(1), &moves[1..], at(1 << 20, 100, 100)).unwrap();
        assert_eq!((batch.jobs(), batch.tiles(), batch.bytes()), (2, 5, 16484));
        let words = batch.words();
        assert_eq!(words[..JOB_WORDS], [0, 2, 0, pair(1, 2), 0, 4096, 8192, 0, 16384, 16]);
        let second = [4, 1, 1, pair(1, 1), 2, (1 << 20) - 100, 100, 100, 200, 4];
        assert_eq!(words[JOB_WORDS..2 * JOB_WORDS], second);
        assert_eq!(words[2 * JOB_WORDS..], [pair(3, 0), pair(9, 1), pair(9, 1)]);
        assert_eq!(batch.upload_bytes(), 8 * words.len() as u64);
        assert_eq!(batch.arguments(7, 8), [7, 8, 2, 5]);
    }

    #[test]
    fn a_gather_needs_room_for_every_slot_and_a_scatter_takes_what_there_is() {
        let table = table();
        let moves = [Move { block: 3, slot: 0 }, Move { block: 9, slot: 1 }, Move { block: 4, slot: 7 }];
        let mut gather = Batch::new(&table, Direction::Gather);
        let outside = MapError::SlotOutside { slot: 7, block_bytes: 100, packed_bytes: 799 };
        assert_eq!(gather.push(MapIndex(1), &moves, at(0, 0, 799)), Err(outside));
        assert!(gather.is_empty() && gather.words().is_empty());
        let mut scatter = Batch::new(&table, Direction::Scatter);
        scatter.push(MapIndex(1), &moves, at(0, 199, 502)).unwrap();
        // One byte of the second block, and one of the last.
        assert_eq!((scatter.tiles(), scatter.bytes()), (2, 2));
        scatter.push(MapIndex(1), &moves, at(0, 200, 500)).unwrap();
        assert_eq!(scatter.jobs(), 1);
        let overflow = scatter.push(MapIndex(1), &moves, at(0, u64::MAX, 1));
        assert_eq!((overflow, scatter.jobs()), (Err(MapError::Overflow), 1));
    }

    #[test]
    fn moves_of_huge_blocks_are_several_jobs() {
        // 1 TiB in each block, in tiles of 4 KiB.
        let map = PageMap::new(vec![Segment::new(0, 1 << 40, &[], 1 << 40).unwrap()]).unwrap();
        let table = SegmentTable::new([&map]).unwrap();
        let mut batch = Batch::new(&table, Direction::Scatter);
        let moves: Vec<Move> = (0..20).map(|slot| Move { block: slot + 1, slot }).collect();
        batch.push(MapIndex(0), &moves, at(0, 0, 20 << 40)).unwrap();
        assert_eq!((batch.jobs(), batch.tiles()), (2, 20 << 28));
        let words = batch.words();
        assert_eq!((words[JOB_WORDS], words[JOB_WORDS + 4]), (15 << 28, 15));
        assert_eq!(words[2 * JOB_WORDS + 19], pair(20, 19));
    }

    #[test]
    fn the_packed_side_decides_about_vectors_too() {
        let table = table();
        for (address, offset_bytes, vector) in [(4096, 0, 16), (4096 + 5, 5, 16), (4096, 8, 8), (4096, 5, 1)]
        {
            let mut batch = Batch::new(&table, Direction::Scatter);
            batch.push(MapIndex(0), &[Move { block: 1, slot: 0 }], at(address, offset_bytes, 64)).unwrap();
            assert_eq!(batch.words()[JOB_WORDS - 1], vector, "{address} {offset_bytes}");
        }
    }
}
