//! Gather and scatter on host memory: the CPU truth.
//!
//! This module is one of the few where unsafe code lives: it turns the addresses of a [`PageMap`] into memory
//! accesses. What the addresses point to is vouched for by the caller; that the packed side is never left is
//! checked here.
#![allow(unsafe_code, reason = "copies between packed bytes and pages that are known by their address only")]

use std::ops::Range;

use tender_memory::Stream;

use crate::page_map::{MapError, Move, PageMap, Segment};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("addresses and sizes here are 64-bit");

/// Copies the blocks of `moves` from their pages into `packed`.
///
/// Nothing is copied if a slot does not lie in `packed`.
///
/// # Safety
/// For every move, all bytes that `map` names in its block are readable for the time of the call, nobody
/// writes them meanwhile, and none of them lies in `packed`.
pub unsafe fn gather(map: &PageMap, moves: &[Move], packed: &mut [u8]) -> Result<(), MapError> {
    check(map, moves, packed.len())?;
    let whole = 0..packed.len() as u64;
    let packed = packed.as_mut_ptr();
    let mut stream = Stream::new();
    for_each_run(map, moves, whole, |page, at, len| {
        // SAFETY: the caller vouches for the page's bytes; at + len lies in `packed`, which no page overlaps.
        unsafe { stream.copy(std::ptr::with_exposed_provenance(page), packed.add(at), len) };
    });
    Ok(())
}

/// Copies blocks of `packed` into the pages of the blocks of `moves`. Bytes of other blocks, and padding, are
/// left as they are.
///
/// Nothing is copied if a slot does not lie in `packed`.
///
/// # Safety
/// For every move, all bytes that `map` names in its block are writable for the time of the call, nobody else
/// reads or writes them meanwhile, and none of them lies in `packed`.
pub unsafe fn scatter(map: &PageMap, moves: &[Move], packed: &[u8]) -> Result<(), MapError> {
    check(map, moves, packed.len())?;
    // SAFETY: passed on.
    unsafe { scatter_range(map, moves, 0, packed) }
}

/// Copies what `piece` has of the blocks of `moves` into their pages. It is cut anywhere out of packed bytes, at
/// `offset_bytes` from their start. All pieces of the packed bytes, in any order, make one [`scatter`].
///
/// # Safety
/// As for [`scatter`], with `piece` for the packed bytes.
pub unsafe fn scatter_range(
    map: &PageMap,
    moves: &[Move],
    offset_bytes: u64,
    piece: &[u8],
) -> Result<(), MapError> {
    let end = offset_bytes.checked_add(piece.len() as u64).ok_or(MapError::Overflow)?;
    if moves.iter().any(|one| slot_end(map, one.slot).is_none()) {
        return Err(MapError::Overflow);
    }
    let piece = piece.as_ptr();
    let mut stream = Stream::new();
    for_each_run(map, moves, offset_bytes..end, |page, at, len| {
        // SAFETY: the caller vouches for the page's bytes; at + len lies in `piece`, which no page overlaps.
        unsafe { stream.copy(piece.add(at), std::ptr::with_exposed_provenance_mut(page), len) };
    });
    Ok(())
}

fn check(map: &PageMap, moves: &[Move], packed_bytes: usize) -> Result<(), MapError> {
    let outside = |slot| slot_end(map, slot).is_none_or(|end| end > packed_bytes as u64);
    match moves.iter().find(|one| outside(one.slot)) {
        Some(&Move { slot, .. }) => {
            Err(MapError::SlotOutside { slot, block_bytes: map.block_bytes(), packed_bytes })
        }
        None => Ok(()),
    }
}

fn slot_end(map: &PageMap, slot: u32) -> Option<u64> {
    (u64::from(slot) + 1).checked_mul(map.block_bytes())
}

/// Calls `copy` for every run, or the part of it, that lies in this window of the packed bytes: with the address in
/// the page, the distance from the window's start, and the length. All three together never leave run and window.
fn for_each_run(
    map: &PageMap,
    moves: &[Move],
    window: Range<u64>,
    mut copy: impl FnMut(usize, usize, usize),
) {
    let mut clipped = |page: usize, at: u64, len: u64| {
        let (from, to) = (at.max(window.start), (at + len).min(window.end));
        if from < to {
            copy(page + size(from - at), size(from - window.start), size(to - from));
        }
    };
    let block_bytes = map.block_bytes();
    if let ([only], true) = (map.segments(), map.is_dense()) {
        let neighbours = |a: &Move, b: &Move| {
            a.block.checked_add(1) == Some(b.block) && a.slot.checked_add(1) == Some(b.slot)
        };
        for stretch in moves.chunk_by(neighbours) {
            let at = u64::from(stretch[0].slot) * block_bytes;
            clipped(page(only, stretch[0].block), at, stretch.len() as u64 * block_bytes);
        }
        return;
    }
    let meets = |at: u64, len: u64| at < window.end && at + len > window.start;
    for one in moves {
        let mut at = u64::from(one.slot) * block_bytes;
        if !meets(at, block_bytes) {
            continue;
        }
        for segment in map.segments() {
            let (start, run) = (page(segment, one.block), segment.run_bytes());
            if meets(at, segment.content_bytes()) {
                let first = window.start.saturating_sub(at) / run;
                let end = (window.end - at).div_ceil(run);
                let mut run_at = at + first * run;
                segment.for_each_run_of(first..end, &mut |offset| {
                    clipped(start + size(offset), run_at, run);
                    run_at += run;
                });
            }
            at += segment.content_bytes();
        }
    }
}

/// Where a segment starts in a block. Wraps only for blocks that the caller must not name.
fn page(segment: &Segment, block: u32) -> usize {
    size(segment.base().wrapping_add(segment.block_stride_bytes().wrapping_mul(u64::from(block))))
}

#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, see the top of the module")]
const fn size(bytes: u64) -> usize {
    bytes as usize
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::page_map::Dim;

    /// Pages in a buffer of their own, and the positions of a block's bytes computed the slow way.
    struct Pages {
        bytes: Vec<u8>,
        map: PageMap,
        positions: Vec<Vec<usize>>,
    }

    fn pages(blocks: usize, heads: usize, tokens: usize, cell: usize, pad: usize, layers: usize) -> Pages {
        let token = cell;
        let head = tokens * token + pad;
        let layer = heads * head;
        let block = layers * layer + pad;
        let mut bytes = vec![0u8; blocks * block];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = (i * 31 + i / 251) as u8;
        }
        let base = bytes.as_ptr().expose_provenance() as u64;
        let dims = [
            Dim { count: heads as u64, stride_bytes: head as u64 },
            Dim { count: tokens as u64, stride_bytes: token as u64 },
        ];
        let segment = |l| Segment::new(base + (l * layer) as u64, block as u64, &dims, cell as u64).unwrap();
        let map = PageMap::new((0..layers).map(segment).collect()).unwrap();
        let positions = (0..blocks)
            .map(|b| {
                let mut at = Vec::new();
                for l in 0..layers {
                    for h in 0..heads {
                        for t in 0..tokens {
                            at.extend((0..cell).map(|c| b * block + l * layer + h * head + t * token + c));
                        }
                    }
                }
                at
            })
            .collect();
        Pages { bytes, map, positions }
    }

    fn moves(blocks: &[u32]) -> Vec<Move> {
        blocks.iter().zip(0..).map(|(&block, slot)| Move { block, slot }).collect()
    }

    proptest! {
        #[test]
        fn gather_and_scatter_name_exactly_the_bytes_of_the_map(
            (heads, tokens, cell) in (1usize..4, 1usize..5, 1usize..7),
            (pad, layers) in (0usize..5, 1usize..4),
            wanted in Just((0u32..9).collect::<Vec<_>>()).prop_shuffle(),
            n in 0usize..9,
        ) {
            let from = pages(9, heads, tokens, cell, pad, layers);
            let chosen = moves(&wanted[..n]);
            let mut packed = vec![0xEE; n * from.map.block_bytes() as usize];
            // SAFETY: the map was made over from.bytes, which lives and is not written.
            unsafe { gather(&from.map, &chosen, &mut packed) }.unwrap();
            let expected: Vec<u8> = wanted[..n]
                .iter()
                .flat_map(|&b| from.positions[b as usize].iter().map(|&at| from.bytes[at]))
                .collect();
            prop_assert_eq!(&packed, &expected);

            let mut to = pages(9, heads, tokens, cell, pad, layers);
            to.bytes.fill(0xAA);
            // SAFETY: the map was made over to.bytes, which nobody else uses.
            unsafe { scatter(&to.map, &chosen, &packed) }.unwrap();
            let mut want = vec![0xAA; to.bytes.len()];
            for &b in &wanted[..n] {
                for &at in &from.positions[b as usize] {
                    want[at] = from.bytes[at];
                }
            }
            prop_assert_eq!(to.bytes, want);
        }

        #[test]
        fn any_pieces_make_one_scatter(
            (heads, tokens, cell) in (1usize..4, 1usize..5, 1usize..7),
            (pad, layers) in (0usize..5, 1usize..4),
            wanted in Just((0u32..9).collect::<Vec<_>>()).prop_shuffle(),
            // Which of the packed blocks are wanted: the slots have gaps.
            chosen in proptest::collection::vec(any::<bool>(), 9),
            cuts in proptest::collection::vec(0usize..1500, 0..12),
            order in any::<bool>(),
        ) {
            let from = pages(9, heads, tokens, cell, pad, layers);
            let all = moves(&wanted);
            let mut packed = vec![0xEE; 9 * from.map.block_bytes() as usize];
            // SAFETY: the map was made over from.bytes, which lives and is not written.
            unsafe { gather(&from.map, &all, &mut packed) }.unwrap();
            let chosen: Vec<_> = all.into_iter().zip(chosen).filter_map(|(one, yes)| yes.then_some(one)).collect();

            let (mut whole, mut cut) =
                (pages(9, heads, tokens, cell, pad, layers), pages(9, heads, tokens, cell, pad, layers));
            whole.bytes.fill(0xAA);
            cut.bytes.fill(0xAA);
            // SAFETY: the map was made over whole.bytes, which nobody else uses.
            unsafe { scatter(&whole.map, &chosen, &packed) }.unwrap();
            let mut bounds: Vec<_> = cuts.into_iter().map(|at| at.min(packed.len())).collect();
            bounds.extend([0, packed.len()]);
            bounds.sort_unstable();
            let mut pieces: Vec<_> = bounds.windows(2).map(|pair| (pair[0], pair[1])).collect();
            if order {
                pieces.reverse();
            }
            for (start, end) in pieces {
                // SAFETY: the map was made over cut.bytes, which nobody else uses.
                unsafe { scatter_range(&cut.map, &chosen, start as u64, &packed[start..end]) }.unwrap();
            }
            prop_assert_eq!(cut.bytes, whole.bytes);
        }
    }

    #[test]
    fn numbers_that_overflow_move_nothing() {
        let to = pages(4, 1, 2, 4, 0, 1);
        let before = to.bytes.clone();
        // SAFETY: the map was made over to.bytes, which nobody else uses.
        let refused = unsafe { scatter_range(&to.map, &moves(&[1]), u64::MAX, &[1; 8]) };
        assert_eq!((refused, to.bytes), (Err(MapError::Overflow), before));
    }

    #[test]
    fn a_slot_outside_the_packed_bytes_moves_nothing() {
        let from = pages(4, 1, 2, 4, 0, 1);
        let mut packed = vec![0xEE; 15];
        // SAFETY: the map was made over from.bytes, which lives and is not written.
        let refused = unsafe { gather(&from.map, &moves(&[1, 2]), &mut packed) };
        assert_eq!(refused, Err(MapError::SlotOutside { slot: 1, block_bytes: 8, packed_bytes: 15 }));
        assert!(packed.iter().all(|&byte| byte == 0xEE));
    }
}
