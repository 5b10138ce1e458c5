//! Groups over one buffer: blocks of one id may share bytes, blocks of two ids never.

use proptest::prelude::*;
use tender_proto::GroupIndex;

use super::super::dense::{ORDERS, Sizes};
use super::super::truth::wrong_with;
use super::super::*;
use super::model::{axis, buffer};

const START: u64 = 1 << 20;

fn over(groups: &[Sizes], order: &str) -> Vec<LayerDesc> {
    let bytes = groups.iter().map(|sizes| sizes.total()).max().unwrap();
    (0..).zip(groups).flat_map(|(group, sizes)| sizes.describe(order, group, buffer(START, bytes))).collect()
}

#[test]
fn groups_of_equal_pages_over_one_buffer_are_proved() {
    // Like Gemma-3: six groups of equal shape at one address; and a draft group with fewer layers.
    let sizes = Sizes { layers: 8, blocks: 1 << 20, heads: 4, tokens: 32, cell_bytes: 256 };
    let one = Sizes { layers: 1, ..sizes };
    for order in ORDERS {
        assert!(prove(over(&[sizes; 6], order), sizes.blocks).is_ok(), "{order}");
        assert!(prove(over(&[one; 6], order), sizes.blocks).is_ok(), "{order}");
    }
    let fewer = over(&[sizes, Sizes { layers: 5, ..sizes }], "LBNHC");
    assert!(prove(fewer, sizes.blocks).is_ok());
}

#[test]
fn groups_of_different_blocks_and_equal_pages_are_proved() {
    // Like Gemma-4: sliding layers have 4 heads x 32 tokens, full ones 2 heads x 64 tokens.
    let sliding = Sizes { layers: 5, blocks: 1 << 20, heads: 4, tokens: 32, cell_bytes: 256 };
    let full = Sizes { heads: 2, tokens: 64, ..sliding };
    for order in ["LBHNC", "LBNHC", "BLHNC", "BLNHC", "BHLNC"] {
        assert!(prove(over(&[sliding, full], order), sliding.blocks).is_ok(), "{order}");
    }
    // With the heads outside the blocks, equal pages are not enough: block 1 of the one is in block 0 of the other.
    let refused = prove(over(&[sliding, full], "LHBNC"), sliding.blocks).unwrap_err();
    let LayoutFault::BlockOverlap { first, second, .. } = &refused.fault else { panic!("{refused}") };
    assert_ne!(first.block, second.block);
    assert!(first.bytes.start < second.bytes.end && second.bytes.start < first.bytes.end);
    assert!(refused.to_string().contains(" of block "), "{refused}");
}

#[test]
fn attention_and_recurrent_state_share_padded_pages() {
    let pool = 1 << 18;
    let page = 4096;
    let at = |group, name: &str, offset: u64, content: u64, padding: u64| LayerDesc {
        name: name.into(),
        group: GroupIndex(group),
        address: START + offset,
        buffer: buffer(START, u64::from(pool + 1) * page),
        blocks: pool,
        block_stride_bytes: page,
        axes: vec![axis('P', 4, content / 4)],
        cell_bytes: content / 4,
        page_bytes: content + padding,
        padding_bytes: padding,
        scales: None,
    };
    let layers =
        || vec![at(0, "attention", 0, 4096, 0), at(1, "conv", 0, 1200, 0), at(1, "state", 1200, 2000, 896)];
    assert!(prove(layers(), pool).is_ok());
    // A state that runs over the page's end lies in the next block, which attention may own.
    let mut long = layers();
    long.remove(1);
    long[1].address += 900;
    let refused = prove(long, pool).unwrap_err();
    assert!(matches!(refused.fault, LayoutFault::BlockOverlap { .. }), "{refused}");
}

#[test]
fn the_blocks_that_meet_are_named() {
    let sizes = Sizes { layers: 1, blocks: 8, heads: 1, tokens: 4, cell_bytes: 16 };
    let mut layers = over(&[sizes, sizes], "LBHNC");
    layers[1].address += 16;
    layers[1].buffer = buffer(START, 1 << 20);
    let refused = prove(layers, 8).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the layout of layer '0.0' was refused: its bytes 0x100040..0x100080 of block 1 overlap bytes \
         0x100010..0x100050 of block 0 of layer '1.0' of another group"
    );
}

#[test]
fn axes_outside_the_blocks_must_fit_each_other() {
    // One layer has 2 x 2 stretches of blocks, the other 5, and the fifth lies across the first one's.
    let of = |group, axes: &[Axis]| LayerDesc {
        name: format!("{group}"),
        group: GroupIndex(group),
        address: START,
        buffer: buffer(START, 1 << 12),
        blocks: 5,
        block_stride_bytes: 10,
        axes: axes.to_vec(),
        cell_bytes: 10,
        page_bytes: 10 * axes.iter().map(|axis| u64::from(axis.count)).product::<u64>(),
        padding_bytes: 0,
        scales: None,
    };
    let layers = |stride| vec![of(0, &[axis('K', 2, stride), axis('H', 2, 50)]), of(1, &[axis('H', 5, 50)])];
    assert!(prove(layers(100), 5).is_ok());
    let fault = prove(layers(105), 5).unwrap_err().fault;
    assert!(matches!(fault, LayoutFault::BlockOverlap { .. }), "{fault}");
}

#[test]
fn what_cannot_be_looked_through_is_refused() {
    // Two groups whose blocks have different strides, thin enough that no cell of a large pool meets another.
    let pool = 1 << 20;
    let thin = |group, offset, stride| LayerDesc {
        name: format!("{group}"),
        group: GroupIndex(group),
        address: START + offset,
        buffer: buffer(START, 1 << 40),
        blocks: pool,
        block_stride_bytes: stride,
        axes: Vec::new(),
        cell_bytes: 8,
        page_bytes: 8,
        padding_bytes: 0,
        scales: None,
    };
    let refused = prove(vec![thin(0, 0, 32), thin(1, 16, 64)], pool).unwrap_err();
    assert!(matches!(refused.fault, LayoutFault::NotProved { .. }), "{refused}");
    // Few enough blocks are looked through one by one.
    assert!(prove(vec![thin(0, 0, 32), thin(1, 16, 64)], 1 << 10).is_ok());
}

fn any_layer(name: usize) -> impl Strategy<Value = LayerDesc> {
    // Strides that often agree, so that all ways of the proof are taken.
    let strides = (
        prop::sample::select(vec![2u64, 4, 8, 40, 80, 200]),
        prop::sample::select(vec![8u64, 16, 40, 48]),
        prop::sample::select(vec![80u64, 160, 168, 240, 480]),
    );
    let at = prop_oneof![Just(0u64), 0u64..64];
    let any = (0u16..3, at, (1u32..4, 1u32..3, 1u32..3), strides, 1u64..9).prop_map(
        move |(group, at, counts, strides, cell_bytes)| {
            let layer = LayerDesc {
                name: format!("layer {name}"),
                group: GroupIndex(group),
                address: 0x1000 + at * 4,
                buffer: buffer(0x1000, 1 << 12),
                blocks: 5,
                block_stride_bytes: strides.1,
                axes: vec![
                    axis('H', counts.0, strides.0),
                    axis('N', counts.1, 4),
                    axis('K', counts.2, strides.2),
                ],
                cell_bytes,
                page_bytes: 0,
                padding_bytes: 0,
                scales: None,
            };
            LayerDesc { page_bytes: layer.content_bytes().unwrap_or(0), ..layer }
        },
    );
    any.prop_filter("its axes nest", |layer| {
        prove(vec![LayerDesc { group: GroupIndex(0), ..layer.clone() }], 5).is_ok()
    })
}

/// Numbers the groups that there are from 0.
fn without_gaps(mut layers: Vec<LayerDesc>) -> Vec<LayerDesc> {
    let mut known: Vec<GroupIndex> = layers.iter().map(|layer| layer.group).collect();
    known.sort_unstable();
    known.dedup();
    for layer in &mut layers {
        let at = known.iter().position(|group| *group == layer.group).unwrap();
        layer.group = GroupIndex(u16::try_from(at).unwrap());
    }
    layers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    /// Of layers that hold by themselves, exactly those are refused that share a byte they must not share.
    #[test]
    fn small_layouts_are_accepted_exactly_if_every_byte_has_one_owner(
        layers in (any_layer(0), any_layer(1), any_layer(2)).prop_map(|(a, b, c)| without_gaps(vec![a, b, c])),
    ) {
        match (prove(layers.clone(), 5), wrong_with(&layers, 5)) {
            (Ok(_), None) | (Err(_), Some(_)) => {}
            (Ok(_), Some(wrong)) => prop_assert!(false, "accepted, but {}", wrong),
            (Err(no), None) => prop_assert!(false, "refused: {}", no),
        }
    }
}
