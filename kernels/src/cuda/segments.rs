//! Page maps as the kernels read them.

use super::abi::{MAX_JOB_TILES, MAX_SEGMENT_BYTES, SEGMENT_WORDS, TILE_BYTES, pair, vector_bytes};
use crate::page_map::{Dim, MAX_DIMS, MapError, PageMap, Segment};

/// One map of a [`SegmentTable`], in the order in which they were given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MapIndex(pub usize);

/// What jobs need to know of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MapEntry {
    pub(super) first_segment: u64,
    pub(super) segments: u32,
    pub(super) tiles_per_block: u64,
    pub(super) tiles_per_segment: u32,
    pub(super) block_bytes: u64,
}

/// The segments of several page maps, encoded once and kept on the device: nothing in it changes from step to step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SegmentTable {
    words: Vec<u64>,
    maps: Vec<MapEntry>,
}

impl SegmentTable {
    /// Encodes all maps. Fails for a map whose blocks have 16 TiB or more.
    pub fn new<'a>(maps: impl IntoIterator<Item = &'a PageMap>) -> Result<Self, MapError> {
        let mut table = Self::default();
        for map in maps {
            table.push(map, MAX_SEGMENT_BYTES)?;
        }
        Ok(table)
    }
    /// What to upload.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
    /// How many maps there are.
    pub fn maps(&self) -> usize {
        self.maps.len()
    }
    pub(super) fn entry(&self, map: MapIndex) -> Option<&MapEntry> {
        self.maps.get(map.0)
    }

    /// Adds a map, its boxes cut to at most `limit_bytes`, which vectors and tiles divide.
    pub(super) fn push(&mut self, map: &PageMap, limit_bytes: u64) -> Result<(), MapError> {
        let first = self.words.len() / SEGMENT_WORDS;
        let (mut tiles, mut packed_offset) = (0, 0);
        // Tiles of the first segment, 0 once another has a different number.
        let mut uniform = None;
        for segment in map.segments() {
            cut(segment, limit_bytes, &mut |piece| {
                self.write(segment, &piece, packed_offset, tiles);
                packed_offset += piece.content_bytes;
                let here = piece.content_bytes.div_ceil(TILE_BYTES);
                tiles += here;
                uniform = Some(if uniform.is_none_or(|other| other == here) { here } else { 0 });
            });
        }
        if tiles > MAX_JOB_TILES {
            self.words.truncate(first * SEGMENT_WORDS);
            return Err(MapError::Overflow);
        }
        let segments =
            u32::try_from(self.words.len() / SEGMENT_WORDS - first).map_err(|_| MapError::Overflow)?;
        self.maps.push(MapEntry {
            first_segment: first as u64,
            segments,
            tiles_per_block: tiles,
            tiles_per_segment: u32::try_from(uniform.unwrap_or(0)).unwrap_or(0),
            block_bytes: map.block_bytes(),
        });
        Ok(())
    }

    fn write(&mut self, segment: &Segment, piece: &Piece<'_>, packed_offset: u64, first_tile: u64) {
        let base = segment.base().wrapping_add(piece.distance);
        let strides = piece.dims.iter().map(|dim| dim.stride_bytes);
        let vector =
            vector_bytes(strides.chain([base, segment.block_stride_bytes(), packed_offset, piece.run_bytes]));
        self.words.extend([
            base,
            segment.block_stride_bytes(),
            packed_offset,
            pair(narrow(piece.run_bytes), narrow(piece.content_bytes)),
            first_tile,
            pair(narrow(piece.dims.len() as u64), narrow(vector)),
        ]);
        for dim in piece.dims.iter().rev() {
            self.words.extend([dim.stride_bytes, dim.count]);
        }
        for _ in piece.dims.len()..MAX_DIMS {
            self.words.extend([0, 1]);
        }
    }
}

/// Part of a segment, in the order of its content.
struct Piece<'a> {
    /// From the segment's base.
    distance: u64,
    dims: &'a [Dim],
    run_bytes: u64,
    content_bytes: u64,
}

/// Visits pieces of at most `limit_bytes` that make up the segment.
fn cut(segment: &Segment, limit_bytes: u64, visit: &mut impl FnMut(Piece<'_>)) {
    cut_box(0, segment.dims(), segment.run_bytes(), limit_bytes, visit);
}

fn cut_box(distance: u64, dims: &[Dim], run_bytes: u64, limit_bytes: u64, visit: &mut impl FnMut(Piece<'_>)) {
    let content_bytes = dims.iter().fold(run_bytes, |bytes, dim| bytes * dim.count);
    if content_bytes <= limit_bytes {
        visit(Piece { distance, dims, run_bytes, content_bytes });
        return;
    }
    let Some((&outer, inner)) = dims.split_first() else {
        for start in (0..run_bytes).step_by(usize::try_from(limit_bytes).unwrap_or(usize::MAX)) {
            let run_bytes = limit_bytes.min(run_bytes - start);
            visit(Piece { distance: distance + start, dims, run_bytes, content_bytes: run_bytes });
        }
        return;
    };
    let inner_bytes = content_bytes / outer.count;
    let together = (limit_bytes / inner_bytes).max(1);
    let mut done = 0;
    while done < outer.count {
        let here = together.min(outer.count - done);
        let start = distance + done * outer.stride_bytes;
        if here == 1 {
            cut_box(start, inner, run_bytes, limit_bytes, visit);
        } else {
            let mut dims = dims.to_vec();
            dims[0].count = here;
            visit(Piece { distance: start, dims: &dims, run_bytes, content_bytes: here * inner_bytes });
        }
        done += here;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "at most MAX_SEGMENT_BYTES, which fits")]
fn narrow(number: u64) -> u32 {
    debug_assert!(number <= MAX_SEGMENT_BYTES);
    number as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every run that the table's words name, as (packed offset, address in block 0, bytes), neighbours joined.
    fn runs_of_words(table: &SegmentTable) -> Vec<(u64, u64, u64)> {
        let mut runs: Vec<(u64, u64, u64)> = Vec::new();
        for words in table.words().chunks_exact(SEGMENT_WORDS) {
            let (run, content) = (words[3] & 0xFFFF_FFFF, words[3] >> 32);
            let n_dims = usize::try_from(words[5] & 0xFFFF_FFFF).unwrap();
            for nth in 0..content / run {
                let (mut rest, mut address) = (nth, words[0]);
                for dim in words[6..6 + 2 * n_dims].chunks_exact(2) {
                    address += rest % dim[1] * dim[0];
                    rest /= dim[1];
                }
                assert_eq!(rest, 0);
                join(&mut runs, (words[2] + nth * run, address, run));
            }
        }
        runs
    }

    fn runs_of_map(map: &PageMap) -> Vec<(u64, u64, u64)> {
        let (mut runs, mut packed) = (Vec::new(), 0);
        for segment in map.segments() {
            segment.for_each_run(&mut |at| {
                join(&mut runs, (packed, segment.base() + at, segment.run_bytes()));
                packed += segment.run_bytes();
            });
        }
        runs
    }

    fn join(runs: &mut Vec<(u64, u64, u64)>, (packed, address, bytes): (u64, u64, u64)) {
        match runs.last_mut() {
            Some(last) if last.0 + last.2 == packed && last.1 + last.2 == address => last.2 += bytes,
            _ => runs.push((packed, address, bytes)),
        }
    }

    proptest! {
        #[test]
        fn words_name_the_runs_of_their_map(
            boxes in prop::collection::vec(
                (0u64..4096, prop::collection::vec((1u64..5, 0u64..300), 0..4), 1u64..80),
                1..4,
            ),
            limit_bytes in prop_oneof![Just(MAX_SEGMENT_BYTES), (1u64..20).prop_map(|n| 16 * n)],
        ) {
            let segments = boxes.iter().map(|(base, dims, run)| {
                let dims: Vec<Dim> =
                    dims.iter().map(|&(count, stride_bytes)| Dim { count, stride_bytes }).collect();
                Segment::new(*base, 1 << 20, &dims, *run).unwrap()
            });
            let map = PageMap::new(segments.collect()).unwrap();
            let mut table = SegmentTable::default();
            table.push(&map, limit_bytes).unwrap();
            prop_assert_eq!(runs_of_words(&table), runs_of_map(&map));
            let mut tiles = 0;
            for words in table.words().chunks_exact(SEGMENT_WORDS) {
                let content = words[3] >> 32;
                prop_assert!(content <= limit_bytes);
                prop_assert_eq!(words[4], tiles);
                tiles += content.div_ceil(TILE_BYTES);
                // No access leaves its alignment.
                let vector = words[5] >> 32;
                let strides = words[6..].chunks_exact(2).map(|dim| dim[0]);
                for number in strides.chain([words[0], words[1], words[2], words[3] & 0xFFFF_FFFF]) {
                    prop_assert!(number.is_multiple_of(vector));
                }
            }
            prop_assert_eq!(table.maps[0].tiles_per_block, tiles);
        }
    }

    #[test]
    fn pages_of_many_gigabytes_are_cut_and_whole() {
        let dims = [Dim { count: 3, stride_bytes: 9 << 30 }, Dim { count: 2, stride_bytes: 4 << 30 }];
        let map = PageMap::new(vec![Segment::new(1 << 40, 1 << 38, &dims, 5 << 29).unwrap()]).unwrap();
        let table = SegmentTable::new([&map]).unwrap();
        // 2.5 GiB are three pieces.
        assert_eq!(table.words().len(), 3 * 2 * 3 * SEGMENT_WORDS);
        assert_eq!(runs_of_words(&table), runs_of_map(&map));
        assert_eq!(table.maps[0].tiles_per_segment, 0);
        assert_eq!(table.maps[0].tiles_per_block, map.block_bytes() / TILE_BYTES);
    }

    #[test]
    fn blocks_that_no_device_holds_are_refused() {
        let map = |bytes| PageMap::new(vec![Segment::new(0, bytes, &[], bytes).unwrap()]).unwrap();
        assert!(SegmentTable::new([&map((1 << 44) - 4096)]).is_ok());
        assert_eq!(SegmentTable::new([&map(1 << 44)]), Err(MapError::Overflow));
    }

    #[test]
    fn equal_segments_need_no_search() {
        let layer =
            |base| Segment::new(base, 1 << 20, &[Dim { count: 4, stride_bytes: 4096 }], 2048).unwrap();
        let alike = PageMap::new(vec![layer(0), layer(1 << 16), layer(1 << 17)]).unwrap();
        let mixed = PageMap::new(vec![layer(0), Segment::new(1 << 16, 1 << 20, &[], 512).unwrap()]).unwrap();
        let table = SegmentTable::new([&alike, &mixed]).unwrap();
        assert_eq!((table.maps[0].tiles_per_segment, table.maps[0].tiles_per_block), (2, 6));
        assert_eq!((table.maps[1].tiles_per_segment, table.maps[1].tiles_per_block), (0, 3));
        assert_eq!((table.maps[1].first_segment, table.maps[1].segments), (3, 2));
    }
}
