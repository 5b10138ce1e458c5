//! Parts of a chunk: what one number of ranks stores, another can load.

use proptest::prelude::*;
use tender_proto::{ChainHash, ChunkId, GroupIndex, PartIndex};

use super::super::dense::{ORDERS, Sizes};
use super::super::*;
use super::model::{Memory, buffer};
use super::scales::quantised;

const GROUP: GroupIndex = GroupIndex(0);
const POOL: u32 = 5;

/// One rank of several that split a model's heads.
struct Rank {
    memory: Memory,
    layout: ProvedLayout,
}

/// A model whose heads are cut into parts, and the bytes of all its heads.
#[derive(Clone, Copy, Debug)]
struct Model {
    layers: u32,
    heads: u32,
    parts: u16,
    tokens: u32,
    /// Bytes of keys of a head, and as many of values.
    data: u64,
    quantised: bool,
}

impl Model {
    fn cell_bytes(self) -> u64 {
        2 * self.data + if self.quantised { 8 } else { 0 }
    }
    /// Rank `rank` of `ranks`, its memory filled by `value(layer, block, head of the model, token, byte)`.
    fn rank(self, order: &str, ranks: u16, rank: u16, value: &dyn Fn([u64; 5]) -> u8) -> Rank {
        let heads = self.heads / u32::from(ranks);
        let (layers, tokens, cell_bytes) = (self.layers, self.tokens, self.cell_bytes());
        let sizes = Sizes { layers, blocks: POOL, heads, tokens, cell_bytes };
        let mut memory = Memory::filled(sizes.total(), 0);
        let base = memory.address();
        for index in 0..sizes.total() {
            let step = |letter, count: u64| index / sizes.stride(order, letter) % count;
            let head = u64::from(rank) * u64::from(heads) + step('H', heads.into());
            let place = [step('L', layers.into()), step('B', POOL.into()), head, step('N', tokens.into())];
            let [l, b, h, n] = place;
            *memory.byte(base + index) = value([l, b, h, n, step('C', cell_bytes)]);
        }
        let desc = memory.desc();
        let layers = if self.quantised {
            quantised(sizes, order, self.data, desc)
        } else {
            sizes.describe(order, 0, desc)
        };
        let count = self.parts / ranks;
        let shard = GroupShard { parts: self.parts, first: rank * count, count, writer: Writer::ALONE };
        Rank { memory, layout: prove(layers, POOL).unwrap().shard(&[shard]).unwrap() }
    }
    fn ranks(self, order: &str, ranks: u16, value: &dyn Fn([u64; 5]) -> u8) -> Vec<Rank> {
        (0..ranks).map(|rank| self.rank(order, ranks, rank, value)).collect()
    }
}

/// All parts of some blocks, in the order of their indexes.
fn gather(ranks: &mut [Rank], blocks: &[u32]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    for Rank { memory, layout } in ranks {
        for local in layout.parts(GROUP) {
            assert_eq!(usize::from(local.part.0), parts.len());
            parts.push(memory.gather(local.page_map(), blocks));
        }
    }
    parts
}

fn pattern(place: [u64; 5]) -> u8 {
    let bytes: Vec<u8> = place.iter().flat_map(|n| n.to_le_bytes()).collect();
    blake3::hash(&bytes).as_bytes()[0]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn ranks_of_any_number_read_what_another_number_stored(
        order in prop::sample::select(ORDERS.to_vec()),
        (layers, heads_per_part, tokens) in (1u32..3, 1u32..3, 1u32..4),
        (data, quantised) in (1u64..6, any::<bool>()),
        (from, to) in (prop::sample::select(vec![1u16, 2, 4]), prop::sample::select(vec![1u16, 2, 4])),
    ) {
        let model = Model { layers, heads: 4 * heads_per_part, parts: 4, tokens, data, quantised };
        let mut writers = model.ranks(order, from, &pattern);
        let parts = gather(&mut writers, &[3, 1]);
        prop_assert_eq!(parts.len(), 4);
        // Other ranks, into other blocks of theirs.
        let mut readers = model.ranks(order, to, &|_| 0xEE);
        for reader in &mut readers {
            prop_assert_eq!(reader.layout.fingerprint(), writers[0].layout.fingerprint());
            prop_assert_eq!(reader.layout.page_format(), writers[0].layout.page_format());
            for local in reader.layout.parts(GROUP) {
                reader.memory.scatter(local.page_map(), &[2, 4], &parts[usize::from(local.part.0)]);
            }
        }
        // Their memory is what a forward pass of theirs would have written there, and nothing else has changed.
        let moved = |[l, b, h, n, c]: [u64; 5]| match b {
            2 => pattern([l, 3, h, n, c]),
            4 => pattern([l, 1, h, n, c]),
            _ => 0xEE,
        };
        for (reader, expected) in readers.iter().zip(model.ranks(order, to, &moved)) {
            prop_assert!(reader.memory.bytes() == expected.memory.bytes());
        }
    }
}

const MODEL: Model = Model { layers: 2, heads: 8, parts: 4, tokens: 3, data: 4, quantised: false };

#[test]
fn the_order_inside_a_part_is_part_of_its_name() {
    let of = |model: Model, order| model.rank(order, 1, 0, &|_| 0).layout;
    assert_eq!(of(MODEL, "LBHNC").page_format(), "H2.N3.8B");
    assert_eq!(of(MODEL, "LBNHC").page_format(), "N3.H2.8B");
    assert_ne!(of(MODEL, "LBHNC").fingerprint(), of(MODEL, "LBNHC").fingerprint());
    // Where layers and blocks lie is not.
    for order in ["LHBNC", "BLHNC", "BHLNC"] {
        assert_eq!(of(MODEL, "LBHNC").fingerprint(), of(MODEL, order).fingerprint(), "{order}");
    }
    // A part of one head has no order of heads, so engines of both orders read each other's bytes.
    let single = Model { parts: 8, ..MODEL };
    assert_eq!(of(single, "LBHNC").fingerprint(), of(single, "LBNHC").fingerprint());
    let parts = |order| gather(&mut single.ranks(order, 2, &pattern), &[1, 4]);
    assert_eq!(parts("LBHNC"), parts("LBNHC"));
}

#[test]
fn a_layout_has_the_parts_that_it_was_given() {
    let layout = MODEL.rank("LBNHC", 2, 1, &|_| 0).layout;
    let parts: Vec<_> = layout.parts(GROUP).iter().map(|local| local.part).collect();
    assert_eq!(parts, [PartIndex(2), PartIndex(3)]);
    assert_eq!(layout.block_bytes(GROUP, PartIndex(3)), Some(2 * 2 * 3 * 8));
    assert!(layout.page_map(GROUP, PartIndex(1)).is_none());
    assert!(layout.parts(GroupIndex(1)).is_empty());
}

fn latent(name: &str, group: u16) -> LayerDesc {
    let sizes = Sizes { layers: 1, blocks: 8, heads: 1, tokens: 4, cell_bytes: 16 };
    let mut layer = sizes.describe("LBHNC", group, buffer(0x1000, 1 << 12)).remove(0);
    layer.name = name.into();
    layer.axes.retain(|axis| axis.name != 'H');
    layer
}

#[test]
fn latents_without_heads_are_one_part_with_a_writer_per_chunk() {
    let layout = |replica| {
        let shard = GroupShard { writer: Writer { replica, replicas: 4 }, ..GroupShard::WHOLE };
        prove(vec![latent("a", 0)], 8).unwrap().shard(&[shard]).unwrap()
    };
    let ranks: Vec<_> = (0..4).map(layout).collect();
    assert!(ranks.iter().all(|rank| rank.fingerprint() == ranks[0].fingerprint()));
    let mut stored = [0; 4];
    for i in 0u32..400 {
        let hash = ChainHash::from(blake3::hash(&i.to_le_bytes()));
        let chunk = ChunkId { group: GROUP, hash };
        let writers: Vec<_> =
            (0..4).filter(|&rank| ranks[rank].parts(GROUP)[0].writer.writes(&chunk)).collect();
        assert_eq!(writers.len(), 1, "chunk {i}");
        stored[writers[0]] += 1;
        assert!(Writer::ALONE.writes(&chunk));
    }
    // The turn goes round.
    assert!(stored.iter().all(|&chunks| chunks > 60), "{stored:?}");
    // The rule is fixed: two versions of a program that run as ranks of one engine must agree.
    let hash = ChainHash::from_bytes(std::array::from_fn(|i| {
        if i == 0 {
            6
        } else if i == 8 {
            255
        } else {
            0
        }
    }));
    assert!(Writer { replica: 2, replicas: 4 }.writes(&ChunkId { group: GROUP, hash }));
}

#[test]
fn shards_that_cannot_be_are_refused() {
    let refused = |layers: Vec<LayerDesc>, shards: &[GroupShard]| {
        let refused = prove(layers, 8).unwrap().shard(shards).unwrap_err();
        (refused.layer, refused.fault)
    };
    let sizes = Sizes { layers: 1, blocks: 8, heads: 6, tokens: 4, cell_bytes: 16 };
    let heads = || sizes.describe("LBHNC", 0, buffer(0x1000, sizes.total()));
    let shard = |parts, first, count| GroupShard { parts, first, count, writer: Writer::ALONE };
    for (parts, first, count) in
        [(4, 0, 0), (4, 3, 2), (4, 4, 1), (0, 0, 1), (u16::MAX, 0, 1), (9, u16::MAX, 3)]
    {
        let (layer, fault) = refused(heads(), &[shard(parts, first, count)]);
        assert_eq!((layer.as_str(), fault), ("0.0", LayoutFault::NoSuchParts { parts, first, count }));
    }
    let (layer, fault) = refused(heads(), &[shard(4, 0, 4)]);
    assert_eq!((layer.as_str(), fault), ("0.0", LayoutFault::UnevenHeads { heads: Some(6), parts: 4 }));
    let with_side =
        || heads().into_iter().chain([LayerDesc { group: GROUP, ..moved(latent("side", 0)) }]).collect();
    let (layer, fault) = refused(with_side(), &[shard(2, 0, 2)]);
    assert_eq!((layer.as_str(), fault.clone()), ("side", LayoutFault::UnevenHeads { heads: None, parts: 2 }));
    assert!(fault.to_string().contains("no heads"), "{fault}");
    // A rank with one part of several need not split anything.
    assert!(prove(with_side(), 8).unwrap().shard(&[shard(2, 1, 1)]).is_ok());
    for (replica, replicas) in [(0, 0), (4, 4)] {
        let wrong = GroupShard { writer: Writer { replica, replicas }, ..GroupShard::WHOLE };
        assert_eq!(refused(heads(), &[wrong]).1, LayoutFault::NoSuchReplica { replica, replicas });
    }
    for shards in [&[][..], &[GroupShard::WHOLE; 2]] {
        let expected = LayoutFault::NotOneShardPerGroup { shards: shards.len(), groups: 1 };
        assert_eq!(refused(heads(), shards).1, expected);
    }
}

/// The same layer, behind everything else.
fn moved(layer: LayerDesc) -> LayerDesc {
    LayerDesc { address: 0x10_0000, buffer: buffer(0x10_0000, 1 << 12), ..layer }
}
