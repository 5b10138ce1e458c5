//! The proof that quantisation scales lie in the cells that they belong to.
//!
//! An engine that keeps a scale behind each head's data addresses it by a view of its own. If that view has strides
//! that the data has not, the scale of one cell lands in another cell, perhaps another layer's: both the engine's
//! numbers and what would be copied are wrong then.

use super::desc::{Axis, LayerDesc, ScaleDesc};
use super::footprint::Footprint;
use super::grid::BLOCK_AXIS;
use super::refusal::{ByteRange, LayoutFault};

/// Steps along a wrong axis that are looked at to name what a scale collides with.
const MAX_STEPS: u32 = 4096;

/// Proves, for all blocks below `pool_blocks` and all positions, that a layer's scale lies in its own cell, at the same
/// place in each. `others` are all layers, by which a collision is named.
pub(super) fn prove(
    layer: &LayerDesc,
    pool_blocks: u32,
    others: &[(&LayerDesc, &Footprint)],
) -> Result<(), LayoutFault> {
    let Some(scales) = &layer.scales else { return Ok(()) };
    well_formed(layer, scales)?;
    let first = Place { axis: BLOCK_AXIS, step: 0, scale_stride: 0, cell_stride: 0 };
    if !first.holds(layer, scales)? {
        return Err(first.fault(layer, scales, others)?);
    }
    let blocks = Axis { name: BLOCK_AXIS, count: pool_blocks, stride_bytes: layer.block_stride_bytes };
    for axis in layer.axes.iter().chain([&blocks]).filter(|axis| axis.count > 1) {
        let scale_stride = stride(scales, axis.name);
        if scale_stride == axis.stride_bytes {
            continue;
        }
        // Of all steps that miss their cells, one that shows what it hits instead.
        let at = |step| Place { axis: axis.name, step, scale_stride, cell_stride: axis.stride_bytes };
        for step in 1..axis.count.min(MAX_STEPS) {
            let fault = at(step).fault(layer, scales, others)?;
            if matches!(fault, LayoutFault::ScaleCollision { .. }) {
                return Err(fault);
            }
        }
        return Err(at(1).fault(layer, scales, others)?);
    }
    Ok(())
}

/// A cell that lies `step` steps along one axis from the first, and its scale.
#[derive(Clone, Copy)]
struct Place {
    axis: char,
    step: u32,
    scale_stride: u64,
    cell_stride: u64,
}

impl Place {
    fn range(self, start: u64, stride: u64, bytes: u64) -> Result<ByteRange, LayoutFault> {
        let start = u64::from(self.step).checked_mul(stride).and_then(|offset| offset.checked_add(start));
        let start = start.ok_or(LayoutFault::Overflow)?;
        Ok(ByteRange { start, end: start.checked_add(bytes).ok_or(LayoutFault::Overflow)? })
    }
    fn scale(self, scales: &ScaleDesc) -> Result<ByteRange, LayoutFault> {
        self.range(scales.address, self.scale_stride, scales.bytes)
    }
    fn cell(self, layer: &LayerDesc) -> Result<ByteRange, LayoutFault> {
        self.range(layer.address, self.cell_stride, layer.cell_bytes)
    }
    fn holds(self, layer: &LayerDesc, scales: &ScaleDesc) -> Result<bool, LayoutFault> {
        let (scale, cell) = (self.scale(scales)?, self.cell(layer)?);
        Ok(cell.start <= scale.start && scale.end <= cell.end)
    }
    /// What is wrong here: the scale is in a cell that it must not be in, or simply not in its own.
    fn fault(
        self,
        layer: &LayerDesc,
        scales: &ScaleDesc,
        others: &[(&LayerDesc, &Footprint)],
    ) -> Result<LayoutFault, LayoutFault> {
        let (Self { axis, step, .. }, scale, cell) = (self, self.scale(scales)?, self.cell(layer)?);
        // Another layer first: that it is hit says more.
        let (own, foreign): (Vec<_>, Vec<_>) =
            others.iter().partition(|(other, _)| std::ptr::eq(*other, layer));
        for (other, footprint) in foreign.into_iter().chain(own) {
            let ends = [scale.start, scale.end - 1];
            let mut hits = ends.into_iter().filter_map(|at| footprint.grid.cell_at(at));
            if let Some(hit) = hits.find(|hit| hit.bytes != cell) {
                let other = other.name.clone();
                return Ok(LayoutFault::ScaleCollision { axis, step, scale, other, cell: hit.bytes });
            }
        }
        Ok(LayoutFault::ScaleAstray { axis, step, scale, cell })
    }
}

/// The stride that the engine's view of scales has along an axis: none where one scale is for all its steps.
fn stride(scales: &ScaleDesc, name: char) -> u64 {
    if name == BLOCK_AXIS {
        return scales.block_stride_bytes;
    }
    scales.axes.iter().find(|axis| axis.name == name).map_or(0, |axis| axis.stride_bytes)
}

fn well_formed(layer: &LayerDesc, scales: &ScaleDesc) -> Result<(), LayoutFault> {
    if scales.bytes == 0 {
        return Err(LayoutFault::Malformed { what: "its scales have no bytes" });
    }
    for (i, axis) in scales.axes.iter().enumerate() {
        let same = |other: &Axis| other.name == axis.name;
        let known = layer.axes.iter().any(|other| same(other) && other.count == axis.count);
        if !known || scales.axes[..i].iter().any(same) {
            return Err(LayoutFault::Malformed { what: "its scales have axes that its page has not" });
        }
    }
    Ok(())
}
