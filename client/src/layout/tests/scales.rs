//! Scales that lie in the cells: per-token-head quantisation of int8, fp8 and packed int4.

use proptest::prelude::*;
use tender_proto::{GroupIndex, PartIndex};

use super::super::dense::{ORDERS, Sizes};
use super::super::truth::scales_are_right;
use super::super::*;
use super::model::{Memory, axis, buffer};

const SCALE_BYTES: u64 = 4;

/// Layers whose heads hold `data` bytes of keys, their scale, and the same of values, in one tensor of this order. The
/// engine looks for scales with the strides that it has for data.
pub(super) fn quantised(sizes: Sizes, order: &str, data: u64, buffer: BufferDesc) -> Vec<LayerDesc> {
    let cell = data + SCALE_BYTES;
    assert_eq!(sizes.cell_bytes, 2 * cell);
    let halves = |layer: LayerDesc| {
        let mut axes = layer.axes.clone();
        axes.push(axis('K', 2, cell));
        let scales = ScaleDesc {
            address: layer.address + data,
            block_stride_bytes: layer.block_stride_bytes,
            axes: axes.clone(),
            bytes: SCALE_BYTES,
        };
        LayerDesc { axes, cell_bytes: cell, scales: Some(scales), ..layer }
    };
    sizes.describe(order, 0, buffer).into_iter().map(halves).collect()
}

fn sizes(data: u64) -> Sizes {
    Sizes { layers: 3, blocks: 6, heads: 2, tokens: 4, cell_bytes: 2 * (data + SCALE_BYTES) }
}

/// `layer.scales` as it would be if the layer's pages lay one behind the other.
fn as_if_alone(layer: &LayerDesc) -> ScaleDesc {
    ScaleDesc { block_stride_bytes: layer.page_bytes, ..layer.scales.clone().unwrap() }
}

#[test]
fn scales_in_their_cells_are_proved_and_move_with_them() {
    // A head of 32 elements: int8 and fp8 have one byte each, int4 half a one.
    for (data, cell) in [(32, 36), (16, 20)] {
        for order in ORDERS {
            let sizes = sizes(data);
            let mut memory = Memory::patterned(sizes.total());
            let layers = quantised(sizes, order, data, memory.desc());
            let layout = prove(layers.clone(), 6).unwrap();
            let format = layout.page_format();
            assert!(format.ends_with(&format!("K2.{cell}B with 4B scales at {data}")), "{format}");
            // Every run of the copy is whole cells.
            let map = layout.page_map(GroupIndex(0), PartIndex(0)).unwrap();
            assert!(map.segments().iter().all(|segment| segment.run_bytes() % cell == 0), "{order}");
            // A scale is behind its data in the packed bytes as it is in the page.
            let packed = memory.gather(map, &[2]);
            let at = usize::try_from(data).unwrap();
            let scale = layers[0].scales.as_ref().unwrap();
            let first = scale.address + 2 * scale.block_stride_bytes;
            assert_eq!(packed[at], *memory.byte(first));
        }
    }
}

#[test]
fn the_fingerprint_knows_where_scales_lie() {
    let bytes = buffer(1 << 20, sizes(32).total());
    let of = |change: &dyn Fn(&mut LayerDesc)| {
        let mut layers = quantised(sizes(32), "LBHNC", 32, bytes);
        layers.iter_mut().for_each(change);
        prove(layers, 6).unwrap().fingerprint()
    };
    let base = of(&|_| ());
    assert_ne!(base, of(&|layer| layer.scales = None));
    assert_ne!(base, of(&|layer| layer.scales.as_mut().unwrap().address -= 32));
}

#[test]
fn a_stride_of_one_layer_over_interleaved_layers_writes_into_another_layer() {
    let sizes = sizes(32);
    let mut memory = Memory::filled(sizes.total(), 0);
    let mut layers = quantised(sizes, "BLHNC", 32, memory.desc());
    let wrong = as_if_alone(&layers[0]);
    // The engine writes the scale of layer 0, block 1, through that view ...
    let scale = wrong.address + wrong.block_stride_bytes;
    for i in 0..SCALE_BYTES {
        *memory.byte(scale + i) = 0xAB;
    }
    // ... and it is layer 1's block 0 that has changed, while layer 0 has not.
    let read = |memory: &mut Memory, layer: &LayerDesc, block: u64| {
        let start = layer.address + block * layer.block_stride_bytes;
        (start..start + layer.page_bytes).map(|at| *memory.byte(at)).collect::<Vec<u8>>()
    };
    assert!(read(&mut memory, &layers[0], 1).iter().all(|&byte| byte == 0));
    let hit = read(&mut memory, &layers[1], 0);
    assert_eq!(hit.iter().filter(|&&byte| byte == 0xAB).count(), 4);

    // Exactly this view is refused, with exactly this collision.
    layers[0].scales = Some(wrong);
    let (address, cell) = (layers[1].address, 36);
    let refused = prove(layers.clone(), 6).unwrap_err();
    assert_eq!(refused.layer, "0.0");
    assert_eq!(
        refused.fault,
        LayoutFault::ScaleCollision {
            axis: 'B',
            step: 1,
            scale: ByteRange { start: scale, end: scale + SCALE_BYTES },
            other: "0.1".into(),
            cell: ByteRange { start: address, end: address + cell },
        }
    );
    // The same pages with the view that fits them are good, and so are pages of each layer by itself.
    let fits = quantised(sizes, "BLHNC", 32, memory.desc());
    let alone = quantised(sizes, "LBHNC", 32, memory.desc());
    assert_eq!(as_if_alone(&alone[0]), alone[0].scales.clone().unwrap());
    assert!(matches!(prove_either(fits, alone.clone(), 6), Ok(Proved::Wanted(_))));
    let Ok(Proved::Fallback { why, .. }) = prove_either(layers, alone, 6) else { panic!("no fallback") };
    assert!(matches!(why.fault, LayoutFault::ScaleCollision { .. }));
}

#[test]
fn scales_outside_their_cells_are_refused() {
    let bytes = buffer(1 << 20, sizes(32).total());
    let refused = |change: &dyn Fn(&mut ScaleDesc)| {
        let mut layers = quantised(sizes(32), "LBHNC", 32, bytes);
        change(layers[1].scales.as_mut().unwrap());
        let refused = prove(layers, 6).unwrap_err();
        assert_eq!(refused.layer, "0.1");
        refused.fault
    };
    // One byte into the values behind the keys, or one before the layer's first.
    assert!(matches!(refused(&|s| s.address += 1), LayoutFault::ScaleCollision { axis: 'B', step: 0, .. }));
    assert!(matches!(refused(&|s| s.address -= 33), LayoutFault::ScaleCollision { .. }));
    assert!(matches!(refused(&|s| s.address = 0x10), LayoutFault::ScaleAstray { .. }));
    for i in 0..3 {
        let letter = ['N', 'H', 'K'][i];
        let fault = refused(&|s| s.axes[i].stride_bytes += 4);
        let LayoutFault::ScaleCollision { axis, .. } = fault else { panic!("{fault}") };
        assert_eq!(axis, letter);
        // One scale for all steps of an axis lies in the cell of one of them.
        let fault = refused(&|s| _ = s.axes.remove(i));
        let LayoutFault::ScaleCollision { axis, step, .. } = fault else { panic!("{fault}") };
        assert_eq!((axis, step), (letter, 1));
    }
    let malformed: [&dyn Fn(&mut ScaleDesc); 4] =
        [&|s| s.bytes = 0, &|s| s.axes[0].count = 3, &|s| s.axes[0].name = 'P', &|s| s.axes.push(s.axes[0])];
    for change in malformed {
        assert!(matches!(refused(change), LayoutFault::Malformed { .. }));
    }
    assert_eq!(refused(&|s| s.address = u64::MAX - 1), LayoutFault::Overflow);
    assert_eq!(refused(&|s| s.bytes = u64::MAX), LayoutFault::Overflow);
    assert!(matches!(refused(&|s| s.block_stride_bytes = u64::MAX), LayoutFault::Overflow));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn scales_are_accepted_exactly_if_each_lies_in_its_cell(
        order in prop::sample::select(ORDERS.to_vec()),
        at in 0usize..3,
        (axis_at, stride) in (0usize..4, prop::sample::select(vec![0u64, 8, 12, 24, 48, 96, 192])),
        (offset, bytes) in (-3i64..4, 1u64..5),
    ) {
        let sizes = Sizes { layers: 3, blocks: 4, heads: 2, tokens: 2, cell_bytes: 24 };
        let mut layers = quantised(sizes, order, 8, buffer(0x1000, sizes.total()));
        let scales = layers[at].scales.as_mut().unwrap();
        scales.address = scales.address.wrapping_add_signed(offset);
        scales.bytes = bytes;
        match axis_at {
            3 => scales.block_stride_bytes = stride,
            i => scales.axes[i].stride_bytes = stride,
        }
        let right = scales_are_right(&layers[at], 4);
        let proved = prove(layers, 4);
        prop_assert_eq!(proved.is_ok(), right, "{:?}", proved.err());
    }
}
