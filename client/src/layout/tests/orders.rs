//! Every physical order that engines use, described, proved, gathered and compared byte by byte.

use proptest::prelude::*;
use tender_proto::{GroupIndex, PartIndex};

use super::super::dense::{ORDERS, Sizes};
use super::super::truth::{page_places, wrong_with};
use super::super::*;
use super::model::{Memory, axis, buffer};

/// What a part must hold of a dense tensor: the slow way, through indexes.
fn packed(memory: &Memory, sizes: Sizes, order: &str, blocks: &[u32]) -> Vec<u8> {
    let page: Vec<char> = order.chars().filter(|letter| "HNC".contains(*letter)).collect();
    let mut out = Vec::new();
    for &block in blocks {
        for layer in 0..u64::from(sizes.layers) {
            let start = layer * sizes.stride(order, 'L') + u64::from(block) * sizes.stride(order, 'B');
            for i in 0..sizes.count(page[0]) {
                for j in 0..sizes.count(page[1]) {
                    for k in 0..sizes.count(page[2]) {
                        let place = |at: usize, n: u64| n * sizes.stride(order, page[at]);
                        let at = start + place(0, i) + place(1, j) + place(2, k);
                        out.push(memory.bytes()[usize::try_from(at).unwrap()]);
                    }
                }
            }
        }
    }
    out
}

/// Gathers some blocks and scatters them to others, and compares every byte of the memory.
fn moves_exactly(memory: &mut Memory, layers: &[LayerDesc], layout: &ProvedLayout, from: &[u32], to: &[u32]) {
    let map = layout.page_map(GroupIndex(0), PartIndex(0)).unwrap();
    let packed = memory.gather(map, from);
    let mut expected = memory.bytes().to_vec();
    let start = memory.address();
    let place = |address: u64| usize::try_from(address - start).unwrap();
    let mut next = packed.iter();
    for &block in to {
        for layer in layers {
            for address in page_places(layer, block) {
                expected[place(address)] = *next.next().unwrap();
            }
        }
    }
    assert!(next.next().is_none());
    memory.scatter(map, to, &packed);
    assert!(memory.bytes() == expected);
}

#[test]
fn all_six_orders_are_proved_and_packed_alike() {
    let sizes = Sizes { layers: 3, blocks: 6, heads: 2, tokens: 4, cell_bytes: 6 };
    for order in ORDERS {
        let mut memory = Memory::patterned(sizes.total());
        let layers = sizes.describe(order, 0, memory.desc());
        let layout = prove(layers.clone(), sizes.blocks).unwrap();
        let format = if order.find('H') < order.find('N') { "H2.N4.6B" } else { "N4.H2.6B" };
        assert_eq!(layout.page_format(), format, "{order}");
        let map = layout.page_map(GroupIndex(0), PartIndex(0)).unwrap();
        // Only whole blocks one behind the other may be copied as one stretch.
        assert_eq!(map.is_dense(), order.starts_with("BL"), "{order}");
        let expected = packed(&memory, sizes, order, &[3, 1, 4, 5]);
        assert_eq!(memory.gather(map, &[3, 1, 4, 5]), expected, "{order}");
        moves_exactly(&mut memory, &layers, &layout, &[3, 1], &[2, 5]);
    }
}

#[test]
fn large_tensors_of_all_orders_are_proved() {
    let sizes = Sizes { layers: 48, blocks: 1 << 20, heads: 8, tokens: 16, cell_bytes: 256 };
    for order in ORDERS {
        let buffer = buffer(1 << 20, sizes.total());
        assert!(prove(sizes.describe(order, 0, buffer), sizes.blocks).is_ok(), "{order}");
        // One byte further, and the second layer lies over the third.
        let mut layers = sizes.describe(order, 0, buffer);
        layers[1].address += 1;
        let refused = prove(layers, sizes.blocks).unwrap_err();
        let LayoutFault::LayerOverlap { other, first, second } = refused.fault else { panic!("{refused}") };
        assert!(first.start < second.end && second.start < first.end, "{order}");
        let pair = [refused.layer.as_str(), other.as_str()];
        assert!(pair.contains(&"0.1") && pair.contains(&"0.2"), "{order}: {pair:?}");
    }
}

#[test]
fn a_layer_alone_need_not_nest_around_its_blocks() {
    // Heads outermost: blocks lie inside each head.
    let sizes = Sizes { layers: 1, blocks: 6, heads: 3, tokens: 2, cell_bytes: 5 };
    let mut memory = Memory::patterned(sizes.total());
    let layers = sizes.describe("LHBNC", 0, memory.desc());
    assert!(layers[0].block_stride_bytes < layers[0].page_bytes);
    let layout = prove(layers.clone(), 6).unwrap();
    assert!(!layout.page_map(GroupIndex(0), PartIndex(0)).unwrap().is_dense());
    moves_exactly(&mut memory, &layers, &layout, &[1, 2, 3], &[3, 4, 5]);
    // With one head fewer bytes between blocks are not there to be skipped.
    let short = LayerDesc { block_stride_bytes: 9, ..layers[0].clone() };
    let fault = prove(vec![short], 6).unwrap_err().fault;
    assert!(matches!(fault, LayoutFault::AxisOverlap { axis: 'B', .. }), "{fault}");
}

/// Content of equal cells, described by a page's axes.
fn layer(
    name: &str,
    buffer: BufferDesc,
    offset: u64,
    block_stride: u64,
    axes: &[Axis],
    cell: u64,
) -> LayerDesc {
    let layer = LayerDesc {
        name: name.into(),
        group: GroupIndex(0),
        address: buffer.address() + offset,
        buffer,
        blocks: 6,
        block_stride_bytes: block_stride,
        axes: axes.to_vec(),
        cell_bytes: cell,
        page_bytes: 0,
        padding_bytes: 0,
        scales: None,
    };
    LayerDesc { page_bytes: layer.content_bytes().unwrap(), ..layer }
}

fn proved_and_exact(memory: &mut Memory, layers: Vec<LayerDesc>, format: &str) {
    assert_eq!(wrong_with(&layers, 6), None);
    let layout = prove(layers.clone(), 6).unwrap();
    assert_eq!(layout.page_format(), format);
    moves_exactly(memory, &layers, &layout, &[1, 2, 4], &[5, 3, 2]);
}

#[test]
fn keys_and_values_in_halves_are_exact() {
    // [key or value][block][head][token][content], and the same with two layers between block and head.
    let page = [axis('H', 2, 4 * 8), axis('N', 4, 8)];
    let mut memory = Memory::patterned(2 * 6 * 64);
    let halves = |stride| [axis('K', 2, stride), page[0], page[1]];
    let alone = layer("a", memory.desc(), 0, 64, &halves(6 * 64), 8);
    proved_and_exact(&mut memory, vec![alone], "K2.H2.N4.8B");
    let mut memory = Memory::patterned(2 * 6 * 2 * 64);
    let both = memory.desc();
    let of = |name, offset| layer(name, both, offset, 128, &halves(6 * 128), 8);
    proved_and_exact(&mut memory, vec![of("a", 0), of("b", 64)], "K2.H2.N4.8B");
    // Inside the page, behind the heads.
    let mut memory = Memory::patterned(6 * 128);
    let inner = layer("a", memory.desc(), 0, 128, &[axis('H', 2, 64), axis('K', 2, 32), page[1]], 8);
    proved_and_exact(&mut memory, vec![inner], "H2.K2.N4.8B");
}

#[test]
fn halves_of_interleaved_layers_are_proved_in_large_pools() {
    let (pool, page) = (1u32 << 22, 4096);
    let blocks = u64::from(pool) * 4 * page;
    let of = |i: u64| LayerDesc {
        blocks: pool,
        ..layer(
            &i.to_string(),
            buffer(1 << 20, 2 * blocks),
            i * page,
            4 * page,
            &[axis('K', 2, blocks)],
            page,
        )
    };
    assert!(prove((0..4).map(of).collect(), pool).is_ok());
    let fault = prove(vec![of(0), LayerDesc { name: "again".into(), ..of(0) }], pool).unwrap_err().fault;
    assert!(matches!(fault, LayoutFault::LayerOverlap { .. }), "{fault}");
}

#[test]
fn kernel_blocks_inside_a_block_are_exact() {
    // One block of 8 tokens is two kernel blocks of 4, each [head][token][content].
    let mut memory = Memory::patterned(6 * 2 * 64);
    let split = layer("a", memory.desc(), 0, 128, &[axis('S', 2, 64), axis('H', 2, 32), axis('N', 4, 8)], 8);
    proved_and_exact(&mut memory, vec![split], "S2.H2.N4.8B");
}

#[test]
fn padded_pages_are_exact() {
    // Pages of 48 bytes in 64, two layers in each block.
    let mut memory = Memory::patterned(6 * 128);
    let both = memory.desc();
    let of = |name, offset| LayerDesc {
        page_bytes: 64,
        padding_bytes: 16,
        ..layer(name, both, offset, 128, &[axis('H', 2, 24), axis('N', 3, 8)], 8)
    };
    proved_and_exact(&mut memory, vec![of("a", 0), of("b", 64)], "H2.N3.8B");
}

#[test]
fn latents_and_their_side_tensors_are_exact() {
    // One latent row per token, and the indexer's keys in a tensor of their own.
    let mut memory = Memory::patterned(6 * (4 * 18 + 4 * 5));
    let both = memory.desc();
    let latent = layer("mla", both, 0, 4 * 18, &[axis('N', 4, 18)], 18);
    let keys = layer("mla.indexer", both, 6 * 4 * 18, 4 * 5, &[axis('N', 4, 5)], 5);
    proved_and_exact(&mut memory, vec![latent, keys], "N4.18B + N4.5B");
}

#[test]
fn recurrent_state_of_several_tensors_is_exact() {
    // A page holds a convolution state of 3 x 10 bytes, a state of 2 x 4 x 4 bytes, and padding.
    let mut memory = Memory::patterned(6 * 80);
    let page = memory.desc();
    let conv = layer("mamba.0", page, 0, 80, &[axis('P', 3, 10)], 10);
    let state = LayerDesc {
        page_bytes: 50,
        padding_bytes: 18,
        ..layer("mamba.1", page, 30, 80, &[axis('H', 2, 16), axis('P', 4, 4)], 4)
    };
    proved_and_exact(&mut memory, vec![conv.clone(), state.clone()], "P3.10B + H2.P4.4B");
    let over = LayerDesc { address: state.address - 1, ..state };
    assert!(matches!(prove(vec![conv, over], 6).unwrap_err().fault, LayoutFault::LayerOverlap { .. }));
}

proptest! {
    #[test]
    fn any_order_of_any_sizes_is_proved_and_packed_exactly(
        order in Just("LBHN".chars().collect::<Vec<_>>()).prop_shuffle(),
        (layers, blocks, heads, tokens) in (1u32..4, 2u32..6, 1u32..4, 1u32..4),
        cell_bytes in 1u64..7,
        wanted in Just((0u32..6).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let order: String = order.into_iter().chain(['C']).collect();
        let sizes = Sizes { layers, blocks, heads, tokens, cell_bytes };
        let wanted: Vec<u32> = wanted.into_iter().filter(|&block| block < blocks).collect();
        let mut memory = Memory::patterned(sizes.total());
        let described = sizes.describe(&order, 0, memory.desc());
        let layout = prove(described, blocks).unwrap();
        let map = layout.page_map(GroupIndex(0), PartIndex(0)).unwrap();
        let expected = packed(&memory, sizes, &order, &wanted);
        prop_assert_eq!(memory.gather(map, &wanted), expected);
    }
}
