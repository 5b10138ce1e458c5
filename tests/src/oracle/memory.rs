//! One rank's paged KV memory, in any arrangement that the layout gate accepts.
//!
//! This module is one of the few where unsafe code lives: it lends its memory to the client by address.
#![allow(unsafe_code, reason = "a worker is told the memory's address, as an engine's tensors are")]

use tender_client::layout::{Axis, BufferDesc, LayerDesc, ScaleDesc};
use tender_proto::GroupIndex;
use tender_proto::shm::Mapping;

use super::groups::TensorShape;
use super::place::{Arrangement, Place, places};
use super::truth::mix;

/// The memory of one rank.
#[derive(Debug)]
pub struct Memory {
    places: Vec<Vec<Place>>,
    /// Group, rank's first head, by tensor: what makes equal slots of different tensors differ.
    first_heads: Vec<u32>,
    blocks: u32,
    map: Mapping,
}

/// One slot of a block, or its state (slot 0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The group whose layers are meant.
    pub group: usize,
    /// The block.
    pub block: u32,
    /// The slot in it.
    pub slot: usize,
}

impl Memory {
    /// Memory of `blocks` blocks, all poisoned. `shapes` are this rank's tensors of every group; `first_heads` is the
    /// number of heads of each group on the ranks before, or the rank where there are none.
    pub fn new(
        shapes: &[Vec<TensorShape>],
        first_heads: Vec<u32>,
        arrangement: &Arrangement,
        blocks: u32,
    ) -> Self {
        let (places, bytes) = places(shapes, arrangement, blocks);
        let file = tempfile::tempfile_in("/dev/shm").expect("a file on tmpfs");
        file.set_len(bytes).expect("room");
        let map = Mapping::read_write(&file).expect("a mapping");
        map.copy_in(0, &vec![0xdd; map.len()]).expect("inside");
        Self { places, first_heads, blocks, map }
    }

    /// What a worker is told about it.
    pub fn describe(&self) -> Vec<LayerDesc> {
        let base = self.map.address(0, 0).expect("the start") as u64;
        // SAFETY: the mapping lives as long as the engine, whose worker is dropped before its memory; and the engine
        // uses a block only when no copy of it is under way, which is what the oracle is about.
        let buffer = |from: u64, bytes: u64| unsafe { BufferDesc::new(base + from, bytes) };
        let mut layers = Vec::new();
        for (group, places) in (0..).zip(&self.places) {
            layers.extend(places.iter().map(|place| LayerDesc {
                name: place.shape.name.clone(),
                group: GroupIndex(group),
                address: base + place.offset,
                buffer: buffer(place.buffer.0, place.buffer.1),
                blocks: self.blocks,
                block_stride_bytes: place.block_stride,
                axes: place.axes(),
                cell_bytes: u64::from(place.shape.cell_bytes),
                page_bytes: place.page_bytes,
                padding_bytes: place.page_bytes - place.shape.content_bytes(),
                scales: scales(place, base),
            }));
        }
        layers
    }

    /// Writes a slot as a forward pass does.
    pub fn write(&self, spot: Spot, fingerprint: u64) {
        self.each_cell(spot, |at, cell, number| {
            fill(cell, mix(fingerprint, number));
            self.map.copy_in(at, cell).expect("inside");
            true
        });
    }
    /// Whether a slot holds what attention must read there.
    pub fn holds(&self, spot: Spot, fingerprint: u64) -> bool {
        let mut found = [0; MAX_CELL];
        self.each_cell(spot, |at, cell, number| {
            fill(cell, mix(fingerprint, number));
            let found = &mut found[..cell.len()];
            self.map.copy_out(at, found).expect("inside");
            found == cell
        })
    }
    /// The first bytes of a slot, to be shown.
    pub fn look(&self, spot: Spot) -> Vec<u8> {
        let mut found = vec![0; 8];
        self.each_cell(spot, |at, _, _| {
            self.map.copy_out(at, &mut found).expect("inside");
            false
        });
        found
    }
    /// Overwrites every slot of a block, of whatever group, with something that nobody expects.
    pub fn poison(&self, block: u32, with: u64) {
        for (group, places) in self.places.iter().enumerate() {
            let slots = places.iter().filter_map(|place| place.shape.slots).max().unwrap_or(1) as usize;
            (0..slots).for_each(|slot| self.write(Spot { group, block, slot }, with));
        }
    }

    /// Visits the cells of a slot with a number that names tensor and head among all ranks'; stops at the first false.
    fn each_cell(&self, spot: Spot, mut visit: impl FnMut(u64, &mut [u8], u64) -> bool) -> bool {
        let mut cell = [0; MAX_CELL];
        for (tensor, place) in self.places[spot.group].iter().enumerate() {
            let heads = place.shape.heads.unwrap_or(1);
            if spot.slot as u64 >= u64::from(place.shape.slots.unwrap_or(1)) {
                continue;
            }
            let slot = place.offset
                + u64::from(spot.block) * place.block_stride
                + spot.slot as u64 * place.slot_stride;
            // A state is each rank's own; what has slots and no heads is the same on all.
            let own = place.shape.heads.is_some() || place.shape.slots.is_none();
            let first_head = if own { self.first_heads[spot.group] } else { 0 };
            for head in 0..heads {
                let number = mix((spot.group as u64) << 32 | tensor as u64, u64::from(first_head + head));
                let at = slot + u64::from(head) * place.head_stride;
                if !visit(at, &mut cell[..place.shape.cell_bytes as usize], number) {
                    return false;
                }
            }
        }
        true
    }
}

/// Longest contiguous content of a slot.
const MAX_CELL: usize = 576;

fn fill(cell: &mut [u8], fingerprint: u64) {
    for (word, bytes) in (0..).zip(cell.chunks_mut(8)) {
        let value = mix(fingerprint, word).to_le_bytes();
        bytes.copy_from_slice(&value[..bytes.len()]);
    }
}

/// Scales in the last four bytes of every cell, seen as the engine's kernels see them.
fn scales(place: &Place, base: u64) -> Option<ScaleDesc> {
    place.scales.then(|| ScaleDesc {
        address: base + place.offset + u64::from(place.shape.cell_bytes) - 4,
        block_stride_bytes: place.block_stride,
        axes: place.axes(),
        bytes: 4,
    })
}

impl Place {
    fn axes(&self) -> Vec<Axis> {
        let axis =
            |name, count: Option<u32>, stride_bytes| count.map(|count| Axis { name, count, stride_bytes });
        let heads = axis('H', self.shape.heads, self.head_stride);
        let slots = axis('N', self.shape.slots, self.slot_stride);
        heads.into_iter().chain(slots).collect()
    }
}
