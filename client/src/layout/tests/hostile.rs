//! Descriptions that are wrong at random: none of them panics, and what is accepted is right byte by byte.

use proptest::prelude::*;
use tender_proto::GroupIndex;

use super::super::dense::{ORDERS, Sizes};
use super::super::truth::{page_places, scales_are_right, wrong_with};
use super::super::*;
use super::model::{axis, buffer};
use super::scales::quantised;

const POOL: u32 = 4;

/// Three layers in one buffer and, over them, a second group of as many.
fn good(order: &str, scales: bool) -> Vec<LayerDesc> {
    let sizes = Sizes { layers: 3, blocks: POOL, heads: 2, tokens: 2, cell_bytes: 24 };
    let dense = buffer(0x1000, sizes.total());
    let mut layers = if scales { quantised(sizes, order, 8, dense) } else { sizes.describe(order, 0, dense) };
    layers.extend(sizes.describe(order, 1, dense));
    // Room on both sides, so that not every change leads out of the buffer.
    let roomy = buffer(0x800, sizes.total() + 0x1000);
    layers.iter_mut().for_each(|layer| layer.buffer = roomy);
    layers
}

/// One number of one layer, changed.
#[derive(Clone, Debug)]
struct Change {
    layer: usize,
    field: usize,
    value: u64,
    relative: bool,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let small = prop_oneof![
        0u64..6,
        prop::sample::select(vec![8u64, 12, 24, 48, 96, 288]),
        (0u64..9).prop_map(u64::wrapping_neg)
    ];
    let large = prop_oneof![Just(u64::MAX), Just(1 << 63), Just(1 << 32), any::<u64>()];
    let value = prop_oneof![9 => small, 1 => large];
    let change = (0usize..6, 0usize..17, value, any::<bool>())
        .prop_map(|(layer, field, value, relative)| Change { layer, field, value, relative });
    prop::collection::vec(change, 0..4)
}

impl Change {
    fn number(&self, field: &mut u64) {
        *field = if self.relative { field.wrapping_add(self.value) } else { self.value };
    }
    fn count(&self, field: &mut u32) {
        let mut wide = u64::from(*field);
        self.number(&mut wide);
        *field = u32::try_from(wide).unwrap_or(u32::MAX);
    }
    fn apply(&self, layers: &mut Vec<LayerDesc>) {
        let at = self.layer % layers.len();
        let layer = &mut layers[at];
        match self.field {
            0 => self.number(&mut layer.address),
            1 => self.number(&mut layer.block_stride_bytes),
            2 => self.number(&mut layer.axes[0].stride_bytes),
            3 => self.number(&mut layer.axes[1].stride_bytes),
            4 => self.count(&mut layer.axes[0].count),
            5 => self.count(&mut layer.axes[1].count),
            6 => self.number(&mut layer.cell_bytes),
            7 => self.number(&mut layer.page_bytes),
            8 => self.number(&mut layer.padding_bytes),
            9 => self.count(&mut layer.blocks),
            10 => layer.group = GroupIndex(u16::try_from(self.value % 4).unwrap()),
            11 => {
                let (mut address, mut bytes) = (layer.buffer.address(), layer.buffer.bytes());
                self.number(if self.relative { &mut bytes } else { &mut address });
                layer.buffer = buffer(address, bytes);
            }
            12 => {
                let again = layer.clone();
                layers.push(again);
            }
            16 => {
                let group = layer.group;
                let of_group = layers.iter_mut().filter(|layer| layer.group == group);
                of_group.for_each(|layer| layer.address = layer.address.wrapping_add(self.value));
            }
            13 => layer.axes[0].name = char::from(u8::try_from(b'A' as u64 + self.value % 26).unwrap()),
            _ => {
                let Some(scales) = &mut layer.scales else { return };
                match self.field {
                    14 => self.number(&mut scales.block_stride_bytes),
                    _ => self.number(&mut scales.address),
                }
            }
        }
    }
}

fn is_small(layers: &[LayerDesc]) -> bool {
    layers.iter().all(|layer| layer.content_bytes().is_some_and(|bytes| bytes < 1 << 12))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn what_is_accepted_is_right_byte_by_byte(
        order in prop::sample::select(ORDERS.to_vec()),
        scales in any::<bool>(),
        changes in changes(),
        adds_up in any::<bool>(),
    ) {
        let mut layers = good(order, scales);
        for change in &changes {
            change.apply(&mut layers);
        }
        if adds_up {
            for layer in &mut layers {
                layer.padding_bytes = 0;
                layer.page_bytes = layer.content_bytes().unwrap_or(0);
            }
        }
        match prove(layers.clone(), POOL) {
            Ok(_) => {
                prop_assert!(is_small(&layers));
                prop_assert_eq!(wrong_with(&layers, POOL), None);
                prop_assert!(layers.iter().all(|layer| scales_are_right(layer, POOL)));
            }
            Err(no) => {
                prop_assert!(!changes.is_empty(), "{}", no);
                claim_is_true(&layers, &no)?;
            }
        }
    }
}

/// Bytes that a refusal says collide do so.
fn claim_is_true(layers: &[LayerDesc], no: &LayoutRefusal) -> Result<(), TestCaseError> {
    let owns = |name: &str, at: u64| {
        let of_name = layers.iter().filter(|layer| layer.name == name);
        of_name.flat_map(|layer| (0..POOL).map(move |block| (layer, block))).any(|(layer, block)| {
            is_small(std::slice::from_ref(layer)) && page_places(layer, block).contains(&at)
        })
    };
    prop_assert!(layers.iter().any(|layer| layer.name == no.layer), "{}", no);
    match &no.fault {
        LayoutFault::LayerOverlap { other, first, second } => {
            let common = first.start.max(second.start);
            prop_assert!(common < first.end.min(second.end));
            prop_assert!(owns(&no.layer, common) && owns(other, common), "{}", no);
        }
        LayoutFault::BlockOverlap { other, first, second } => {
            let common = first.bytes.start.max(second.bytes.start);
            prop_assert!(common < first.bytes.end.min(second.bytes.end) && first.block != second.block);
            prop_assert!(owns(&no.layer, common) && owns(other, common), "{}", no);
        }
        LayoutFault::ScaleCollision { other, scale, cell, .. } => {
            let common = scale.start.max(cell.start);
            prop_assert!(common < scale.end.min(cell.end) && owns(other, common), "{}", no);
        }
        LayoutFault::OutsideBuffer { pages, buffer } => {
            prop_assert!(pages.start < buffer.start || pages.end > buffer.end);
        }
        LayoutFault::PageGap { named, page } => prop_assert!(named.end < page.end),
        LayoutFault::PageOverrun { named, page } => prop_assert!(named.end > page.end),
        _ => {}
    }
    Ok(())
}

fn layer() -> LayerDesc {
    good("LBHNC", false).remove(0)
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    type Change = fn(&mut LayerDesc);
    let max = u64::MAX;
    let changes: &[Change] = &[
        |l| l.axes[0].stride_bytes = u64::MAX,
        |l| l.block_stride_bytes = u64::MAX,
        |l| l.block_stride_bytes = 0,
        |l| l.cell_bytes = u64::MAX,
        |l| l.cell_bytes = 0,
        |l| l.address = u64::MAX - 100,
        |l| l.address = 0,
        |l| l.axes[1].count = 0,
        |l| l.axes[1].count = u32::MAX,
        |l| l.axes[1].name = 'h',
        |l| l.axes[1].name = 'N',
        |l| l.axes[1].name = 'B',
        |l| l.axes = "ACDEFGHI".chars().map(|name| axis(name, 1, 0)).collect(),
        |l| l.name.clear(),
        |l| l.group = GroupIndex(1),
        |l| l.buffer = buffer(u64::MAX, 2),
        |l| l.blocks = POOL - 1,
        |l| l.blocks = 0,
    ];
    for (i, change) in changes.iter().enumerate() {
        let mut changed = LayerDesc { buffer: buffer(0x1000, max - 0x1000), ..layer() };
        change(&mut changed);
        changed.page_bytes = changed.content_bytes().unwrap_or(0);
        assert!(prove(vec![changed], POOL).is_err(), "change {i}");
    }
    for change in [
        (|l| l.page_bytes = u64::MAX) as Change,
        |l| l.page_bytes = 0,
        |l| l.padding_bytes = u64::MAX,
        |l| l.padding_bytes = 1,
    ] {
        let mut changed = layer();
        change(&mut changed);
        assert!(prove(vec![changed], POOL).is_err());
    }
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let fault = |layers, pool| prove(layers, pool).unwrap_err().fault;
    assert_eq!(fault(vec![], POOL), LayoutFault::Nothing);
    assert_eq!(fault(vec![layer()], 1), LayoutFault::Nothing);
    assert_eq!(fault(vec![layer(), layer()], POOL), LayoutFault::SameName);
    let gap = LayerDesc { group: GroupIndex(2), ..layer() };
    let refused = prove(vec![layer(), gap], POOL).unwrap_err();
    assert_eq!((refused.layer.as_str(), refused.fault), ("0.0", LayoutFault::GroupGap { group: 2 }));
    assert_eq!(
        fault(vec![LayerDesc { blocks: 3, ..layer() }], POOL),
        LayoutFault::TooFewBlocks { blocks: 3, pool_blocks: POOL }
    );
}
