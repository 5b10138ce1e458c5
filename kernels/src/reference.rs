//! Gather and scatter on host memory: the CPU truth.
//!
//! This module is one of the few where unsafe code lives: it turns the addresses of a [`PageMap`] into memory
//! accesses. What the addresses point to is vouched for by the caller; that the packed side is never left is
//! checked here.
#![allow(unsafe_code, reason = "copies between packed bytes and pages that are known by their address only")]

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
    let packed = packed.as_mut_ptr();
    for_each_run(map, moves, |page, at, len| {
        // SAFETY: the caller vouches for the page's bytes; `check` keeps at + len inside `packed`, which no
        // page overlaps.
        unsafe {
            std::ptr::copy_nonoverlapping(std::ptr::with_exposed_provenance(page), packed.add(at), len)
        };
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
    let packed = packed.as_ptr();
    for_each_run(map, moves, |page, at, len| {
        // SAFETY: the caller vouches for the page's bytes; `check` keeps at + len inside `packed`, which no
        // page overlaps.
        unsafe {
            std::ptr::copy_nonoverlapping(packed.add(at), std::ptr::with_exposed_provenance_mut(page), len);
        };
    });
    Ok(())
}

fn check(map: &PageMap, moves: &[Move], packed_bytes: usize) -> Result<(), MapError> {
    let block_bytes = map.block_bytes();
    let outside = |slot| {
        let end = (u64::from(slot) + 1).checked_mul(block_bytes);
        end.is_none_or(|end| end > packed_bytes as u64)
    };
    match moves.iter().find(|one| outside(one.slot)) {
        Some(&Move { slot, .. }) => Err(MapError::SlotOutside { slot, block_bytes, packed_bytes }),
        None => Ok(()),
    }
}

/// Calls `copy` with the address of every run, its offset in the packed bytes, and its length.
fn for_each_run(map: &PageMap, moves: &[Move], mut copy: impl FnMut(usize, usize, usize)) {
    let neighbours =
        |a: &Move, b: &Move| a.block.checked_add(1) == Some(b.block) && a.slot.checked_add(1) == Some(b.slot);
    if let ([only], true) = (map.segments(), map.is_dense()) {
        for stretch in moves.chunk_by(neighbours) {
            let at = size(u64::from(stretch[0].slot) * map.block_bytes());
            copy(page(only, stretch[0].block), at, stretch.len() * size(map.block_bytes()));
        }
        return;
    }
    for one in moves {
        let mut at = size(u64::from(one.slot) * map.block_bytes());
        for segment in map.segments() {
            let (start, len) = (page(segment, one.block), size(segment.run_bytes()));
            segment.for_each_run(&mut |offset| {
                copy(start + size(offset), at, len);
                at += len;
            });
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
