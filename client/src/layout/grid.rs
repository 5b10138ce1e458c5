//! A strided box of cells whose axes nest, and the windows that several such boxes keep to.

use super::desc::Axis;
use super::refusal::{ByteRange, LayoutFault};

/// The letter that stands for blocks.
pub(super) const BLOCK_AXIS: char = 'B';

/// All cells of a layer in all blocks. The axes nest: each step of one is at least as long as everything inside it,
/// so no two cells share a byte and each byte's cell is found by division.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    base: u64,
    /// Largest stride first, each of more than one step; the blocks are one of them.
    axes: Vec<Axis>,
    cell_bytes: u64,
}

/// A cell of a grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) bytes: ByteRange,
    pub(super) block: u32,
}

impl Grid {
    /// Checks that the axes nest, whatever their order, and that no address exceeds 64 bits.
    pub(super) fn new(base: u64, mut axes: Vec<Axis>, cell_bytes: u64) -> Result<Self, LayoutFault> {
        axes.retain(|axis| axis.count > 1);
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.stride_bytes));
        let grid = Self { base, axes, cell_bytes };
        grid.checked_extent()?;
        Ok(grid)
    }

    fn checked_extent(&self) -> Result<u64, LayoutFault> {
        let mut extent = self.cell_bytes;
        for axis in self.axes.iter().rev() {
            if axis.stride_bytes < extent {
                let at = |offset: u64| {
                    let start = self.base.saturating_add(offset);
                    ByteRange { start, end: start.saturating_add(extent) }
                };
                let (first, second) = (at(0), at(axis.stride_bytes));
                return Err(LayoutFault::AxisOverlap { axis: axis.name, first, second });
            }
            let reach = u64::from(axis.count - 1).checked_mul(axis.stride_bytes);
            extent = reach.and_then(|reach| extent.checked_add(reach)).ok_or(LayoutFault::Overflow)?;
        }
        self.base.checked_add(extent).ok_or(LayoutFault::Overflow)?;
        Ok(extent)
    }

    /// From the first byte of the first cell to behind the last byte of the last one.
    pub(super) fn span(&self) -> ByteRange {
        ByteRange { start: self.base, end: self.base + extent(&self.axes, self.cell_bytes) }
    }
    /// Largest stride first, each of more than one step.
    pub(super) fn axes(&self) -> &[Axis] {
        &self.axes
    }
    /// Cells there are; at most as many as addresses.
    pub(super) fn cells(&self) -> u64 {
        self.axes.iter().map(|axis| u64::from(axis.count)).product()
    }
    /// Cell number `index`, in the order of addresses.
    pub(super) fn cell(&self, mut index: u64) -> Cell {
        let (mut start, mut block) = (self.base, 0);
        for axis in self.axes.iter().rev() {
            let step = index % u64::from(axis.count);
            index /= u64::from(axis.count);
            start += step * axis.stride_bytes;
            if axis.name == BLOCK_AXIS {
                block = step;
            }
        }
        self.cell_from(start, block)
    }
    /// The cell that has this byte.
    pub(super) fn cell_at(&self, address: u64) -> Option<Cell> {
        let (mut rest, mut block) = (address.checked_sub(self.base)?, 0);
        for axis in &self.axes {
            let step = (rest / axis.stride_bytes).min(u64::from(axis.count - 1));
            rest -= step * axis.stride_bytes;
            if axis.name == BLOCK_AXIS {
                block = step;
            }
        }
        (rest < self.cell_bytes).then(|| self.cell_from(address - rest, block))
    }

    fn cell_from(&self, start: u64, block: u64) -> Cell {
        let block = u32::try_from(block).unwrap_or(u32::MAX);
        Cell { bytes: ByteRange { start, end: start + self.cell_bytes }, block }
    }

    /// The axes outside the blocks, the blocks, and the axes inside them.
    fn around_blocks(&self) -> Option<(&[Axis], Axis, &[Axis])> {
        let at = self.axes.iter().position(|axis| axis.name == BLOCK_AXIS)?;
        Some((&self.axes[..at], self.axes[at], &self.axes[at + 1..]))
    }

    /// The axes of the cells of one window, see [`share_windows`].
    pub(super) fn inside_blocks(&self) -> &[Axis] {
        self.around_blocks().map_or(&[], |(_, _, inside)| inside)
    }
}

fn extent(axes: &[Axis], cell_bytes: u64) -> u64 {
    axes.iter().fold(cell_bytes, |bytes, axis| bytes + u64::from(axis.count - 1) * axis.stride_bytes)
}

/// Whether these grids keep to common windows: stretches of memory, one for each block and each position of the axes
/// outside the blocks, that are apart from each other, such that every grid's cells of a block lie in windows of that
/// block, at the same place in each. Then cells of different blocks share no byte, and cells of one block share one
/// only if they do so in the first window.
pub(super) fn share_windows<'a>(grids: impl Iterator<Item = &'a Grid>) -> bool {
    let mut outside: Vec<Axis> = Vec::new();
    let (mut blocks, mut window) = (None, None::<ByteRange>);
    for grid in grids {
        let Some((out, own_blocks, inside)) = grid.around_blocks() else { return false };
        if *blocks.get_or_insert(own_blocks) != own_blocks {
            return false;
        }
        let end = grid.base + extent(inside, grid.cell_bytes);
        let seen = window.get_or_insert(ByteRange { start: grid.base, end });
        *seen = ByteRange { start: seen.start.min(grid.base), end: seen.end.max(end) };
        for axis in out {
            match outside.iter_mut().find(|known| known.stride_bytes == axis.stride_bytes) {
                Some(known) => known.count = known.count.max(axis.count),
                None => outside.push(*axis),
            }
        }
    }
    let (Some(blocks), Some(window)) = (blocks, window) else { return false };
    outside.push(blocks);
    Grid::new(window.start, outside, window.end - window.start).is_ok()
}
