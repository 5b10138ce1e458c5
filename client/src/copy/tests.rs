#![allow(unsafe_code, reason = "describes buffers of the test's own")]

use std::sync::Arc;

use proptest::prelude::*;
use tender_proto::{BlocksPerChunk, Coverage, GroupIndex, PartIndex};

use super::*;
use crate::layout::{Axis, BufferDesc, LayerDesc, ProvedLayout, prove};

pub(super) const POOL: u32 = 12;
pub(super) const GROUP: GroupIndex = GroupIndex(0);
pub(super) const PART: PartIndex = PartIndex(0);

/// How test pages look: every number may be odd, so that nothing is aligned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) layers: u64,
    /// All layers in one buffer, block by block.
    pub(super) interleaved: bool,
    pub(super) heads: u32,
    pub(super) tokens: u32,
    pub(super) cell: u64,
    pub(super) padding: u64,
}

/// A buffer of bytes, and its layout. A byte's value tells where it lies.
pub(super) struct Memory {
    pub(super) bytes: Vec<u8>,
    pub(super) layout: Arc<ProvedLayout>,
    layers: Vec<LayerDesc>,
}

impl Memory {
    pub(super) fn new(shape: Shape, fill: impl Fn(usize) -> u8) -> Self {
        let head = u64::from(shape.tokens) * shape.cell + shape.padding;
        let page = u64::from(shape.heads) * head + shape.padding;
        let (block_stride, layer_stride) =
            if shape.interleaved { (page * shape.layers, page) } else { (page, page * u64::from(POOL)) };
        let len = page * shape.layers * u64::from(POOL);
        let mut bytes: Vec<u8> = (0..len as usize).map(fill).collect();
        let base = bytes.as_mut_ptr().expose_provenance() as u64;
        let layers: Vec<_> = (0..shape.layers)
            .map(|i| LayerDesc {
                name: format!("layer {i}"),
                group: GROUP,
                address: base + i * layer_stride,
                // SAFETY: the bytes live as long as the layout and are used by this test only.
                buffer: unsafe { BufferDesc::new(base, len) },
                blocks: POOL,
                block_stride_bytes: block_stride,
                axes: vec![
                    Axis { name: 'N', count: shape.tokens, stride_bytes: shape.cell },
                    Axis { name: 'H', count: shape.heads, stride_bytes: head },
                ],
                cell_bytes: shape.cell,
                page_bytes: page,
                padding_bytes: page - u64::from(shape.heads * shape.tokens) * shape.cell,
                scales: None,
            })
            .collect();
        let layout = Arc::new(prove(layers.clone(), POOL).unwrap());
        Self { bytes, layout, layers }
    }
    fn copy(&self) -> HostCopy {
        HostCopy::new(Arc::clone(&self.layout))
    }
    /// Positions of a block's content in `bytes`, in the order of a part.
    pub(super) fn places(&self, block: u32) -> Vec<usize> {
        let base = self.bytes.as_ptr().expose_provenance() as u64;
        let mut places = Vec::new();
        for layer in &self.layers {
            let page = layer.address - base + u64::from(block) * layer.block_stride_bytes;
            for head in 0..u64::from(layer.axes[1].count) {
                for token in 0..u64::from(layer.axes[0].count) {
                    let at = page + head * layer.axes[1].stride_bytes + token * layer.axes[0].stride_bytes;
                    places.extend((at..at + layer.cell_bytes).map(|at| at as usize));
                }
            }
        }
        places
    }
}

fn value(at: usize) -> u8 {
    (at % 241) as u8 ^ (at / 241) as u8
}

pub(super) fn coverage(bits: u64) -> Coverage {
    let blocks = BlocksPerChunk::new(4).unwrap();
    Coverage::new(bits & 0b1111, blocks).unwrap()
}

prop_compose! {
    fn shapes()(
        layers in 1u64..4, interleaved: bool, heads in 1u32..4, tokens in 1u32..5, cell in 1u64..9, padding in 0u64..4,
    ) -> Shape {
        Shape { layers, interleaved, heads, tokens, cell, padding }
    }
}

proptest! {
    #[test]
    fn what_was_gathered_is_scattered_to_exactly_the_needed_blocks(
        shape in shapes(),
        from_blocks in Just((1..POOL).collect::<Vec<_>>()).prop_shuffle(),
        to_blocks in Just((1..POOL).collect::<Vec<_>>()).prop_shuffle(),
        stored_bits in 0u64..16,
        needed_bits in 0u64..16,
        cuts in proptest::collection::vec(0usize..1000, 0..6),
        backwards: bool,
    ) {
        let (stored, needed) = (coverage(stored_bits), coverage(stored_bits & needed_bits));
        let from = Memory::new(shape, value);
        let block_bytes = from.layout.block_bytes(GROUP, PART).unwrap() as usize;
        let mut packed = vec![0xEE; block_bytes * stored.count() as usize];
        from.copy().gather(GROUP, PART, &from_blocks[..4], stored, &mut packed).unwrap();
        let expected: Vec<u8> = stored
            .iter()
            .flat_map(|i| from.places(from_blocks[i as usize]))
            .map(|at| from.bytes[at])
            .collect();
        prop_assert_eq!(&packed, &expected);

        let to = Memory::new(shape, |_| 0xAA);
        let target = Target { group: GROUP, part: PART, blocks: &to_blocks[..4], stored, needed };
        let mut bounds: Vec<_> = cuts.into_iter().map(|at| at.min(packed.len())).collect();
        bounds.extend([0, packed.len()]);
        bounds.sort_unstable();
        let mut pieces: Vec<_> = bounds.windows(2).collect();
        if backwards {
            pieces.reverse();
        }
        for piece in pieces {
            to.copy().scatter(&target, piece[0] as u64, &packed[piece[0]..piece[1]]).unwrap();
        }
        let mut expected = vec![0xAA; to.bytes.len()];
        for i in needed.iter() {
            let pairs = from.places(from_blocks[i as usize]).into_iter().zip(to.places(to_blocks[i as usize]));
            for (source, target) in pairs {
                expected[target] = from.bytes[source];
            }
        }
        prop_assert_eq!(&to.bytes, &expected);
    }
}

fn target(blocks: &[u32], stored: u64, needed: u64) -> Target<'_> {
    Target { group: GROUP, part: PART, blocks, stored: coverage(stored), needed: coverage(needed) }
}

const SHAPE: Shape = Shape { layers: 2, interleaved: true, heads: 2, tokens: 4, cell: 8, padding: 3 };

#[test]
fn nothing_moves_when_a_block_must_not_be_touched() {
    let memory = Memory::new(SHAPE, value);
    let (copy, before) = (memory.copy(), memory.bytes.clone());
    let mut packed = vec![0xEE; 2 * 128];
    for bad in [0, POOL, u32::MAX] {
        let refused = copy.gather(GROUP, PART, &[1, 2, 3, bad], coverage(0b1001), &mut packed);
        assert_eq!(refused, Err(CopyRefusal::BadBlock { block: bad, position: 3, last: POOL - 1 }));
        let refused = copy.scatter(&target(&[1, 2, 3, bad], 0b1001, 0b1001), 0, &packed);
        assert_eq!(refused, Err(CopyRefusal::BadBlock { block: bad, position: 3, last: POOL - 1 }));
    }
    assert!(packed.iter().all(|&byte| byte == 0xEE));
    assert_eq!(memory.bytes, before);
    // Where nothing is covered or needed, the id does not matter.
    assert_eq!(copy.gather(GROUP, PART, &[1, 0, u32::MAX, 2], coverage(0b1001), &mut packed), Ok(()));
    assert_eq!(copy.scatter(&target(&[0, 0, 9, 0], 0b0110, 0b0100), 0, &packed), Ok(()));
}

#[test]
fn nothing_moves_when_sizes_do_not_fit() {
    let memory = Memory::new(SHAPE, value);
    let (copy, before) = (memory.copy(), memory.bytes.clone());
    let mut packed = vec![0; 128];
    let ids = [1, 2, 3, 4];
    assert_eq!(
        copy.gather(GROUP, PART, &ids, coverage(0b11), &mut packed),
        Err(CopyRefusal::WrongLength { given: 128, expected: 256 })
    );
    let whole = target(&ids, 0b11, 0b11);
    for (offset_bytes, given) in [(0, 257), (1, 256), (256, 1), (u64::MAX, 1)] {
        assert_eq!(
            copy.scatter(&whole, offset_bytes, &vec![0; given]),
            Err(CopyRefusal::Outside { offset_bytes, given, expected: 256 })
        );
    }
    assert_eq!(
        copy.scatter(&target(&ids[..3], 1, 1), 0, &packed),
        Err(CopyRefusal::WrongBlockCount { listed: 3, blocks: 4 })
    );
    assert_eq!(
        copy.scatter(&target(&ids, 0b1, 0b10), 0, &packed),
        Err(CopyRefusal::NotStored { needed: coverage(0b10), stored: coverage(0b1) })
    );
    assert_eq!(
        copy.scatter(&target(&[5, 5, 1, 1], 0b11, 0b11), 0, &[0; 256]),
        Err(CopyRefusal::Twice { block: 5 })
    );
    assert_eq!(memory.bytes, before);
    let nowhere = GroupIndex(1);
    for (group, part) in [(nowhere, PART), (GROUP, PartIndex(1))] {
        let refused = copy.gather(group, part, &ids, coverage(1), &mut packed);
        assert_eq!(refused, Err(CopyRefusal::NoPart { group, part }));
    }
}
