mod hostile;
mod model;
mod orders;
mod overlay;
mod parts;
mod scales;

use tender_proto::{GroupIndex, PartIndex};

use super::*;
use model::{axis, buffer};

/// 8 blocks of [2 heads][4 tokens][16 bytes], dense, at 0x1000.
fn layer(name: &str) -> LayerDesc {
    LayerDesc {
        name: name.into(),
        group: GroupIndex(0),
        address: 0x1000,
        buffer: buffer(0x1000, 8 * 128),
        blocks: 8,
        block_stride_bytes: 128,
        axes: vec![axis('H', 2, 64), axis('N', 4, 16)],
        cell_bytes: 16,
        page_bytes: 128,
        padding_bytes: 0,
        scales: None,
    }
}

/// A layer whose page is exactly its content.
fn exact(layer: LayerDesc) -> LayerDesc {
    LayerDesc { page_bytes: layer.content_bytes().unwrap_or(0), padding_bytes: 0, ..layer }
}

/// The same, for one of several layers that share a buffer block by block.
fn shared(name: &str, offset: u64) -> LayerDesc {
    LayerDesc {
        address: 0x1000 + offset,
        buffer: buffer(0x1000, 8 * 512),
        block_stride_bytes: 512,
        ..layer(name)
    }
}

fn fault(layers: Vec<LayerDesc>) -> LayoutFault {
    prove(layers, 8).unwrap_err().fault
}

#[test]
fn a_dense_layer_is_one_run() {
    let proved = prove(vec![layer("a")], 8).unwrap();
    assert_eq!(proved.block_bytes(GroupIndex(0), PartIndex(0)), Some(128));
    assert!(proved.page_map(GroupIndex(0), PartIndex(0)).unwrap().is_dense());
    assert_eq!((proved.groups(), proved.page_format().as_str()), (1, "H2.N4.16B"));
    assert_eq!(proved.block_bytes(GroupIndex(1), PartIndex(0)), None);
}

#[test]
fn keys_and_values_apart_from_the_blocks_are_proved() {
    // [K or V][block][token][cell]: the block axis lies inside the outermost one.
    let mut split = layer("a");
    split.axes = vec![axis('N', 4, 16), axis('K', 2, 8 * 64)];
    split.block_stride_bytes = 64;
    let proved = prove(vec![split], 8).unwrap();
    assert_eq!(proved.page_format(), "K2.N4.16B");
}

#[test]
fn layers_interleaved_in_one_buffer_are_proved_and_merge() {
    let layers = ["a", "b", "c", "d"].iter().zip(0..).map(|(name, i)| shared(name, i * 128)).collect();
    assert!(prove(layers, 8).unwrap().page_map(GroupIndex(0), PartIndex(0)).unwrap().is_dense());
}

#[test]
fn a_page_that_does_not_add_up_is_refused_with_both_ranges() {
    let range = |start, end| ByteRange { start, end };
    let padded = LayerDesc { padding_bytes: 8, page_bytes: 136, ..layer("a") };
    let gap = LayerDesc { page_bytes: 160, ..padded.clone() };
    assert_eq!(
        fault(vec![gap]),
        LayoutFault::PageGap { named: range(0x1000, 0x1088), page: range(0x1000, 0x10a0) }
    );
    let over = LayerDesc { page_bytes: 128, ..padded.clone() };
    let refused = prove(vec![over], 8).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the layout of layer 'a' was refused: its content and padding are 0x1000..0x1088, more than its page \
         0x1000..0x1080 of block 0"
    );
    // Padding that adds up, and room for it between the blocks.
    let roomy = LayerDesc { block_stride_bytes: 136, buffer: buffer(0x1000, 8 * 136), ..padded };
    assert_eq!(prove(vec![roomy], 8).unwrap().block_bytes(GroupIndex(0), PartIndex(0)), Some(128));
}

#[test]
fn the_fallback_is_taken_when_what_is_wanted_is_refused() {
    let good = || vec![layer("a")];
    let bad = || vec![layer("a"), layer("b")];
    assert!(matches!(prove_either(good(), bad(), 8), Ok(Proved::Wanted(_))));
    let Ok(Proved::Fallback { layout, why }) = prove_either(bad(), good(), 8) else { panic!("no fallback") };
    assert_eq!((layout.layers().len(), why.layer.as_str()), (1, "b"));
    assert!(prove_either(bad(), bad(), 8).is_err());
}

#[test]
fn a_page_outside_its_buffer_is_refused_with_both_ranges() {
    let short = LayerDesc { buffer: buffer(0x1000, 8 * 128 - 1), ..layer("model.layers.3") };
    let refused = prove(vec![short], 8).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the layout of layer 'model.layers.3' was refused: its pages lie in 0x1000..0x1400, which is not inside \
         its buffer 0x1000..0x13ff"
    );
    let early = LayerDesc { address: 0xfff, ..layer("a") };
    assert!(matches!(fault(vec![early]), LayoutFault::OutsideBuffer { .. }));
    let few = LayerDesc { blocks: 7, ..layer("a") };
    assert_eq!(fault(vec![few]), LayoutFault::TooFewBlocks { blocks: 7, pool_blocks: 8 });
}

#[test]
fn steps_that_do_not_clear_what_is_inside_them_are_refused() {
    let range = |start, end| ByteRange { start, end };
    let heads = LayerDesc { axes: vec![axis('H', 2, 63), axis('N', 4, 16)], ..layer("a") };
    assert_eq!(
        fault(vec![heads]),
        LayoutFault::AxisOverlap { axis: 'H', first: range(0x1000, 0x1040), second: range(0x103f, 0x107f) }
    );
    let still = LayerDesc { axes: vec![axis('N', 4, 0)], ..layer("a") };
    assert!(matches!(fault(vec![still]), LayoutFault::AxisOverlap { axis: 'N', .. }));
    let blocks = LayerDesc { block_stride_bytes: 127, ..layer("a") };
    assert!(matches!(fault(vec![blocks]), LayoutFault::AxisOverlap { axis: 'B', .. }));
}

#[test]
fn layers_of_one_group_that_share_a_byte_are_refused_by_name() {
    let refused = prove(vec![shared("a", 0), shared("b", 128), shared("c", 255)], 8).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the layout of layer 'c' was refused: its bytes 0x10ff..0x117f overlap bytes 0x1080..0x1100 of layer 'b' of \
         the same group"
    );
    assert!(matches!(fault(vec![layer("a"), layer("b")]), LayoutFault::LayerOverlap { .. }));
    assert_eq!(fault(vec![layer("a"), layer("a")]), LayoutFault::SameName);
}

#[test]
fn large_interleaved_pools_are_proved_by_one_window() {
    let pool = 1 << 20;
    let big = |name: &str, offset: u64| LayerDesc {
        blocks: pool,
        buffer: buffer(0x1000, u64::from(pool) * 512),
        ..shared(name, offset)
    };
    assert!(prove(vec![big("a", 0), big("b", 128), big("c", 256)], pool).is_ok());
    let refused = prove(vec![big("a", 0), big("b", 128), big("c", 200)], pool).unwrap_err();
    let LayoutFault::LayerOverlap { other, first, second } = refused.fault else { panic!("{refused}") };
    assert_eq!((refused.layer.as_str(), other.as_str()), ("c", "b"));
    assert_eq!(
        (first, second),
        (ByteRange { start: 0x10c8, end: 0x1148 }, ByteRange { start: 0x1080, end: 0x1100 })
    );
    // Different periods, and too many runs to look at: a meeting is found all the same.
    let odd = exact(LayerDesc { block_stride_bytes: 500, ..big("d", 384) });
    let refused = prove(vec![big("a", 0), odd], pool).unwrap_err();
    let LayoutFault::LayerOverlap { first, second, .. } = refused.fault else { panic!("{refused}") };
    assert!(first.start < second.end && second.start < first.end, "{refused}");
    // None is there to be found, and none is proved to be absent: refused.
    let thin = |name: &str, offset: u64, stride: u64| {
        let thin = LayerDesc { axes: vec![axis('N', 4, stride)], cell_bytes: 8, ..big(name, offset) };
        exact(LayerDesc { block_stride_bytes: 4 * stride, ..thin })
    };
    let refused = prove(vec![thin("a", 0, 32), thin("d", 16, 64)], pool).unwrap_err();
    assert!(matches!(refused.fault, LayoutFault::NotProved { .. }), "{refused}");
}

#[test]
fn the_fingerprint_is_about_the_order_of_bytes_only() {
    let of = |layers: Vec<LayerDesc>| prove(layers, 8).unwrap().fingerprint();
    let base = of(vec![layer("a")]);
    let padded = LayerDesc {
        buffer: buffer(0x9000, 1 << 20),
        address: 0x9100,
        block_stride_bytes: 300,
        axes: vec![axis('N', 4, 16), axis('K', 1, 7), axis('H', 2, 80)],
        blocks: 9,
        ..layer("a")
    };
    assert_eq!(of(vec![padded]), base);
    type Change = fn(&mut LayerDesc);
    let changes: &[Change] = &[
        |l| l.axes = vec![axis('N', 4, 32), axis('H', 2, 16)],
        |l| l.axes = vec![axis('H', 2, 64), axis('N', 2, 32)],
        |l| l.axes[0].count = 1,
        |l| l.cell_bytes = 8,
        |l| l.name = "b".into(),
    ];
    for (i, change) in changes.iter().enumerate() {
        let mut changed = layer("a");
        change(&mut changed);
        assert_ne!(of(vec![exact(changed)]), base, "change {i}");
    }
    let pair = |first, second| of(vec![shared(first, 0), shared(second, 128)]);
    assert_ne!(pair("a", "b"), pair("b", "a"));
}

#[test]
fn many_formats_make_a_short_text() {
    let layers: Vec<_> = (0u64..12)
        .map(|i| {
            exact(LayerDesc {
                cell_bytes: 4 + i,
                address: 0x1000 + i * 4096,
                buffer: buffer(0x1000, 1 << 20),
                ..layer(&format!("layer {i}"))
            })
        })
        .collect();
    let text = prove(layers, 8).unwrap().page_format();
    assert!(text.starts_with("H2.N4.4B + H2.N4.5B") && text.ends_with(" + 4 more"), "{text}");
}
