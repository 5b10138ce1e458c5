//! Where tensors lie: every group in a buffer of its own in one of the engine's physical orders, or all groups over
//! one buffer whose blocks they share.

use super::groups::TensorShape;

/// The six orders in which engines lay out Layers, Blocks, Heads and slots (N) of a group, outermost first.
pub const ORDERS: [[char; 4]; 6] = [
    ['L', 'B', 'H', 'N'],
    ['L', 'B', 'N', 'H'],
    ['L', 'H', 'B', 'N'],
    ['B', 'L', 'H', 'N'],
    ['B', 'L', 'N', 'H'],
    ['B', 'H', 'L', 'N'],
];

/// How the groups share memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrangement {
    /// A buffer for each group, in the order of that number for groups whose tensors are alike.
    Apart {
        /// Index into [`ORDERS`], one for each group.
        orders: Vec<usize>,
        /// Unused bytes behind each page, where the order has pages.
        padding: u64,
        /// Scales in the cells are described too.
        scales: bool,
    },
    /// Tensor `t` of every group lies in page `t` of a block.
    Overlaid {
        /// All pages of a block lie together; else all blocks of a page number.
        packed: bool,
        /// Unused bytes behind the largest page.
        padding: u64,
        /// Heads outside slots, for each group.
        heads_first: Vec<bool>,
        /// Scales in the cells are described too.
        scales: bool,
    },
}

/// One tensor's place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// What it holds.
    pub shape: TensorShape,
    /// Block 0, head 0, slot 0.
    pub offset: u64,
    /// To the next block.
    pub block_stride: u64,
    /// To the next head.
    pub head_stride: u64,
    /// To the next slot.
    pub slot_stride: u64,
    /// One block of it, padding included.
    pub page_bytes: u64,
    /// Offset and length of the memory it lies in.
    pub buffer: (u64, u64),
    /// Its scales are described.
    pub scales: bool,
}

/// Every group's places, and the bytes of memory they take.
pub fn places(shapes: &[Vec<TensorShape>], arrangement: &Arrangement, blocks: u32) -> (Vec<Vec<Place>>, u64) {
    match arrangement {
        Arrangement::Apart { orders, padding, scales } => {
            let mut end = 0;
            let groups = shapes.iter().zip(orders).map(|(shapes, &order)| {
                let (places, bytes) = apart(shapes, ORDERS[order], *padding, *scales, blocks, end);
                end += bytes;
                places
            });
            (groups.collect(), end)
        }
        Arrangement::Overlaid { packed, padding, heads_first, scales } => {
            let pages = shapes.iter().map(Vec::len).max().unwrap_or(0) as u64;
            let largest = shapes.iter().flatten().map(TensorShape::content_bytes).max().unwrap_or(0);
            let page = largest + padding;
            let (block_stride, page_stride) =
                if *packed { (page * pages, page) } else { (page, page * u64::from(blocks)) };
            let bytes = page * pages * u64::from(blocks);
            let place = |(index, shape): (u64, &TensorShape), heads_first: bool| {
                dense(shape, index * page_stride, block_stride, heads_first, (page, *scales), (0, bytes))
            };
            let groups = shapes
                .iter()
                .zip(heads_first)
                .map(|(shapes, &heads_first)| (0..).zip(shapes).map(|one| place(one, heads_first)).collect());
            (groups.collect(), bytes)
        }
    }
}

fn dense(
    shape: &TensorShape,
    offset: u64,
    block_stride: u64,
    heads_first: bool,
    (page_bytes, scales): (u64, bool),
    buffer: (u64, u64),
) -> Place {
    let cell = u64::from(shape.cell_bytes);
    let (heads, slots) = (u64::from(shape.heads.unwrap_or(1)), u64::from(shape.slots.unwrap_or(1)));
    let (head_stride, slot_stride) = if heads_first { (cell * slots, cell) } else { (cell, cell * heads) };
    let scales = scales && shape.slots.is_some();
    Place { shape: shape.clone(), offset, block_stride, head_stride, slot_stride, page_bytes, buffer, scales }
}

fn apart(
    shapes: &[TensorShape],
    order: [char; 4],
    padding: u64,
    scales: bool,
    blocks: u32,
    start: u64,
) -> (Vec<Place>, u64) {
    let first = &shapes[0];
    let alike = shapes
        .iter()
        .all(|shape| shape.content_bytes() == first.content_bytes() && shape.heads == first.heads);
    let heads_first = order.iter().position(|&axis| axis == 'H') < order.iter().position(|&axis| axis == 'N');
    if !alike || first.heads.is_none() {
        let bytes = shapes.iter().map(|shape| (shape.content_bytes() + padding) * u64::from(blocks)).sum();
        let mut at = start;
        let places = shapes.iter().map(|shape| {
            let page = shape.content_bytes() + padding;
            let place = dense(shape, at, page, heads_first, (page, scales), (start, bytes));
            at += page * u64::from(blocks);
            place
        });
        return (places.collect(), bytes);
    }
    // Behind a whole page there may be padding; where another axis cuts pages there is none.
    let whole_pages = matches!(order, ['L', 'B', _, _] | ['B', 'L', _, _]);
    let page_bytes = first.content_bytes() + if whole_pages { padding } else { 0 };
    let count = |axis: char| match axis {
        'L' => shapes.len() as u64,
        'B' => u64::from(blocks),
        'H' => u64::from(first.heads.unwrap_or(1)),
        _ => u64::from(first.slots.unwrap_or(1)),
    };
    let mut stride_of = std::collections::HashMap::new();
    let mut stride = u64::from(first.cell_bytes);
    for (depth, &axis) in order.iter().enumerate().rev() {
        if whole_pages && depth == 1 {
            stride = page_bytes;
        }
        stride_of.insert(axis, stride);
        stride *= count(axis);
    }
    let places = (0..).zip(shapes).map(|(layer, shape)| Place {
        shape: shape.clone(),
        offset: start + layer * stride_of[&'L'],
        block_stride: stride_of[&'B'],
        head_stride: stride_of[&'H'],
        slot_stride: stride_of[&'N'],
        page_bytes,
        buffer: (start, stride),
        scales,
    });
    (places.collect(), stride)
}
