//! The bytes a layer occupies, and the proof that none of them is named twice.

use tender_kernels::{Dim, Segment};

use super::desc::{Axis, LayerDesc};
use super::refusal::{ByteRange, LayoutFault};

/// The letter that stands for blocks in refusals.
const BLOCK_AXIS: char = 'B';

/// Most axes of a page, so that a kernel takes them with the block axis; what is known has at most four.
const MAX_AXES: usize = 7;

/// A layer whose own description holds: its axes nest without overlap, and all its pages lie in its buffer.
#[derive(Debug)]
pub(super) struct Footprint {
    /// One block's page.
    pub(super) page: Segment,
    /// From the page's first byte to behind its last.
    pub(super) page_extent_bytes: u64,
    /// All blocks' pages as one strided box.
    pub(super) whole: Segment,
    /// From the first byte of block 0 to behind the last byte of the last block.
    pub(super) span: ByteRange,
}

impl Footprint {
    /// Checks everything about a layer that does not depend on other layers, and puts its axes into the order
    /// of their strides.
    pub(super) fn prove(layer: &mut LayerDesc, pool_blocks: u32) -> Result<Self, LayoutFault> {
        well_formed(layer)?;
        if layer.blocks < pool_blocks {
            return Err(LayoutFault::TooFewBlocks { blocks: layer.blocks, pool_blocks });
        }
        // Physical order, so that a contiguous page is one run. Axes of one step have no place in it.
        layer.axes.sort_by_key(|axis| (axis.count > 1, std::cmp::Reverse(axis.stride_bytes)));
        let page_axes: Vec<Axis> = layer.axes.iter().copied().filter(|axis| axis.count > 1).collect();
        let mut all_axes = page_axes.clone();
        if pool_blocks > 1 {
            let blocks =
                Axis { name: BLOCK_AXIS, count: pool_blocks, stride_bytes: layer.block_stride_bytes };
            all_axes.push(blocks);
            all_axes.sort_by_key(|axis| std::cmp::Reverse(axis.stride_bytes));
        }
        let page_extent_bytes = nested_extent(layer.address, &page_axes, layer.cell_bytes)?;
        let extent_bytes = nested_extent(layer.address, &all_axes, layer.cell_bytes)?;
        let end = layer.address.checked_add(extent_bytes).ok_or(LayoutFault::Overflow)?;
        let span = ByteRange { start: layer.address, end };
        let buffer_end =
            layer.buffer.address().checked_add(layer.buffer.bytes()).ok_or(LayoutFault::Overflow)?;
        let buffer = ByteRange { start: layer.buffer.address(), end: buffer_end };
        if span.start < buffer.start || span.end > buffer.end {
            return Err(LayoutFault::OutsideBuffer { pages: span, buffer });
        }
        Ok(Self {
            page: segment(layer, &page_axes)?,
            page_extent_bytes,
            whole: segment(layer, &all_axes)?,
            span,
        })
    }
}

fn segment(layer: &LayerDesc, axes: &[Axis]) -> Result<Segment, LayoutFault> {
    let dims: Vec<Dim> = axes
        .iter()
        .map(|axis| Dim { count: u64::from(axis.count), stride_bytes: axis.stride_bytes })
        .collect();
    Segment::new(layer.address, layer.block_stride_bytes, &dims, layer.cell_bytes)
        .map_err(|_| LayoutFault::Overflow)
}

fn well_formed(layer: &LayerDesc) -> Result<(), LayoutFault> {
    let malformed = |what| Err(LayoutFault::Malformed { what });
    if layer.name.is_empty() {
        return malformed("it has no name");
    }
    if layer.cell_bytes == 0 || layer.axes.iter().any(|axis| axis.count == 0) {
        return malformed("its page has no bytes");
    }
    if layer.axes.len() > MAX_AXES {
        return malformed("its page has more than 7 axes");
    }
    let letter = |axis: &Axis| axis.name.is_ascii_uppercase() && axis.name != BLOCK_AXIS;
    if !layer.axes.iter().all(letter) {
        return malformed("an axis of its page is not named by a capital letter other than B");
    }
    for (i, axis) in layer.axes.iter().enumerate() {
        if layer.axes[..i].iter().any(|other| other.name == axis.name) {
            return malformed("two axes of its page have one name");
        }
    }
    Ok(())
}

/// The extent of a box whose axes (largest stride first) nest: each step of an axis is at least as long as
/// everything inside it, so no two positions share a byte.
fn nested_extent(address: u64, axes: &[Axis], cell_bytes: u64) -> Result<u64, LayoutFault> {
    let mut extent = cell_bytes;
    for axis in axes.iter().rev() {
        if axis.stride_bytes < extent {
            let at = |offset: u64| {
                let start = address.saturating_add(offset);
                ByteRange { start, end: start.saturating_add(extent) }
            };
            return Err(LayoutFault::AxisOverlap {
                axis: axis.name,
                first: at(0),
                second: at(axis.stride_bytes),
            });
        }
        let reach = u64::from(axis.count - 1).checked_mul(axis.stride_bytes).ok_or(LayoutFault::Overflow)?;
        extent = extent.checked_add(reach).ok_or(LayoutFault::Overflow)?;
    }
    Ok(extent)
}
