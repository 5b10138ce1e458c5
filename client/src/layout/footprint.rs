//! What one layer occupies, and the proof of everything about it that does not depend on other layers.

use tender_kernels::{Dim, Segment};

use tender_proto::mutant::{Mutant, active};

use super::desc::{Axis, LayerDesc};
use super::grid::{BLOCK_AXIS, Grid};
use super::refusal::{ByteRange, LayoutFault};

/// Most axes of a page, so that a kernel takes them with the block axis; what is known has at most four.
const MAX_AXES: usize = 7;

/// A layer whose own description holds: its axes nest without overlap, all its pages lie in its buffer, and what it
/// says of their size adds up.
#[derive(Debug)]
pub(super) struct Footprint {
    /// One block's page.
    pub(super) page: Segment,
    /// All blocks' pages as one strided box.
    pub(super) whole: Segment,
    /// All cells of all blocks.
    pub(super) grid: Grid,
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
        let blocks = Axis { name: BLOCK_AXIS, count: pool_blocks, stride_bytes: layer.block_stride_bytes };
        let all_axes: Vec<Axis> = layer.axes.iter().copied().chain([blocks]).collect();
        // The page for itself first, so that a page that overlaps itself is told from blocks that overlap.
        Grid::new(layer.address, layer.axes.clone(), layer.cell_bytes)?;
        let grid = Grid::new(layer.address, all_axes, layer.cell_bytes)?;
        let span = grid.span();
        let buffer_end =
            layer.buffer.address().checked_add(layer.buffer.bytes()).ok_or(LayoutFault::Overflow)?;
        let buffer = ByteRange { start: layer.buffer.address(), end: buffer_end };
        if span.start < buffer.start || span.end > buffer.end {
            return Err(LayoutFault::OutsideBuffer { pages: span, buffer });
        }
        page_adds_up(layer)?;
        let whole = segment(layer, grid.axes())?;
        Ok(Self { page: page_segment(layer)?, whole, grid, span })
    }
}

/// The copy's view of one block's page. The layer's axes are in physical order.
pub(super) fn page_segment(layer: &LayerDesc) -> Result<Segment, LayoutFault> {
    segment(layer, &layer.axes)
}

/// The same of some of a layer's axes, outermost first.
pub(super) fn segment(layer: &LayerDesc, axes: &[Axis]) -> Result<Segment, LayoutFault> {
    let dims: Vec<Dim> = axes
        .iter()
        .map(|axis| Dim { count: u64::from(axis.count), stride_bytes: axis.stride_bytes })
        .collect();
    let stride_bytes = match (active(Mutant::ScaleStride), &layer.scales, layer.content_bytes()) {
        (true, Some(scales), Some(bytes)) => bytes - bytes / layer.cell_bytes * scales.bytes,
        _ => layer.block_stride_bytes,
    };
    Segment::new(layer.address, stride_bytes, &dims, layer.cell_bytes).map_err(|_| LayoutFault::Overflow)
}

/// Content and padding are the page that the engine speaks of: nothing is missing from the description, and nothing is
/// in it that is not the layer's.
fn page_adds_up(layer: &LayerDesc) -> Result<(), LayoutFault> {
    let named = layer.content_bytes().and_then(|bytes| bytes.checked_add(layer.padding_bytes));
    let named = named.ok_or(LayoutFault::Overflow)?;
    let range = |bytes: u64| {
        let end = layer.address.checked_add(bytes).ok_or(LayoutFault::Overflow)?;
        Ok(ByteRange { start: layer.address, end })
    };
    let (named, page) = (range(named)?, range(layer.page_bytes)?);
    match named.end.cmp(&page.end) {
        std::cmp::Ordering::Less => Err(LayoutFault::PageGap { named, page }),
        std::cmp::Ordering::Greater => Err(LayoutFault::PageOverrun { named, page }),
        std::cmp::Ordering::Equal => Ok(()),
    }
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
