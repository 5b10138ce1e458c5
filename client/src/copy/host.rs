//! Copies on host memory.
//!
//! This module is one of the few where unsafe code lives. It holds on to three facts: the buffers are mapped
//! (promised to [`BufferDesc::new`](crate::layout::BufferDesc::new)), every page of a block
//! id below the pool's size lies inside its buffer (proved), and every id is below it (checked per copy).
#![allow(unsafe_code, reason = "calls the copies of tender-kernels on pages that are known by address")]

use std::sync::Arc;

use tender_kernels::reference;
use tender_proto::{Coverage, GroupIndex, PartIndex};

use super::moves::Moves;
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
        let all =
            Moves::check(&self.layout, &Target { group, part, blocks, stored: coverage, needed: coverage })?;
        all.whole(packed.len())?;
        // SAFETY: every id is below the pool's size, so the layout's proof puts its pages inside buffers that are
        // mapped; the engine does not write them meanwhile; `packed` is exclusive, so it is none of them.
        let copied = unsafe { reference::gather(all.map, &all.moves, packed) };
        copied.map_err(|_| CopyRefusal::WrongLength { given: packed.len(), expected: all.part_bytes })
    }

    fn scatter(&self, to: &Target<'_>, offset_bytes: u64, piece: &[u8]) -> Result<(), CopyRefusal> {
        let all = Moves::check(&self.layout, to)?;
        all.piece(offset_bytes, piece.len())?;
        // SAFETY: every id is below the pool's size, so the layout's proof puts its pages inside buffers that are
        // mapped; the engine uses them for nothing else meanwhile; `piece` is borrowed, so it is none of them.
        let copied = unsafe { reference::scatter_range(all.map, &all.moves, offset_bytes, piece) };
        let given = piece.len();
        copied.map_err(|_| CopyRefusal::Outside { offset_bytes, given, expected: all.part_bytes })
    }
}
