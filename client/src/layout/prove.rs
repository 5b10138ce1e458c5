//! The proof of a whole layout: each layer for itself, then the layers of each group against each other, then the
//! groups against each other.

use std::collections::HashSet;

use tender_kernels::PageMap;
use tender_proto::{GroupIndex, PartIndex};

use super::apart::{self, Budget};
use super::desc::LayerDesc;
use super::footprint::Footprint;
use super::parts::{GroupParts, GroupShard, LocalPart};
use super::refusal::{LayoutFault, LayoutRefusal};
use super::{overlay, scales};

/// A layout in which every content byte of a page is named once, every page of every block id below
/// [`pool_blocks`](Self::pool_blocks) lies in its buffer, no two (layer, block) pages of one group share a byte, no
/// two blocks of different ids share one whatever their groups, and every scale lies in its own cell.
#[derive(Clone, Debug)]
pub struct ProvedLayout {
    layers: Vec<LayerDesc>,
    groups: Vec<GroupParts>,
    pool_blocks: u32,
}

/// Proves a layout, or says which layer cannot be believed and why. Layers keep their order: it is the order of
/// their bytes in a block. Layers of different groups may overlay each other, since a pool gives every block id
/// to one group at a time; blocks of different ids may not.
pub fn prove(mut layers: Vec<LayerDesc>, pool_blocks: u32) -> Result<ProvedLayout, LayoutRefusal> {
    // Block 0 holds no data, so a pool of one block has nothing to copy.
    if layers.is_empty() || pool_blocks < 2 {
        return Err(LayoutRefusal::new("", LayoutFault::Nothing));
    }
    let mut footprints = Vec::with_capacity(layers.len());
    for layer in &mut layers {
        let proved = Footprint::prove(layer, pool_blocks);
        footprints.push(proved.map_err(|fault| LayoutRefusal::new(&layer.name, fault))?);
    }
    check_names(&layers)?;
    let members: Vec<_> = layers.iter().zip(&footprints).collect();
    let mut budget = Budget::new();
    let mut groups = Vec::new();
    for group in 0.. {
        let of_group: Vec<_> =
            members.iter().copied().filter(|(layer, _)| layer.group == GroupIndex(group)).collect();
        if of_group.is_empty() {
            break;
        }
        apart::prove(&of_group, &mut budget)?;
        let of_group: Vec<&LayerDesc> = of_group.iter().map(|(layer, _)| *layer).collect();
        groups.push(GroupParts::new(&of_group, GroupShard::WHOLE)?);
    }
    if let Some(layer) = layers.iter().find(|layer| usize::from(layer.group.0) >= groups.len()) {
        return Err(LayoutRefusal::new(&layer.name, LayoutFault::GroupGap { group: layer.group.0 }));
    }
    overlay::prove(&members, pool_blocks, &mut budget)?;
    for (layer, _) in &members {
        scales::prove(layer, pool_blocks, &members)
            .map_err(|fault| LayoutRefusal::new(&layer.name, fault))?;
    }
    Ok(ProvedLayout { layers, groups, pool_blocks })
}

/// What [`prove_either`] proved.
#[derive(Clone, Debug)]
pub enum Proved {
    /// The description that was wanted.
    Wanted(ProvedLayout),
    /// The other one. Whoever asked says so once, with the reason.
    Fallback {
        /// What was proved.
        layout: ProvedLayout,
        /// Why the wanted one was refused.
        why: LayoutRefusal,
    },
}

/// Proves the description that is wanted, such as of layers interleaved in one buffer, or else the `fallback`, such as
/// of each layer by itself. If both are refused, the fallback's refusal is returned.
pub fn prove_either(
    wanted: Vec<LayerDesc>,
    fallback: Vec<LayerDesc>,
    pool_blocks: u32,
) -> Result<Proved, LayoutRefusal> {
    match prove(wanted, pool_blocks) {
        Ok(layout) => Ok(Proved::Wanted(layout)),
        Err(why) => prove(fallback, pool_blocks).map(|layout| Proved::Fallback { layout, why }),
    }
}

fn check_names(layers: &[LayerDesc]) -> Result<(), LayoutRefusal> {
    let mut names = HashSet::new();
    match layers.iter().find(|layer| !names.insert((layer.group, layer.name.as_str()))) {
        Some(layer) => Err(LayoutRefusal::new(&layer.name, LayoutFault::SameName)),
        None => Ok(()),
    }
}

impl ProvedLayout {
    /// The layers in registration order, their axes in physical order (largest stride first).
    pub fn layers(&self) -> &[LayerDesc] {
        &self.layers
    }
    /// Groups there are; their indexes have no gaps.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }
    /// Blocks of the pool: ids of data are 1 to one less.
    pub fn pool_blocks(&self) -> u32 {
        self.pool_blocks
    }
    /// Says which parts of the chunks this rank holds, one shard per group. Until then every group has one part, all
    /// of it, written by this rank. A group of which this rank holds several parts is split along the heads (axis
    /// `H`): their number in each of its layers must be a multiple of the parts'.
    pub fn shard(mut self, shards: &[GroupShard]) -> Result<Self, LayoutRefusal> {
        if shards.len() != self.groups() {
            let fault = LayoutFault::NotOneShardPerGroup { shards: shards.len(), groups: self.groups() };
            return Err(LayoutRefusal::new("", fault));
        }
        for ((group, parts), &shard) in (0..).zip(&mut self.groups).zip(shards) {
            let members: Vec<_> =
                self.layers.iter().filter(|layer| layer.group == GroupIndex(group)).collect();
            *parts = GroupParts::new(&members, shard)?;
        }
        Ok(self)
    }
    /// The parts of a group's chunks that this rank holds, in the order of their indexes; none for an unknown group.
    pub fn parts(&self, group: GroupIndex) -> &[LocalPart] {
        self.groups.get(usize::from(group.0)).map_or(&[], GroupParts::parts)
    }
    /// Where the bytes of a part of a group's blocks lie; `None` when this rank holds no such part.
    pub fn page_map(&self, group: GroupIndex, part: PartIndex) -> Option<&PageMap> {
        self.parts(group).iter().find(|local| local.part == part).map(LocalPart::page_map)
    }
    /// Packed bytes of one block of a part; `None` when this rank holds no such part.
    pub fn block_bytes(&self, group: GroupIndex, part: PartIndex) -> Option<u64> {
        self.page_map(group, part).map(PageMap::block_bytes)
    }
    /// Local parts among which the heads of a layer's group are split, at least 1.
    pub(super) fn share(&self, layer: &LayerDesc) -> u32 {
        self.parts(layer.group).len().try_into().unwrap_or(1)
    }
}
