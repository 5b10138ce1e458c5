//! Layouts as engines have them: all orders of a tensor, halves, padding, scales in the cells, latents, states.

use tender_client::layout::dense::{ORDERS, Sizes};
use tender_client::layout::{Axis, BufferDesc, LayerDesc, ScaleDesc, prove};
use tender_kernels::PageMap;
use tender_proto::{GroupIndex, PartIndex};

use super::host::buffer;

type Describe = Box<dyn Fn(BufferDesc) -> Vec<LayerDesc> + Send + Sync>;

/// One layout over a buffer, wherever that lies.
pub struct Case {
    /// Says what it is.
    pub name: String,
    /// Blocks of the pool.
    pub pool: u32,
    /// Bytes of the buffer.
    pub bytes: usize,
    describe: Describe,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Case {
    /// The proved layout's map, its buffer at this address.
    ///
    /// # Panics
    /// If the layout is refused: the table has only good ones.
    pub fn map(&self, address: u64) -> PageMap {
        let layers = (self.describe)(buffer(address, self.bytes as u64));
        let layout = prove(layers, self.pool).unwrap_or_else(|refusal| panic!("{}: {refusal}", self.name));
        layout.page_map(GroupIndex(0), PartIndex(0)).expect("one group").clone()
    }
}

fn axis(name: char, count: u32, stride_bytes: u64) -> Axis {
    Axis { name, count, stride_bytes }
}

fn layer(
    name: String,
    buffer: BufferDesc,
    offset: u64,
    blocks: u32,
    block_stride_bytes: u64,
    axes: &[Axis],
    cell_bytes: u64,
) -> LayerDesc {
    let page_bytes = axes.iter().map(|axis| u64::from(axis.count)).product::<u64>() * cell_bytes;
    LayerDesc {
        name,
        group: GroupIndex(0),
        address: buffer.address() + offset,
        buffer,
        blocks,
        block_stride_bytes,
        axes: axes.to_vec(),
        cell_bytes,
        page_bytes,
        padding_bytes: 0,
        scales: None,
    }
}

/// Bytes of a scale in a cell.
const SCALE_BYTES: u64 = 4;

/// Keys, their scale, values, their scale, in every cell.
fn quantised(sizes: Sizes, order: &str, buffer: BufferDesc) -> Vec<LayerDesc> {
    let cell = sizes.cell_bytes / 2;
    let halves = |layer: LayerDesc| {
        let axes = [&layer.axes[..], &[axis('K', 2, cell)]].concat();
        let scales = ScaleDesc {
            address: layer.address + cell - SCALE_BYTES,
            block_stride_bytes: layer.block_stride_bytes,
            axes: axes.clone(),
            bytes: SCALE_BYTES,
        };
        LayerDesc { axes, cell_bytes: cell, scales: Some(scales), ..layer }
    };
    sizes.describe(order, 0, buffer).into_iter().map(halves).collect()
}

/// All layouts.
pub fn cases() -> Vec<Case> {
    let mut all = orders();
    all.extend(pages());
    all.extend(latents_and_states());
    all
}

fn case(
    name: impl Into<String>,
    pool: u32,
    bytes: u64,
    describe: impl Fn(BufferDesc) -> Vec<LayerDesc> + Send + Sync + 'static,
) -> Case {
    let bytes = usize::try_from(bytes).expect("64 bits");
    Case { name: name.into(), pool, bytes, describe: Box::new(describe) }
}

/// Every order with cells that allow the widest accesses, narrower ones, and single bytes; with scales; and large.
fn orders() -> Vec<Case> {
    let mut all = Vec::new();
    for order in ORDERS {
        for cell_bytes in [256, 24, 12, 6, 5, 1] {
            let sizes = Sizes { layers: 3, blocks: 9, heads: 2, tokens: 4, cell_bytes };
            let name = format!("{order}, cells of {cell_bytes} bytes");
            all.push(case(name, sizes.blocks, sizes.total(), move |at| sizes.describe(order, 0, at)));
        }
        for data in [32, 128, 64] {
            let sizes =
                Sizes { layers: 3, blocks: 7, heads: 2, tokens: 4, cell_bytes: 2 * (data + SCALE_BYTES) };
            let name = format!("{order}, {data} bytes with a scale behind them");
            all.push(case(name, sizes.blocks, sizes.total(), move |at| quantised(sizes, order, at)));
        }
        let large = Sizes { layers: 2, blocks: 5, heads: 4, tokens: 16, cell_bytes: 256 };
        let name = format!("{order}, pages of 16 KiB");
        all.push(case(name, large.blocks, large.total(), move |at| large.describe(order, 0, at)));
    }
    all
}

/// Halves, padding, blocks inside blocks, one layer alone, many unequal ones, and pages around a tile's size.
fn pages() -> Vec<Case> {
    let mut all = Vec::new();
    let page = [axis('H', 2, 4 * 16), axis('N', 4, 16)];
    all.push(case("keys and values in halves", 6, 2 * 6 * 128, move |at| {
        let axes = [axis('K', 2, 6 * 128), page[0], page[1]];
        vec![layer("a".into(), at, 0, 6, 128, &axes, 16)]
    }));
    all.push(case("halves of interleaved layers", 6, 2 * 6 * 256, move |at| {
        let axes = [axis('K', 2, 6 * 256), page[0], page[1]];
        [("a", 0), ("b", 128)].map(|(name, from)| layer(name.into(), at, from, 6, 256, &axes, 16)).into()
    }));
    all.push(case("pages of 48 bytes in 64", 8, 8 * 128, |at| {
        let axes = [axis('H', 2, 24), axis('N', 3, 8)];
        let of = |(name, from): (&str, u64)| LayerDesc {
            page_bytes: 64,
            padding_bytes: 16,
            ..layer(name.into(), at, from, 8, 128, &axes, 8)
        };
        [("a", 0), ("b", 64)].map(of).into()
    }));
    all.push(case("kernel blocks inside a block", 6, 6 * 256, move |at| {
        let axes = [axis('S', 2, 128), page[0], page[1]];
        vec![layer("a".into(), at, 0, 6, 256, &axes, 16)]
    }));
    all.push(case("heads outermost", 6, 3 * 6 * 40, |at| {
        vec![layer("a".into(), at, 0, 6, 40, &[axis('H', 3, 6 * 40), axis('N', 2, 20)], 20)]
    }));
    for cell in [4095, 4096, 4097, 4112, 12289, 65536 + 48] {
        all.push(case(format!("pages of {cell} bytes in steps of 3"), 5, 3 * 5 * (cell + 32), move |at| {
            let step = cell + 32;
            (0..3)
                .map(|nth| layer(nth.to_string(), at, nth * step, 5, 3 * step, &[], cell))
                .map(padded)
                .collect()
        }));
    }
    for run in [2047u64, 2048, 2049, 2052, 2056, 5008] {
        let (page, gap) = (3 * (run + 24), 24);
        all.push(case(format!("three runs of {run} bytes in each page"), 5, 2 * 5 * page, move |at| {
            let of = |nth: u64| LayerDesc {
                page_bytes: page,
                padding_bytes: 3 * gap,
                ..layer(nth.to_string(), at, nth * page, 5, 2 * page, &[axis('H', 3, run + gap)], run)
            };
            (0..2).map(of).collect()
        }));
    }
    // Sizes 16, 32, .. of 100 layers: no two have the same tiles behind them.
    all.push(case("a hundred unequal layers", 4, 4 * 100 * 8192, |at| {
        (0..100)
            .map(|nth| layer(nth.to_string(), at, nth * 8192, 4, 100 * 8192, &[], 16 + 80 * nth))
            .map(padded)
            .collect()
    }));
    all
}

/// A gap behind its content belongs to the page, so that layers do not merge.
fn padded(layer: LayerDesc) -> LayerDesc {
    LayerDesc { page_bytes: layer.page_bytes + 16, padding_bytes: 16, ..layer }
}

fn latents_and_states() -> Vec<Case> {
    let mut all = Vec::new();
    for (latent, keys) in [(1152, 132), (656, 132), (18, 5)] {
        let tokens = 16u32;
        let (row, side) = (u64::from(tokens) * latent, u64::from(tokens) * keys);
        let name = format!("latents of {latent} bytes and keys of {keys} beside them");
        all.push(case(name, 6, 6 * (row + side), move |at| {
            let of = |cell| [axis('N', tokens, cell)];
            vec![
                layer("mla".into(), at, 0, 6, row, &of(latent), latent),
                layer("mla.indexer".into(), at, 6 * row, 6, side, &of(keys), keys),
            ]
        }));
    }
    all.push(case("recurrent state of two tensors", 6, 6 * 80, |at| {
        let conv = layer("mamba.0".into(), at, 0, 6, 80, &[axis('P', 3, 10)], 10);
        let axes = [axis('H', 2, 16), axis('P', 4, 4)];
        let state = layer("mamba.1".into(), at, 30, 6, 80, &axes, 4);
        vec![conv, LayerDesc { page_bytes: 50, padding_bytes: 18, ..state }]
    }));
    all
}
