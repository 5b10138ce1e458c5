//! What a copy is told, checked before its first byte moves.

use tender_kernels::{Move, PageMap};

use super::{CopyRefusal, Target};
use crate::layout::ProvedLayout;

/// Checked moves of one part.
#[derive(Debug)]
pub(super) struct Moves<'a> {
    pub(super) map: &'a PageMap,
    pub(super) moves: Vec<Move>,
    /// Bytes of the whole part.
    pub(super) part_bytes: u64,
}

impl<'a> Moves<'a> {
    /// The moves from the needed blocks to packed bytes, or back.
    pub(super) fn check(layout: &'a ProvedLayout, of: &Target<'_>) -> Result<Self, CopyRefusal> {
        let Target { group, part, blocks, stored, needed } = *of;
        let map = layout.page_map(group, part).ok_or(CopyRefusal::NoPart { group, part })?;
        if blocks.len() as u64 != u64::from(stored.blocks().get()) {
            return Err(CopyRefusal::WrongBlockCount { listed: blocks.len(), blocks: stored.blocks().get() });
        }
        if !stored.contains(needed) {
            return Err(CopyRefusal::NotStored { needed, stored });
        }
        let pool = layout.pool_blocks();
        let mut moves = Vec::with_capacity(needed.count() as usize);
        for (position, &block) in (0..).zip(blocks) {
            let Some(slot) = stored.rank(position).filter(|_| needed.has(position)) else { continue };
            if block == 0 || block >= pool {
                return Err(CopyRefusal::BadBlock { block, position, last: pool.saturating_sub(1) });
            }
            moves.push(Move { block, slot });
        }
        // More than fits is as wrong as any length.
        let part_bytes = map.block_bytes().saturating_mul(u64::from(stored.count()));
        Ok(Self { map, moves, part_bytes })
    }

    /// That the packed side has the size of the part.
    pub(super) fn whole(&self, given: usize) -> Result<(), CopyRefusal> {
        let expected = self.part_bytes;
        if given as u64 != expected {
            return Err(CopyRefusal::WrongLength { given, expected });
        }
        Ok(())
    }

    /// That a piece lies in the part, and no block would be written twice.
    pub(super) fn piece(&self, offset_bytes: u64, given: usize) -> Result<(), CopyRefusal> {
        let expected = self.part_bytes;
        if offset_bytes.checked_add(given as u64).is_none_or(|end| end > expected) {
            return Err(CopyRefusal::Outside { offset_bytes, given, expected });
        }
        let mut ids: Vec<u32> = self.moves.iter().map(|one| one.block).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(CopyRefusal::Twice { block: pair[0] }),
            None => Ok(()),
        }
    }
}
