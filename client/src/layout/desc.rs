//! What an engine says about its tensors, before anything of it is believed.

use tender_proto::GroupIndex;

/// Memory that layers lie in.
///
/// Whoever fills this in vouches that the range is mapped, readable and writable for as long as copies are made
/// through a layout that names it. Everything else about a layout is proved; this cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferDesc {
    /// Address of its first byte.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
}

/// One axis of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// What it counts, as a capital letter: `K` keys and values, `H` heads, `N` tokens, `C` content.
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
}
