//! What an engine says about its tensors, before anything of it is believed.
//!
//! This module is one of the few where unsafe code lives: memory that is known by its address enters here.
#![allow(unsafe_code, reason = "naming memory by address is a promise that only the caller can make")]

use tender_proto::GroupIndex;

/// Memory that layers lie in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferDesc {
    address: u64,
    bytes: u64,
}

impl BufferDesc {
    /// Names `bytes` of memory from `address` on. Everything else about a layout is proved; that this memory is
    /// there cannot be.
    ///
    /// # Safety
    /// The range is mapped, readable and writable for as long as copies are made through a layout that names it,
    /// and the blocks named to a copy are used by nobody else meanwhile. A description that is only proved and
    /// never copied through may name anything.
    pub unsafe fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes }
    }
    /// Address of its first byte.
    pub fn address(self) -> u64 {
        self.address
    }
    /// Its length.
    pub fn bytes(self) -> u64 {
        self.bytes
    }
}

/// One axis of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// What it counts, as a capital letter: `K` keys and values, `S` pieces of a block, `H` heads, `N` tokens, `C`
    /// content. Ranks split along `H`; the other letters only tell layouts apart.
    pub name: char,
    /// Steps along it.
    pub count: u32,
    /// From one step to the next.
    pub stride_bytes: u64,
}

/// Where one layer's pages lie and what a page looks like inside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerDesc {
    /// The engine's name of the layer; unique within a group.
    pub name: String,
    /// The group whose block ids address it.
    pub group: GroupIndex,
    /// Address of the first content byte of block 0's page.
    pub address: u64,
    /// The memory that all pages must lie in.
    pub buffer: BufferDesc,
    /// Blocks the tensor has.
    pub blocks: u32,
    /// From one block's page to the next block's.
    pub block_stride_bytes: u64,
    /// The page's axes without the block axis, in any order.
    pub axes: Vec<Axis>,
    /// Contiguous bytes at every position of the axes.
    pub cell_bytes: u64,
    /// What the engine says that one block of this layer occupies, padding included.
    pub page_bytes: u64,
    /// The part of it that holds no content.
    pub padding_bytes: u64,
    /// The engine's own view of the quantisation scales that lie in the cells; `None` where there are none.
    pub scales: Option<ScaleDesc>,
}

impl LayerDesc {
    /// Bytes of one block's page that mean something: all cells. `None` if they do not fit 64 bits.
    pub fn content_bytes(&self) -> Option<u64> {
        self.axes.iter().try_fold(self.cell_bytes, |bytes, axis| bytes.checked_mul(u64::from(axis.count)))
    }
}

/// Where an engine looks for the scales of quantised cells. The gate proves that each lies in its own cell, so that
/// data and scale move as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScaleDesc {
    /// Address of the scale of block 0, step 0 of every axis.
    pub address: u64,
    /// From one block's scales to the next block's.
    pub block_stride_bytes: u64,
    /// The axes of the page over which there is one scale each: the layer's, by letter, with the strides that the
    /// engine uses for scales.
    pub axes: Vec<Axis>,
    /// Bytes of one scale.
    pub bytes: u64,
}
