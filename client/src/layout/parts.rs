//! The parts of a chunk that one rank holds: its share of the heads, cut so that ranks of any size agree.
//!
//! A chunk's parts are fixed by the model (one per head, say), not by how many ranks run it. A rank that holds several
//! of them packs each by itself, so that what one number of ranks stored, another can load.

use tender_kernels::PageMap;
use tender_proto::limits::MAX_PARTS;
use tender_proto::{ChunkId, PartIndex};

use super::desc::{Axis, LayerDesc};
use super::footprint;
use super::refusal::{LayoutFault, LayoutRefusal};

/// The axis along which ranks split.
pub(super) const HEAD_AXIS: char = 'H';

/// How one rank's heads are split into the parts of a chunk: it holds parts `first .. first + count` of `parts`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupShard {
    /// Parts that a chunk of the group has on all ranks together.
    pub parts: u16,
    /// The first that this rank holds.
    pub first: u16,
    /// Parts that this rank holds, at least 1. Its heads are split evenly among them.
    pub count: u16,
    /// Whether this rank stores what it holds.
    pub writer: Writer,
}

impl GroupShard {
    /// One rank holds everything as one part.
    pub const WHOLE: Self = Self { parts: 1, first: 0, count: 1, writer: Writer::ALONE };

    fn check(self) -> Result<(), LayoutFault> {
        let Self { parts, first, count, writer } = self;
        if count == 0
            || usize::from(parts) > MAX_PARTS
            || u32::from(first) + u32::from(count) > u32::from(parts)
        {
            return Err(LayoutFault::NoSuchParts { parts, first, count });
        }
        if writer.replica >= writer.replicas {
            return Err(LayoutFault::NoSuchReplica { replica: writer.replica, replicas: writer.replicas });
        }
        Ok(())
    }
}

/// Which of the ranks that hold equal bytes stores a chunk's part: each of them stores its share of the chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writer {
    /// This rank among those that hold the same bytes.
    pub replica: u32,
    /// Ranks that hold the same bytes, at least 1.
    pub replicas: u32,
}

impl Writer {
    /// Nobody else holds the bytes.
    pub const ALONE: Self = Self { replica: 0, replicas: 1 };

    /// Whether this rank is the one that stores its part of `chunk`. Every rank answers from the chunk's name alone,
    /// so exactly one says yes.
    pub fn writes(&self, chunk: &ChunkId) -> bool {
        let [a, b, c, d, e, f, g, h, ..] = *chunk.hash.as_bytes();
        let turn = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        turn % u64::from(self.replicas.max(1)) == u64::from(self.replica)
    }
}

/// One part of a group's chunks that this rank holds.
#[derive(Clone, Debug)]
pub struct LocalPart {
    /// Its index among all parts of the group's chunks.
    pub part: PartIndex,
    /// Whether this rank stores it.
    pub writer: Writer,
    page_map: PageMap,
}

impl LocalPart {
    /// Where the part's bytes of a block lie.
    pub fn page_map(&self) -> &PageMap {
        &self.page_map
    }
    /// Packed bytes of one block of the part.
    pub fn block_bytes(&self) -> u64 {
        self.page_map.block_bytes()
    }
}

/// The parts of one group's chunks that this rank holds.
#[derive(Clone, Debug)]
pub(super) struct GroupParts(Vec<LocalPart>);

impl GroupParts {
    /// The parts that `shard` makes of a group's layers, of which there is at least one.
    pub(super) fn new(layers: &[&LayerDesc], shard: GroupShard) -> Result<Self, LayoutRefusal> {
        shard.check().map_err(|fault| LayoutRefusal::new(&layers[0].name, fault))?;
        let part = |local| {
            let page = |layer: &&LayerDesc| {
                let page = part_of(layer, local, shard.count).and_then(|part| footprint::page_segment(&part));
                page.map_err(|fault| LayoutRefusal::new(&layer.name, fault))
            };
            let pages = layers.iter().map(page).collect::<Result<_, _>>()?;
            let page_map = PageMap::new(pages)
                .map_err(|_| LayoutRefusal::new(&layers[0].name, LayoutFault::Overflow))?;
            Ok(LocalPart { part: PartIndex(shard.first + local), writer: shard.writer, page_map })
        };
        (0..shard.count).map(part).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn parts(&self) -> &[LocalPart] {
        &self.0
    }
}

/// What part `local` of `count` holds of a layer: the same axes in the same order, with its share of the heads.
fn part_of(layer: &LayerDesc, local: u16, count: u16) -> Result<LayerDesc, LayoutFault> {
    let mut part = layer.clone();
    if count == 1 {
        return Ok(part);
    }
    let heads = part.axes.iter_mut().find(|axis| axis.name == HEAD_AXIS);
    let Some(Axis { count: heads, stride_bytes, .. }) = heads else {
        return Err(LayoutFault::UnevenHeads { heads: None, parts: count });
    };
    if *heads % u32::from(count) != 0 {
        return Err(LayoutFault::UnevenHeads { heads: Some(*heads), parts: count });
    }
    *heads /= u32::from(count);
    // Inside the page, whose extent is proved to fit.
    part.address += u64::from(*heads) * u64::from(local) * *stride_bytes;
    Ok(part)
}
