//! Copies on host memory.
//!
//! This module is one of the few where unsafe code lives. It holds on to three facts: the buffers are mapped
//! (promised to [`BufferDesc::new`](crate::layout::BufferDesc::new)), every page of a block
//! id below the pool's size lies inside its buffer (proved), and every id is below it (checked per copy).
#![allow(unsafe_code, reason = "calls the copies of tender-kernels on pages that are known by address")]

use std::sync::Arc;

use tender_kernels::{Move, PageMap, reference};
use tender_proto::{Coverage, GroupIndex, PartIndex};

use super::{CopyBackend, CopyRefusal, Target};
use crate::layout::ProvedLayout;

/// Plain memory copies by the calling thread, one per contiguous run.
#[derive(Clone, Debug)]
pub struct HostCopy {
    layout: Arc<ProvedLayout>,
}

impl HostCopy {
    /// Copies through this layout.
    ///
    /// The engine keeps its side of rule 6: a block's slots are written by nobody else while they are gathered,
    /// and used by nobody else while they are scattered to.
    pub fn new(layout: Arc<ProvedLayout>) -> Self {
        Self { layout }
    }

    /// The moves to or from the needed blocks, all checked, and the bytes of the whole part.
    fn moves(&self, of: &Target<'_>) -> Result<(&PageMap, Vec<Move>, u64), CopyRefusal> {
        let Target { group, part, blocks, stored, needed } = *of;
        let map = self.layout.page_map(group, part).ok_or(CopyRefusal::NoPart { group, part })?;
        if blocks.len() as u64 != u64::from(stored.blocks().get()) {
            return Err(CopyRefusal::WrongBlockCount { listed: blocks.len(), blocks: stored.blocks().get() });
        }
        if !stored.contains(needed) {
            return Err(CopyRefusal::NotStored { needed, stored });
        }
        let pool = self.layout.pool_blocks();
        let mut moves = Vec::with_capacity(needed.count() as usize);
        for (position, &block) in (0..).zip(blocks) {
            let Some(slot) = stored.rank(position).filter(|_| needed.has(position)) else { continue };
            if block == 0 || block >= pool {
                return Err(CopyRefusal::BadBlock { block, position, last: pool.saturating_sub(1) });
            }
            moves.push(Move { block, slot });
        }
        // More than fits is as wrong as any length.
        Ok((map, moves, map.block_bytes().saturating_mul(u64::from(stored.count()))))
    }
}

impl CopyBackend for HostCopy {
    fn gather(
        &self,
        group: GroupIndex,
        part: PartIndex,
        blocks: &[u32],
        coverage: Coverage,
        packed: &mut [u8],
    ) -> Result<(), CopyRefusal> {
        let (map, moves, expected) =
            self.moves(&Target { group, part, blocks, stored: coverage, needed: coverage })?;
        let wrong = CopyRefusal::WrongLength { given: packed.len(), expected };
        if packed.len() as u64 != expected {
            return Err(wrong);
        }
        // SAFETY: every id is below the pool's size, so the layout's proof puts its pages inside buffers that are
        // mapped; the engine does not write them meanwhile; `packed` is exclusive, so it is none of them.
        let copied = unsafe { reference::gather(map, &moves, packed) };
        copied.map_err(|_| wrong)
    }

    fn scatter(&self, to: &Target<'_>, offset_bytes: u64, piece: &[u8]) -> Result<(), CopyRefusal> {
        let (map, moves, expected) = self.moves(to)?;
        let outside = CopyRefusal::Outside { offset_bytes, given: piece.len(), expected };
        if offset_bytes.checked_add(piece.len() as u64).is_none_or(|end| end > expected) {
            return Err(outside);
        }
        let mut ids: Vec<u32> = moves.iter().map(|one| one.block).collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(CopyRefusal::Twice { block: pair[0] });
        }
        // SAFETY: every id is below the pool's size, so the layout's proof puts its pages inside buffers that are
        // mapped; the engine uses them for nothing else meanwhile; `piece` is borrowed, so it is none of them.
        let copied = unsafe { reference::scatter_range(map, &moves, offset_bytes, piece) };
        copied.map_err(|_| outside)
    }
}
