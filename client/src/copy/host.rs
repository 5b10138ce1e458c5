//! Copies on host memory.
//!
//! This module is one of the few where unsafe code lives. It holds on to three facts: the buffers are mapped
//! (promised to [`BufferDesc::new`](crate::layout::BufferDesc::new)), every page of a block
//! id below the pool's size lies inside its buffer (proved), and every id is below it (checked per copy).
#![allow(unsafe_code, reason = "calls the copies of tender-kernels on pages that are known by address")]

use std::sync::Arc;

use tender_kernels::{Move, PageMap, reference};
use tender_proto::{Coverage, GroupIndex};

use super::{CopyBackend, CopyRefusal};
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

    /// The moves for `wanted` blocks of a part that holds the `stored` ones, all checked.
    fn moves(
        &self,
        group: GroupIndex,
        blocks: &[u32],
        stored: Coverage,
        wanted: Coverage,
        packed_bytes: usize,
    ) -> Result<(&PageMap, Vec<Move>), CopyRefusal> {
        let part = self.layout.parts(group).first().ok_or(CopyRefusal::NoGroup(group))?;
        let map = part.page_map();
        if blocks.len() as u64 != u64::from(stored.blocks().get()) {
            return Err(CopyRefusal::WrongBlockCount { listed: blocks.len(), blocks: stored.blocks().get() });
        }
        if !stored.contains(wanted) {
            return Err(CopyRefusal::NotStored { needed: wanted, stored });
        }
        // At most 64 blocks of at most 2^64 bytes.
        let expected = u128::from(map.block_bytes()) * u128::from(stored.count());
        if packed_bytes as u128 != expected {
            let expected = u64::try_from(expected).unwrap_or(u64::MAX);
            return Err(CopyRefusal::WrongLength { given: packed_bytes, expected });
        }
        let pool = self.layout.pool_blocks();
        let mut moves = Vec::with_capacity(wanted.count() as usize);
        for (position, &block) in (0..).zip(blocks) {
            let Some(slot) = stored.rank(position).filter(|_| wanted.has(position)) else { continue };
            if block == 0 || block >= pool {
                return Err(CopyRefusal::BadBlock { block, position, last: pool.saturating_sub(1) });
            }
            moves.push(Move { block, slot });
        }
        Ok((map, moves))
    }
}

impl CopyBackend for HostCopy {
    fn gather(
        &self,
        group: GroupIndex,
        blocks: &[u32],
        coverage: Coverage,
        packed: &mut [u8],
    ) -> Result<(), CopyRefusal> {
        let (map, moves) = self.moves(group, blocks, coverage, coverage, packed.len())?;
        // SAFETY: every id is below the pool's size, so the layout's proof puts its pages inside buffers that are
        // mapped; the engine does not write them meanwhile; `packed` is exclusive, so it is none of them.
        let copied = unsafe { reference::gather(map, &moves, packed) };
        copied.map_err(|_| CopyRefusal::WrongLength { given: packed.len(), expected: u64::MAX })
    }

    fn scatter(
        &self,
        group: GroupIndex,
        blocks: &[u32],
        stored: Coverage,
        needed: Coverage,
        packed: &[u8],
    ) -> Result<(), CopyRefusal> {
        let (map, moves) = self.moves(group, blocks, stored, needed, packed.len())?;
        let mut ids: Vec<u32> = moves.iter().map(|one| one.block).collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(CopyRefusal::Twice { block: pair[0] });
        }
        // SAFETY: every id is below the pool's size, so the layout's proof puts its pages inside buffers that are
        // mapped; the engine uses them for nothing else meanwhile; `packed` is borrowed, so it is none of them.
        let copied = unsafe { reference::scatter(map, &moves, packed) };
        copied.map_err(|_| CopyRefusal::WrongLength { given: packed.len(), expected: u64::MAX })
    }
}
