//! Dense tensors of several layers in every physical order. For tests and checks, here and in `tests/`.

use tender_proto::GroupIndex;

use super::{Axis, BufferDesc, LayerDesc};

/// The orders of layers, blocks, heads, tokens and content that vLLM knows.
pub const ORDERS: [&str; 6] = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"];

/// Sizes of one tensor of several layers.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Layers in it.
    pub layers: u32,
    /// Blocks of the pool.
    pub blocks: u32,
    /// Heads of a layer.
    pub heads: u32,
    /// Tokens of a block.
    pub tokens: u32,
    /// Content of one head and token.
    pub cell_bytes: u64,
}

impl Sizes {
    /// How often an axis goes round; the bytes of a cell for the innermost.
    pub fn count(self, letter: char) -> u64 {
        match letter {
            'L' => self.layers.into(),
            'B' => self.blocks.into(),
            'H' => self.heads.into(),
            'N' => self.tokens.into(),
            _ => self.cell_bytes,
        }
    }
    /// Bytes of the tensor.
    pub fn total(self) -> u64 {
        "LBHNC".chars().map(|letter| self.count(letter)).product()
    }
    /// Bytes from one step to the next of an axis, in a dense tensor of this order.
    pub fn stride(self, order: &str, letter: char) -> u64 {
        let inner = order.split_once(letter).map_or("", |(_, inner)| inner);
        inner.chars().map(|inner| self.count(inner)).product()
    }
    /// All layers of a dense tensor of this order, which begins where the buffer does.
    pub fn describe(self, order: &str, group: u16, buffer: BufferDesc) -> Vec<LayerDesc> {
        let axis = |name, count| Axis { name, count, stride_bytes: self.stride(order, name) };
        let layer = |layer| LayerDesc {
            name: format!("{group}.{layer}"),
            group: GroupIndex(group),
            address: buffer.address() + u64::from(layer) * self.stride(order, 'L'),
            buffer,
            blocks: self.blocks,
            block_stride_bytes: self.stride(order, 'B'),
            axes: vec![axis('N', self.tokens), axis('H', self.heads)],
            cell_bytes: self.cell_bytes,
            page_bytes: u64::from(self.heads) * u64::from(self.tokens) * self.cell_bytes,
            padding_bytes: 0,
            scales: None,
        };
        (0..self.layers).map(layer).collect()
    }
}
