//! The model engine's paged KV memory: every slot's bytes are a fingerprint of all tokens up to it, the layer, the
//! head and the position, so that a slot that is wrong, missing or another request's can be told apart.
//!
//! This module is one of the few where unsafe code lives: it lends its memory to the client by address.
#![allow(unsafe_code, reason = "a worker is told the memory's address, as an engine's tensors are")]

use tender_client::layout::{Axis, BufferDesc, LayerDesc};
use tender_proto::GroupIndex;
use tender_proto::shm::Mapping;

/// What never-written slots hold.
pub const POISON: u8 = 0xdd;

/// Sizes of the model and how its pages lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Layers.
    pub layers: u32,
    /// Heads of a layer.
    pub heads: u32,
    /// Token slots of one block.
    pub tokens_per_block: u32,
    /// Blocks of one chunk.
    pub blocks_per_chunk: u32,
    /// Blocks of the pool, the null block included.
    pub pool_blocks: u32,
    /// Contiguous bytes of one slot of one head. At least 8.
    pub cell_bytes: u32,
    /// Unused bytes behind each cell.
    pub padding_bytes: u32,
    /// Order of a page: tokens outside, heads inside; else the other way round.
    pub tokens_first: bool,
    /// All layers of a block lie together; else all blocks of a layer.
    pub packed: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            layers: 3,
            heads: 2,
            tokens_per_block: 4,
            blocks_per_chunk: 2,
            pool_blocks: 128,
            cell_bytes: 16,
            padding_bytes: 0,
            tokens_first: false,
            packed: false,
        }
    }
}

impl Shape {
    fn cell_stride(self) -> u64 {
        u64::from(self.cell_bytes + self.padding_bytes)
    }
    fn page_bytes(self) -> u64 {
        self.cell_stride() * u64::from(self.heads) * u64::from(self.tokens_per_block)
    }
    /// Distance between a layer's pages, and between two layers' first pages.
    fn strides(self) -> (u64, u64) {
        if self.packed {
            (self.page_bytes() * u64::from(self.layers), self.page_bytes())
        } else {
            (self.page_bytes(), self.page_bytes() * u64::from(self.pool_blocks))
        }
    }
    /// Steps along heads and tokens inside a page.
    fn inner_strides(self) -> (u64, u64) {
        if self.tokens_first {
            (self.cell_stride(), self.cell_stride() * u64::from(self.heads))
        } else {
            (self.cell_stride() * u64::from(self.tokens_per_block), self.cell_stride())
        }
    }
    /// Packed bytes of one block: what a part holds of it.
    pub fn block_bytes(self) -> u64 {
        u64::from(self.layers * self.heads * self.tokens_per_block * self.cell_bytes)
    }
    /// Tokens of one chunk.
    pub fn tokens_per_chunk(self) -> usize {
        (self.tokens_per_block * self.blocks_per_chunk) as usize
    }
    /// Every (layer, head, token of the block) in the order of the packed bytes.
    fn packed_order(self) -> impl Iterator<Item = (u32, u32, u32)> {
        (0..self.layers).flat_map(move |layer| {
            let (outer, inner) = if self.tokens_first {
                (self.tokens_per_block, self.heads)
            } else {
                (self.heads, self.tokens_per_block)
            };
            (0..outer).flat_map(move |o| {
                (0..inner).map(move |i| if self.tokens_first { (layer, i, o) } else { (layer, o, i) })
            })
        })
    }
}

/// Fingerprints of every prefix of a token sequence: entry `i` covers tokens `0..=i`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Prefixes(Vec<[u8; 32]>);

impl Prefixes {
    /// Of these tokens.
    pub fn of(tokens: &[u32]) -> Self {
        let mut before = [0; 32];
        Self(
            tokens
                .iter()
                .map(|token| {
                    let mut hasher = blake3::Hasher::new();
                    hasher.update(&before).update(&token.to_le_bytes());
                    before = hasher.finalize().into();
                    before
                })
                .collect(),
        )
    }

    /// What one slot of one head must hold.
    fn cell(&self, shape: Shape, layer: u32, head: u32, position: usize) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new_keyed(&self.0[position]);
        hasher.update(&layer.to_le_bytes()).update(&head.to_le_bytes());
        let mut cell = vec![0; shape.cell_bytes as usize];
        hasher.finalize_xof().fill(&mut cell);
        cell
    }

    /// The part of chunk `index` when all its blocks were written.
    pub fn part(&self, shape: Shape, index: usize) -> Vec<u8> {
        let tokens = shape.tokens_per_block as usize;
        (0..shape.blocks_per_chunk as usize)
            .flat_map(|block| {
                let first = (index * shape.blocks_per_chunk as usize + block) * tokens;
                shape.packed_order().flat_map(move |(layer, head, token)| {
                    self.cell(shape, layer, head, first + token as usize)
                })
            })
            .collect()
    }
}

/// The memory itself.
#[derive(Debug)]
pub struct Memory {
    shape: Shape,
    map: Mapping,
}

impl Memory {
    /// All of it poisoned.
    pub fn new(shape: Shape) -> Self {
        let bytes = shape.page_bytes() * u64::from(shape.layers) * u64::from(shape.pool_blocks);
        let file = tempfile::tempfile_in("/dev/shm").expect("a file on tmpfs");
        file.set_len(bytes).expect("room");
        let memory = Self { shape, map: Mapping::read_write(&file).expect("a mapping") };
        memory.map.copy_in(0, &vec![POISON; memory.map.len()]).expect("inside");
        memory
    }
    /// Its sizes.
    pub fn shape(&self) -> Shape {
        self.shape
    }
    /// What a worker is told about it.
    pub fn describe(&self) -> Vec<LayerDesc> {
        let shape = self.shape;
        let base = self.map.address(0, 0).expect("the start") as u64;
        // SAFETY: the mapping lives as long as the engine, whose worker is dropped before its memory; and the engine
        // uses a block only when no copy of it is under way, which is what the tests are about.
        let buffer = unsafe { BufferDesc::new(base, self.map.len() as u64) };
        let (block_stride, layer_stride) = shape.strides();
        let (head_stride, token_stride) = shape.inner_strides();
        (0..shape.layers)
            .map(|layer| LayerDesc {
                name: format!("layer.{layer}"),
                group: GroupIndex(0),
                address: base + u64::from(layer) * layer_stride,
                buffer,
                blocks: shape.pool_blocks,
                block_stride_bytes: block_stride,
                axes: vec![
                    Axis { name: 'H', count: shape.heads, stride_bytes: head_stride },
                    Axis { name: 'N', count: shape.tokens_per_block, stride_bytes: token_stride },
                ],
                cell_bytes: u64::from(shape.cell_bytes),
                page_bytes: shape.page_bytes(),
                padding_bytes: shape.page_bytes() - shape.block_bytes() / u64::from(shape.layers),
                scales: None,
            })
            .collect()
    }

    fn offset(&self, layer: u32, block: u32, head: u32, token: u32) -> u64 {
        let (block_stride, layer_stride) = self.shape.strides();
        let (head_stride, token_stride) = self.shape.inner_strides();
        u64::from(layer) * layer_stride
            + u64::from(block) * block_stride
            + u64::from(head) * head_stride
            + u64::from(token) * token_stride
    }

    /// Writes the KV of one position, as a forward pass does.
    pub fn write(&self, table: &[u32], prefixes: &Prefixes, position: usize) {
        self.each_cell(table, prefixes, position, |at, cell| self.map.copy_in(at, cell).expect("inside"));
    }
    /// Whether a position holds what attention must read there.
    pub fn is_right(&self, table: &[u32], prefixes: &Prefixes, position: usize) -> bool {
        let mut right = true;
        self.each_cell(table, prefixes, position, |at, expected| {
            let mut found = vec![0; expected.len()];
            self.map.copy_out(at, &mut found).expect("inside");
            right &= found == expected;
        });
        right
    }
    fn each_cell(
        &self,
        table: &[u32],
        prefixes: &Prefixes,
        position: usize,
        mut each: impl FnMut(u64, &[u8]),
    ) {
        let tokens = self.shape.tokens_per_block as usize;
        let block = table[position / tokens];
        let token = u32::try_from(position % tokens).expect("inside a block");
        for layer in 0..self.shape.layers {
            for head in 0..self.shape.heads {
                each(
                    self.offset(layer, block, head, token),
                    &prefixes.cell(self.shape, layer, head, position),
                );
            }
        }
    }

    /// Fills all content cells of a block with one byte, as another request's KV would.
    pub fn fill(&self, block: u32, byte: u8) {
        let cell = vec![byte; self.shape.cell_bytes as usize];
        for (layer, head, token) in self.shape.packed_order() {
            self.map.copy_in(self.offset(layer, block, head, token), &cell).expect("inside");
        }
    }
    /// Whether all content cells of a block hold this byte.
    pub fn is_filled(&self, block: u32, byte: u8) -> bool {
        self.shape.packed_order().all(|(layer, head, token)| {
            let mut found = vec![0; self.shape.cell_bytes as usize];
            self.map.copy_out(self.offset(layer, block, head, token), &mut found).expect("inside");
            found.iter().all(|&b| b == byte)
        })
    }
    /// Whether the padding between cells is untouched.
    pub fn padding_is_untouched(&self) -> bool {
        let padding = self.shape.padding_bytes as usize;
        padding == 0
            || (0..self.shape.pool_blocks).all(|block| {
                self.shape.packed_order().all(|(layer, head, token)| {
                    let at = self.offset(layer, block, head, token) + u64::from(self.shape.cell_bytes);
                    let mut found = vec![0; padding];
                    self.map.copy_out(at, &mut found).expect("inside");
                    found.iter().all(|&b| b == POISON)
                })
            })
    }
}
