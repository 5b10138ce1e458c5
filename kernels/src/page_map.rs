//! Where the bytes of a group's blocks lie.
//!
//! A block's content is a list of segments, one per layer (or fewer: neighbours merge); a segment is a strided
//! box of equal runs. Everything is 64-bit numbers in flat lists, so that a kernel can take a map as it is.

use std::ops::Range;

/// Most dimensions of a segment once neighbours have merged.
pub const MAX_DIMS: usize = 8;

/// Why there is no such map, or no such copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapError {
    /// A page's size or extent does not fit 64 bits.
    #[error("a page whose size or extent exceeds 64 bits")]
    Overflow,
    /// No runs, or runs of nothing.
    #[error("a page without bytes")]
    Empty,
    /// More dimensions than a kernel takes.
    #[error("a page of {0} dimensions; at most 8 are possible")]
    TooManyDims(usize),
    /// The packed side does not hold the slot that a move names.
    #[error("slot {slot} of {block_bytes} bytes does not lie in {packed_bytes} packed bytes")]
    SlotOutside {
        /// The move's slot.
        slot: u32,
        /// Bytes of one slot.
        block_bytes: u64,
        /// Bytes there are.
        packed_bytes: usize,
    },
}

/// `count` equal things, `stride_bytes` apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dim {
    /// How many.
    pub count: u64,
    /// From the start of one to the start of the next.
    pub stride_bytes: u64,
}

/// A strided box of runs inside each block: one layer's page, or several that lie one behind the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    base: u64,
    block_stride_bytes: u64,
    dims: Vec<Dim>,
    run_bytes: u64,
    content_bytes: u64,
}

impl Segment {
    /// A box that starts at address `base` in block 0 and `block_stride_bytes` further in each next block, whose
    /// `dims` (outermost first) hold runs of `run_bytes`. Dimensions that touch are merged.
    pub fn new(base: u64, block_stride_bytes: u64, dims: &[Dim], run_bytes: u64) -> Result<Self, MapError> {
        if run_bytes == 0 || dims.iter().any(|dim| dim.count == 0) {
            return Err(MapError::Empty);
        }
        let (mut merged, mut run) = (Vec::<Dim>::new(), run_bytes);
        let (mut content, mut extent) = (run_bytes, run_bytes);
        // From the innermost outwards; `merged` is turned round at the end.
        for &dim in dims.iter().rev().filter(|dim| dim.count > 1) {
            content = content.checked_mul(dim.count).ok_or(MapError::Overflow)?;
            let reach = (dim.count - 1).checked_mul(dim.stride_bytes).ok_or(MapError::Overflow)?;
            extent = extent.checked_add(reach).ok_or(MapError::Overflow)?;
            match merged.last_mut() {
                None if dim.stride_bytes == run => run *= dim.count,
                Some(inner) if inner.count.checked_mul(inner.stride_bytes) == Some(dim.stride_bytes) => {
                    inner.count *= dim.count;
                }
                _ => merged.push(dim),
            }
        }
        if merged.len() > MAX_DIMS {
            return Err(MapError::TooManyDims(merged.len()));
        }
        base.checked_add(extent).ok_or(MapError::Overflow)?;
        merged.reverse();
        Ok(Self { base, block_stride_bytes, dims: merged, run_bytes: run, content_bytes: content })
    }
    /// Address of its first byte in block 0.
    pub fn base(&self) -> u64 {
        self.base
    }
    /// From a block's first byte to the next block's.
    pub fn block_stride_bytes(&self) -> u64 {
        self.block_stride_bytes
    }
    /// Outermost first, none that could be merged.
    pub fn dims(&self) -> &[Dim] {
        &self.dims
    }
    /// Bytes of one run.
    pub fn run_bytes(&self) -> u64 {
        self.run_bytes
    }
    /// Runs of one block.
    pub fn runs(&self) -> u64 {
        self.content_bytes / self.run_bytes
    }
    /// Bytes of one block.
    pub fn content_bytes(&self) -> u64 {
        self.content_bytes
    }
    /// Calls `visit` with the distance of every run from the block's first byte, in the order of the content.
    pub fn for_each_run(&self, visit: &mut impl FnMut(u64)) {
        self.for_each_run_of(0..self.runs(), visit);
    }
    /// The same for some of the runs only; those that there are not are left out.
    pub fn for_each_run_of(&self, runs: Range<u64>, visit: &mut impl FnMut(u64)) {
        walk(&self.dims, 0, runs.start..runs.end.min(self.runs()), visit);
    }

    /// Whether `next` begins where this one's only run ends, in every block.
    fn touches(&self, next: &Self) -> bool {
        self.dims.is_empty()
            && next.dims.is_empty()
            && self.block_stride_bytes == next.block_stride_bytes
            && self.base.checked_add(self.run_bytes) == Some(next.base)
    }
}

/// `runs` counts inside of this box.
fn walk(dims: &[Dim], offset_bytes: u64, runs: Range<u64>, visit: &mut impl FnMut(u64)) {
    match dims {
        [] => runs.for_each(|_| visit(offset_bytes)),
        [dim] => runs.for_each(|i| visit(offset_bytes + i * dim.stride_bytes)),
        [dim, inner @ ..] => {
            let each: u64 = inner.iter().map(|dim| dim.count).product();
            for i in runs.start / each..runs.end.div_ceil(each) {
                let first = i * each;
                let here = runs.start.saturating_sub(first)..(runs.end - first).min(each);
                walk(inner, offset_bytes + i * dim.stride_bytes, here, visit);
            }
        }
    }
}

/// All segments of a block, in the order of the packed bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageMap {
    segments: Vec<Segment>,
    block_bytes: u64,
}

impl PageMap {
    /// Puts segments together; those that touch become one run.
    pub fn new(segments: Vec<Segment>) -> Result<Self, MapError> {
        let (mut merged, mut block_bytes) = (Vec::<Segment>::with_capacity(segments.len()), 0u64);
        for segment in segments {
            block_bytes = block_bytes.checked_add(segment.content_bytes).ok_or(MapError::Overflow)?;
            match merged.last_mut() {
                Some(last) if last.touches(&segment) => {
                    last.run_bytes += segment.run_bytes;
                    last.content_bytes = last.run_bytes;
                }
                _ => merged.push(segment),
            }
        }
        if merged.is_empty() {
            return Err(MapError::Empty);
        }
        Ok(Self { segments: merged, block_bytes })
    }
    /// The segments, in the order of the packed bytes.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
    /// Packed bytes of one block.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }
    /// Whether a block is one run and the next block follows it at once, so that neighbours copy together.
    pub fn is_dense(&self) -> bool {
        matches!(&self.segments[..], [only] if only.dims.is_empty() && only.block_stride_bytes == only.run_bytes)
    }
}

/// One block's copy between the engine's pages and packed bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The engine's block id.
    pub block: u32,
    /// Which block of the packed bytes.
    pub slot: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn dim(count: u64, stride_bytes: u64) -> Dim {
        Dim { count, stride_bytes }
    }

    #[test]
    fn dimensions_that_touch_become_one_run() {
        let page = Segment::new(0x1000, 4096, &[dim(2, 1024), dim(4, 256), dim(16, 16)], 16).unwrap();
        assert_eq!((page.dims(), page.run_bytes(), page.runs()), (&[][..], 2048, 1));
    }

    #[test]
    fn padding_splits_runs_only_where_it_lies() {
        // 4 heads of 16 tokens x 16 bytes, 32 bytes of padding behind each head.
        let page = Segment::new(0, 4096, &[dim(4, 288), dim(16, 16)], 16).unwrap();
        assert_eq!((page.dims(), page.run_bytes(), page.content_bytes()), (&[dim(4, 288)][..], 256, 1024));
        let mut runs = Vec::new();
        page.for_each_run(&mut |at| runs.push(at));
        assert_eq!(runs, [0, 288, 576, 864]);
        // Any stretch of them, also across outer dimensions.
        let page = Segment::new(0, 4096, &[dim(2, 1000), dim(3, 300), dim(2, 16)], 8).unwrap();
        let (mut all, mut some) = (Vec::new(), Vec::new());
        page.for_each_run(&mut |at| all.push(at));
        assert_eq!(all, [0, 16, 300, 316, 600, 616, 1000, 1016, 1300, 1316, 1600, 1616]);
        for (first, end) in (0..=13usize).flat_map(|first| (first..=14).map(move |end| (first, end))) {
            some.clear();
            page.for_each_run_of(first as u64..end as u64, &mut |at| some.push(at));
            assert_eq!(some, all.get(first..all.len().min(end)).unwrap_or_default());
        }
        // Two outer dimensions that continue each other are one.
        let page = Segment::new(0, 4096, &[dim(2, 576), dim(2, 288)], 256).unwrap();
        assert_eq!(page.dims(), [dim(4, 288)]);
    }

    #[test]
    fn layers_that_lie_one_behind_the_other_are_one_segment() {
        let layer = |base| Segment::new(base, 1024, &[dim(4, 64)], 64).unwrap();
        let map = PageMap::new(vec![layer(0), layer(256), layer(768)]).unwrap();
        assert_eq!(map.segments().len(), 2);
        assert_eq!((map.segments()[0].run_bytes(), map.block_bytes(), map.is_dense()), (512, 768, false));
        let dense = PageMap::new(vec![layer(0), layer(256), layer(512), layer(768)]).unwrap();
        assert!(dense.is_dense());
    }

    #[test]
    fn a_page_that_is_spread_over_the_buffer_is_dense_only_in_one_head() {
        // 2 heads of 8 blocks each, every block 4 tokens of 16 bytes: blocks lie inside the heads.
        let page = |heads| Segment::new(0x1000, 64, &[dim(heads, 512), dim(4, 16)], 16).unwrap();
        let map = PageMap::new(vec![page(2)]).unwrap();
        assert_eq!((map.is_dense(), map.block_bytes(), map.segments()[0].runs()), (false, 128, 2));
        assert!(PageMap::new(vec![page(1)]).unwrap().is_dense());
    }

    #[test]
    fn hostile_sizes_are_refused() {
        let max = u64::MAX;
        assert_eq!(Segment::new(0, 0, &[dim(max, max)], 2), Err(MapError::Overflow));
        assert_eq!(Segment::new(0, 0, &[dim(3, max / 2)], 2), Err(MapError::Overflow));
        assert_eq!(Segment::new(max, 0, &[], 1), Err(MapError::Overflow));
        assert_eq!(Segment::new(0, 0, &[dim(0, 1)], 2), Err(MapError::Empty));
        assert_eq!(Segment::new(0, 0, &[], 0), Err(MapError::Empty));
        assert_eq!(Segment::new(0, 0, &[dim(2, 100); 9], 1), Err(MapError::TooManyDims(9)));
        assert_eq!(PageMap::new(Vec::new()), Err(MapError::Empty));
    }
}
