//! The layout gate: right descriptions of every physical order, changed at will. What it lets through is compared with
//! the truth byte by byte.
#![allow(unsafe_code, reason = "describes memory that is only proved and never touched")]

use std::collections::BTreeSet;

use arbitrary::{Arbitrary, Unstructured};
use tender_client::layout::truth::{page_places, scales_are_right, wrong_with};
use tender_client::layout::{
    Axis, BufferDesc, GroupShard, LayerDesc, ProvedLayout, ScaleDesc, Writer, prove, prove_either,
};
use tender_kernels::PageMap;
use tender_proto::{GroupIndex, PartIndex};

const MAX_LAYERS: usize = 8;
const START: u64 = 0x1000;
const SCALE_BYTES: u64 = 4;

#[derive(Arbitrary, Debug)]
struct Draft {
    sizes: Sizes,
    /// Which axis comes first, second and third.
    order: [u8; 3],
    two_groups: bool,
    scales: bool,
    /// Room on both sides, so that not every change leads out of the buffer.
    roomy: bool,
    changes: Vec<Change>,
    adds_up: bool,
    shards: Vec<Shard>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Sizes {
    layers: u8,
    blocks: u8,
    heads: u8,
    tokens: u8,
    cell_bytes: u8,
}

#[derive(Arbitrary, Debug)]
struct Change {
    layer: u8,
    field: u8,
    relative: bool,
    value: Value,
}

#[derive(Arbitrary, Debug)]
enum Value {
    Small(i8),
    Medium(i16),
    Any(u64),
}

#[derive(Arbitrary, Debug)]
struct Shard {
    parts: u8,
    first: u8,
    count: u8,
    replica: u8,
    replicas: u8,
}

/// What is accepted is right, and what was right is accepted.
pub fn run(data: &[u8]) {
    let Ok(draft) = Draft::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let pool_blocks = u32::from(draft.sizes.blocks % 5) + 2;
    let mut layers = right(&draft, pool_blocks);
    draft.changes.iter().for_each(|change| change.apply(&mut layers));
    layers.truncate(MAX_LAYERS);
    if draft.adds_up {
        for layer in &mut layers {
            layer.padding_bytes = 0;
            layer.page_bytes = layer.content_bytes().unwrap_or(0);
        }
    }
    match prove(layers.clone(), pool_blocks) {
        Ok(proved) => {
            if layers.iter().all(|layer| layer.content_bytes().is_some_and(|bytes| bytes < 1 << 12)) {
                assert_eq!(wrong_with(&layers, pool_blocks), None, "{layers:#?}");
                assert!(layers.iter().all(|layer| scales_are_right(layer, pool_blocks)), "{layers:#?}");
                maps_are_right(&proved);
                cut(proved.clone(), &draft.shards);
            }
            assert!(!proved.page_format().is_empty());
        }
        Err(refusal) => {
            assert!(!draft.changes.is_empty(), "{refusal}\n{layers:#?}");
            assert!(!refusal.to_string().is_empty());
            assert!(prove_either(layers.clone(), layers, pool_blocks).is_err());
        }
    }
}

/// One or two groups over one dense tensor.
fn right(draft: &Draft, pool_blocks: u32) -> Vec<LayerDesc> {
    let sizes = draft.sizes;
    let count = |letter| match letter {
        'L' => u64::from(sizes.layers % 4) + 1,
        'B' => u64::from(pool_blocks),
        'H' => u64::from(sizes.heads % 4) + 1,
        _ => u64::from(sizes.tokens % 4) + 1,
    };
    let cell_bytes = u64::from(sizes.cell_bytes % 32) + 1 + if draft.scales { SCALE_BYTES } else { 0 };
    let mut letters = vec!['L', 'B', 'H', 'N'];
    let mut order = Vec::new();
    for &n in &draft.order {
        order.push(letters.remove(usize::from(n) % letters.len()));
    }
    order.append(&mut letters);
    let stride = |letter: char| {
        let inner = order.iter().skip_while(|&&known| known != letter).skip(1);
        inner.copied().map(count).product::<u64>() * cell_bytes
    };
    let total = "LBHN".chars().map(count).product::<u64>() * cell_bytes;
    let buffer = if draft.roomy { buffer(START / 2, total + START) } else { buffer(START, total) };
    let axis = |name: char| {
        let count = u32::try_from(count(name)).unwrap_or(u32::MAX);
        Axis { name, count, stride_bytes: stride(name) }
    };
    let content = count('H') * count('N') * cell_bytes;
    let layer = |group: u16, n: u64| {
        let address = START + n * stride('L');
        let scales = ScaleDesc {
            address: address + cell_bytes - SCALE_BYTES.min(cell_bytes),
            block_stride_bytes: stride('B'),
            axes: vec![axis('H'), axis('N')],
            bytes: SCALE_BYTES,
        };
        LayerDesc {
            name: format!("{group}.{n}"),
            group: GroupIndex(group),
            address,
            buffer,
            blocks: pool_blocks,
            block_stride_bytes: stride('B'),
            axes: vec![axis('N'), axis('H')],
            cell_bytes,
            page_bytes: content,
            padding_bytes: 0,
            scales: draft.scales.then_some(scales),
        }
    };
    let groups = if draft.two_groups { 2 } else { 1 };
    (0..groups)
        .flat_map(|group| (0..count('L')).map(move |n| (group, n)))
        .map(|(group, n)| layer(group, n))
        .collect()
}

fn buffer(address: u64, bytes: u64) -> BufferDesc {
    // SAFETY: a layout over this is only proved.
    unsafe { BufferDesc::new(address, bytes) }
}

impl Change {
    fn number(&self, field: &mut u64) {
        let value = match self.value {
            Value::Small(n) => i64::from(n).cast_unsigned(),
            Value::Medium(n) => i64::from(n).cast_unsigned(),
            Value::Any(n) => n,
        };
        *field = if self.relative { field.wrapping_add(value) } else { value };
    }
    fn count(&self, field: &mut u32) {
        let mut wide = u64::from(*field);
        self.number(&mut wide);
        *field = u32::try_from(wide).unwrap_or(u32::MAX);
    }
    fn small(&self) -> u64 {
        let mut small = 0;
        self.number(&mut small);
        small % 26
    }
    fn axis(&self, axes: &mut Vec<Axis>, kind: u8) {
        match (kind, axes.first_mut()) {
            (0, Some(axis)) => self.number(&mut axis.stride_bytes),
            (1, Some(axis)) => self.count(&mut axis.count),
            (2, Some(axis)) => {
                axis.name =
                    (b'A'..=b'Z').nth(usize::try_from(self.small()).unwrap_or(0)).unwrap_or(b'A').into()
            }
            (3, Some(_)) => axes.rotate_left(1),
            (4, Some(_)) => _ = axes.remove(0),
            _ => axes.push(Axis { name: 'S', count: 2, stride_bytes: self.small() }),
        }
    }
    fn apply(&self, layers: &mut Vec<LayerDesc>) {
        let at = usize::from(self.layer) % layers.len();
        let layer = &mut layers[at];
        match self.field % 24 {
            0 => self.number(&mut layer.address),
            1 => self.number(&mut layer.block_stride_bytes),
            2 => self.number(&mut layer.cell_bytes),
            3 => self.number(&mut layer.page_bytes),
            4 => self.number(&mut layer.padding_bytes),
            5 => self.count(&mut layer.blocks),
            6 => layer.group = GroupIndex(u16::try_from(self.small() % 4).unwrap_or(0)),
            7 | 8 => {
                let (mut address, mut bytes) = (layer.buffer.address(), layer.buffer.bytes());
                self.number(if self.field % 24 == 7 { &mut address } else { &mut bytes });
                layer.buffer = buffer(address, bytes);
            }
            9 => {
                let again = layer.clone();
                layers.push(again);
            }
            10 => layer.name = format!("{}", self.small() % 4),
            11 => {
                // A whole group moves.
                let group = layer.group;
                for layer in layers.iter_mut().filter(|layer| layer.group == group) {
                    self.number(&mut layer.address);
                }
            }
            12 => layer.scales = None,
            13..=18 => self.axis(&mut layer.axes, self.field % 24 - 13),
            kind => {
                let Some(scales) = &mut layer.scales else { return };
                match kind {
                    19 => self.number(&mut scales.address),
                    20 => self.number(&mut scales.block_stride_bytes),
                    21 => self.number(&mut scales.bytes),
                    kind => self.axis(&mut scales.axes, kind - 22),
                }
            }
        }
    }
}

/// Every address of a block's packed bytes, in their order.
fn places(map: &PageMap, block: u32) -> Vec<u64> {
    let mut places = Vec::new();
    for segment in map.segments() {
        let start = segment.base() + u64::from(block) * segment.block_stride_bytes();
        segment.for_each_run(&mut |run| places.extend(start + run..start + run + segment.run_bytes()));
    }
    places
}

/// What a copy would move is each layer's page, one behind the other.
fn maps_are_right(proved: &ProvedLayout) {
    for group in (0..proved.groups()).filter_map(|group| u16::try_from(group).ok()).map(GroupIndex) {
        let Some(map) = proved.page_map(group, PartIndex(0)) else { panic!("{group} has no map") };
        for block in 0..proved.pool_blocks() {
            let layers = proved.layers().iter().filter(|layer| layer.group == group);
            let truth: Vec<u64> = layers.flat_map(|layer| page_places(layer, block)).collect();
            assert_eq!(places(map, block), truth);
            assert_eq!(map.block_bytes(), truth.len() as u64);
        }
    }
}

/// However a layout is cut into parts, they are all of it, and no byte is in two.
fn cut(proved: ProvedLayout, shards: &[Shard]) {
    let whole = proved.clone();
    let shard = |n: usize| {
        let Some(shard) = shards.get(n) else { return GroupShard::WHOLE };
        let writer = Writer { replica: shard.replica.into(), replicas: shard.replicas.into() };
        GroupShard { parts: shard.parts.into(), first: shard.first.into(), count: shard.count.into(), writer }
    };
    let shards: Vec<GroupShard> = (0..proved.groups()).map(shard).collect();
    let Ok(sharded) = proved.shard(&shards) else { return };
    for (group, shard) in (0..).map(GroupIndex).zip(&shards) {
        assert_eq!(sharded.parts(group).len(), usize::from(shard.count));
        let Some(map) = whole.page_map(group, PartIndex(0)) else { panic!("{group} has no map") };
        let truth: BTreeSet<u64> = places(map, 1).into_iter().collect();
        let mut all = Vec::new();
        for part in sharded.parts(group) {
            assert!((shard.first..shard.first + shard.count).contains(&part.part.0));
            all.extend(places(part.page_map(), 1));
        }
        let count = all.len();
        assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), truth);
        assert_eq!(count, truth.len());
    }
}
